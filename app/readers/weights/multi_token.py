"""Multi-token prediction: layers behind the decoder that draft further tokens.

Transformers builds none of these, so the shapes are those that published checkpoints hold. Their
parameter totals on the Hub are met exactly by these rules: DeepSeek-R1 684,489,845,504 with
13,463,426,304 here; GLM-4.5 358,337,791,296; GLM-5 753,864,139,008; Qwen3.5-9B 9,653,104,368.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.weight_lines import Component, Cut, Kind, Part, Place, WeightBlock
from app.readers.weights.decoder import Decoder
from app.readers.weights.fields import MAX_LAYERS, Fields
from app.readers.weights.hybrid import QWEN_KIND
from app.readers.weights.latent import hyper_head, indexer_kind
from app.readers.weights.lines import Lines, linear, norm, table
from app.readers.weights.nemotron_h import pattern_kind
from app.readers.weights.parts import hidden

Template = Callable[[Fields, int], int]


def last_layer(_fields: Fields, layers: int) -> int:
    """Return the last layer's index."""
    return layers - 1


def _last_of(kind: Callable[[Fields, int], str], word: str) -> Template:
    """Return a rule: the last layer of a kind, since drafts take one however the model ends."""

    def index(fields: Fields, layers: int) -> int:
        return next(
            (layer for layer in reversed(range(layers)) if kind(fields, layer) == word), layers - 1
        )

    return index


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """How a family's draft layers look: which layer they are like, and what joins them.

    `copies`: the checkpoint stores the embedding and the output projection once more.
    """

    number: str
    template: Template = last_layer
    prefix: str = "model.layers.{layer}"
    follows: bool = True
    copies: bool = False
    join: str = "eh_proj"
    before: tuple[str, str] = ("enorm", "hnorm")
    after: str = "shared_head.norm"

    def blocks(self, fields: Fields, decoder: Decoder) -> list[WeightBlock]:
        """Return the draft layers; none when the config names none."""
        number = fields.size_or_none(self.number, high=MAX_LAYERS) or 0
        layers = decoder.count(fields)
        if not number or not layers:
            return []
        like = self.template(fields, layers)
        start = layers if self.follows else 0
        lines = (
            *self._joins(fields),
            *(self._copies(fields) if self.copies else ()),
            *(line for part in decoder.parts for line in part.lines(fields, like)),
        )
        return [
            WeightBlock(part=Part.MULTI_TOKEN, place=Place.LAYERS, lines=lines,
                        layers=tuple(range(start, start + number)), prefix=self.prefix)
        ]  # fmt: skip

    def _joins(self, fields: Fields) -> Lines:
        width = hidden(fields)
        first, second = self.before
        return (
            *linear(self.join, Component.OTHER, width, 2 * width, kind=Kind.GATE),
            *norm(first, width),
            *norm(second, width),
            *norm(self.after, width),
        )

    def _copies(self, fields: Fields) -> Lines:
        rows, width = fields.size("vocab_size"), hidden(fields)
        return (
            *table("embed_tokens.weight", rows, width, cut=Cut.VOCABULARY),
            *linear("shared_head.head", Component.OUTPUT, rows, width, cut=Cut.VOCABULARY),
        )


@dataclass(frozen=True, slots=True)
class NemotronDraft:
    """Nemotron-H's draft: an attention and an expert layer for each step, joined once.

    NVIDIA-Nemotron-3-Ultra's 560,524,578,816 elements are met with it.
    """

    def blocks(self, fields: Fields, decoder: Decoder) -> list[WeightBlock]:
        """Return the draft layers; none when the config names none."""
        number = fields.size_or_none("num_nextn_predict_layers", high=MAX_LAYERS) or 0
        layers = decoder.count(fields)
        kinds = _draft_kinds(fields)
        if not number or not layers:
            return []
        lines: Lines = ()
        for kind in kinds:
            like = _last_of(pattern_kind, kind)(fields, layers)
            lines += tuple(line for part in decoder.parts for line in part.lines(fields, like))
        width = hidden(fields)
        lines += (
            *linear("eh_proj", Component.OTHER, width, 2 * width, kind=Kind.GATE),
            *norm("enorm", width),
            *norm("hnorm", width),
            *norm("final_layernorm", width),
        )
        return [
            WeightBlock(part=Part.MULTI_TOKEN, place=Place.LAYERS, lines=lines,
                        layers=tuple(range(number)), prefix="mtp.layers.{layer}")
        ]  # fmt: skip


def _draft_kinds(fields: Fields) -> tuple[str, ...]:
    """Return the kinds of a draft step's layers: a list, a pattern, else attention and experts."""
    words = fields.words("mtp_layers_block_type")
    if words is not None:
        return tuple("full" if word in {"attention", "full_attention"} else word for word in words)
    pattern = fields.word("mtp_hybrid_override_pattern") or "*E"
    return tuple("full" if letter == "*" else "moe" for letter in pattern)


@dataclass(frozen=True, slots=True)
class V4Draft:
    """DeepSeek V4's draft: a layer that compresses nothing, joined by two matrices.

    DeepSeek-V4-Flash's 290,944,616,402 elements are met with it.
    """

    def blocks(self, fields: Fields, decoder: Decoder) -> list[WeightBlock]:
        """Return the draft layers; none when the config names none."""
        number = fields.size_or_none("num_nextn_predict_layers", high=MAX_LAYERS) or 0
        if not number:
            return []
        own = Fields(
            raw={**fields.raw, "layer_types": ["sliding_attention"], "num_hash_layers": 0},
            model_type=fields.model_type, path=fields.path, used=fields.used,
        )  # fmt: skip
        width = hidden(fields)
        lines = (
            *(line for part in decoder.parts for line in part.lines(own, 0)),
            *linear("e_proj", Component.OTHER, width, width),
            *linear("h_proj", Component.OTHER, width, width),
            *norm("enorm", width),
            *norm("hnorm", width),
            *norm("norm", width),
            *hyper_head(fields),
        )
        return [
            WeightBlock(part=Part.MULTI_TOKEN, place=Place.LAYERS, lines=lines,
                        layers=tuple(range(number)), prefix="mtp.{layer}")
        ]  # fmt: skip


_NEXTN = Draft(number="num_nextn_predict_layers", copies=True)
_QWEN = Draft(
    number="mtp_num_hidden_layers", template=_last_of(QWEN_KIND, "full"),
    prefix="mtp.layers.{layer}", follows=False, join="fc",
    before=("pre_fc_norm_embedding", "pre_fc_norm_hidden"), after="norm",
)  # fmt: skip

DRAFTS: dict[str, Draft | NemotronDraft | V4Draft] = {
    "deepseek_v4": V4Draft(),
    "mimo": Draft(
        number="num_nextn_predict_layers", prefix="model.mtp_layers.{layer}", follows=False,
        join="input_proj", before=("token_layernorm", "hidden_layernorm"), after="final_layernorm",
    ),
    "deepseek_v3": _NEXTN,
    "kimi_k2": _NEXTN,
    "deepseek_v32": _NEXTN,
    "glm4_moe": _NEXTN,
    "glm4_moe_lite": _NEXTN,
    "glm_moe_dsa": Draft(
        number="num_nextn_predict_layers", template=_last_of(indexer_kind, "full")
    ),
    "exaone4_5_text": Draft(
        number="num_nextn_predict_layers", prefix="mtp.layers.{layer}", follows=False, join="fc",
        before=("pre_fc_norm_embedding", "pre_fc_norm_hidden"), after="norm",
    ),
    "qwen3_5_text": _QWEN,
    "qwen3_5_moe_text": _QWEN,
    "nemotron_h": NemotronDraft(),
}  # fmt: skip


def draft_blocks(fields: Fields, decoder: Decoder) -> list[WeightBlock]:
    """Return the multi-token blocks of a decoder's family, if it has any."""
    draft = DRAFTS.get(fields.model_type)
    return [] if draft is None else draft.blocks(fields, decoder)

"""Nemotron-H: one mixer a layer, by a list of words or a pattern of letters.

Shapes are those of models/nemotron_h of Transformers 5.24.0, and were compared with classes built
without weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Conflict, Missing, OutOfRange, shown
from app.domain.weight_lines import Component
from app.readers.weights.experts import Experts, shared_own
from app.readers.weights.fields import MAX_LAYERS, Fields
from app.readers.weights.layer_types import always, layer_kind
from app.readers.weights.lines import Lines, linear
from app.readers.weights.parts import Attention, FeedForward, Switch, Uniform, hidden
from app.readers.weights.recurrent import Mamba2, head_by_head

_LETTERS = {"M": "linear", "E": "moe", "*": "full", "-": "mlp"}


def _pattern(fields: Fields) -> str:
    """Return the letters of `hybrid_override_pattern`.

    Raises:
        Missing: when the file has none.
        OutOfRange: for more letters than any model has layers.

    """
    pattern = fields.word("hybrid_override_pattern")
    if pattern is None:
        raise Missing("{field} is needed: it says which layers are Mamba, attention or experts",
                      field=fields.at("hybrid_override_pattern"))  # fmt: skip
    if len(pattern) > MAX_LAYERS:
        raise OutOfRange("{field} has {value} letters; at most {high} are read",
                         field=fields.at("hybrid_override_pattern"), value=len(pattern),
                         high=MAX_LAYERS)  # fmt: skip
    return pattern


def nemotron_layers(fields: Fields) -> int:
    """Return the number of layers: the pattern's length, whatever `num_hidden_layers` says."""
    words = fields.words("layers_block_type")
    return len(_pattern(fields)) if words is None else len(words)


_NEMOTRON_WORDS = layer_kind("layers_block_type", always(""), nemotron_layers)


def pattern_kind(fields: Fields, layer: int) -> str:
    """Nemotron-H: `layers_block_type`, else the letters of `hybrid_override_pattern`.

    Raises:
        Conflict: for a letter that stands for nothing.

    """
    if fields.says("layers_block_type"):
        return _NEMOTRON_WORDS(fields, layer)
    letter = _pattern(fields)[layer]
    if letter not in _LETTERS:
        raise Conflict("{field} has {value} for layer {layer}",
                       field=fields.at("hybrid_override_pattern"), value=shown(letter),
                       layer=layer)  # fmt: skip
    return _LETTERS[letter]


@dataclass(frozen=True, slots=True)
class NemotronExperts(Uniform):
    """Nemotron-H's experts: two matrices each, between a latent width when the config has one."""

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return router, experts, shared expert and latent projections."""
        latent = fields.size_or_none("moe_latent_size", low=1)
        experts = Experts(
            at="mixer", number="n_routed_experts", gated=False,
            names=("up_proj", "down_proj"), shared_names=("up_proj", "down_proj"),
            correction="gate.e_score_correction_bias",
            shared=shared_own("moe_shared_expert_intermediate_size"),
            latent=(lambda _fields: latent) if latent else None,
        )  # fmt: skip
        lines = experts.lines(fields, layer)
        if latent:
            bias = fields.flag("mlp_bias")
            lines += linear("mixer.fc1_latent_proj", Component.EXPERTS, latent, hidden(fields),
                            bias=bias)  # fmt: skip
            lines += linear("mixer.fc2_latent_proj", Component.EXPERTS, hidden(fields), latent,
                            bias=bias)  # fmt: skip
        return lines


NEMOTRON_MAMBA = Mamba2(at="mixer", inner=head_by_head("mamba_num_heads", "mamba_head_dim"),
                        heads="mamba_num_heads", groups="n_groups", state="ssm_state_size",
                        kernel="conv_kernel", conv_bias="use_conv_bias",
                        proj_bias="use_bias")  # fmt: skip
NEMOTRON_MIXER = Switch(rule=pattern_kind, parts={
    "linear": (NEMOTRON_MAMBA,),
    "full": (Attention(at="mixer", qkv_bias="attention_bias", out_bias="attention_bias"),),
    "mlp": (FeedForward(at="mixer", gated=False, bias="mlp_bias",
                        names=("up_proj", "down_proj")),),
    "moe": (NemotronExperts(),),
})  # fmt: skip

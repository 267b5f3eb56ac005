"""Decoders with something beside equal keys and values in every layer.

Local layers, an encoder's positions, virtual prompts, hidden states in place of keys. Rules:
models/<type>/modeling_<type>.py of Transformers 5.24.
"""

from __future__ import annotations

from app.domain.errors import Unsupported
from app.domain.state import MAX_LAYERS, CrossAttention, FullAttention, Layer
from app.readers.hf_config.attention import HeadShape, grouped_split, head_width, multi_head
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import sliding, window_size

_BERTS = (
    "bert", "bert-generation", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
    "rembert", "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta", "xlm-roberta-xl",
    "roc_bert", "xmod", "big_bird",
)  # fmt: skip


def _gpt_neo(fields: Fields) -> list[Layer]:
    """Return GPT-Neo's layers: "local" ones see `window_size` positions.

    The model needs no more than the window; Transformers keeps all positions in these layers too.
    """
    count = fields.layers()
    shape = multi_head(fields)
    kinds = fields.words("attention_layers", length=count) or _expanded(fields, count)
    made = {"global": Layer(states=(shape.full(),))}
    if "local" in kinds:
        window = fields.integer("window_size")
        made["local"] = Layer(states=(sliding(shape, window),))
    fields.seen("attention_types", "window_size")
    for index, kind in enumerate(kinds):
        if kind not in made:
            raise Unsupported(
                "{field} is neither global nor local", field=fields.at("attention_layers", index)
            )
    return [made[kind] for kind in kinds]


def _expanded(fields: Fields, count: int) -> list[str]:
    """Return `attention_types` ([[["global", "local"], 12]]) written out."""
    groups = fields.items("attention_types")
    if groups is None:
        fields.guess("attention_types")
        fields.assume_default("attention_types", [[["global", "local"], count // 2]])
        return [("global", "local")[index % 2] for index in range(count)]
    kinds: list[str] = []
    for group in groups:
        match group:
            case [[*names], int(times)] if 0 <= times <= MAX_LAYERS and len(names) <= MAX_LAYERS:
                # One round more than the layers have room for is enough to see that they differ.
                kinds += [str(name) for name in names] * min(times, count // max(len(names), 1) + 1)
            case _:
                raise Unsupported(
                    "{field} must be pairs of names and a count", field=fields.at("attention_types")
                )
        if len(kinds) > count:
            break
    if len(kinds) != count:
        raise Unsupported(
            "{field} does not name {count} layers", field=fields.at("attention_types"), count=count
        )
    return kinds


def _bert(fields: Fields) -> list[Layer]:
    """Return the layers of a BERT-like decoder; as an encoder it keeps nothing between tokens."""
    if not fields.flag("is_decoder"):
        raise Unsupported(
            "{field} is not true: {model_type} is then an encoder, which keeps nothing "
            "from token to token",
            field=fields.at("is_decoder"),
            model_type=fields.model_type,
        )
    shape = multi_head(fields)
    states: tuple[FullAttention | CrossAttention, ...] = (shape.full(),)
    if fields.flag("add_cross_attention"):
        states = (*states, cross(fields, shape))
    return [Layer(states=states)] * fields.layers()


def cross(fields: Fields, shape: HeadShape) -> CrossAttention:
    """Return what a decoder layer keeps of the encoder's positions.

    Raises:
        Missing: when the caller did not say how long the encoder's input is.

    """
    if fields.encoder_tokens is None:
        error = fields.missing("encoder_tokens")
        error.field = ("encoder_tokens",)
        raise error
    return CrossAttention(
        kv_heads=shape.kv_heads,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        encoder_tokens=fields.encoder_tokens,
    )


def _cpmant(fields: Fields) -> list[Layer]:
    """Return CPM-Ant's layers: beside the sequence, `prompt_length` virtual positions stay."""
    width = head_width(fields, "dim_head")
    shape = HeadShape(kv_heads=fields.heads(), k_dim=width, v_dim=width)
    prompt = CrossAttention(
        kv_heads=shape.kv_heads,
        k_dim=width,
        v_dim=width,
        encoder_tokens=fields.integer("prompt_length", low=0, high=1_000_000),
    )
    fields.note(
        "virtual_prompt",
        "{count} virtual positions are kept beside the sequence's own",
        count=prompt.encoder_tokens,
    )
    return [Layer(states=(shape.full(), prompt))] * fields.layers()


def _xlnet(fields: Fields) -> list[Layer]:
    """Return XLNet's layers: the hidden state of each position, one vector, no key and value."""
    width = fields.dim("hidden_size")
    return [Layer(states=(FullAttention(kv_heads=1, k_dim=width, v_dim=0),))] * fields.layers()


def _unlimited_ocr(fields: Fields) -> list[Layer]:
    """Return layers that keep the whole prompt and a window of what was decoded.

    The prompt's length is no part of a config, so every position is counted.
    """
    fields.seen("layer_types", "sliding_window")
    shape = grouped_split(fields)
    if window_size(fields) is not None:
        fields.assume(
            "prompt_kept",
            "{model_type} keeps the whole prompt and a window of the decoded positions; all "
            "positions are counted, as if decoding stayed within the window",
            model_type=fields.model_type,
        )
    return [Layer(states=(shape.full(),))] * fields.layers()


FAMILIES: tuple[Family, ...] = (
    Family(
        name="gpt_neo",
        model_types=("gpt_neo",),
        layers=_gpt_neo,
        source="Transformers 5.24 models/gpt_neo/modeling_gpt_neo.py",
    ),
    Family(
        name="bert",
        model_types=_BERTS,
        layers=_bert,
        reads=frozenset({"attention_type"}),
        source="Transformers 5.24 models/bert/modeling_bert.py",
    ),
    Family(
        name="cpmant",
        model_types=("cpmant",),
        layers=_cpmant,
        source="Transformers 5.24 models/cpmant/modeling_cpmant.py",
    ),
    Family(
        name="xlnet",
        model_types=("xlnet",),
        layers=_xlnet,
        reads=frozenset({"mem_len", "attn_type", "d_head"}),
        source="https://arxiv.org/abs/1906.08237, Transformers 5.24 models/xlnet",
    ),
    Family(
        name="unlimited_ocr",
        model_types=("unlimited_ocr_text",),
        layers=_unlimited_ocr,
        source="Transformers 5.24 models/unlimited_ocr",
    ),
)

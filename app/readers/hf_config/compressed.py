"""DeepSeek-V4: a window of raw positions, and beside it one entry for each so many tokens.

Keys and values are one vector of `head_dim`, of which the last part is rotated. Every layer keeps
a window of them. Compressed layers pool each group of tokens (4, or 128) into one more entry. Those
of 4 keep an index key with each entry, overlap with the group before, and choose among entries.
Until a group is complete, its tokens' projections and gates wait. DeepSeek-V4 report, section 2.3;
Transformers 5.24 models/deepseek_v4/modeling_deepseek_v4.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, Unsupported, shown
from app.domain.state import (
    MAX_TOKENS,
    ChunkedAttention,
    LatentAttention,
    Layer,
    Recurrent,
    State,
    StateTensor,
)
from app.readers.hf_config.draft import draft_count
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields

WINDOW = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"

# `compress_ratios` of older files, and what layer_types calls them.
_BY_RATIO: Mapping[int, str] = {0: WINDOW, 4: SPARSE, 128: HEAVY}
_RATES: Mapping[str, int] = {SPARSE: 4, HEAVY: 128}
_ROPE_DIM = 64


def _layers(fields: Fields) -> list[Layer]:
    return _all_layers(fields)[: fields.layers()]


def _draft(fields: Fields) -> list[Layer]:
    """Return the draft layers: `compress_ratios` runs on into them."""
    count = fields.layers()
    every = _all_layers(fields)
    wanted = draft_count(fields)
    own = every[count : count + wanted]
    return own + [every[-1]] * (wanted - len(own))


def _all_layers(fields: Fields) -> list[Layer]:
    kinds = _kinds(fields, fields.layers())
    made = {kind: _layer(fields, kind) for kind in set(kinds)}
    return [made[kind] for kind in kinds]


def _kinds(fields: Fields, layers: int) -> list[str]:
    """Return the kind of each layer, and of the draft layers that the list may run on into."""
    names = fields.words("layer_types")
    ratios = fields.integers("compress_ratios", high=MAX_TOKENS)
    if names is not None:
        _covers(fields, "layer_types", names, layers)
        return [_known(fields, "layer_types", name) for name in names]
    if ratios is not None:
        _covers(fields, "compress_ratios", ratios, layers)
        return [_known(fields, "compress_ratios", _BY_RATIO.get(ratio, ratio)) for ratio in ratios]
    fields.assume(
        "layer_pattern",
        "the file does not say which layers compress; {model_type} compresses by 128 in the first "
        "two, then alternates 128 and 4",
        model_type=fields.model_type,
    )
    rest = [SPARSE if index % 2 else HEAVY for index in range(max(layers - 2, 0))]
    return [HEAVY] * min(layers, 2) + rest


def _covers(fields: Fields, name: str, given: list[str] | list[int], layers: int) -> None:
    if len(given) < layers:
        raise Conflict(
            "{field} has {count} entries for {length} layers",
            field=fields.at(name),
            count=len(given),
            length=layers,
        )


def _known(fields: Fields, name: str, kind: object) -> str:
    if kind not in (WINDOW, SPARSE, HEAVY):
        raise Unsupported(
            "{field} names {value}, a compression that {model_type} is not known to have",
            field=fields.at(name),
            value=shown(kind),
            model_type=fields.model_type,
        )
    return str(kind)


def _layer(fields: Fields, kind: str) -> Layer:
    width = fields.dim("head_dim")
    rope = fields.integer("qk_rope_head_dim", low=0, high=width, otherwise=min(_ROPE_DIM, width))
    window = fields.integer("sliding_window", high=MAX_TOKENS)
    raw = LatentAttention(latent_dim=width - rope, rope_dim=rope, window=window)
    if kind == WINDOW:
        return Layer(states=(raw,))
    index = fields.dim("index_head_dim") if kind == SPARSE else 0
    rate = _rate(fields, kind)
    entries = LatentAttention(
        latent_dim=width - rope, rope_dim=rope, index_dim=index, tokens_per_entry=rate
    )
    # An overlapping group projects two series of each, for itself and for the next group.
    waiting = (width + index) * (2 if kind == SPARSE else 1)
    states: tuple[State, ...] = (
        raw,
        entries,
        ChunkedAttention(kv_heads=1, k_dim=waiting, v_dim=waiting, chunk=rate),
    )
    if kind == SPARSE:
        states = (*states, _overlap(fields, rate, width + index))
    return Layer(states=states)


def _rate(fields: Fields, kind: str) -> int:
    rates = fields.part("compress_rates")
    short = "compress_rate_csa" if kind == SPARSE else "compress_rate_hca"
    given = fields.integer_or_none(short, high=MAX_TOKENS)
    if given is None and rates is not None:
        given = rates.integer_or_none(kind, high=MAX_TOKENS)
    return _RATES[kind] if given is None else given


def _overlap(fields: Fields, rate: int, width: int) -> Recurrent:
    """Return what the last complete group leaves for the next: projections, and gates in fp32."""
    return Recurrent(
        tensors=(
            StateTensor(name="overlap_kv", shape=(rate, width), dtype=fields.model_dtype()),
            StateTensor(name="overlap_gate", shape=(rate, width), dtype=DTYPES["fp32"]),
        )
    )


FAMILIES: tuple[Family, ...] = (
    Family(
        name="deepseek_v4",
        model_types=("deepseek_v4", "deepseek_ref"),
        layers=_layers,
        draft=_draft,
        defaults={"num_key_value_heads": 1},
        reads=frozenset({
            "compress_rope_parameters", "compress_rope_theta", "compress_rates", "kv_lora_rank",
            "qk_nope_head_dim", "v_head_dim", "compress_ratios", "index_head_dim",
            "num_key_value_heads", "compress_rate_csa", "compress_rate_hca",
        }),
        source="DeepSeek-V4 report, section 2.3; Transformers 5.24 models/deepseek_v4",
    ),
)  # fmt: skip

"""Decoders that pass some layers several times: each pass keeps keys and values of its own."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, OutOfRange, Unsupported, shown
from app.domain.state import (
    MAX_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TOKENS,
    Layer,
    Recurrent,
    State,
    StateTensor,
)
from app.readers.hf_config.attention import HeadShape, grouped, multi_head_own_width
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import (
    FULL,
    SLIDING,
    every,
    layer_kinds,
    state_of,
    window_size,
)

HYBRID = "hybrid"
HYBRID_SLIDING = "hybrid_sliding"
MAX_PASSES = 1_000


def bounded(fields: Fields, count: int, name: str) -> int:
    """Return the number of layers that loops make, if it is one that a model may have."""
    if count > MAX_LAYERS:
        raise OutOfRange(
            "{field} makes {value} layers; at most {high} are read",
            field=fields.at(name),
            value=count,
            high=MAX_LAYERS,
        )
    return count


# HRM


def _hrm_layers(fields: Fields) -> list[Layer]:
    """Return HRM's layers: a stack for each of H cycles × (L cycles + 1) passes.

    A file has either the layers of one stack alone, or their total and `num_layers_per_stack`.
    """
    high = fields.integer("H_cycles", high=MAX_PASSES)
    low = fields.integer("L_cycles", high=MAX_PASSES)
    stack = (
        fields.layers("num_layers_per_stack")
        if fields.says("num_layers_per_stack") or not fields.says("num_hidden_layers")
        else fields.layers("num_hidden_layers")
    )
    fields.seen("num_hidden_layers")
    count = bounded(fields, stack * high * (low + 1), "H_cycles")
    return [Layer(states=(multi_head_own_width("head_dim")(fields).full(),))] * count


# Dory


def _dory_layers(fields: Fields) -> list[Layer]:
    """Return Dory's layers: the middle ones are passed `n_recurrent_loops` times.

    With "last_loop" every pass overwrites what the one before kept.
    """
    count = fields.layers()
    given = fields.words("layer_types", length=count)
    halves = 1
    if given is not None and "mlp" in given:
        halves, given = 2, given[::2]
    count = count // halves
    if given is not None:
        fields = fields.overlaid({"layer_types": given, "num_hidden_layers": count}, fields.path)
    window = window_size(fields)
    kinds = layer_kinds(fields, count, every(4), window)
    shape = grouped(fields)
    made = {kind: Layer(states=(state_of(fields, kind, shape, window),)) for kind in set(kinds)}
    layers = [made[kind] for kind in kinds]
    first = fields.integer("n_input_layers", low=0, high=MAX_LAYERS) // halves
    last = fields.integer("n_output_layers", low=0, high=MAX_LAYERS) // halves
    middle = count - first - last
    if fields.says("n_recurrent_layers"):
        middle = fields.integer("n_recurrent_layers", low=0, high=MAX_LAYERS) // halves
    if middle < 0 or first + middle + last != count:
        raise Conflict(
            "{field}: {first} + {middle} + {last} layers are not the model's {count}",
            field=fields.at("n_recurrent_layers"),
            first=first,
            middle=middle,
            last=last,
            count=count,
        )
    loops = fields.integer("n_recurrent_loops", high=MAX_PASSES)
    mode = fields.text("recurrent_kv_cache_mode") or "per_loop"
    if mode not in ("per_loop", "last_loop"):
        raise Unsupported(
            "{field} must be per_loop or last_loop, got {value}",
            field=fields.at("recurrent_kv_cache_mode"),
            value=shown(mode),
        )
    passes = loops if mode == "per_loop" else 1
    bounded(fields, count + middle * (passes - 1), "n_recurrent_loops")
    return layers[:first] + layers[first : first + middle] * passes + layers[first + middle :]


# Inkling


def _inkling_layers(fields: Fields) -> list[Layer]:
    """Return Inkling's layers: windows with heads of their own, and four short convolutions each.

    Two convolutions run over keys and values, two over the hidden state. They keep the last
    `conv_kernel_size` − 1 inputs, in fp32.
    """
    count = fields.layers()
    window = fields.integer_or_none("sliding_window", "sliding_window_size", high=MAX_TOKENS)
    fields.seen("sliding_window_size")
    words: Mapping[str, str] = {HYBRID: FULL, HYBRID_SLIDING: SLIDING}
    kinds = layer_kinds(fields, count, _inkling_pattern, window, words=words)
    fields.seen("local_layer_ids", "swa_num_attention_heads")
    full = grouped(fields)
    narrow = HeadShape(
        kv_heads=fields.integer("swa_num_key_value_heads", high=MAX_HEADS),
        k_dim=fields.integer("swa_head_dim", high=MAX_DIM),
        v_dim=fields.integer("swa_head_dim", high=MAX_DIM),
    )
    made = {}
    for kind in set(kinds):
        shape = full if kind == FULL else narrow
        state = state_of(fields, kind, shape, window)
        made[kind] = Layer(states=(state, *_inkling_convolutions(fields, shape)))
    return [made[kind] for kind in kinds]


def _inkling_pattern(fields: Fields, layers: int, window: int | None) -> list[str]:
    local = fields.integers("local_layer_ids", high=MAX_LAYERS)
    if local is None:
        return every(6)(fields, layers, window)
    slides = set(local)
    return [SLIDING if index in slides else FULL for index in range(layers)]


def _inkling_convolutions(fields: Fields, shape: HeadShape) -> tuple[State, ...]:
    columns = fields.integer("conv_kernel_size", "sconv_kernel_size", high=MAX_DIM) - 1
    if columns == 0:
        return ()
    hidden = fields.dim("hidden_size")
    widths = {
        "conv_key": shape.kv_heads * shape.k_dim,
        "conv_value": shape.kv_heads * shape.v_dim,
        "conv_attention": hidden,
        "conv_mlp": hidden,
    }
    tensors = tuple(
        StateTensor(
            name=name,
            shape=(width, columns),
            dtype=DTYPES["fp32"],
            split_axis=0 if name in ("conv_key", "conv_value") else None,
        )
        for name, width in widths.items()
    )
    return (Recurrent(tensors=tensors),)


def _inkling_loop_layers(fields: Fields) -> list[Layer]:
    """Return Inkling-2-Loop's layers: those of the core are passed `loop_num_passes` times."""
    layers = _inkling_layers(fields)
    loop = fields.part("loop_config")
    names = {"core_start": "loop_layer_index_start", "core_end": "loop_layer_index_end",
             "num_passes": "loop_num_passes"}  # fmt: skip
    values = {}
    for short, name in names.items():
        found = loop.integer_or_none(short, low=0, high=MAX_LAYERS) if loop else None
        values[short] = fields.integer(name, low=0, high=MAX_LAYERS) if found is None else found
        fields.seen(name)
    start, end, passes = values["core_start"], values["core_end"], values["num_passes"]
    if not start <= end <= len(layers) or passes < 1:
        raise Conflict(
            "{field}: layers {start} to {end}, {passes} times, is no loop in {count} layers",
            field=fields.at("loop_layer_index_start"),
            start=start,
            end=end,
            passes=passes,
            count=len(layers),
        )
    bounded(fields, len(layers) + (end - start) * (passes - 1), "loop_num_passes")
    return layers[:start] + layers[start:end] * passes + layers[end:]


FAMILIES: tuple[Family, ...] = (
    Family(
        name="hrm",
        model_types=("hrm_text",),
        layers=_hrm_layers,
        reads=frozenset({"L_bp_cycles"}),
        source="https://arxiv.org/abs/2506.21734, Transformers 5.24 models/hrm_text",
    ),
    Family(
        name="dory",
        model_types=("dory",),
        layers=_dory_layers,
        source="Transformers 5.24 models/dory/configuration_dory.py",
    ),
    Family(
        name="inkling",
        model_types=("inkling_text", "inkling2_text"),
        layers=_inkling_layers,
        reads=frozenset({"mtp_local_layer_ids", "number_of_conv_states"}),
        source="Transformers 5.24 models/inkling/configuration_inkling.py",
    ),
    Family(
        name="inkling_loop",
        model_types=("inkling2_loop_text",),
        layers=_inkling_loop_layers,
        reads=frozenset({"loop_gate_rank", "number_of_conv_states"}),
        source="Transformers 5.24 models/inkling2_loop/configuration_inkling2_loop.py",
    ),
)

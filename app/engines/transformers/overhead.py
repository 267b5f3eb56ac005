"""What Transformers keeps beyond what the model needs, layer by layer, and why.

The reader says what each layer needs once so many tokens have gone through; the difference is what
an implementation costs its user, and in a few cases what it saves wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.dtypes import DTYPES
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.state import (
    FullAttention,
    KvFormat,
    Layer,
    Recurrent,
    SlidingWindow,
    State,
)
from app.engines.transformers.cache import CacheLayer, KeyValue, Run, States
from app.readers.hf_config import read_config

_FORMATS = {"float32": DTYPES["fp32"], "bfloat16": DTYPES["bf16"], "float16": DTYPES["fp16"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOverhead:
    """One layer's bytes as the model needs them and as the cache keeps them, and why."""

    index: int
    needed_bytes: int
    kept_bytes: int
    reasons: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The comparison; `layers` lists those that differ, none where layers cannot be matched.

    `unknown` says why there is no comparison; the bytes are then None.
    """

    needed_bytes: int | None
    kept_bytes: int
    layers: tuple[LayerOverhead, ...] = ()
    unknown: Note | None = None


def overhead_of(
    config: Mapping[str, object], layers: list[CacheLayer], sizes: list[int], run: Run
) -> Overhead:
    """Return the comparison of a cache with the reader's word for the same model and run.

    `sizes` are the bytes of each cache layer after the run.
    """
    kept = sum(sizes)
    try:
        reading = read_config(_in_dtype(config, run.dtype), encoder_tokens=run.encoder_tokens or 0)
    except DomainError as error:
        reason = Note("not_read", "what the model needs is not known: {reason}",
                      {"reason": error.note})  # fmt: skip
        return Overhead(needed_bytes=None, kept_bytes=kept, unknown=reason)
    states = list(reading.state.layers)
    unlike = {id(layer): layer for layer in states}
    sizes_of = {key: _needed(layer, run) for key, layer in unlike.items()}
    needed = [sizes_of[id(layer)] for layer in states]
    return Overhead(
        needed_bytes=sum(needed),
        kept_bytes=kept,
        layers=_by_layer(list(zip(layers, sizes, strict=True)), states, needed, run),
    )


def _in_dtype(config: Mapping[str, object], dtype: str) -> dict[str, object]:
    """Return the config with the run's dtype in place of its own, nested ones included."""
    own = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    for key, value in own.items():
        if isinstance(value, Mapping) and ("dtype" in value or "torch_dtype" in value):
            own[key] = {k: v for k, v in value.items() if k not in ("dtype", "torch_dtype")}
    return {**own, "dtype": dtype}


def _needed(layer: Layer, run: Run) -> int:
    formats = KvFormat(key=_FORMATS[run.dtype], value=_FORMATS[run.dtype])
    one = sum(
        state.kept_tokens(run.tokens) * state.bytes_per_position(formats) + state.fixed_bytes()
        for state in layer.states
    )
    return run.batch * one


def _by_layer(
    layers: list[tuple[CacheLayer, int]], states: list[Layer], needed: list[int], run: Run
) -> tuple[LayerOverhead, ...]:
    """Return the layers that differ, if cache layers can be matched to the model's by index."""
    own: dict[int, list[CacheLayer]] = {}
    kept = [0] * len(states)
    for layer, size in layers:
        if not 0 <= layer.index < len(states):
            return ()
        own.setdefault(layer.index, []).append(layer)
        kept[layer.index] += size
    return tuple(
        LayerOverhead(
            index=index,
            needed_bytes=need,
            kept_bytes=kept[index],
            reasons=_reasons(own.get(index, []), states[index], run),
        )
        for index, need in enumerate(needed)
        if kept[index] != need
    )


def _reasons(parts: list[CacheLayer], layer: Layer, run: Run) -> tuple[Note, ...]:
    """Return why the bytes of a layer differ; one general word where no rule below knows."""
    found: list[Note] = []
    for part in (part for cache_layer in parts for part in cache_layer.parts):
        if isinstance(part, KeyValue):
            found += _attention_reasons(part, layer.states, run)
        elif isinstance(part, States):
            found += _state_reasons(part, layer.states)
    if not found:
        found.append(Note("own_layout", "the class keeps buffers, or fewer tensors, of its own"))
    return tuple(note for index, note in enumerate(found) if note not in found[:index])


def _attention_reasons(part: KeyValue, states: tuple[State, ...], run: Run) -> list[Note]:
    found = []
    attention = next(
        (state for state in states if isinstance(state, (FullAttention, SlidingWindow))), None
    )
    kept = part.positions(run)[0]
    if run.static_tokens is not None:
        params: dict[str, object] = {"kept": kept, "tokens": run.tokens}
        found.append(
            Note("allocated_whole", "{kept} positions are allocated for {tokens} tokens", params)
        )
    elif attention is not None and attention.kept_tokens(run.tokens) != kept:
        params = {"kept": kept, "need": attention.kept_tokens(run.tokens)}
        found.append(
            Note("other_positions", "{kept} positions are kept where the model sees {need}", params)
        )
    if attention is not None and attention.kv_heads != part.kv_heads:
        params = {"kept": part.kv_heads, "need": attention.kv_heads}
        template = "{kept} heads are cached where the model has {need} KV heads"
        found.append(Note("broadcast_heads", template, params))
    return found


def _state_reasons(part: States, states: tuple[State, ...]) -> list[Note]:
    recurrent = next((state for state in states if isinstance(state, Recurrent)), None)
    columns = [row.shape[-1] for row in part.rows if row.role == "conv_state" and row.shape]
    if recurrent is None or not columns:
        return []
    needed = [tensor.shape[-1] for tensor in recurrent.tensors if tensor.name.startswith("conv")]
    if needed and max(columns) == max(needed):
        return []
    return [
        Note(
            "whole_kernel",
            "{kept} columns of a convolution are kept where the next output needs {need}",
            {"kept": max(columns), "need": max(needed, default=0)},
        )
    ]

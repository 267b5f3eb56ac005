"""From a request's `model` and formats to domain values: the one way in for API, pages and CLI."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from app.api import schemas as s
from app.domain.dtypes import dtype_named, dtype_of_element_bytes
from app.domain.errors import Conflict, DomainError, Missing, Unknown, Unsupported, shown
from app.domain.formats import KvFormats, LayerRangeFormat
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    Layer,
    LayerRun,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
    StateTensor,
)
from app.readers.reading import ModelReading

T = TypeVar("T")
# From here on NumPy counts lengths faster than its own import costs.
MANY_LENGTHS = 100_000
# Up to here a bin for every length is cheaper than sorting (4 Mi bins take 32 MiB).
MANY_BINS = 1 << 22

PlainModel = s.UniformModel | s.CatalogueModel | s.ConfigModel | s.LayerStatesModel | s.GgufModel


def _under(prefix: tuple[str | int, ...], compute: Callable[[], T]) -> T:
    try:
        return compute()
    except DomainError as error:
        raise error.under(*prefix) from None


def read_model(model: PlainModel) -> ModelReading:
    """Return the reading of a model in any of its forms.

    Raises:
        DomainError: naming the field, as seen from the request's body.

    """
    if isinstance(model, s.UniformModel):
        return _under(("model",), lambda: _uniform(model))
    if isinstance(model, s.LayerStatesModel):
        return ModelReading(state=_layer_states(model), family="layer_states")
    if isinstance(model, s.GgufModel):
        from app.readers.gguf_model import read_gguf_model

        return _under(("model", "gguf"), lambda: read_gguf_model(model.gguf))
    if isinstance(model, s.ConfigModel):
        reading = _of_config(model)
    else:
        from app.catalog.models import read_entry

        reading = _under(
            ("model",), lambda: read_entry(model.id, encoder_tokens=model.encoder_tokens)
        )
    return _with_draft(reading) if model.draft_layers else reading


def _of_config(model: s.ConfigModel) -> ModelReading:
    from app.readers.hf_config import read_config

    given = _under(("model",), lambda: _fetched(model)) if isinstance(model, s.HubModel) else model
    reading = _under(
        ("model", "config"),
        lambda: read_config(given.config, encoder_tokens=given.encoder_tokens),
    )
    if not isinstance(given, s.HubModel):
        return reading
    source = Note("hub_config", "The config is that of {repo} on the Hub, at {revision}.",
                  {"repo": given.hub, "revision": given.revision})  # fmt: skip
    return replace(reading, assumptions=(*reading.assumptions, source))


def _fetched(model: s.HubModel) -> s.HubModel:
    """Return the model with its config; the API has put it there before, the CLI has not."""
    from app.api.hub_models import fetched
    from app.settings import settings

    return fetched(model, settings())


def pasted_model(value: dict[str, Any]) -> dict[str, Any]:
    """Return a request's `model` for a pasted object: a config, layers by hand, or GGUF keys."""
    if value.keys() == {"layer_states"}:
        return value
    return {"gguf" if "general.architecture" in value else "config": value}


def _uniform(model: s.UniformModel) -> ModelReading:
    state = ModelState.uniform(
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        v_head_dim=model.v_head_dim,
    )
    return ModelReading(state=state, family="uniform")


def _with_draft(reading: ModelReading) -> ModelReading:
    if not reading.draft_layers:
        raise Unsupported("{field}: the model names no multi-token-prediction layers",
                          field=("model", "draft_layers"))  # fmt: skip
    state = ModelState.of_layers([*reading.state.layers, *reading.draft_layers])
    return ModelReading(
        state=state,
        family=reading.family,
        name=reading.name,
        dtype=reading.dtype,
        max_context_tokens=reading.max_context_tokens,
        assumptions=reading.assumptions,
        notes=reading.notes,
    )


def _layer_states(model: s.LayerStatesModel) -> ModelState:
    runs: list[LayerRun] = []
    for index, row in enumerate(model.layer_states):
        path = ("model", "layer_states", index)
        state = _under(path, lambda row=row: _row_state(row))  # type: ignore[misc]
        own = () if state is None else (state,)
        if not row.same_layer:
            runs.append(LayerRun(layer=Layer(states=own), count=row.count))
            continue
        if not runs:
            raise Conflict("{field}: the first row has no row before it",
                           field=(*path, "same_layer"))  # fmt: skip
        if row.count != runs[-1].count:
            raise Conflict("{field} must equal the count of the row before, {value}",
                           field=(*path, "count"), value=runs[-1].count)  # fmt: skip
        layer = Layer(states=(*runs[-1].layer.states, *own))
        runs[-1] = LayerRun(layer=layer, count=row.count)
    return _under(("model", "layer_states"), lambda: ModelState(runs=tuple(runs)))


def _row_state(row: s.StateRow) -> State | None:
    if isinstance(row, s.HeadsRow):
        return _heads_state(row)
    if isinstance(row, s.LatentAttentionRow):
        named = row.index_dtype
        return LatentAttention(
            latent_dim=row.latent_dim,
            rope_dim=row.rope_dim,
            index_dim=row.index_dim,
            index_format=None if named is None else dtype_named(named, field="index_dtype"),
            window=row.window,
            tokens_per_entry=row.tokens_per_entry,
        )
    if isinstance(row, s.RecurrentRow):
        return _recurrent(row)
    if isinstance(row, s.SharedRow):
        return Shared(with_layer=row.with_layer)
    return None


def _heads_state(row: s.HeadsRow) -> State:
    heads = {"kv_heads": row.kv_heads, "k_dim": row.k_dim, "v_dim": row.v_dim}
    if isinstance(row, s.SlidingWindowRow):
        return SlidingWindow(**heads, window=row.window)
    if isinstance(row, s.ChunkedAttentionRow):
        return ChunkedAttention(**heads, chunk=row.chunk)
    if isinstance(row, s.CrossAttentionRow):
        return CrossAttention(**heads, encoder_tokens=row.encoder_tokens)
    index_dim = row.index_dim if isinstance(row, s.FullAttentionRow) else 0
    return FullAttention(**heads, index_dim=index_dim)


def _recurrent(row: s.RecurrentRow) -> Recurrent:
    tensors = [
        StateTensor(
            name=tensor.name,
            shape=tuple(tensor.shape),
            dtype=dtype_named(tensor.dtype, field=("tensors", index, "dtype")),
            split_axis=tensor.split_axis,
        )
        for index, tensor in enumerate(row.tensors or ())
    ]
    byte = dtype_of_element_bytes(1)
    tensors += [
        StateTensor(name=name, shape=(size,), dtype=byte)
        for name, size in (("state", row.state_bytes), ("conv", row.conv_bytes))
        if size is not None
    ]
    if not tensors:
        raise Missing("{field}: a recurrent row needs state_bytes, conv_bytes or tensors",
                      field="state_bytes")  # fmt: skip
    return Recurrent(tensors=tuple(tensors))


def read_formats(request: s.WithModel, reading: ModelReading) -> tuple[KvFormats, tuple[Note, ...]]:
    """Return the formats of a request's cache, and what was assumed to get them.

    Raises:
        DomainError: as `formats_of`.

    """
    return formats_of(request.kv_dtype, request.element_bytes, reading)


def formats_of(
    kv_dtype: s.KvDType | None, element_bytes: int | None, reading: ModelReading
) -> tuple[KvFormats, tuple[Note, ...]]:
    """Return the formats that are asked for, else the model's own, else 16 bits.

    Raises:
        Unknown: for a format that is not known.
        Conflict: when both `kv_dtype` and `element_bytes` are given, or ranges are malformed.

    """
    if element_bytes is not None:
        if kv_dtype is not None:
            raise Conflict("{field} and kv_dtype both say how wide an element is: give one",
                           field="element_bytes")  # fmt: skip
        return KvFormats.same(dtype_of_element_bytes(element_bytes)), ()
    if isinstance(kv_dtype, list):
        return _format_ranges(kv_dtype), ()
    if kv_dtype is not None:
        return KvFormats(base=kv_format(kv_dtype, ("kv_dtype",))), ()
    if reading.dtype is not None:
        own = dtype_named(reading.dtype, field=("model", "torch_dtype"))
        note = Note("kv_dtype_of_model", "The cache keeps the model file's own format, {dtype}.",
                    {"dtype": own.name})  # fmt: skip
        return KvFormats.same(own), (note,)
    note = Note("kv_dtype_16_bit", "No format was given: 16-bit elements are assumed.")
    return KvFormats.same(dtype_named("bf16")), (note,)


def kv_format(dtype: str | s.PairFormat, path: tuple[str | int, ...]) -> KvFormat:
    """Return what keys and values are kept in.

    Raises:
        Unknown: for a name that is no format; of `q8_0/q4_0` the error says how to give the two.

    """
    if isinstance(dtype, str):
        if "/" in dtype:
            raise Unknown(
                "{field} takes one format, got {value}: keys and values of different formats are "
                "given apart, as k and v",
                field=path,
                value=shown(dtype),
            )
        same = dtype_named(dtype, field=path)
        return KvFormat(key=same, value=same)
    return KvFormat(
        key=dtype_named(dtype.k, field=(*path, "k")),
        value=dtype_named(dtype.v, field=(*path, "v")),
    )


def _format_ranges(rows: list[s.LayerFormat]) -> KvFormats:
    base: KvFormat | None = None
    ranges: list[LayerRangeFormat] = []
    for index, row in enumerate(rows):
        pair = kv_format(row.dtype, ("kv_dtype", index, "dtype"))
        if row.layers is None:
            if base is not None:
                raise Conflict("{field}: only one entry may leave layers out",
                               field=("kv_dtype", index, "layers"))  # fmt: skip
            base = pair
        else:
            ranges.append(LayerRangeFormat(first=row.layers[0], last=row.layers[1], format=pair))
    return KvFormats(base=base, ranges=tuple(ranges))


def read_lengths(lengths: list[int] | list[s.LengthCount]) -> RequestLengths:
    """Return a request's lengths; raises a DomainError that names the element."""
    if lengths and isinstance(lengths[0], s.LengthCount):
        runs = [(item.length, item.count) for item in lengths if isinstance(item, s.LengthCount)]
        return RequestLengths.of_runs(runs)
    plain = cast("list[int]", lengths)
    if len(plain) < MANY_LENGTHS:
        return RequestLengths.of_list(plain)
    return RequestLengths(runs=plain, counts=_counts_of_many(plain), requests=len(plain))


def _counts_of_many(lengths: list[int]) -> dict[int, int]:
    """Count long lists, checked by the schema before, several times faster than a dictionary."""
    import numpy as np

    array = np.array(lengths, dtype=np.int64)
    if array.max() < MANY_BINS:
        every = np.bincount(array)
        values = np.flatnonzero(every)
        counts = every[values]
    else:
        values, counts = np.unique(array, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))

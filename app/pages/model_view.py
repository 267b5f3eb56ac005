"""A model as pages draw it: layers by kind, their tensors, bytes over context lengths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.api.state_rows import layer_state_rows
from app.domain.context_table import ContextRow, context_table
from app.domain.formats import KvFormats, placed_layers
from app.domain.notes import Note
from app.domain.per_token import Shape, grows, shape_of, window_positions
from app.domain.state import (
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    State,
)
from app.pages import figures
from app.pages.page_parts import KIND_NAMES
from app.readers.reading import ModelReading
from app.web.language import translations
from app.web.marks import mark

LETTERS: Mapping[str, str] = {
    "full_attention": "F",
    "sliding_window": "W",
    "chunked_attention": "C",
    "latent_attention": "L",
    "recurrent": "R",
    "cross_attention": "X",
    "shared": "S",
    "none": "–",
}
NOTHING = mark("keeps nothing")
_MIB = 2**20
_LONGEST_WRITTEN_OUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One layer of the strip: (kind, letter) of each state that it keeps."""

    index: int
    kinds: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that keep the same: which, in what tensors, and what each of them takes."""

    kind: str
    label: str
    letter: str
    count: int
    layers: str
    tensors: tuple[str, ...]
    position_bytes: int
    window_positions: int | None
    fixed_bytes: int
    grows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A model drawn; `chart` and the rows of `contexts` say the same."""

    name: str
    layers: int
    cells: tuple[Cell, ...]
    groups: tuple[LayerGroup, ...]
    kinds: tuple[tuple[str, str, str, int], ...]
    shape: Shape
    contexts: tuple[ContextRow, ...]
    chart: figures.Figure
    has_chunks: bool
    is_straight: bool
    misleading: Note | None
    draft_layers: int
    layer_states: str


def model_view(
    reading: ModelReading, formats: KvFormats, language: str, *, name: str = ""
) -> ModelView:
    """Return a reading as a page draws it.

    Raises:
        DomainError: when a row does not divide into the format's blocks.

    """
    state = reading.state
    placed = placed_layers(state, formats)
    contexts = context_table(state, formats)
    cells = _cells(placed)
    return ModelView(
        name=name or reading.name,
        layers=state.num_layers,
        cells=cells,
        groups=_groups(placed),
        kinds=_kinds(cells),
        shape=shape_of(state, formats),
        contexts=contexts,
        chart=context_chart([("", contexts)], language),
        has_chunks="chunked_attention" in state.kinds,
        is_straight=all(row.total_bytes == row.as_if_full_bytes for row in contexts),
        misleading=_misleading(contexts),
        draft_layers=len(reading.draft_layers),
        layer_states=states_json(state),
    )


def states_json(state: ModelState) -> str:
    """Return the model's `layer_states`, one row a line, as a request takes them."""
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in layer_state_rows(state))
    return f'{{"layer_states": [\n{rows}\n]}}'


Placed = Sequence[tuple[int, Layer, KvFormat, int]]


def _cells(placed: Placed) -> tuple[Cell, ...]:
    return tuple(
        Cell(index=index, kinds=_lettered(layer))
        for first, layer, _, count in placed
        for index in range(first, first + count)
    )


def _lettered(layer: Layer) -> tuple[tuple[str, str], ...]:
    kinds = [state.kind for state in layer.states] or ["none"]
    return tuple((kind, LETTERS[kind]) for kind in kinds)


def _kinds(cells: Iterable[Cell]) -> tuple[tuple[str, str, str, int], ...]:
    """Return (kind, letter, label, layers) of each kind, in order of first appearance."""
    counts: dict[str, int] = {}
    for cell in cells:
        for kind, _ in dict.fromkeys(cell.kinds):
            counts[kind] = counts.get(kind, 0) + 1
    return tuple((kind, LETTERS[kind], _label(kind), count) for kind, count in counts.items())


def _label(kind: str) -> str:
    return KIND_NAMES.get(kind, NOTHING)


def _groups(placed: Placed) -> tuple[LayerGroup, ...]:
    """Return layers that keep the same together, in order of first appearance."""
    spans: dict[tuple[State | None, KvFormat], list[tuple[int, int]]] = {}
    for first, layer, form, count in placed:
        for state in layer.states or (None,):
            spans.setdefault((state, form), []).append((first, count))
    return tuple(_group(state, form, where) for (state, form), where in spans.items())


def _group(state: State | None, form: KvFormat, spans: list[tuple[int, int]]) -> LayerGroup:
    kind = "none" if state is None else state.kind
    return LayerGroup(
        kind=kind,
        label=_label(kind),
        letter=LETTERS[kind],
        count=sum(count for _, count in spans),
        layers=span_text(spans),
        tensors=() if state is None else tensors_of(state, form),
        position_bytes=0 if state is None else state.bytes_per_position(form),
        window_positions=None if state is None else window_positions(state),
        fixed_bytes=0 if state is None else state.fixed_bytes(),
        grows=state is not None and grows(state),
    )


def span_text(spans: Iterable[tuple[int, int]]) -> str:
    """Return runs of layers as `0–4, 6–10, 12`, and regular ones as `1, 3, … 31`."""
    joined: list[tuple[int, int]] = []
    for first, count in sorted(spans):
        if joined and joined[-1][1] == first - 1:
            joined[-1] = (joined[-1][0], first + count - 1)
        else:
            joined.append((first, first + count - 1))
    texts: list[str] = []
    while joined:
        length = _regular(joined)
        shown = [f"{a}" if a == b else f"{a}–{b}" for a, b in joined[:length]]
        if length > _LONGEST_WRITTEN_OUT:
            shown = [shown[0], f"{shown[1]}, … {shown[-1]}"]
        texts += shown
        joined = joined[length:]
    return ", ".join(texts)


def _regular(runs: Sequence[tuple[int, int]]) -> int:
    """Return how many runs from the first on are equally long and equally far apart."""
    (first, last), *rest = runs
    step = rest[0][0] - first if rest else 0
    return 1 + next(
        (
            index
            for index, (start, end) in enumerate(rest)
            if (start, end) != (first + (index + 1) * step, last + (index + 1) * step)
        ),
        len(rest),
    )


def tensors_of(state: State, form: KvFormat) -> tuple[str, ...]:
    """Return the tensors that one layer keeps, each as its shape and format.

    B is the batch and L the positions; ≤ 1023 says that no more of them are kept.
    """
    key, value = form.key.name, form.value.name
    if isinstance(state, Recurrent):
        return tuple(
            f"{tensor.name} [B, {', '.join(map(str, tensor.shape))}] {tensor.dtype.name}"
            for tensor in state.tensors
        )
    if isinstance(state, Shared):
        return (f"→ {state.with_layer}",)
    if isinstance(state, LatentAttention):
        return _latent_tensors(state, key)
    held = window_positions(state)
    positions = "L" if held is None else f"≤ {held}"
    if isinstance(state, CrossAttention):
        positions = str(state.encoder_tokens)
    rows = [
        f"{name} [B, {state.kv_heads}, {positions}, {width}] {dtype}"
        for name, width, dtype in (("K", state.k_dim, key), ("V", state.v_dim, value))
        if width
    ]
    if isinstance(state, FullAttention) and state.index_dim:
        rows.append(f"I [B, {positions}, {state.index_dim}] {key}")
    return tuple(rows)


def _latent_tensors(state: LatentAttention, key: str) -> tuple[str, ...]:
    held = window_positions(state)
    positions = "L" if held is None else f"≤ {held}"
    if state.tokens_per_entry != 1:
        positions = f"L / {state.tokens_per_entry}"
    rows = []
    if state.latent_dim + state.rope_dim:
        rows.append(f"C [B, {positions}, {state.latent_dim} + {state.rope_dim}] {key}")
    if state.index_dim:
        dtype = key if state.index_format is None else state.index_format.name
        rows.append(f"I [B, {positions}, {state.index_dim}] {dtype}")
    return tuple(rows)


def tokens_text(tokens: int) -> str:
    """Return a number of positions in words: 1k, 128k, 1M."""
    for unit, letter in ((2**20, "M"), (2**10, "k")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return str(tokens)


def context_chart(
    models: Sequence[tuple[str, Sequence[ContextRow]]], language: str
) -> figures.Figure:
    """Return bytes over context lengths, both axes in powers: what grows in step is straight.

    Of one model its parts are drawn too, and what the plain formula would say.
    """
    say = translations(language).gettext
    labels = [tokens_text(row.tokens) for row in models[0][1]]
    series: list[tuple[str, str, Sequence[object], Sequence[float]]] = []
    if len(models) == 1:
        rows = models[0][1]
        series.append((say(mark("Total")), "effective", labels, _mib(r.total_bytes for r in rows)))
        parts = (
            (mark("Every layer keeping every position"), "padding", "as_if_full_bytes"),
            (mark("Windows"), "window", "window_bytes"),
            (mark("Fixed part"), "fixed", "fixed_bytes"),
        )
        for title, role, name in parts:
            values = [getattr(row, name) for row in rows]
            # An axis in powers has no nothing, and a line that is the total says nothing more.
            if all(values) and values != [row.total_bytes for row in rows]:
                series.append((say(title), role, labels, _mib(values)))
    else:
        roles = ("effective", "paging")
        series += [
            (name, role, labels, _mib(row.total_bytes for row in rows))
            for (name, rows), role in zip(models, roles, strict=False)
        ]
    return figures.lines(
        series, x_title=say(mark("Context, tokens")), y_title="MiB", category=True, log_y=True
    )


def _mib(values: Iterable[int]) -> list[float]:
    return [value / _MIB for value in values]


def _misleading(contexts: Sequence[ContextRow]) -> Note | None:
    """Return a sentence where counting every position in every layer would mislead."""
    longest = contexts[-1]
    if longest.as_if_full_bytes <= longest.total_bytes:
        return None
    times = longest.as_if_full_bytes * 10 // max(1, longest.total_bytes)
    return Note(
        "not_a_line",
        "At {tokens} tokens the plain formula, every layer keeping every position, would say "
        "{times} times what this model keeps.",
        {"tokens": tokens_text(longest.tokens), "times": f"{times // 10}.{times % 10}"},
    )

"""A model as SGLang's pools see it: which layers go into which pool of a rank, and how wide."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Conflict, Unsupported
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
)

_TAIL_WORDS = ("conv", "shift")
_WithHeads = FullAttention | SlidingWindow | ChunkedAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Layers whose keys and values are kept by head; `window` is None for full attention."""

    layers: int
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None

    def rank_heads(self, ranks: int) -> int:
        """Return the heads on one rank; fewer heads than ranks are copied."""
        return max(1, self.kv_heads // ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Layers that keep one compressed vector; every rank has all of it."""

    layers: int
    latent_dim: int
    rope_dim: int
    index_dim: int = 0
    index_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Recurrent layers: elements of the tail and of the state on one rank, for one request."""

    layers: int
    tail_elements: int
    state_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankModel:
    """What the layers of one pipeline stage keep on one of its ranks."""

    full: Heads | None
    windowed: Heads | None
    latent: Latent | None
    states: States | None
    chunked: bool = False


def _refused(template: str) -> Unsupported:
    return Unsupported("{field}: SGLang's pools for {what} are not known here", field="model",
                       what=Note("", template))  # fmt: skip


def stages_of(state: ModelState, stages: int, ranks: int) -> list[RankModel]:
    """Return each pipeline stage's layers.

    Raises:
        Conflict: when the layers do not divide among the stages.
        Unsupported: for layers that no pool of this engine holds.

    """
    layers = list(state.layers)
    if len(layers) % stages:
        raise Conflict("{field} {stages} does not divide the {layers} layers", field="pp_size",
                       stages=stages, layers=len(layers))  # fmt: skip
    size = len(layers) // stages
    return [
        rank_model(layers[start : start + size], ranks) for start in range(0, len(layers), size)
    ]


def rank_model(layers: list[Layer], ranks: int) -> RankModel:
    """Return what these layers keep on one of `ranks` tensor ranks."""
    kinds: dict[str, list[State]] = {}
    for layer in layers:
        for state in layer.states:
            if not isinstance(state, Shared):
                kinds.setdefault(state.kind, []).append(state)
    full = [s for s in kinds.pop("full_attention", []) if isinstance(s, FullAttention)]
    sliding = [s for s in kinds.pop("sliding_window", []) if isinstance(s, SlidingWindow)]
    chunked = [s for s in kinds.pop("chunked_attention", []) if isinstance(s, ChunkedAttention)]
    latent = [s for s in kinds.pop("latent_attention", []) if isinstance(s, LatentAttention)]
    recurrent = [s for s in kinds.pop("recurrent", []) if isinstance(s, Recurrent)]
    if kinds:
        raise _refused(" and ".join(sorted(kinds)))
    if sliding and chunked:
        raise _refused("windows beside chunks")
    if latent and (full or sliding or chunked):
        raise _refused("latent beside plain attention")
    if any(state.index_dim for state in full):
        raise _refused("index keys beside plain attention")
    windows: list[tuple[_WithHeads, int | None]] = [(s, s.window) for s in sliding]
    windows += [(s, s.chunk) for s in chunked]
    return RankModel(
        full=_heads([(s, None) for s in full]),
        windowed=_heads(windows),
        latent=_latent(latent),
        states=_states(recurrent, ranks),
        chunked=bool(chunked),
    )


def _heads(states: list[tuple[_WithHeads, int | None]]) -> Heads | None:
    if not states:
        return None
    shapes = {(s.kv_heads, s.k_dim, s.v_dim, window) for s, window in states}
    if len(shapes) > 1:
        raise _refused("layers of one kind with different heads, widths or windows")
    heads, k_dim, v_dim, window = shapes.pop()
    return Heads(layers=len(states), kv_heads=heads, k_dim=k_dim, v_dim=v_dim, window=window)


def _latent(states: list[LatentAttention]) -> Latent | None:
    if not states:
        return None
    shapes = {(s.latent_dim, s.rope_dim, s.window, s.tokens_per_entry) for s in states}
    index = {s.index_dim for s in states if s.index_dim}
    if len(shapes) > 1 or len(index) > 1 or shapes & {s for s in shapes if s[2:] != (None, 1)}:
        raise _refused("latent layers of different shapes, windows or compressed entries")
    latent_dim, rope_dim, _, _ = shapes.pop()
    return Latent(
        layers=len(states),
        latent_dim=latent_dim,
        rope_dim=rope_dim,
        index_dim=max(index, default=0),
        index_layers=sum(1 for s in states if s.index_dim),
    )


def _states(states: list[Recurrent], ranks: int) -> States | None:
    if not states:
        return None
    shapes = {_elements(state, ranks) for state in states}
    if len(shapes) > 1:
        raise _refused("recurrent states of different sizes")
    tail, state = shapes.pop()
    if not tail + state:
        return None
    return States(layers=len(states), tail_elements=tail, state_elements=state)


def _elements(state: Recurrent, ranks: int) -> tuple[int, int]:
    """Return the elements of tail and state on one rank; an axis that ranks divide must divide."""
    tail = whole = 0
    for tensor in state.tensors:
        elements = tensor.elements
        if tensor.split_axis is not None and ranks > 1:
            size = tensor.shape[tensor.split_axis]
            if size % ranks:
                raise Conflict("{field} {ranks} does not divide the state axis of {size}",
                               field="tp_size", ranks=ranks, size=size)  # fmt: skip
            elements //= ranks
        if any(word in tensor.name for word in _TAIL_WORDS):
            tail += elements
        else:
            whole += elements
    return tail, whole

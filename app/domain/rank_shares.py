"""How far a model is split, and what one rank holds of one state.

Heads are dealt out evenly, or copied where ranks exceed them; a latent is whole on every tensor
rank; a recurrent state follows its own axis (vLLM 0.33 config/model.py, get_num_kv_heads; the
attention layers' own assertions).
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Conflict, Unsupported
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Recurrent,
    SlidingWindow,
    State,
    StateTensor,
)

MAX_RANKS = 4096
MAX_STAGES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How many ways a model is split; `layers_per_stage` overrides the rule for stages."""

    tensor: int = 1
    pipeline: int = 1
    decode_context: int = 1
    data: int = 1
    layers_per_stage: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        checked_int(self.tensor, "tensor_parallel", low=1, high=MAX_RANKS)
        checked_int(self.pipeline, "pipeline_parallel", low=1, high=MAX_STAGES)
        checked_int(self.decode_context, "decode_context_parallel", low=1, high=MAX_RANKS)
        checked_int(self.data, "data_parallel", low=1, high=MAX_RANKS)
        if self.tensor % self.decode_context:
            raise Unsupported(
                "{field} {value} must divide the {tensor} tensor ranks, whose copies it shares out",
                field="decode_context_parallel",
                value=self.decode_context,
                tensor=self.tensor,
            )

    @property
    def ranks(self) -> int:
        """Return the ranks of one replica."""
        return self.tensor * self.pipeline


def stage_layers(
    num_layers: int, stages: int, layers_per_stage: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return how many layers each stage holds.

    >>> stage_layers(61, 4)
    (15, 15, 16, 15)

    Raises:
        Unsupported: for more stages than layers.
        Conflict: when `layers_per_stage` has another length or another sum.

    """
    if layers_per_stage is not None:
        if len(layers_per_stage) != stages or sum(layers_per_stage) != num_layers:
            raise Conflict(
                "{field} must name {stages} stages that add up to {layers} layers",
                field="layers_per_stage",
                stages=stages,
                layers=num_layers,
            )
        for index, count in enumerate(layers_per_stage):
            checked_int(count, ("layers_per_stage", index), low=1, high=num_layers)
        return layers_per_stage
    if stages > num_layers:
        raise Unsupported(
            "{field} {value} is more than the {layers} layers: a stage would be empty",
            field="pipeline_parallel",
            value=stages,
            layers=num_layers,
        )
    base, rest = divmod(num_layers, stages)
    extra = range(stages - 1 - rest, stages - 1)
    return tuple(base + (stage in extra) for stage in range(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of a state: what it holds, which heads, in how many copies over the ranks."""

    state: State
    heads: tuple[int, ...]
    copies: int


def heads_of_rank(kv_heads: int, tensor: int, rank: int) -> tuple[tuple[int, ...], int]:
    """Return the KV heads that a tensor rank holds, and how many ranks hold each.

    Raises:
        Unsupported: when neither divides the other.

    """
    if kv_heads % tensor == 0:
        each = kv_heads // tensor
        return tuple(range(rank * each, (rank + 1) * each)), 1
    if tensor % kv_heads == 0:
        copies = tensor // kv_heads
        return (rank // copies,), copies
    raise Unsupported(
        "{field} {value} and {heads} KV heads: neither divides the other, so heads cannot be split",
        field="tensor_parallel",
        value=tensor,
        heads=kv_heads,
    )


def share_of(state: State, degrees: Degrees, rank: int) -> Share:
    """Return what tensor rank `rank` holds of a state.

    Raises:
        Unsupported: when the heads or the recurrent state cannot be split so.

    """
    if isinstance(state, FullAttention | SlidingWindow | ChunkedAttention | CrossAttention):
        heads, copies = heads_of_rank(state.kv_heads, degrees.tensor, rank)
        if is_interleaved(state):
            copies = _shared_out(copies, degrees)
        return Share(state=_with_heads(state, len(heads)), heads=heads, copies=copies)
    if isinstance(state, LatentAttention):
        context = degrees.decode_context if is_interleaved(state) else 1
        return Share(state=state, heads=(0,), copies=degrees.tensor // context)
    if isinstance(state, Recurrent):
        tensors = tuple(_tensor_share(tensor, degrees.tensor) for tensor in state.tensors)
        held = degrees.tensor * Recurrent(tensors=tensors).fixed_bytes()
        copies = held // max(state.fixed_bytes(), 1)
        return Share(state=Recurrent(tensors=tensors), heads=(), copies=max(copies, 1))
    return Share(state=state, heads=(), copies=1)


def _shared_out(copies: int, degrees: Degrees) -> int:
    """Return the copies that stay when decode-context ranks share out a head's positions."""
    if copies % degrees.decode_context:
        raise Unsupported(
            "{field} {value} must divide the {copies} copies of a KV head that {tensor} tensor "
            "ranks hold",
            field="decode_context_parallel",
            value=degrees.decode_context,
            copies=copies,
            tensor=degrees.tensor,
        )
    return copies // degrees.decode_context


def _with_heads(
    state: FullAttention | SlidingWindow | ChunkedAttention | CrossAttention, heads: int
) -> State:
    if isinstance(state, FullAttention):
        return FullAttention(
            kv_heads=heads, k_dim=state.k_dim, v_dim=state.v_dim, index_dim=state.index_dim
        )
    if isinstance(state, SlidingWindow):
        return SlidingWindow(
            kv_heads=heads, k_dim=state.k_dim, v_dim=state.v_dim, window=state.window
        )
    if isinstance(state, ChunkedAttention):
        return ChunkedAttention(
            kv_heads=heads, k_dim=state.k_dim, v_dim=state.v_dim, chunk=state.chunk
        )
    return CrossAttention(
        kv_heads=heads, k_dim=state.k_dim, v_dim=state.v_dim, encoder_tokens=state.encoder_tokens
    )


def _tensor_share(tensor: StateTensor, ranks: int) -> StateTensor:
    axis = tensor.split_axis
    if axis is None or ranks == 1:
        return tensor
    size = tensor.shape[axis]
    if size % ranks and ranks % size:
        raise Unsupported(
            "{field} {value}: the {size} of a recurrent state's {name} cannot be split so",
            field="tensor_parallel",
            value=ranks,
            size=size,
            name=tensor.name,
        )
    part = max(1, size // ranks)
    shape = (*tensor.shape[:axis], part, *tensor.shape[axis + 1 :])
    return StateTensor(name=tensor.name, shape=shape, dtype=tensor.dtype, split_axis=axis)


def is_interleaved(state: State) -> bool:
    """Return whether decode-context ranks share out this state's positions."""
    if isinstance(state, LatentAttention):
        return state.window is None and state.tokens_per_entry == 1
    return isinstance(state, FullAttention)

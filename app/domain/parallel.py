"""Which rank holds which layers, heads and positions, and what copies cost.

- Pipeline: stages hold consecutive layers. The remainder goes one each to the stages counted from
  the second-last backwards (vLLM 0.33 distributed/utils.py, get_pp_indices), or as given.
- Tensor: KV heads are split evenly; where ranks exceed heads each head is copied; anything else is
  refused, as engines refuse it. A latent and index keys have one head: every rank holds them whole.
  A recurrent state is split along its own axis where that divides, copied where it cannot be.
- Decode context: positions are interleaved over the ranks that would hold copies, so one position
  lies on one of them. Windows, cross-attention and recurrent states are not interleaved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import lcm

from app.domain.checks import checked_int
from app.domain.errors import Conflict, Unsupported
from app.domain.formats import KvFormats, LayerRangeFormat
from app.domain.ledgers import MAX_BLOCK_SIZE, Ledgers, ledgers
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Heads,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
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
        if _is_interleaved(state):
            copies = _shared_out(copies, degrees)
        return Share(state=_with_heads(state, len(heads)), heads=heads, copies=copies)
    if isinstance(state, LatentAttention):
        context = degrees.decode_context if _is_interleaved(state) else 1
        return Share(state=state, heads=(0,), copies=degrees.tensor // context)
    if isinstance(state, Recurrent):
        tensors = tuple(_tensor_share(tensor, degrees.tensor) for tensor in state.tensors)
        whole = all(mine == all_ for mine, all_ in zip(tensors, state.tensors, strict=True))
        copies = degrees.tensor if whole else 1
        return Share(state=Recurrent(tensors=tensors), heads=(), copies=copies)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank's part: its layers (first and last, both included), heads, copies and ledgers.

    `kv_heads` are those of the state with most heads on this stage; `copies` says how many ranks
    hold the same positions of the same heads. Every `growth_tokens` tokens of a sequence add
    `growth_bytes` here.
    """

    pipeline_rank: int
    tensor_rank: int
    first_layer: int
    last_layer: int
    kv_heads: tuple[int, ...]
    copies: int
    growth_bytes: int
    growth_tokens: int
    fixed_bytes: int
    window_bytes: int
    effective_bytes: int
    padded_bytes: int
    paged_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Return what one more token adds here, rounded up where it adds only now and then."""
        return -(-self.growth_bytes // self.growth_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """All ranks of one replica, what they hold together, and what copies cost."""

    degrees: Degrees
    stages: tuple[int, ...]
    ranks: tuple[Rank, ...]
    single: Ledgers
    total_bytes: int
    naive_bytes: int
    why: tuple[Note, ...]

    @property
    def replicated_bytes(self) -> int:
        """Return what all ranks hold beyond one copy of the state."""
        return self.total_bytes - self.single.effective_bytes

    @property
    def largest(self) -> Rank:
        """Return the rank that holds most, which decides what fits."""
        return max(self.ranks, key=lambda rank: rank.paged_bytes)


def parallel(
    model: ModelState,
    formats: KvFormats,
    lengths: RequestLengths,
    block_size: int,
    degrees: Degrees,
) -> Parallel:
    """Return what every rank of one replica holds for `lengths` requests.

    Raises:
        Unsupported: for degrees by which the model cannot be split.
        Conflict: for stages that do not add up.

    """
    checked_int(block_size, "block_size", low=1, high=MAX_BLOCK_SIZE)
    checked_int(degrees.ranks, "tensor_parallel", low=1, high=MAX_RANKS)
    formats.check_within(model.num_layers)
    single = ledgers(model, formats, lengths, block_size)
    stages = stage_layers(model.num_layers, degrees.pipeline, degrees.layers_per_stage)
    ranks = []
    for stage, (first, own) in enumerate(_stages(model, stages)):
        here = _formats_of_stage(formats, first, len(own))
        for tensor in range(degrees.tensor):
            part = _Part(stage=stage, tensor=tensor, first=first, layers=own, formats=here)
            ranks.append(_rank(part, lengths, block_size, degrees))
    return Parallel(
        degrees=degrees,
        stages=stages,
        ranks=tuple(ranks),
        single=single,
        total_bytes=sum(rank.effective_bytes for rank in ranks),
        naive_bytes=-(-single.effective_bytes // degrees.ranks),
        why=_why(model, degrees, stages),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Where a rank stands, and the layers of its stage."""

    stage: int
    tensor: int
    first: int
    layers: tuple[Layer, ...]
    formats: KvFormats


def _stages(model: ModelState, stages: tuple[int, ...]) -> list[tuple[int, tuple[Layer, ...]]]:
    every = tuple(model.layers)
    edges = [0, *accumulate(stages)]
    return [(first, every[first:after]) for first, after in pairwise(edges)]


def _formats_of_stage(formats: KvFormats, first: int, count: int) -> KvFormats:
    """Return the formats of a stage's layers, counted from the stage's own first."""
    last = first + count - 1
    ranges = tuple(
        LayerRangeFormat(
            first=max(item.first - first, 0),
            last=min(item.last, last) - first,
            format=item.format,
        )
        for item in formats.ranges
        if item.first <= last and item.last >= first
    )
    return KvFormats(base=formats.base, ranges=ranges)


def _is_interleaved(state: State) -> bool:
    """Return whether decode-context ranks share out this state's positions."""
    if isinstance(state, LatentAttention):
        return state.window is None and state.tokens_per_entry == 1
    return isinstance(state, FullAttention)


def _rank(part: _Part, lengths: RequestLengths, block_size: int, degrees: Degrees) -> Rank:
    """Return one rank's part: its interleaved states and the others, each by its own lengths."""
    split: dict[State, Share] = {
        state: share_of(state, degrees, part.tensor)
        for state in dict.fromkeys(state for layer in part.layers for state in layer.states)
    }
    context = degrees.decode_context
    interleaved = _only(part.layers, split, interleaved=True)
    whole = _only(part.layers, split, interleaved=False)
    mine = lengths if context == 1 else _every(lengths, context, part.tensor % context)
    answers = [
        ledgers(model, part.formats, asked, block_size)
        for model, asked in ((interleaved, mine), (whole, lengths))
    ]
    shapes = [answer.shape for answer in answers]
    period = lcm(shapes[0].growth_tokens * context, shapes[1].growth_tokens)
    growth = sum(
        shape.growth_bytes * (period // (shape.growth_tokens * times))
        for shape, times in zip(shapes, (context, 1), strict=True)
    )
    widest = max(split.values(), key=lambda share: len(share.heads), default=None)
    copies = 1 if widest is None else widest.copies
    return Rank(
        pipeline_rank=part.stage,
        tensor_rank=part.tensor,
        first_layer=part.first,
        last_layer=part.first + len(part.layers) - 1,
        kv_heads=() if widest is None else widest.heads,
        copies=copies,
        growth_bytes=growth,
        growth_tokens=period,
        fixed_bytes=sum(shape.fixed_bytes for shape in shapes),
        window_bytes=sum(shape.window_bytes for shape in shapes),
        effective_bytes=sum(answer.effective_bytes for answer in answers),
        padded_bytes=sum(answer.padded_bytes for answer in answers),
        paged_bytes=sum(answer.paged_bytes for answer in answers),
    )


def _only(layers: tuple[Layer, ...], split: dict[State, Share], *, interleaved: bool) -> ModelState:
    """Return a rank's layers with only those states that are interleaved, or only the others."""
    kept = [
        Layer(
            states=tuple(
                split[state].state
                for state in layer.states
                if _is_interleaved(state) is interleaved and not isinstance(state, Shared)
            )
        )
        for layer in layers
    ]
    return ModelState.of_layers(kept)


def _every(lengths: RequestLengths, context: int, rank: int) -> RequestLengths:
    """Return how many of each request's positions fall on one of `context` interleaved ranks."""
    return RequestLengths.of_runs(
        [
            (max(0, -(-(length - rank) // context)), count)
            for length, count in lengths.counts.items()
        ]
    )


def _why(model: ModelState, degrees: Degrees, stages: tuple[int, ...]) -> tuple[Note, ...]:
    """Return why the ranks hold other than a plain division would say."""
    notes = []
    states = [state for run in model.runs for state in run.layer.states]
    heads = [state.kv_heads for state in states if isinstance(state, Heads)]
    if degrees.tensor > degrees.decode_context and any(n < degrees.tensor for n in heads):
        notes.append(
            Note(
                "copied_heads",
                "{tensor} tensor ranks share {heads} KV heads: each head is held by several ranks.",
                {"tensor": degrees.tensor, "heads": min(heads)},
            )
        )
    if degrees.tensor > 1 and any(isinstance(state, LatentAttention) for state in states):
        notes.append(
            Note(
                "whole_latent",
                "A latent has one head for all: tensor ranks copy it, they do not divide it.",
            )
        )
    if degrees.tensor > 1 and any(isinstance(state, Recurrent) for state in states):
        notes.append(
            Note(
                "recurrent_split",
                "A recurrent state is split along its own heads where they divide, else copied.",
            )
        )
    if len(set(stages)) > 1:
        notes.append(
            Note(
                "uneven_stages",
                "The layers do not divide evenly: stages hold {stages}, and the largest decides.",
                {"stages": ", ".join(map(str, stages))},
            )
        )
    if degrees.decode_context > 1:
        notes.append(
            Note(
                "interleaved",
                "Positions of full and latent attention are interleaved over {ranks} ranks, so "
                "that each lies on one of them; windows and recurrent states are not.",
                {"ranks": degrees.decode_context},
            )
        )
    if degrees.data > 1:
        notes.append(
            Note(
                "data_parallel",
                "Data parallelism divides requests, not their cache: each of {replicas} replicas "
                "keeps the whole state of its own requests.",
                {"replicas": degrees.data},
            )
        )
    return tuple(notes)

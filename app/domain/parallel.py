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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import lcm

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange
from app.domain.formats import KvFormats, LayerRangeFormat
from app.domain.ledgers import MAX_BLOCK_SIZE, Ledgers, ledgers
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.rank_shares import (
    MAX_RANKS,
    Degrees,
    Share,
    is_interleaved,
    share_of,
    stage_layers,
)
from app.domain.state import Heads, LatentAttention, Layer, ModelState, Recurrent, Shared, State

# Sums over lengths, and heads named, that one request may ask for.
MAX_SUMS = 500_000


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
    stages = stage_layers(model.num_layers, degrees.pipeline, degrees.layers_per_stage)
    _check_work(model, len(lengths.counts), degrees)
    single = ledgers(model, formats, lengths, block_size)
    asked = _Asked(lengths=lengths, block_size=block_size, degrees=degrees)
    ranks: list[Rank] = []
    for stage, (first, own) in enumerate(stages_of(model, stages)):
        here = formats_of_stage(formats, first, len(own))
        part = _Part(stage=stage, first=first, layers=own, formats=here)
        ranks += _ranks_of_stage(part, asked)
    return Parallel(
        degrees=degrees,
        stages=stages,
        ranks=tuple(ranks),
        single=single,
        total_bytes=sum(rank.effective_bytes for rank in ranks),
        naive_bytes=-(-single.effective_bytes // degrees.ranks),
        why=_why(model, degrees, stages),
    )


def _check_work(model: ModelState, lengths: int, degrees: Degrees) -> None:
    """Refuse more than a request may ask for: a sum for each length, stage and position's rank."""
    kinds = len(set(_states(model)))
    sums = lengths * degrees.pipeline * degrees.decode_context * max(kinds, 1)
    named = degrees.pipeline * max((s.kv_heads for s in _states(model) if isinstance(s, Heads)),
                                   default=0)  # fmt: skip
    for field, value in (("lengths", sums), ("pipeline_parallel", named)):
        if value > MAX_SUMS:
            raise OutOfRange(
                "{field}: {lengths} different lengths of {kinds} kinds of states over {stages} "
                "stages and {context} decode-context ranks ask for {value} sums or heads, at most "
                "{high} are made",
                field=field,
                lengths=lengths,
                kinds=kinds,
                stages=degrees.pipeline,
                context=degrees.decode_context,
                value=value,
                high=MAX_SUMS,
            )


def _states(model: ModelState) -> Iterator[State]:
    """Yield the states of a model's distinct layers."""
    return (state for run in model.runs for state in run.layer.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What every rank is asked."""

    lengths: RequestLengths
    block_size: int
    degrees: Degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A stage and its layers."""

    stage: int
    first: int
    layers: tuple[Layer, ...]
    formats: KvFormats


def stages_of(model: ModelState, stages: tuple[int, ...]) -> list[tuple[int, tuple[Layer, ...]]]:
    """Return each stage's first layer and its layers."""
    every = tuple(model.layers)
    edges = [0, *accumulate(stages)]
    return [(first, every[first:after]) for first, after in pairwise(edges)]


def formats_of_stage(formats: KvFormats, first: int, count: int) -> KvFormats:
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


def _ranks_of_stage(part: _Part, asked: _Asked) -> list[Rank]:
    """Return a stage's ranks: its interleaved states and the others, each by its own lengths.

    Tensor ranks differ in which heads and positions they hold; bytes differ by positions alone.
    """
    degrees = asked.degrees
    split = {
        state: share_of(state, degrees, 0)
        for state in dict.fromkeys(state for layer in part.layers for state in layer.states)
    }
    whole = states_only(part.layers, split, interleaved=False)
    plain = ledgers(whole, part.formats, asked.lengths, asked.block_size)
    interleaved = states_only(part.layers, split, interleaved=True)
    context = degrees.decode_context
    by_place = []
    for place in range(context):
        mine = asked.lengths if context == 1 else _every(asked.lengths, context, place)
        answer = ledgers(interleaved, part.formats, mine, asked.block_size)
        by_place.append(_sums(part, (answer, plain), context))
    widest = max(split, key=lambda state: len(split[state].heads), default=None)
    ranks = []
    for tensor in range(degrees.tensor):
        share = None if widest is None else share_of(widest, degrees, tensor)
        ranks.append(
            replace(
                by_place[tensor % context],
                tensor_rank=tensor,
                kv_heads=() if share is None else share.heads,
                copies=1 if share is None else share.copies,
            )
        )
    return ranks


def _sums(part: _Part, answers: tuple[Ledgers, Ledgers], context: int) -> Rank:
    """Return a rank that holds what both answers count; the first one's positions interleaved."""
    shapes = [answer.shape for answer in answers]
    period = lcm(shapes[0].growth_tokens * context, shapes[1].growth_tokens)
    growth = sum(
        shape.growth_bytes * (period // (shape.growth_tokens * times))
        for shape, times in zip(shapes, (context, 1), strict=True)
    )
    return Rank(
        pipeline_rank=part.stage,
        tensor_rank=0,
        first_layer=part.first,
        last_layer=part.first + len(part.layers) - 1,
        kv_heads=(),
        copies=1,
        growth_bytes=growth,
        growth_tokens=period,
        fixed_bytes=sum(shape.fixed_bytes for shape in shapes),
        window_bytes=sum(shape.window_bytes for shape in shapes),
        effective_bytes=sum(answer.effective_bytes for answer in answers),
        padded_bytes=sum(answer.padded_bytes for answer in answers),
        paged_bytes=sum(answer.paged_bytes for answer in answers),
    )


def states_only(
    layers: tuple[Layer, ...], split: dict[State, Share], *, interleaved: bool
) -> ModelState:
    """Return a rank's layers with only those states that are interleaved, or only the others."""
    kept = [
        Layer(
            states=tuple(
                split[state].state
                for state in layer.states
                if is_interleaved(state) is interleaved and not isinstance(state, Shared)
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
    states = list(_states(model))
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
    if degrees.pipeline > 1 and any(isinstance(state, Shared) for state in states):
        notes.append(
            Note(
                "shared_across_stages",
                "Layers that read another layer's cache are taken to lie on its stage; an engine "
                "that cuts between them keeps a second copy or refuses.",
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

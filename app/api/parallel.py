"""`/parallel`: which rank holds which layers, heads and positions, and what copies cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import Field

from app.api.answers import Answer, Explained, NoteAnswer, notes_answer
from app.api.compute import ModelAndFormats, model_and_formats
from app.api.model_input import read_lengths
from app.api.parallel_schemas import Parallelism, ParallelRequest
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.api.weights_input import RankWeights, rank_weights
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.rank_shares import Degrees
from app.domain.units import bytes_text

if TYPE_CHECKING:
    from app.domain.parallel import Parallel, Rank

router = APIRouter(tags=["parallel"], responses=REFUSED, route_class=JsonRoute)


class RankAnswer(Answer):
    """One rank of a replica."""

    pipeline_rank: int
    tensor_rank: int
    layers: list[int] = Field(description="First and last layer, both included.")
    kv_heads: list[int]
    replicas: int = Field(description="Ranks that hold the same positions of the same heads.")
    bytes_per_token: int
    fixed_bytes: int
    window_bytes: int
    effective_bytes: int
    padded_bytes: int
    paged_bytes: int
    weights_bytes: int | None


class ParallelAnswer(Explained):
    """All ranks of one replica, and what copies cost."""

    stages: list[int] = Field(description="Layers of each stage.")
    ranks: list[RankAnswer]
    single_bytes: int = Field(description="One copy of the state.")
    total_bytes: int = Field(description="What all ranks hold of it.")
    total_bytes_text: str
    replicated_bytes: int
    replicated_bytes_text: str
    naive_bytes: int = Field(description="One copy divided by the number of ranks.")
    why: list[NoteAnswer] = Field(description="Why plain division differs.")
    largest_rank_bytes: int
    weights_total_bytes: int | None
    weights_basis: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelParts:
    """A request's answer as domain values."""

    given: ModelAndFormats
    answer: Parallel
    weights: RankWeights | None
    assumed: tuple[Note, ...]

    @property
    def assumptions(self) -> tuple[Note, ...]:
        """Return everything that was taken for granted."""
        single = [note for note in self.answer.single.assumptions if note.code != "one_device"]
        return (*self.given.reading.assumptions, *self.given.assumed, *single, *self.assumed)

    @property
    def not_counted(self) -> tuple[Note, ...]:
        """Return what is left out: the weights only where they are not shown."""
        notes = self.answer.single.not_counted
        if self.weights is None:
            return notes
        return tuple(note for note in notes if note.code != "weights")

    @property
    def formula(self) -> str:
        """Return what the ranks hold together, with the numbers in it."""
        single = self.answer.single.effective_bytes
        largest = self.answer.largest
        return (
            f"{single} B in one copy ÷ {self.answer.degrees.ranks} ranks = "
            f"{self.answer.naive_bytes} B; the fullest rank holds {largest.effective_bytes} B, "
            f"all together {self.answer.total_bytes} B"
        )


def degrees_of(request: Parallelism) -> Degrees:
    """Return the degrees of a request, checked."""
    stages = request.layers_per_stage
    return Degrees(
        tensor=request.tensor_parallel,
        pipeline=request.pipeline_parallel,
        decode_context=request.decode_context_parallel,
        data=request.data_parallel,
        layers_per_stage=None if stages is None else tuple(stages),
    )


def compute_parallel(request: ParallelRequest) -> ParallelParts:
    """Return the ranks of a request; raises a DomainError that names the field."""
    from app.domain.parallel import parallel

    given = model_and_formats(request)
    degrees = degrees_of(request)
    lengths = read_lengths(request.lengths)
    answer = parallel(given.reading.state, given.formats, lengths, request.block_size, degrees)
    weights: RankWeights | None = None
    notes: tuple[Note, ...] = ()
    try:
        weights = rank_weights(
            request.weights, request.model, degrees, answer.stages, request.expert_parallel
        )
        notes = weights.notes
    except DomainError as error:
        if request.weights is not None:
            raise
        notes = (Note("weights_unknown", "Weights of a rank are not shown: {why}",
                      {"why": error.note}),)  # fmt: skip
    return ParallelParts(given=given, answer=answer, weights=weights, assumed=notes)


def answer_parallel(request: ParallelRequest) -> ParallelAnswer:
    """Return the answer of `/parallel`."""
    return parallel_answer(compute_parallel(request))


def parallel_answer(parts: ParallelParts) -> ParallelAnswer:
    """Return the ranks as JSON shows them."""
    answer, weights, single = parts.answer, parts.weights, parts.answer.single
    return ParallelAnswer(
        stages=list(answer.stages),
        ranks=[_rank(rank, weights) for rank in answer.ranks],
        single_bytes=single.effective_bytes,
        total_bytes=answer.total_bytes,
        total_bytes_text=bytes_text(answer.total_bytes),
        replicated_bytes=answer.replicated_bytes,
        replicated_bytes_text=bytes_text(answer.replicated_bytes),
        naive_bytes=answer.naive_bytes,
        why=notes_answer(answer.why),
        largest_rank_bytes=answer.largest.effective_bytes,
        weights_total_bytes=None if weights is None else weights.total_bytes,
        weights_basis=None if weights is None else weights.basis.value,
        formula=parts.formula,
        workings=single.shape.workings,
        assumptions=notes_answer(parts.assumptions),
        not_counted=notes_answer(parts.not_counted),
    )


def _rank(rank: Rank, weights: RankWeights | None) -> RankAnswer:
    return RankAnswer(
        pipeline_rank=rank.pipeline_rank,
        tensor_rank=rank.tensor_rank,
        layers=[rank.first_layer, rank.last_layer],
        kv_heads=list(rank.kv_heads),
        replicas=rank.copies,
        bytes_per_token=rank.bytes_per_token,
        fixed_bytes=rank.fixed_bytes,
        window_bytes=rank.window_bytes,
        effective_bytes=rank.effective_bytes,
        padded_bytes=rank.padded_bytes,
        paged_bytes=rank.paged_bytes,
        weights_bytes=None if weights is None else weights.stage_bytes[rank.pipeline_rank],
    )


# A long list of lengths over many ranks takes a second: in a thread, not in the loop.
@router.post("/parallel", summary="Who holds what under tensor, pipeline and context parallelism")
def parallel_call(request: ParallelRequest) -> ParallelAnswer:
    """Return each rank's layers, heads, copies and bytes, and what copies cost."""
    return answer_parallel(request)

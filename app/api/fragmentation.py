"""`/fragmentation`: one workload reserved at a maximum, padded and paged, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import Field

from app.api.answers import Answer, Explained, notes_answer
from app.api.compute import ModelAndFormats, model_and_formats
from app.api.fragmentation_schemas import FragmentationRequest
from app.api.model_input import read_lengths
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.domain.ledgers import Ledgers, ledgers
from app.domain.units import bytes_text
from app.domain.working import Working

if TYPE_CHECKING:
    from app.domain.fragmentation import Fragmentation

router = APIRouter(tags=["ledgers"], responses=REFUSED, route_class=JsonRoute)


class LayoutAnswer(Answer):
    """One way to lay the workload out."""

    strategy: str = Field(description="reserved, padded, paged, or effective: the state alone.")
    allocated_bytes: int
    allocated_bytes_text: str
    waste_bytes: int
    waste_bytes_text: str
    admitted_requests: int | None = Field(
        description="How many fit into memory_bytes; null where they hold nothing."
    )


class FragmentationAnswer(Explained):
    """The same requests in each layout, and what the same memory admits in each."""

    request_count: int
    total_tokens: int
    longest_tokens: int
    max_length_tokens: int
    block_size: int
    bytes_per_token: int
    memory_bytes: int
    memory_bytes_text: str
    layouts: list[LayoutAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedFragmentation:
    """A request's layouts as domain values."""

    given: ModelAndFormats
    base: Ledgers
    answer: Fragmentation

    @property
    def workings(self) -> dict[str, Working]:
        """Return the working of each layout."""
        reserved = self.answer.layout("reserved").allocated_bytes
        requests = self.answer.requests
        each = reserved // requests if requests else 0
        return {
            **self.base.shape.workings,
            "reserved_bytes": Working(
                symbols="requests × bytes of one at the maximum length",
                numbers=f"{requests} × {each} B at {self.answer.max_length_tokens} tokens = "
                f"{reserved} B",
                result=reserved,
                unit="B",
                source="Kwon et al. 2023, arXiv:2309.06180, section 3.1: pre-allocated chunks of a "
                "request's maximum length",
            ),
            **self.base.workings,
        }


def compute_fragmentation(request: FragmentationRequest) -> ComputedFragmentation:
    """Return a request's layouts; raises a DomainError that names the field."""
    from app.domain.fragmentation import fragmentation

    given = model_and_formats(request)
    lengths = read_lengths(request.lengths)
    model, formats = given.reading.state, given.formats
    return ComputedFragmentation(
        given=given,
        base=ledgers(model, formats, lengths, request.block_size),
        answer=fragmentation(
            model,
            formats,
            lengths,
            max_length_tokens=request.max_length_tokens,
            block_size=request.block_size,
            memory_bytes=request.memory_bytes,
        ),
    )


def fragmentation_answer(computed: ComputedFragmentation) -> FragmentationAnswer:
    """Return the layouts as JSON shows them."""
    given, base, answer = computed.given, computed.base, computed.answer
    return FragmentationAnswer(
        request_count=answer.requests,
        total_tokens=base.lengths.tokens,
        longest_tokens=base.lengths.longest,
        max_length_tokens=answer.max_length_tokens,
        block_size=answer.block_size,
        bytes_per_token=base.shape.bytes_per_token,
        memory_bytes=answer.memory_bytes,
        memory_bytes_text=bytes_text(answer.memory_bytes),
        layouts=[
            LayoutAnswer(
                strategy=layout.strategy,
                allocated_bytes=layout.allocated_bytes,
                allocated_bytes_text=bytes_text(layout.allocated_bytes),
                waste_bytes=layout.waste_bytes,
                waste_bytes_text=bytes_text(layout.waste_bytes),
                admitted_requests=layout.admitted_requests,
            )
            for layout in answer.layouts
        ],
        formula=base.shape.workings["bytes_per_token"].numbers,
        workings=computed.workings,
        assumptions=notes_answer((*given.reading.assumptions, *given.assumed, *answer.assumptions)),
        not_counted=notes_answer(answer.not_counted),
    )


def answer_fragmentation(request: FragmentationRequest) -> FragmentationAnswer:
    """Return the answer of `/fragmentation`."""
    return fragmentation_answer(compute_fragmentation(request))


# Not async: a million lengths take longer than the event loop should wait.
@router.post("/fragmentation", summary="What reserving, padding and paging take and admit")
def post_fragmentation(request: FragmentationRequest) -> FragmentationAnswer:
    """Return what a workload takes in each layout, what of it is waste, and what memory admits."""
    return answer_fragmentation(request)

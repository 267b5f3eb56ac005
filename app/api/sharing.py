"""`/sharing`: what sequences with common prefixes have in common, in blocks and in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from pydantic import Field

from app.api import sharing_schemas as s
from app.api.answers import Explained, notes_answer
from app.api.compute import ModelAndFormats, model_and_formats
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.domain.errors import Conflict, Missing
from app.domain.per_token import Shape, shape_of
from app.domain.prefix_tree import (
    Branch,
    PrefixGroup,
    PrefixTree,
    samples_of,
    tree_of_groups,
    tree_of_sequences,
)
from app.domain.sharing import SharedGroup, Sharing, sharing
from app.domain.units import bytes_text

router = APIRouter(tags=["blocks"], responses=REFUSED, route_class=JsonRoute)


class SharingAnswer(Explained):
    """Logical and unique blocks, the tables, and the bytes each way.

    Blocks and tokens are those of a layer that keeps every position; bytes count every layer.
    """

    policy: str
    block_size: int
    sequence_count: int
    logical_blocks: int = Field(description="Entries of all block tables.")
    unique_blocks: int = Field(description="Blocks that are in memory.")
    saved_blocks: int
    logical_tokens: int
    effective_tokens: int = Field(description="Each shared prefix once, and every suffix.")
    stored_tokens: int = Field(description="Positions in the unique blocks.")
    duplicate_tokens: int = Field(description="Positions that stand in more than one block.")
    tail_waste_tokens: int = Field(description="Empty positions of the unique blocks.")
    copy_on_write_blocks: int = Field(description="Blocks copied since sequences diverged inside.")
    bytes_per_token: int
    logical_bytes: int = Field(description="What the tables would take if nothing were shared.")
    logical_bytes_text: str
    paged_bytes: int = Field(description="What the unique blocks take.")
    paged_bytes_text: str
    saved_bytes: int = Field(description="Memory that sharing saves: logical less paged.")
    saved_bytes_text: str
    effective_bytes: int
    effective_bytes_text: str
    unshared_effective_bytes: int = Field(description="Effective bytes if nothing were shared.")
    states: list[SharedGroup] = Field(description="The same for the layers of each kind.")
    tables_listed: bool = Field(description="False: too many entries to list; counts are exact.")
    block_tables: list[list[int]] | None
    ref_counts: dict[int, int] | None = Field(description="How many tables hold each block.")
    filled_tokens: dict[int, int] | None = Field(description="Positions in each block.")
    blocks_by_holders: dict[int, int] | None = Field(
        description="How many blocks have each number of holders."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedSharing:
    """A request's sharing as domain values."""

    given: ModelAndFormats
    shape: Shape
    sharing: Sharing


def _group(group: s.GroupInput) -> PrefixGroup:
    branches: list[Branch] = [
        _group(branch) if isinstance(branch, s.GroupInput) else branch for branch in group.branches
    ]
    return PrefixGroup(prefix_tokens=group.prefix_tokens, branches=branches, count=group.count)


def groups_body(groups: Sequence[PrefixGroup]) -> list[dict[str, object]]:
    """Return groups as a request's body has them."""
    return [_group_body(group) for group in groups]


def _group_body(group: PrefixGroup) -> dict[str, object]:
    body: dict[str, object] = {
        "prefix_tokens": group.prefix_tokens,
        "branches": [
            _group_body(branch) if isinstance(branch, PrefixGroup) else branch
            for branch in group.branches
        ],
    }
    if group.count != 1:
        body["count"] = group.count
    return body


def _tree(request: s.SharingRequest) -> PrefixTree:
    given = [
        name
        for name in ("sequences", "groups", "samples")
        if getattr(request, name) is not None
    ]  # fmt: skip
    if not given:
        raise Missing(
            "{field} is missing: give sequences, groups or samples of a prompt", field="sequences"
        )
    if len(given) > 1:
        raise Conflict(
            "{field} and {other} both say what the sequences are: give one",
            field=given[1],
            other=given[0],
        )
    if request.sequences is not None:
        return tree_of_sequences(request.sequences)
    if request.groups is not None:
        return tree_of_groups([_group(group) for group in request.groups])
    asked = request.samples
    assert asked is not None  # noqa: S101 - one of the three is given
    return tree_of_groups(samples_of(asked.prompt_tokens, asked.samples, asked.own_tokens))


def compute_sharing(request: s.SharingRequest) -> ComputedSharing:
    """Return a request's sharing; raises a DomainError that names the field."""
    given = model_and_formats(request)
    model, formats = given.reading.state, given.formats
    return ComputedSharing(
        given=given,
        shape=shape_of(model, formats),
        sharing=sharing(_tree(request), request.block_size, model, formats, policy=request.policy),
    )


def sharing_answer(computed: ComputedSharing) -> SharingAnswer:
    """Return the answer of `/sharing` from its domain value."""
    given, answer, tables = computed.given, computed.sharing, computed.sharing.tables
    slope = computed.shape.workings["bytes_per_token"]
    return SharingAnswer(
        policy=answer.policy,
        block_size=answer.block_size,
        sequence_count=answer.sequences,
        logical_blocks=answer.logical_blocks,
        unique_blocks=answer.unique_blocks,
        saved_blocks=answer.saved_blocks,
        logical_tokens=answer.logical_tokens,
        effective_tokens=answer.effective_tokens,
        stored_tokens=answer.stored_tokens,
        duplicate_tokens=answer.duplicate_tokens,
        tail_waste_tokens=answer.tail_waste_tokens,
        copy_on_write_blocks=answer.copy_on_write_blocks,
        bytes_per_token=computed.shape.bytes_per_token,
        logical_bytes=answer.logical_bytes,
        logical_bytes_text=bytes_text(answer.logical_bytes),
        paged_bytes=answer.paged_bytes,
        paged_bytes_text=bytes_text(answer.paged_bytes),
        saved_bytes=answer.saved_bytes,
        saved_bytes_text=bytes_text(answer.saved_bytes),
        effective_bytes=answer.effective_bytes,
        effective_bytes_text=bytes_text(answer.effective_bytes),
        unshared_effective_bytes=answer.unshared_effective_bytes,
        states=list(answer.groups),
        tables_listed=tables is not None,
        block_tables=None if tables is None else [list(row) for row in tables.rows],
        ref_counts=None if tables is None else tables.ref_counts,
        filled_tokens=None if tables is None else tables.filled,
        blocks_by_holders=None if tables is None else tables.blocks_by_holders,
        formula=f"{slope.numbers}; {answer.workings['paged_bytes'].numbers}",
        workings={**computed.shape.workings, **answer.workings},
        assumptions=notes_answer((*given.reading.assumptions, *given.assumed, *answer.assumptions)),
        not_counted=notes_answer(answer.not_counted),
    )


def answer_sharing(request: s.SharingRequest) -> SharingAnswer:
    """Return the answer of `/sharing`."""
    return sharing_answer(compute_sharing(request))


# Not async: a million token ids take longer than the event loop should wait.
@router.post("/sharing", summary="What sequences with common prefixes share")
def share(request: s.SharingRequest) -> SharingAnswer:
    """Return logical and unique blocks, tables, reference counts, and bytes with and without."""
    return answer_sharing(request)

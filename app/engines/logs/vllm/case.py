"""What the figures of a vLLM log are made from, and the sentences that several of them share."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.notes import Note
from app.domain.state import ModelState
from app.engines.logs.kinds import Reads
from app.engines.logs.numbers import gib_text
from app.engines.logs.sentences import NO_MODEL, inferred_note, not_reproduced_note
from app.engines.logs.vllm.evidence import (
    UNBOUNDED,
    Evidence,
    PrintRule,
    Span,
    intersect,
    print_rule,
)
from app.engines.logs.vllm.fit import Fit
from app.engines.model import EngineModel
from app.engines.vllm import VllmPlan

_DEFAULTS = {"tensor_parallel_size": 1, "kv_cache_dtype": "auto"}
MEASURED = Note(
    "measured",
    "this is what the profile run left: utilisation × the device's memory"
    " − weights − activation peak − what else was taken",
)
NO_CONSTANT = Note(
    "no_constant",
    "it is no constant: the memory left for the cache over what a block of tokens costs this model",
)
_NO_ROOM = Note(
    "no_room",
    "the memory that the log gives holds no block, so this line is of another start",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the figures are made from; `fit` is None where no model is known or no plan was made.

    `swap_gib` is --swap-space, None where nothing says it.
    """

    model: EngineModel | None
    reads: Reads
    evidence: Evidence
    fit: Fit | None
    why_no_plan: Note | None
    several_ranks: bool
    swap_gib: int | None = None

    @property
    def plan(self) -> VllmPlan | None:
        """The plan, where there is one."""
        return None if self.fit is None else self.fit.plan

    @property
    def rule(self) -> PrintRule | None:
        """How the plan's release prints."""
        return None if self.fit is None else print_rule(self.fit.plan, self.fit.settings)

    @property
    def blocks(self) -> int | None:
        """The number of blocks that the log's figures leave, or the plan's own where none do."""
        if self.fit is None or not (self.evidence.sized or self.evidence.memories):
            return None
        low, high = self.fit.kept
        return low if self.evidence.sized else high

    def allows(self, span: Span) -> bool:
        """Say whether some number of blocks prints a figure beside the others that agree."""
        if self.fit is None:
            return False
        low, high = intersect(span, self.fit.kept)
        return low <= high

    @property
    def open(self) -> bool:
        """Whether settings that the log hides could still give a figure that none tried gives.

        Layers that are all alike leave nothing open but ranks and formats, and those are tried.
        """
        if self.fit is None or self.model is None or self.model.state is None:
            return True
        mixed = len(self.model.state.kinds - {"shared"}) > 1 or _has_index(self.model.state)
        named = {"version", "tensor_parallel_size", "kv_cache_dtype"} - set(self.fit.inferred)
        return mixed and len(named) < 3  # noqa: PLR2004 - all three known leave nothing open

    @property
    def unit_bytes(self) -> int:
        """The bytes of a block on the stage where it is largest; 1 where no plan was made."""
        if self.fit is None:
            return 1
        return max(rank.bytes_per_block for rank in self.fit.plan.ranks) or 1

    @property
    def pool_is_free(self) -> bool:
        """Whether nothing but one line bounds the pool, so that some pool prints whatever it says.

        Lines of the tokens and of the concurrency bound each other.
        """
        evidence = self.evidence
        kinds = (evidence.tokens, evidence.concurrencies, evidence.blocks, evidence.too_long)
        return not self.knows_memory and sum(map(bool, kinds)) == 1

    def gib_of_blocks(self, span: Span) -> str:
        """Return the memory of so many blocks on one rank, in GiB."""
        low, high = (gib_text(blocks * self.unit_bytes) for blocks in span)
        return low if low == high else f"{low} to {high}"

    @property
    def knows_memory(self) -> bool:
        """Whether a line gives the memory that the pool was cut from."""
        return self.fit is not None and self.fit.from_memory[1] < UNBOUNDED


def _has_index(state: ModelState) -> bool:
    """Say whether any layer keeps index keys, whose layers and formats differ by release."""
    return any(getattr(part, "index_dim", 0) for run in state.runs for part in run.layer.states)


def unchecked(case: Case) -> tuple[Note, ...]:
    """Return why nothing was computed."""
    return (case.why_no_plan or NO_MODEL,)


def inferred(case: Case) -> tuple[Note, ...]:
    """Return the sentence that names what had to be inferred for the figures to agree."""
    return () if case.fit is None else inferred_note(case.fit.inferred, _DEFAULTS)


def not_reproduced(case: Case) -> tuple[Note, ...]:
    """Return the sentence for a figure that no usual setting gives."""
    if case.fit is None:
        return ()
    if case.knows_memory and not case.fit.from_memory[1]:
        return (_NO_ROOM,)
    return (not_reproduced_note(case.fit.settings),)


def pool_takes(case: Case, span: Span) -> Note:
    """Return the sentence for a line that nothing else bounds: the memory that it takes."""
    return Note(
        "pool_takes",
        "at {unit} B a block the pool takes {size} on each rank; no line gives the memory that it"
        " was cut from, so there is nothing to check it against",
        {"unit": f"{case.unit_bytes:,}", "size": case.gib_of_blocks(span)},
    )

"""What would have let a vLLM start through that ran out of memory, or of blocks for its states."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.notes import Note
from app.engines.logs.numbers import gib_text
from app.engines.logs.result import Advice
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.table import least_bytes


def for_state_blocks(case: Case) -> Iterator[Advice]:
    """Yield what serves so many sequences, each with a block for its state."""
    for found in case.reads.get("state_blocks", ())[:1]:
        asked, blocks = int(found.groups[0] or 0), int(found.groups[1] or 0)
        yield Advice(
            change=Note("max_num_seqs", "--max-num-seqs {blocks}", {"blocks": blocks}),
            effect=Note(
                "a_block_each",
                "each running sequence then has a block for its state; more"
                " than {blocks} of the {asked} asked for would find none",
                {"blocks": blocks, "asked": asked},
            ),
        )
        if case.fit is not None:
            unit = max(rank.bytes_per_block for rank in case.fit.plan.ranks)
            yield Advice(
                change=Note(
                    "more_memory",
                    "{short} more for the cache on each rank (a higher"
                    " --gpu-memory-utilization, or less for weights and activations)",
                    {"short": gib_text((asked - blocks) * unit)},
                ),
                effect=Note(
                    "blocks_for_all",
                    "{asked} blocks of {unit} B, one for each sequence",
                    {"asked": asked, "unit": f"{unit:,}"},
                ),
            )


def for_nothing_left(case: Case) -> Iterator[Advice]:
    """Yield what would leave anything for the cache."""
    smallest = case.evidence.smallest
    negative = smallest is not None and smallest.printed.value <= 0
    if not negative and "nothing" not in case.reads:
        return
    deficit = -smallest.bytes[0] if smallest is not None and negative else 0
    need = 0
    if case.fit is not None:
        need = least_bytes(case.fit.plan)
    if deficit or need:
        yield Advice(
            change=Note(
                "more_memory",
                "{short} more for the cache on each rank (a higher"
                " --gpu-memory-utilization, or less for weights and activations)",
                {"short": gib_text(deficit + need)},
            ),
            effect=_covers(deficit, need),
        )
    yield Advice(
        change=Note(
            "smaller_profile",
            "a smaller --max-num-batched-tokens and --max-num-seqs,"
            " fewer CUDA graph sizes, --limit-mm-per-prompt",
        ),
        effect=Note(
            "profile_estimate",
            "the profile run's activations shrink with them; by how much only a run shows",
        ),
    )


def _covers(deficit: int, need: int) -> Note:
    sizes: dict[str, object] = {"deficit": gib_text(deficit), "need": gib_text(need)}
    if not deficit:
        return Note("covers_request", "{need} are what one request of the full length takes; how"
                    " much is short besides is in no line", sizes)  # fmt: skip
    return Note("covers_deficit", "{deficit} to have anything left, and {need} for one request of"
                " the full length", sizes)  # fmt: skip

"""Memory lines: what was left for the cache, the budget behind it, and what is not the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.domain.notes import Note
from app.engines.logs.kinds import Found
from app.engines.logs.numbers import decimal, gib_text
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.vllm.case import MEASURED, Case, inferred, unchecked
from app.engines.logs.vllm.evidence import GIB_DECIMALS, Memory, blocks_of_memory
from app.engines.logs.vllm.fit import LEAST_SHARE
from app.engines.vllm import VllmPlan

_GIB = 2**30
_OTHER_POOL = Note(
    "other_pool",
    "no line of the pool goes with it: they are of another start, or a setting is other than taken",
)
_ALONE = Note(
    "memory_alone",
    "only whole blocks of the plan were held against it: the lines of the pool follow from settings"
    " that the log does not show",
)


def memory_figures(case: Case) -> Iterator[LogFigure]:
    """Yield each printed memory for the cache: against the pool, where its size is known."""
    smallest = case.evidence.smallest
    for memory in case.evidence.memories:
        if memory.printed.value < 0 or (case.fit is not None and not case.evidence.sized):
            yield _left_over(case, memory)
        elif case.fit is None or case.blocks is None:
            yield _memory(memory, reasons=(MEASURED, *unchecked(case)))
        else:
            yield _pool_memory(case, memory, is_smallest=memory is smallest)


def nothing_figures(case: Case) -> Iterator[LogFigure]:
    """Yield the error that no memory is left, where no line says how much is short."""
    if case.evidence.memories:
        return
    for found in case.reads.get("nothing", ())[:1]:
        note = Note(
            "nothing_is_left",
            "weights, activations and what else was taken fill the engine's share of the device;"
            " the line 'Available KV cache memory' above the error says by how much they exceed it",
        )
        yield figure("available_memory", found, "none", unit="bytes", reasons=(note,))


def _memory(memory: Memory, **rest: object) -> LogFigure:
    return figure(
        "available_memory",
        memory.found,
        f"{memory.printed.text} GiB",
        unit="bytes",
        interval=memory.bytes,
        **rest,
    )


def _left_over(case: Case, memory: Memory) -> LogFigure:
    if memory.printed.value < 0:
        note = Note(
            "nothing_left",
            "weights, activations and what else was taken exceed the share"
            " of the device by {gib} GiB: no cache is possible whatever its format",
            {"gib": memory.printed.text.lstrip("-")},
        )
        return _memory(memory, reasons=(note,))
    for found in case.reads.get("state_blocks", ())[:1]:
        became = Note(
            "pool_of_error",
            "the error says how large the pool became, {blocks} blocks",
            {"blocks": f"{int(found.groups[1] or 0):,}"},
        )
        return _memory(memory, reasons=(MEASURED, became))
    return _memory(
        memory,
        reasons=(
            MEASURED,
            Note(
                "no_size_line",
                "no line says how large the pool became, so there is nothing to check it against",
            ),
        ),
    )


def _pool_memory(case: Case, memory: Memory, *, is_smallest: bool) -> LogFigure:
    assert case.fit is not None and case.blocks is not None  # noqa: S101, PT018 - asked before
    if "num_gpu_blocks_override" in case.fit.settings:
        return _beside_override(case, memory, case.fit.plan)
    plan, blocks = case.fit.plan, case.blocks
    unit = max(rank.bytes_per_block for rank in plan.ranks)
    low, high = memory.bytes
    taken = blocks * unit
    fits = low < taken + unit and taken <= high
    computed = f"{gib_text(taken)} = {blocks:,} × {unit:,} B"
    if not case.fit.borne_out and not case.open:
        return _memory(memory, reasons=(MEASURED, _OTHER_POOL))
    if fits and is_smallest:
        reason = Note(
            "pool_fills_memory",
            "the pool takes {blocks} blocks of {unit} B of it; less than one more block is left",
            {"blocks": f"{blocks:,}", "unit": f"{unit:,}"},
        )
        reasons = (reason, *(() if case.fit.borne_out else (_ALONE,)), *inferred(case))
        return _memory(memory, computed=computed, agrees=True, reasons=reasons)
    difference = gib_text(memory.printed.value * _GIB - taken)
    if taken <= high and (case.several_ranks or case.fit.smaller_rank):
        facts: dict[str, object] = {"taken": gib_text(taken, 3), "left": difference}
        if taken * LEAST_SHARE[1] < high * LEAST_SHARE[0]:
            spare = Note(
                "spare_unexplained",
                "the pool takes {taken} on every rank, {left} less than this line gives: ranks that"
                " hold as many layers differ by less, so nothing bears it out. Uneven stages,"
                " another start or a line that is missing may be behind it",
                facts,
            )
            return _memory(
                memory, computed=computed, difference=difference, reasons=(spare, *_unseen(case))
            )
        reason = Note(
            "smallest_rank",
            "the line is one rank's memory; the pool is the smallest"
            " rank's, and takes {taken} on every rank, {left} less than this one has",
            facts,
        )
        return _memory(
            memory,
            computed=computed,
            difference=difference,
            agrees=True,
            reasons=(reason, *_unseen(case), *inferred(case)),
        )
    reason = Note(
        "memory_differs",
        "the figures below would take {taken} of it",
        {"taken": gib_text(taken, 3)},
    )
    return _memory(
        memory, computed=computed, difference=difference, agrees=False, reasons=(reason,)
    )


def _beside_override(case: Case, memory: Memory, plan: VllmPlan) -> LogFigure:
    """Return the memory where the blocks are set by hand: it gave another number before."""
    by_hand = Note(
        "blocks_by_hand",
        "the number of blocks is set by hand (num_gpu_blocks_override), whatever memory there is",
    )
    profiled = [int(found.groups[0] or 0) for found in case.reads.get("override", ())]
    if not profiled:
        return _memory(memory, reasons=(MEASURED, by_hand))
    low, high = blocks_of_memory(plan, *memory.bytes)
    note = Note(
        "profiled_blocks",
        "before that it gave the {blocks} that the line 'Overriding' names: memory / {unit} B,"
        " rounded down",
        {"blocks": f"{profiled[0]:,}", "unit": f"{case.unit_bytes:,}"},
    )
    agrees = low <= profiled[0] <= high
    return _memory(
        memory,
        computed=f"{gib_text(profiled[0] * case.unit_bytes)} = {profiled[0]:,} ×"
        f" {case.unit_bytes:,} B",
        agrees=agrees or (None if case.several_ranks or case.open else False),
        reasons=(by_hand, note, *inferred(case)) if agrees else (by_hand, MEASURED),
    )


def _unseen(case: Case) -> tuple[Note, ...]:
    """Say where the rank that decides is in no line of the log."""
    if case.fit is None or not case.fit.smaller_rank:
        return ()
    return (Note("smallest_rank_unseen", "no line here is of that rank: paste those of all ranks"),)


# Figures that are read and not the cache's.


def other_figures(case: Case) -> Iterator[LogFigure]:
    """Yield figures that are read and are not the cache's, with what they mean."""
    weights = Note(
        "weights_are_per_rank",
        "each rank's own weights, as they lie in its memory; they are not part of the cache",
    )
    for code in ("weights", "weights_old", "rest_weights"):
        yield from _once(case.reads.get(code, ()), "weights", weights)
    graphs = Note("graphs", "captured CUDA graphs; taken off the cache's memory since 0.21")
    for code in ("graphs_estimated", "graphs"):
        yield from _once(case.reads.get(code, ()), "cuda_graphs", graphs)
    peak = Note(
        "activation_peak",
        "measured in the profile run: it grows with"
        " max_num_batched_tokens, max_num_seqs and multimodal dummies, and takes the cache's"
        " memory",
    )
    yield from _once(case.reads.get("rest_peak", ()), "activation_peak", peak)


def _once(reads: Iterable[Found], name: str, note: Note) -> Iterator[LogFigure]:
    seen: set[str | None] = set()
    for found in reads:
        printed = decimal(found.groups[0] or "", least_decimals=GIB_DECIMALS)
        if printed is None or found.groups[0] in seen:
            continue
        seen.add(found.groups[0])
        yield figure(
            name,
            found,
            f"{printed.text} GiB",
            unit="bytes",
            interval=printed.bytes("GiB"),
            reasons=(note,),
        )

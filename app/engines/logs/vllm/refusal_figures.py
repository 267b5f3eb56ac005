"""Errors at the start: what was needed, what there was, and what would have fitted."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.notes import Note
from app.engines import vllm
from app.engines.logs.kinds import Found
from app.engines.logs.numbers import gib_text
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.vllm.case import (
    MEASURED,
    NO_CONSTANT,
    Case,
    inferred,
    not_reproduced,
    unchecked,
)
from app.engines.logs.vllm.evidence import Refused
from app.engines.logs.vllm.fit import estimates_between, refusing_rank
from app.engines.logs.vllm.parts import request_parts
from app.engines.logs.vllm.stages import charges_all_layers, differ, needs_text
from app.engines.vllm import PlannedRank, VllmPlan

_GIB = 2**30


def too_long_figures(case: Case) -> Iterator[LogFigure]:
    """Yield the first engine's refusal: tokens that its blocks hold, below the longest request."""
    for found, length, tokens in case.evidence.too_long:
        text = f"{tokens:,} tokens for a request of {length:,}"
        if case.fit is None or case.rule is None:
            blocks = [number for _, number, _ in case.evidence.blocks if number * 16 == tokens]
            reasons: tuple[Note, ...] = (NO_CONSTANT, *unchecked(case))
            if blocks:
                note = Note(
                    "blocks_times_size",
                    "{blocks} blocks of {size} tokens each",
                    {"blocks": f"{blocks[0]:,}", "size": 16},
                )
                reasons = (note, *reasons)
            yield figure(
                "stored_tokens",
                found,
                text,
                unit="tokens",
                agrees=True if blocks else None,
                computed=f"{blocks[0] * 16:,} tokens" if blocks else None,
                reasons=reasons,
            )
            continue
        unit = case.unit_bytes
        blocks_held = tokens // case.rule.smallest_block
        size = blocks_held * unit
        note = Note(
            "never_a_constant",
            "it is no constant: the memory left for the cache over {unit}"
            " B a block of {size} tokens. {tokens} tokens are {bytes} on each rank",
            {
                "unit": f"{unit:,}",
                "size": case.rule.smallest_block,
                "tokens": f"{tokens:,}",
                "bytes": gib_text(size),
            },
        )
        low, high = case.fit.from_memory
        agrees: bool | None = None
        computed = f"{gib_text(size)} of memory"
        if case.knows_memory:
            agrees = low <= blocks_held <= high
            own = blocks_held if agrees else high
            computed = f"{own * case.rule.smallest_block:,} tokens"
            if not agrees and case.fit.smaller_rank:
                agrees, computed = None, f"at most {computed}"
        elif any(number == blocks_held for _, number, _ in case.evidence.blocks):
            agrees, computed = True, f"{blocks_held * case.rule.smallest_block:,} tokens"
        yield figure(
            "stored_tokens",
            found,
            text,
            computed=computed,
            unit="tokens",
            agrees=agrees,
            reasons=(note, *_smaller(case), *inferred(case)),
        )


def _smaller(case: Case) -> tuple[Note, ...]:
    if case.fit is None or not case.fit.smaller_rank:
        return ()
    return (
        Note(
            "smallest_rank_tokens",
            "the pool is cut from the rank with the least memory, which printed no line here",
        ),
    )


# Refusals by bytes.


def refusal_figures(case: Case) -> Iterator[LogFigure]:
    """Yield a refusal's needed and available memory, and the length that it says would fit."""
    for refused in case.evidence.refused:
        yield _needed(case, refused)
        # The line of the memory itself is a figure already where both print the same.
        printed = {memory.printed.value for memory in case.evidence.memories}
        if refused.available is not None and refused.available.value not in printed:
            yield figure(
                "available_memory",
                refused.found,
                f"{refused.available.text} GiB",
                unit="bytes",
                interval=refused.available.bytes("GiB"),
                reasons=(MEASURED,),
            )
        if refused.estimate is not None:
            yield _estimate(case, refused, *refused.estimate)


def _needed(case: Case, refused: Refused) -> LogFigure:
    low, high = refused.needed.bytes("GiB")
    text = f"{refused.needed.text} GiB for {refused.length:,} tokens"
    rest: dict[str, object] = {"unit": "bytes", "interval": (low, high)}
    if case.fit is None or case.model is None:
        note = Note(
            "implied_slope",
            "{low} to {high} B a token of such a request",
            {"low": f"{low // refused.length:,}", "high": f"{-(-high // refused.length):,}"},
        )
        return figure(
            "needed_memory", refused.found, text, reasons=(note, *unchecked(case)), **rest
        )
    settings = {**case.fit.settings, "max_model_len": refused.length}
    plan = vllm.plan(case.model.config, case.model.state, settings, None)
    rank = refusing_rank(plan, refused)
    own = rank.needed_bytes
    agrees = low <= own <= high
    reasons = tuple(_needed_reasons(plan, rank)) if agrees else not_reproduced(case)
    return figure(
        "needed_memory",
        refused.found,
        text,
        computed=f"{gib_text(own)} = {own:,} B",
        agrees=agrees or (None if case.open else False),
        difference="" if agrees else gib_text(refused.needed.value * _GIB - own),
        reasons=(*reasons, *inferred(case)) if agrees else reasons,
        **rest,
    )


def _needed_reasons(plan: VllmPlan, rank: PlannedRank) -> Iterator[Note]:
    unit = rank.bytes_per_block
    if charges_all_layers(plan):
        unit = max(stage.bytes_per_block for stage in plan.ranks)
    yield from request_parts(plan)
    yield Note(
        "request_blocks",
        "one request of {length} tokens takes {blocks} blocks of {unit} B",
        {
            "length": f"{plan.max_model_len:,}",
            "blocks": f"{rank.needed_bytes // unit:,}",
            "unit": f"{unit:,}",
        },
    )
    if charges_all_layers(plan):
        yield Note(
            "stages_charged_all_layers",
            "0.14 to 0.16 charge every pipeline stage with all layers; for its own each needs"
            " {needs}, and later releases ask for no more",
            {"needs": needs_text(plan)},
        )
    elif differ(plan):
        yield Note(
            "refusing_stage",
            "the stages hold different layers, and the error is of the first that has too little"
            " memory, PP{rank}; they need {needs}",
            {"rank": rank.pipeline_rank, "needs": needs_text(plan)},
        )


def _estimate(case: Case, refused: Refused, found: Found, estimated: int) -> LogFigure:
    text = f"{estimated:,} tokens"
    span = None
    if case.fit is not None and case.model is not None:
        settings = {**case.fit.settings, "max_model_len": refused.length}
        span = estimates_between(case.model, settings, refused)
    if span is None:
        reasons = unchecked(case) if case.fit is None else (_NO_AVAILABLE,)
        return figure("estimated_length", found, text, unit="tokens", reasons=reasons)
    agrees = span[0] <= estimated <= span[1]
    note = Note(
        "estimate_search",
        "the longest request whose blocks fit; windows and tokens in"
        " flight are counted anew at each length",
    )
    return figure(
        "estimated_length",
        found,
        text,
        unit="tokens",
        interval=span,
        computed=f"{span[0]:,} to {span[1]:,} tokens" if span[0] != span[1] else text,
        agrees=agrees or (None if case.open else False),
        reasons=(note, *inferred(case)) if agrees else not_reproduced(case),
    )


_NO_AVAILABLE = Note("no_available", "the line does not give the memory that it was fitted to")


def state_block_figures(case: Case) -> Iterator[LogFigure]:
    """Yield the refusal of more sequences than there are blocks for their states."""
    for found in case.reads.get("state_blocks", ())[:4]:
        asked, blocks = int(found.groups[0] or 0), int(found.groups[1] or 0)
        note = Note(
            "state_needs_block",
            "every running sequence holds a block for its state, so"
            " max_num_seqs may be at most the blocks of the pool",
        )
        computed, agrees = None, None
        if case.fit is not None and case.knows_memory:
            low, high = case.fit.from_memory
            computed = f"{low:,} to {high:,} blocks" if low != high else f"{low:,} blocks"
            agrees = low <= blocks <= high or None
        yield figure(
            "state_blocks",
            found,
            f"{blocks:,} blocks for {asked:,} sequences",
            computed=computed,
            agrees=agrees,
            unit="blocks",
            reasons=(note,),
        )

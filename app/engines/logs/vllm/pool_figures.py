"""The concurrency and blocks lines against the plan."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.kinds import Found
from app.engines.logs.numbers import Printed, gib_text
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.vllm.case import Case, inferred, not_reproduced, pool_takes, unchecked
from app.engines.logs.vllm.evidence import PrintRule, blocks_of_memory, intersect
from app.engines.logs.vllm.pairs import go_together, tokens_of
from app.engines.logs.vllm.parts import request_parts

_GIB = 2**30
# What --swap-space is unless told (vLLM 0.7.3 engine/arg_utils.py).
_SWAP_GIB = 4


# The concurrency line.


def concurrency_figures(case: Case) -> Iterator[LogFigure]:
    """Yield the concurrency line."""
    for found, length, printed in case.evidence.concurrencies:
        rest: dict[str, object] = {
            "unit": "requests",
            "interval": (float(printed.low), float(printed.high)),
        }
        text = f"{printed.text}x of {length:,} tokens"
        if case.fit is None or case.rule is None or case.blocks is None:
            yield _concurrency_alone(case, found, length, printed, rest)
            continue
        span = case.rule.blocks_of_concurrency(printed)
        if case.pool_is_free:
            yield figure(
                "max_concurrency", found, text,
                computed=f"{case.gib_of_blocks(span)} of memory",
                reasons=(pool_takes(case, span), _WORST_CASE), **rest,
            )  # fmt: skip
            continue
        own = case.rule.concurrency(case.blocks)
        agrees = case.allows(span)
        if not agrees and (found, length, printed) not in case.evidence.of_pool.concurrencies:
            yield _own_concurrency(case, case.rule, found, length, printed, rest)
            continue
        if not agrees:
            rest["difference"] = f"{float(printed.value - own):+.2f}"
        yield figure(
            "max_concurrency",
            found,
            text,
            computed=f"{float(own):.2f}x",
            agrees=agrees or (None if case.open else False),
            reasons=(*_concurrency_reasons(case), *inferred(case))
            if agrees
            else not_reproduced(case),
            **rest,
        )


def _own_concurrency(
    case: Case, rule: PrintRule, found: Found, length: int, printed: Printed,
    rest: dict[str, object],
) -> LogFigure:  # fmt: skip
    """Return the line of a rank with more memory than the pool, beside its own tokens line."""
    assert case.fit is not None  # noqa: S101 - asked before
    spans = [blocks_of_memory(case.fit.plan, *memory.bytes) for memory in case.evidence.memories]
    span = rule.blocks_of_concurrency(printed)
    agrees = any(low <= high for low, high in (intersect(own, span) for own in spans))
    note = Note("rank_prints_own_concurrency",
                "each worker prints its own until 0.11; the engine's is the smallest")  # fmt: skip
    return figure(
        "max_concurrency", found, f"{printed.text}x of {length:,} tokens",
        computed=f"{printed.text}x" if agrees else None, agrees=True if agrees else None,
        reasons=(note, *(inferred(case) if agrees else ())), **rest,
    )  # fmt: skip


def _concurrency_alone(
    case: Case, found: Found, length: int, printed: Printed, rest: dict[str, object]
) -> LogFigure:
    text = f"{printed.text}x of {length:,} tokens"
    tokens = tokens_of(case.reads, case.evidence, found)
    if tokens is None and case.evidence.blocks:
        tokens = case.evidence.blocks[0][1] * 16
    if tokens is None:
        reasons = (_WORST_CASE, *unchecked(case))
        return figure("max_concurrency", found, text, reasons=reasons, **rest)
    own = Fraction(tokens, length)
    if go_together(tokens, length, printed):
        note = Note(
            "two_lines_agree",
            "it is the tokens line over the length: {tokens} / {length}",
            {"tokens": f"{tokens:,}", "length": f"{length:,}"},
        )
        return figure(
            "max_concurrency",
            found,
            text,
            computed=f"{float(own):.2f}x",
            agrees=True,
            reasons=(note, _WORST_CASE, *unchecked(case)),
            **rest,
        )
    note = Note(
        "lines_contradict",
        "the two lines count different things: until 0.20.0 the tokens"
        " line is the blocks of one group of layers, and this one is right. {real} tokens"
        " of such requests fit, not {tokens}",
        {"real": f"{int(printed.value * length):,}", "tokens": f"{tokens:,}"},
    )
    return figure(
        "max_concurrency",
        found,
        text,
        reasons=(note, *unchecked(case)),
        **rest,
    )


_WORST_CASE = Note(
    "worst_case",
    "it counts requests that all grow to the full length; shorter ones"
    " take blocks as their tokens come, and up to max_num_seqs of them run"
    " at once",
)


def _concurrency_reasons(case: Case) -> Iterator[Note]:
    plan, rule = case.plan, case.rule
    assert plan is not None and rule is not None  # noqa: S101, PT018 - asked before
    if rule.release.has_groups:
        yield Note(
            "blocks_over_request",
            "{blocks} blocks over the {request} that a request of {length} tokens takes",
            {
                "blocks": f"{case.blocks:,}",
                "request": f"{rule.request_blocks:,}",
                "length": f"{rule.length:,}",
            },
        )
    else:
        yield Note(
            "tokens_over_length", "the pool's tokens over {length}", {"length": f"{rule.length:,}"}
        )
    if rule.release.has_groups:
        yield from request_parts(plan)
    yield _WORST_CASE


# Blocks, and the refusals by them.


def blocks_figures(case: Case) -> Iterator[LogFigure]:
    """Yield the blocks of the device, and those of the host that show how large a block is."""
    for found, blocks, cpu_blocks in case.evidence.blocks:
        yield _gpu_blocks(case, found, blocks)
        if cpu_blocks:
            yield _cpu_blocks(case, found, cpu_blocks)


def _gpu_blocks(case: Case, found: Found, blocks: int) -> LogFigure:
    text = f"{blocks:,} blocks"
    if case.fit is None:
        held = [tokens for _, _, tokens in case.evidence.too_long if tokens == blocks * 16]
        if held:
            note = Note(
                "blocks_times_size",
                "{blocks} blocks of {size} tokens each",
                {"blocks": f"{blocks:,}", "size": 16},
            )
            return figure(
                "gpu_blocks",
                found,
                text,
                computed=f"{held[0]:,} tokens / 16",
                agrees=True,
                unit="blocks",
                reasons=(note, *unchecked(case)),
            )
        return figure("gpu_blocks", found, text, unit="blocks", reasons=unchecked(case))
    low, high = case.fit.from_memory
    if not case.knows_memory:
        size = blocks * case.unit_bytes
        note = Note(
            "blocks_take",
            "at {unit} B a block the pool takes {size} on each rank; no line"
            " gives the memory that it was cut from",
            {"unit": f"{size // blocks:,}", "size": gib_text(size)},
        )
        checked = case.evidence.tokens or case.evidence.too_long or case.evidence.concurrencies
        agrees = True if checked and case.allows((blocks, blocks)) else None
        return figure(
            "gpu_blocks",
            found,
            text,
            unit="blocks",
            agrees=agrees,
            computed=f"{blocks:,} blocks" if agrees else None,
            reasons=(note,),
        )
    note = Note(
        "memory_over_block", "memory / {unit} B, rounded down", {"unit": f"{case.unit_bytes:,}"}
    )
    if "num_gpu_blocks_override" in case.fit.settings:
        note = Note("override", "the number that is set by hand (num_gpu_blocks_override)")
    inside = low <= blocks <= high
    return figure(
        "gpu_blocks",
        found,
        text,
        unit="blocks",
        interval=(low, high),
        computed=f"{low:,} to {high:,} blocks" if low != high else f"{low:,} blocks",
        agrees=inside or (None if case.fit.smaller_rank else False),
        reasons=(note, *inferred(case)),
    )


def _cpu_blocks(case: Case, found: Found, blocks: int) -> LogFigure:
    """Swap space over a block's bytes: it shows how large a block is on one rank."""
    said = case.swap_gib
    swap = (_SWAP_GIB if said is None else said) * _GIB
    text = f"{blocks:,} CPU blocks"
    low, high = swap // (blocks + 1) + 1, swap // blocks
    implied = Note(
        "swap_shows_block",
        "{swap} GiB of swap space over {blocks} blocks: a block is {low} to {high} B on each rank",
        {
            "swap": swap // _GIB,
            "blocks": f"{blocks:,}",
            "low": f"{low:,}",
            "high": f"{high:,}",
        },
    )
    if case.fit is None:
        return figure("cpu_blocks", found, text, unit="blocks", reasons=(implied, *unchecked(case)))
    unit = case.unit_bytes
    own = swap // unit if unit else 0
    agrees: bool | None = own == blocks
    if not agrees and said is None:
        agrees = None
    return figure(
        "cpu_blocks",
        found,
        text,
        computed=f"{own:,} blocks",
        unit="blocks",
        agrees=agrees,
        reasons=(implied, *inferred(case)),
    )

"""The tokens, concurrency and blocks lines against the plan."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.kinds import Found
from app.engines.logs.numbers import Printed, gib_text
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.vllm.case import Case, inferred, not_reproduced, unchecked
from app.engines.logs.vllm.evidence import PrintRule
from app.engines.logs.vllm.hypotheses import lines_agree

_GIB = 2**30


# The tokens line.


def tokens_figures(case: Case) -> Iterator[LogFigure]:
    """Yield the tokens line, as that release counts it."""
    for found, tokens in case.evidence.tokens:
        rest: dict[str, object] = {"unit": "tokens"}
        if case.fit is None or case.rule is None or case.blocks is None:
            yield _tokens_alone(case, found, tokens)
            continue
        rule, blocks = case.rule, case.blocks
        if case.knows_memory and not case.fit.smaller_rank:
            low, high = (rule.tokens(number) for number in case.fit.from_memory)
            rest["interval"] = (low, high)
        own = rule.tokens(blocks)
        agrees = case.allows(rule.blocks_of_tokens(tokens))
        own = tokens if agrees else own
        rest["computed"] = f"{own:,} tokens"
        if not agrees:
            rest["difference"] = f"{tokens - own:+,} tokens"
        yield figure(
            "kv_cache_tokens",
            found,
            f"{tokens:,} tokens",
            agrees=agrees or (None if case.open else False),
            reasons=(*_tokens_reasons(case, rule, blocks), *inferred(case))
            if agrees
            else not_reproduced(case),
            **rest,
        )


def _tokens_alone(case: Case, found: Found, tokens: int) -> LogFigure:
    """Without a model the line is checked against the concurrency line, where that is possible."""
    for _, length, printed in case.evidence.concurrencies:
        if lines_agree(case.evidence):
            low, high = printed.low * length, printed.high * length
            note = Note(
                "two_lines_agree",
                "it is the concurrency line times its length, as"
                " releases since 0.20.1 print it for any model and all print it for layers"
                " that are alike",
            )
            return figure(
                "kv_cache_tokens",
                found,
                f"{tokens:,} tokens",
                unit="tokens",
                agrees=True,
                computed=f"{printed.text} × {length:,} = {int(printed.value * length):,} tokens",
                interval=(int(low), int(high)),
                reasons=(note, *unchecked(case)),
            )
    return figure(
        "kv_cache_tokens", found, f"{tokens:,} tokens", unit="tokens", reasons=unchecked(case)
    )


def _tokens_reasons(case: Case, rule: PrintRule, blocks: int) -> Iterator[Note]:
    plan = case.plan
    assert plan is not None  # noqa: S101 - asked before
    real = int(rule.concurrency(blocks) * rule.length)
    if not rule.release.has_groups or (
        rule.groups == 1 and rule.smallest_block * rule.request_blocks == rule.length
    ):
        yield Note(
            "blocks_times_size",
            "{blocks} blocks of {size} tokens each",
            {"blocks": f"{blocks:,}", "size": rule.smallest_block},
        )
    elif rule.release.prints_concurrency_tokens:
        yield Note(
            "concurrency_times_length",
            "since 0.20.1 this line is the concurrency times the"
            " longest request, {blocks} / {request} × {length}: the same memory prints"
            " another figure at another max_model_len",
            {
                "blocks": f"{blocks:,}",
                "request": f"{rule.request_blocks:,}",
                "length": f"{rule.length:,}",
            },
        )
    elif rule.groups > 1:
        yield Note(
            "blocks_of_one_group",
            "until 0.20.0 this line is {blocks} blocks // {groups}"
            " groups × {size} tokens, which understates a model whose layers differ: by the"
            " concurrency line {real} tokens fit",
            {
                "blocks": f"{blocks:,}",
                "groups": rule.groups,
                "size": rule.smallest_block,
                "real": f"{real:,}",
            },
        )
    else:
        yield Note(
            "blocks_times_size",
            "{blocks} blocks of {size} tokens each",
            {"blocks": f"{blocks:,}", "size": rule.smallest_block},
        )
    if rule.context_ranks > 1:
        yield Note(
            "context_ranks",
            "each of {ranks} context-parallel ranks keeps every {ranks}th"
            " position, so the pool holds {ranks} times the tokens of one rank",
            {"ranks": rule.context_ranks},
        )


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
        own = case.rule.concurrency(case.blocks)
        agrees = case.allows(case.rule.blocks_of_concurrency(printed))
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


def _concurrency_alone(
    case: Case, found: Found, length: int, printed: Printed, rest: dict[str, object]
) -> LogFigure:
    text = f"{printed.text}x of {length:,} tokens"
    tokens = case.evidence.tokens[0][1] if case.evidence.tokens else None
    if tokens is None and case.evidence.blocks:
        tokens = case.evidence.blocks[0][1] * 16
    if tokens is None:
        return figure("max_concurrency", found, text, reasons=unchecked(case), **rest)
    own = Fraction(tokens, length)
    if printed.holds(own) or printed.holds(Fraction(tokens + 1, length)):
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
        computed=f"{float(own):.2f}x",
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
    swap = 4 * _GIB
    text = f"{blocks:,} CPU blocks"
    low, high = swap // (blocks + 1) + 1, swap // blocks
    implied = Note(
        "swap_shows_block",
        "4 GiB of swap space over {blocks} blocks: a block is {low} to {high} B on each rank",
        {"blocks": f"{blocks:,}", "low": f"{low:,}", "high": f"{high:,}"},
    )
    if case.fit is None:
        return figure("cpu_blocks", found, text, unit="blocks", reasons=(implied, *unchecked(case)))
    unit = case.unit_bytes
    own = swap // unit if unit else 0
    agrees: bool | None = own == blocks
    if not agrees and "swap_space" not in case.fit.settings:
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

"""The tokens line against the plan: of the pool, of one rank, or by itself."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.notes import Note
from app.engines.logs.kinds import Found
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.vllm.case import (
    NO_CONSTANT,
    Case,
    inferred,
    not_reproduced,
    pool_takes,
    unchecked,
)
from app.engines.logs.vllm.evidence import PrintRule, blocks_of_memory, intersect
from app.engines.logs.vllm.pairs import concurrency_of, go_together


def tokens_figures(case: Case) -> Iterator[LogFigure]:
    """Yield the tokens line, as that release counts it."""
    for found, tokens in case.evidence.tokens:
        if case.fit is None or case.rule is None or case.blocks is None:
            yield _tokens_alone(case, found, tokens)
        elif tokens > case.evidence.of_pool.tokens[0][1]:
            yield _own_tokens(case, case.rule, found, tokens)
        elif case.pool_is_free:
            yield _free_tokens(case, case.rule, found, tokens)
        else:
            yield _pool_tokens(case, case.rule, found, tokens, case.blocks)


def _pool_tokens(case: Case, rule: PrintRule, found: Found, tokens: int, blocks: int) -> LogFigure:
    """Return the line held against the memory, or against the other lines of the pool."""
    rest: dict[str, object] = {"unit": "tokens"}
    assert case.fit is not None  # noqa: S101 - asked before
    if case.knows_memory and not case.fit.smaller_rank:
        low, high = (rule.tokens(number) for number in case.fit.from_memory)
        rest["interval"] = (low, high)
    agrees = case.allows(rule.blocks_of_tokens(tokens))
    own = tokens if agrees else rule.tokens(blocks)
    rest["computed"] = f"{own:,} tokens"
    if not agrees:
        rest["difference"] = f"{tokens - own:+,} tokens"
    return figure(
        "kv_cache_tokens",
        found,
        f"{tokens:,} tokens",
        agrees=agrees or (None if case.open else False),
        reasons=(*_tokens_reasons(case, rule, blocks), *inferred(case))
        if agrees
        else not_reproduced(case),
        **rest,
    )


def _own_tokens(case: Case, rule: PrintRule, found: Found, tokens: int) -> LogFigure:
    """Return the line of a rank with more memory than the pool: held against that memory."""
    assert case.fit is not None  # noqa: S101 - asked before
    least = case.evidence.of_pool.tokens[0][1]
    note = Note(
        "rank_prints_own",
        "each worker prints what its own memory would give (until 0.11), and so does each engine"
        " of data parallelism; the workers of one engine all take the smallest, {tokens} tokens",
        {"tokens": f"{least:,}"},
    )
    printed = rule.blocks_of_tokens(tokens)
    for memory in case.evidence.memories:
        own = blocks_of_memory(case.fit.plan, *memory.bytes)
        low, high = intersect(own, printed)
        if low <= high:
            return figure(
                "kv_cache_tokens", found, f"{tokens:,} tokens", unit="tokens", agrees=True,
                computed=f"{tokens:,} tokens", reasons=(note, *inferred(case)),
                interval=(rule.tokens(own[0]), rule.tokens(own[1])),
            )  # fmt: skip
    return figure("kv_cache_tokens", found, f"{tokens:,} tokens", unit="tokens", reasons=(note,))


def _free_tokens(case: Case, rule: PrintRule, found: Found, tokens: int) -> LogFigure:
    """Return a line that no other figure bounds: what memory it takes, or that none prints it."""
    text = f"{tokens:,} tokens"
    span = rule.blocks_of_tokens(tokens)
    if span[0] <= span[1]:
        return figure(
            "kv_cache_tokens", found, text, unit="tokens",
            computed=f"{case.gib_of_blocks(span)} of memory",
            reasons=(pool_takes(case, span), *_tokens_reasons(case, rule, span[0])),
        )  # fmt: skip
    below, above = rule.around(tokens)
    note = Note(
        "no_blocks_print_it",
        "no number of blocks prints this figure: the nearest are {below} and {above} tokens",
        {"below": f"{below:,}", "above": f"{above:,}"},
    )
    return figure(
        "kv_cache_tokens", found, text, unit="tokens",
        computed=f"{below:,} or {above:,} tokens", difference=f"{tokens - below:+,} tokens",
        agrees=None if case.open else False, reasons=(note,),
    )  # fmt: skip


def _tokens_alone(case: Case, found: Found, tokens: int) -> LogFigure:
    """Without a model the line is checked against the concurrency line, where that is possible."""
    row = concurrency_of(case.reads, case.evidence, found)
    if row is not None and go_together(tokens, row[1], row[2]):
        _, length, printed = row
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
            reasons=(note, NO_CONSTANT, *unchecked(case)),
        )
    reasons = (NO_CONSTANT, *unchecked(case))
    return figure("kv_cache_tokens", found, f"{tokens:,} tokens", unit="tokens", reasons=reasons)


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
            " groups × {size} tokens, which understates a model whose layers differ: {real}"
            " tokens of full-length requests fit"
            if real >= rule.tokens(blocks)
            else "until 0.20.0 this line is {blocks} blocks // {groups}"
            " groups × {size} tokens, which overstates a model whose requests reserve more than"
            " their own tokens: {real} tokens of full-length requests fit",
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

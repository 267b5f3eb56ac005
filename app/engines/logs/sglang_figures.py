"""The pool lines of an SGLang log against a plan, and the tokens against the memory lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.agreement import alternatives_note
from app.engines.logs.kinds import Found, Reads
from app.engines.logs.numbers import Printed, decimal, gib_text
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.sentences import (
    NO_MODEL,
    implied_key,
    implied_token,
    inferred_note,
    not_reproduced_note,
)
from app.engines.sglang import SglangPlan

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangFit:
    """The plan under which most lines agree, what was inferred of it, and what gives the same."""

    plan: SglangPlan
    settings: Mapping[str, object]
    inferred: Mapping[str, object]
    misses: int
    others: tuple[Mapping[str, object], ...] = ()


def sglang_figures(reads: Reads, fitted: SglangFit | None, why: Note | None) -> Iterator[LogFigure]:
    """Yield every figure; without a plan what the lines imply."""
    if fitted is None:
        yield from _alone(reads, why or NO_MODEL)
        return
    yield from pool_figures(reads, fitted)
    yield from _budget(reads, fitted)


def _inferred(fitted: SglangFit) -> tuple[Note, ...]:
    found = inferred_note(fitted.inferred, {"tp_size": 1})
    return (*found, *alternatives_note(fitted.others))


_SPARE = Note(
    "spare_page",
    "pools hold one page more than their tokens, for writes that count for nothing; GB here is GiB",
)


def _size(
    found: Found, name: str, text: str | None, own: int, fitted: SglangFit, tokens: str | None
) -> LogFigure | None:
    printed = decimal(text or "")
    if printed is None:
        return None
    agrees = printed.holds_bytes(own, "GiB")
    return figure(
        name,
        found,
        f"{printed.text} GB" + (f" for {int(tokens):,} tokens" if tokens else ""),
        computed=f"{gib_text(own)} = {own:,} B",
        interval=printed.bytes("GiB"),
        unit="bytes",
        agrees=agrees,
        difference="" if agrees else gib_text(printed.value * _GIB - own),
        reasons=(_SPARE, *_inferred(fitted)) if agrees else (_differs(fitted),),
    )


def _differs(fitted: SglangFit) -> Note:
    return not_reproduced_note(fitted.settings)


def pool_figures(reads: Reads, fitted: SglangFit) -> list[LogFigure]:
    """Return the sizes of the pools against the plan's."""
    made: list[LogFigure | None] = []
    pools = {pool.name: pool for pool in fitted.plan.pools}
    draft_seen = False
    lines = [
        (found, found.groups[1], found.groups[2], found.groups[3], found.groups[4])
        for found in reads.get("allocated", ())
    ]
    lines += [
        (found, found.groups[0], None, found.groups[1], found.groups[2])
        for found in reads.get("allocated_loose", ())
    ]
    first_key: str | None = None
    for found, tokens, whole, key, value in lines:
        if whole is not None and "latent" in pools:
            pool = pools["latent"]
            index = pool.parts.get("index", 0)
            own = pool.bytes
            if index and not _counts_index(fitted):
                own -= index
            made.append(_size(found, "kv_pool", whole, own, fitted, tokens))
            continue
        if whole is not None:
            made.append(_size(found, "kv_pool", whole, fitted.plan.pool_bytes, fitted, tokens))
            continue
        pool_name = _pool_of(
            tokens, pools, is_later=first_key is not None and key != first_key and not draft_seen
        )
        draft_seen = draft_seen or pool_name == "draft"
        first_key = first_key or key
        named = pools.get(pool_name)
        if named is None:
            continue
        parts = named.parts
        own_key = parts.get("K", 0) + parts.get("K scales", 0)
        own_value = parts.get("V", 0) + parts.get("V scales", 0)
        made += [
            _size(found, "k_pool", key, own_key, fitted, tokens),
            _size(found, "v_pool", value, own_value, fitted, tokens),
        ]
    made += _state_figures(reads, fitted)
    for found in reads.get("draft_loose", ()):
        if "draft" in pools:
            made.append(
                _size(
                    found,
                    "draft_k_pool",
                    found.groups[0],
                    pools["draft"].parts.get("K", 0),
                    fitted,
                    None,
                )
            )
    return [item for item in made if item is not None]


def _counts_index(fitted: SglangFit) -> bool:
    numbers = tuple(int(part) for part in re.findall(r"\d+", fitted.plan.version))
    return numbers[:3] >= (0, 5, 4)


def _pool_of(tokens: str | None, pools: Mapping[str, object], *, is_later: bool) -> str:
    """Return which pool a line speaks of: by its tokens, a draft's after the model's own."""
    for name, pool in pools.items():
        if tokens is not None and getattr(pool, "tokens", None) == int(tokens):
            if name == "full" and is_later and "draft" in pools:
                continue
            if name in ("full", "window", "draft"):
                return name
    return "full" if "full" in pools else "window"


def _state_figures(reads: Reads, fitted: SglangFit) -> list[LogFigure | None]:
    pools = {pool.name: pool for pool in fitted.plan.pools}
    made: list[LogFigure | None] = []
    for code in ("mamba", "mamba_loose"):
        for found in reads.get(code, ()):
            if "mamba" in pools:
                parts = pools["mamba"].parts
                made += [
                    _size(found, "conv_states", found.groups[1], parts["conv"], fitted, None),
                    _size(found, "ssm_states", found.groups[2], parts["ssm"], fitted, None),
                ]
    return made


def _budget(reads: Reads, fitted: SglangFit) -> Iterator[LogFigure]:
    """Check the tokens against the memory lines around the load, where both are there."""
    after, before = _memory(reads, "loaded", 1), _memory(reads, "begin", 0)
    fraction = fitted.settings.get("mem_fraction_static")
    cell = fitted.plan.cell_bytes
    for found in reads.get("totals", ())[:1]:
        tokens = int(found.groups[0] or 0)
        text = f"{tokens:,} tokens"
        if after is None or before is None or not isinstance(fraction, float) or not cell:
            note = Note(
                "no_memory_lines",
                'the lines "Load weight begin" and "Load weight end" and'
                " mem_fraction_static give the tokens; they are not all here",
            )
            yield figure("max_total_num_tokens", found, text, unit="tokens", reasons=(note,))
            continue
        low = int((after.low - before.high * (1 - _share(fraction))) * _GIB) // cell
        high = int((after.high - before.low * (1 - _share(fraction))) * _GIB) // cell
        note = Note(
            "fraction_of_free",
            "the fraction is of the memory that was free before the"
            " weights were loaded, not of the card: (after − before × (1 − fraction)) /"
            " {cell} B",
            {"cell": f"{cell:,}"},
        )
        yield figure(
            "max_total_num_tokens",
            found,
            text,
            computed=f"{low:,} to {high:,} tokens",
            interval=(low, high),
            unit="tokens",
            agrees=low - 1 <= tokens <= high or None,
            reasons=(note,),
        )


def _share(value: float) -> Fraction:
    return Fraction(str(value))


def _memory(reads: Reads, code: str, group: int) -> Printed | None:
    values = [decimal(found.groups[group] or "") for found in reads.get(code, ())]
    known = [value for value in values if value is not None]
    return min(known, key=lambda value: value.value) if known else None


def _alone(reads: Reads, why: Note) -> Iterator[LogFigure]:
    """Without a model: what a token takes follows from each line, and K and V compare."""
    for found in (*reads.get("allocated", ()), *reads.get("allocated_loose", ())):
        groups = (
            found.groups
            if found.code == "allocated"
            else (None, found.groups[0], None, *found.groups[1:])
        )
        tokens, sizes = groups[1], [decimal(text or "") for text in groups[2:]]
        known = [size for size in sizes if size is not None]
        if tokens is None or not int(tokens) or not known:
            continue
        low = sum(size.bytes("GiB")[0] for size in known) // int(tokens)
        high = sum(size.bytes("GiB")[1] for size in known) // int(tokens)
        # A latent pool says so as a whole; a size of keys leaves that of values unsaid.
        is_key_alone = sizes[0] is None and sizes[2] is None
        note = implied_key(low, high) if is_key_alone else implied_token(low, high)
        yield figure(
            "kv_pool", found, f"{int(tokens):,} tokens", unit="tokens", reasons=(note, why)
        )

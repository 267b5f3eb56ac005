"""Lines that follow from the layers alone: blocks grown, pages and layers padded, ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from app.domain.notes import Note
from app.engines.logs.kinds import Found
from app.engines.logs.numbers import decimal
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.vllm.case import Case, inferred, not_reproduced, unchecked
from app.engines.logs.vllm.fit import state_padding_percent

_PADDING = re.compile(r"Add ([0-9]+) padding layers, may waste at most ([0-9.]+)%")


def shape_figures(case: Case) -> Iterator[LogFigure]:
    """Yield each such line once."""
    for code, name in (
        ("attention_block", "attention_block_size"),
        ("padding_layers", "padding_layers"),
        ("state_padding", "state_page_padding"),
        ("forced_block", "kv_block_size"),
        ("context_ranks", "context_ranks"),
    ):
        seen: set[tuple[str | None, ...]] = set()
        for found in case.reads.get(code, ()):
            if found.groups in seen:
                continue
            seen.add(found.groups)
            yield _SHAPES[code](case, name, found)


def _attention_block(case: Case, name: str, found: Found) -> LogFigure:
    text = f"{int(found.groups[0] or 0):,} tokens"
    note = Note(
        "block_grown_to_state",
        "attention pages grow until one holds a recurrent state: the"
        " block is the least multiple that does. A smaller cache format or more ranks make"
        " it larger, and each request pins at least one such page a group",
    )
    if case.plan is None:
        return figure(name, found, text, unit="tokens", reasons=(note, *unchecked(case)))
    own = case.plan.block_size
    agrees = own == int(found.groups[0] or 0)
    growth = case.plan.block_growth
    shown = (
        ()
        if growth is None
        else (
            Note(
                "block_formula",
                "step × ⌈state / (step × bytes of a token in one attention layer)⌉: {formula}",
                {"formula": growth.formula},
            ),
        )
    )
    return figure(
        name,
        found,
        text,
        computed=f"{own:,} tokens",
        unit="tokens",
        agrees=agrees or (None if case.open else False),
        reasons=(note, *shown, *inferred(case)) if agrees else (*not_reproduced(case), *shown),
    )


def _padding_layers(case: Case, name: str, found: Found) -> LogFigure:
    layers, share = found.groups
    text = f"{layers} layers, at most {share} %"
    note = Note(
        "padding_is_a_bound",
        "empty places that make all groups equally long; the share is"
        " of that kind of layer, an upper bound, not of the pool",
    )
    if case.plan is None:
        return figure(name, found, text, unit="layers", reasons=(note, *unchecked(case)))
    lines = (_PADDING.search(line) for line in case.plan.printed)
    own = [item for item in lines if item is not None]
    printed = decimal(share or "")
    agrees = printed is not None and any(
        item[1] == layers and decimal(item[2]) == replace(printed, text=item[2]) for item in own
    )
    return figure(
        name,
        found,
        text,
        computed=f"{own[0][1]} layers, at most {own[0][2]} %" if own else "none",
        unit="layers",
        agrees=agrees or (None if case.open else False),
        reasons=(note,),
    )


def _state_padding(case: Case, name: str, found: Found) -> LogFigure:
    printed = decimal(found.groups[0] or "")
    note = Note(
        "state_padded_to_page",
        "states are padded to the attention page, so that all pages are equal",
    )
    text = f"{found.groups[0]} %"
    if case.plan is None or printed is None:
        return figure(name, found, text, unit="percent", reasons=(note, *unchecked(case)))
    own = state_padding_percent(case.plan)
    if own is None:
        return figure(name, found, text, unit="percent", reasons=(note,), agrees=None)
    return figure(
        name,
        found,
        text,
        computed=f"{float(own):.2f} %",
        unit="percent",
        interval=(float(printed.low), float(printed.high)),
        agrees=printed.holds(own) or (None if case.open else False),
        reasons=(note, *(inferred(case) if printed.holds(own) else not_reproduced(case))),
    )


def _forced_block(case: Case, name: str, found: Found) -> LogFigure:
    size = int(found.groups[0] or 0)
    note = Note("backend_block", "the attention backend takes blocks of this size")
    agrees: bool | None = None
    computed = None
    if case.plan is not None:
        computed = f"{case.plan.block_size} tokens"
        agrees = case.plan.block_size == size or None
    return figure(
        name,
        found,
        f"{size} tokens",
        computed=computed,
        unit="tokens",
        agrees=agrees,
        reasons=(note, *(() if case.plan else unchecked(case))),
    )


def _context_ranks(_: Case, name: str, found: Found) -> LogFigure:
    ranks, decode = found.groups[1], found.groups[3]
    number = int(decode or ranks or 1)
    note = Note(
        "dcp_multiplies",
        "the tokens line below already holds this factor: each of the"
        " ranks keeps another part of the positions",
    )
    return figure(name, found, f"× {number}", unit="ranks", agrees=None, reasons=(note,))


_SHAPES = {
    "attention_block": _attention_block,
    "padding_layers": _padding_layers,
    "state_padding": _state_padding,
    "forced_block": _forced_block,
    "context_ranks": _context_ranks,
}

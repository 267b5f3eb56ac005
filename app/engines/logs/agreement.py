"""What may be said of settings that were found by trying: only what all figures bear out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product

from app.domain.notes import Note
from app.engines.logs.result import LogFigure
from app.engines.logs.search import Axis
from app.engines.logs.sentences import settings_text

_MOST_ALTERNATIVES = 4


def settled(figures: Iterable[LogFigure]) -> tuple[LogFigure, ...]:
    """Return figures whose sentence about inferred settings claims no more than is so.

    Where some figure was computed and does not agree, the settings do not give all of them.
    """
    made = tuple(figures)
    computed = [item for item in made if item.computed is not None]
    if all(item.agrees for item in computed):
        return made
    contradicted = any(item.agrees is False for item in computed)
    return tuple(
        replace(
            item,
            reasons=tuple(_of_this_one(note, contradicted=contradicted) for note in item.reasons),
        )
        for item in made
    )


def _of_this_one(note: Note, *, contradicted: bool) -> Note:
    if note.code != "inferred":
        return note
    if contradicted:
        return Note(
            "inferred_partly",
            "the log does not say {settings}; this figure agrees with them, but not every other"
            " does",
            note.params,
        )
    return Note(
        "inferred_partly",
        "the log does not say {settings}; this figure agrees with them, and not every other could"
        " be checked",
        note.params,
    )


def borne_out(figures: Iterable[LogFigure], inferred: Mapping[str, object]) -> dict[str, object]:
    """Return the inferred settings where at least one figure agrees with them; else none."""
    return dict(inferred) if any(item.agrees for item in figures) else {}


def same_elsewhere(
    axes: Iterable[Axis],
    inferred: Mapping[str, object],
    defaults: Mapping[str, object],
    agrees: Callable[[dict[str, object]], bool],
) -> tuple[dict[str, object], ...]:
    """Return other options of these axes with which all figures agree too, defaults named.

    Nothing is looked for where the chosen ones are what a start has anyway.
    """
    if all(inferred.get(name, value) == value for name, value in defaults.items()):
        return ()
    found = []
    for options in product(*axes):
        chosen: dict[str, object] = {}
        for option, _ in options:
            chosen |= option
        named = {name: chosen.get(name, value) for name, value in defaults.items()}
        if any(named[name] != inferred.get(name, value) for name, value in defaults.items()):
            rest = {name: value for name, value in inferred.items() if name not in defaults}
            if agrees(rest | chosen):
                found.append(named)
    return tuple(found)


def alternatives_note(others: Iterable[Mapping[str, object]]) -> tuple[Note, ...]:
    """Return the sentence that names other settings with the very same figures."""
    texts = list(dict.fromkeys(settings_text(other) for other in others if other))
    if not texts:
        return ()
    return (
        Note(
            "alternatives",
            "the same figures come of {others}",
            {"others": "; ".join(texts[:_MOST_ALTERNATIVES])},
        ),
    )

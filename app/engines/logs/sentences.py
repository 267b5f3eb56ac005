"""Sentences that the explanations of several engines share."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.notes import Note

NO_MODEL = Note(
    "no_model",
    "the log names no model and none was given: add its id, its config.json or its numbers",
)


def unknown_model(name: str) -> Note:
    """Return why a model that is named is not known."""
    return Note(
        "unknown_model",
        "{name} is not in the catalogue under this or a like name; paste its config.json",
        {"name": name},
    )


_NO_NEWS = frozenset({"version", "runner"})


def inferred_note(
    inferred: Mapping[str, object], defaults: Mapping[str, object]
) -> tuple[Note, ...]:
    """Return the sentence that names inferred settings which are not what a start has anyway."""
    named = {
        name: value
        for name, value in inferred.items()
        if name not in _NO_NEWS and defaults.get(name) != value
    }
    if not named:
        return ()
    return (
        Note(
            "inferred",
            "the log does not say {settings}; with these all its figures agree",
            {"settings": settings_text(named)},
        ),
    )


def settings_text(settings: Mapping[str, object]) -> str:
    """Return settings as name=value, in order of their names."""
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))


def not_reproduced_note(settings: Mapping[str, object]) -> Note:
    """Return the sentence for a figure that no usual setting gives."""
    return Note(
        "not_reproduced",
        "no usual value of what the log leaves unsaid (ranks, format of the cache, release,"
        " speculation, batched tokens) gives this figure; with {settings} it would be the computed"
        " one. Add the settings of the start",
        {"settings": settings_text(settings)},
    )


def implied_token(low: int, high: int) -> Note:
    """Return what a token takes, as a line's figures imply."""
    return Note(
        "implied_token",
        "{low} to {high} B a token on this rank",
        {"low": f"{low:,}", "high": f"{high:,}"},
    )


def implied_key(low: int, high: int) -> Note:
    """Return what a token's keys take, as the size of the pool of keys alone implies."""
    return Note(
        "implied_key",
        "{low} to {high} B a token on this rank for keys alone; values take as much again where"
        " they are as wide: {least} to {most} B together",
        {
            "low": f"{low:,}",
            "high": f"{high:,}",
            "least": f"{2 * low:,}",
            "most": f"{2 * high:,}",
        },
    )

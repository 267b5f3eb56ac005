"""What changed in llama.cpp's caches, and when: a version becomes the rules of its day.

A version is a date, a build (`b6840`) or one of the commits whose source was read. A build between
two of known dates may lie on either side of a change; then each side is computed, and only an
answer that does not depend on the side is given. Sources: the pull requests named beside each
change (https://github.com/ggml-org/llama.cpp), and the measured runs in
tests/data/engine_runs.json.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from datetime import date
from enum import IntEnum

from app.domain.errors import OutOfRange, Unknown, Unsupported, shown
from app.domain.notes import Note

FIRST = date(2023, 3, 10)
NEWEST = date(2026, 10, 1)


class WindowCells(IntEnum):
    """How many cells the cache of windowed layers gets."""

    FULL_LENGTH = 0
    WINDOW_AND_BATCH = 1
    WINDOW_AND_UBATCH = 2
    CAPPED_THEN_PADDED = 3


class LatentRows(IntEnum):
    """What a layer of compressed attention caches."""

    REFUSED = 0
    KEY_AND_VALUE = 1
    KEY_ONLY = 2


class Indexers(IntEnum):
    """Which layers of GLM-DSA get an index cache."""

    NONE = 0
    EVERY_LAYER = 1
    OWNING_LAYERS = 2


class Lines(IntEnum):
    """The form of the start-up lines (other_lines of one era differ in prefix or fields)."""

    SELF_SIZE_MB = 0
    SELF_SIZE = 1
    CONTEXT_SELF_SIZE = 2
    UNIFIED_SELF_SIZE = 3
    UNIFIED_SIZE = 4
    SIZE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """The rules in force on one day."""

    day: date
    padding_cells: int = 1
    padding_cells_flash: int = 1
    pads_each_stream: bool = False
    has_streams: bool = False
    window_cells: WindowCells = WindowCells.FULL_LENGTH
    windows_stay_f16: bool = False
    latent_rows: LatentRows = LatentRows.REFUSED
    hybrids: bool = False
    hybrids_repeat_full_length: bool = False
    widens_values: bool = False
    flash_by_default: bool = False
    least_batch_tokens: int = 64
    indexers: Indexers = Indexers.NONE
    counts_output_layer: bool = False
    lines: Lines = Lines.SELF_SIZE_MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From `day` on these rules are different; `unread` when the days after it were not read."""

    day: date
    what: str | Note
    rules: dict[str, object]
    unread: bool = False


CHANGES: tuple[Change, ...] = (
    Change(day=date(2024, 1, 1), what="lines in MiB", rules={"lines": Lines.SELF_SIZE}),
    Change(
        day=date(2024, 3, 22),
        what="cells padded to 32 (95d576b4)",
        rules={"padding_cells": 32, "padding_cells_flash": 32},
    ),
    Change(
        day=date(2024, 4, 30),
        what="cells padded to 256 (9c67c277)",
        rules={"padding_cells": 256, "padding_cells_flash": 256},
    ),
    Change(
        day=date(2024, 5, 13),
        what="cells padded to 32 without flash attention (#7257)",
        rules={"padding_cells": 32},
    ),
    Change(
        day=date(2025, 3, 1),
        what="lines of llama_context",
        rules={"lines": Lines.CONTEXT_SELF_SIZE},
    ),
    Change(
        day=date(2025, 4, 15),
        what="compressed attention cached as such (#12801)",
        rules={"latent_rows": LatentRows.KEY_AND_VALUE},
    ),
    Change(
        day=date(2025, 5, 1),
        what="lines of llama_kv_cache_unified",
        rules={"lines": Lines.UNIFIED_SELF_SIZE},
    ),
    Change(
        day=date(2025, 5, 20),
        what="a short cache for windowed layers (#13194)",
        rules={
            "window_cells": WindowCells.WINDOW_AND_BATCH,
            "lines": Lines.UNIFIED_SIZE,
        },
    ),
    Change(
        day=date(2025, 5, 31),
        what="window cells by the micro-batch (#13833)",
        rules={"window_cells": WindowCells.WINDOW_AND_UBATCH},
    ),
    Change(
        day=date(2025, 7, 10),
        what="hybrid models (#13979)",
        rules={"hybrids": True},
    ),
    Change(
        day=date(2025, 7, 16),
        what="a stream of cells for each sequence (#14363)",
        rules={
            "has_streams": True,
            "hybrids_repeat_full_length": True,
            "widens_values": True,
        },
    ),
    Change(
        day=date(2025, 9, 1),
        what="flash attention decided by the engine; lines of llama_kv_cache",
        rules={"flash_by_default": True, "lines": Lines.SIZE},
    ),
    Change(
        day=date(2025, 10, 28),
        what=Note("", "padding taken away (#16812), per-sequence length reworked"),
        rules={},
        unread=True,
    ),
    Change(
        day=date(2025, 11, 8),
        what="cells padded to 256 after the division (#17046)",
        rules={
            "padding_cells": 256,
            "padding_cells_flash": 256,
            "pads_each_stream": True,
            "hybrids_repeat_full_length": False,
            "window_cells": WindowCells.CAPPED_THEN_PADDED,
            "least_batch_tokens": 1,
        },
    ),
    Change(
        day=date(2026, 1, 1),
        what="the output layer counts among those on the devices",
        rules={"counts_output_layer": True},
    ),
    Change(
        day=date(2026, 1, 25),
        what="no value rows in compressed attention (#19067)",
        rules={"latent_rows": LatentRows.KEY_ONLY},
    ),
    Change(
        day=date(2026, 4, 1),
        what="the windowed cache stays f16 (#21277)",
        rules={"windows_stay_f16": True},
    ),
    Change(
        day=date(2026, 4, 4),
        what="the windowed cache takes the cache types again (#21332)",
        rules={"windows_stay_f16": False},
    ),
    Change(
        day=date(2026, 7, 25),
        what="index keys in every layer of GLM-DSA (#25407)",
        rules={"indexers": Indexers.EVERY_LAYER},
    ),
    Change(
        day=date(2026, 8, 9),
        what="index keys only in the layers that own an indexer (#26474)",
        rules={"indexers": Indexers.OWNING_LAYERS},
    ),
)

# Commits whose source was read or run, by the first eight digits.
COMMITS: dict[str, date] = {
    "74d73dc8": date(2024, 11, 1),
    "7841fc72": date(2025, 3, 15),
    "8733e0cf": date(2025, 5, 8),
    "4227c9be": date(2025, 8, 14),
    "49bfddec": date(2026, 3, 22),
    "f49e9178": date(2026, 4, 3),
    "210a6570": date(2026, 6, 1),
    "e3a74b29": date(2026, 6, 16),
    "0c1e5709": date(2026, 10, 1),
}

# Builds of known date. Where a change falls on a known build, the builds on both sides are listed.
BUILDS: tuple[tuple[int, date], ...] = (
    (1, date(2023, 8, 1)),
    (4615, date(2025, 2, 2)),
    (5000, date(2025, 4, 1)),
    (5553, date(2025, 5, 30)),
    (5554, date(2025, 5, 31)),
    (5712, date(2025, 6, 20)),
    (5857, date(2025, 7, 10)),
    (5912, date(2025, 7, 15)),
    (5913, date(2025, 7, 16)),
    (6000, date(2025, 7, 27)),
    (6451, date(2025, 9, 13)),
    (6840, date(2025, 10, 25)),
    (7108, date(2025, 11, 20)),
    (8000, date(2026, 2, 11)),
    (8643, date(2026, 4, 3)),
    (8989, date(2026, 4, 30)),
    (10107, date(2026, 9, 1)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version as asked for, and the day or days that it may be of (one for each set of rules)."""

    asked: str
    eras: tuple[Era, ...]


def era_of(day: date) -> Era:
    """Return the rules in force on that day.

    Raises:
        Unsupported: for days between two changes whose source was not read.

    """
    era = Era(day=day)
    for change in CHANGES:
        if change.day > day:
            break
        era = replace(era, **change.rules)  # type: ignore[arg-type]
        latest = change
    if day >= CHANGES[0].day and latest.unread:
        raise Unsupported(
            "{field} {value} falls between two changes of the padding ({what}) and was not read",
            field="version",
            value=day.isoformat(),
            what=latest.what,
        )
    return era


def version_named(name: object) -> Version:
    """Return the rules of a version: a date, a build, a known commit, or None for the newest.

    Raises:
        Unknown: for anything else.
        OutOfRange: for a date or build outside what was read.
        Unsupported: for the days that were not read.

    """
    if name is None:
        return Version(asked=NEWEST.isoformat(), eras=(era_of(NEWEST),))
    if isinstance(name, str):
        text = name.strip()
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return Version(asked=text, eras=(era_of(_checked_day(text)),))
        if build := re.fullmatch(r"b(\d{1,6})", text):
            return Version(asked=text, eras=_eras_of_build(int(build[1])))
        known = COMMITS.get(text[:8])
        if known is not None and re.fullmatch(r"[0-9a-f]{8,40}", text):
            return Version(asked=text, eras=(era_of(known),))
    raise Unknown(
        "{field} must be a date such as {example}, a build such as b6840 or a known commit"
        " ({commits}), got {value}",
        field="version",
        example=NEWEST.isoformat(),
        commits=", ".join(COMMITS),
        value=shown(name),
    )


def _checked_day(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise Unknown("{field} {value} is no day", field="version", value=text) from None
    if not FIRST <= day <= NEWEST:
        raise OutOfRange(
            "{field} must be between {low} and {high}, got {value}",
            field="version",
            low=FIRST.isoformat(),
            high=NEWEST.isoformat(),
            value=text,
        )
    return day


def _eras_of_build(build: int) -> tuple[Era, ...]:
    """Return the rules that may hold for a build: those of every day between its neighbours."""
    numbers = [number for number, _ in BUILDS]
    if not numbers[0] <= build <= numbers[-1]:
        raise OutOfRange(
            "{field} must be a build between b{low} and b{high}, got {value}",
            field="version",
            low=numbers[0],
            high=numbers[-1],
            value=build,
        )
    below = bisect_right(numbers, build) - 1
    first = BUILDS[below][1]
    last = first if numbers[below] == build else BUILDS[below + 1][1]
    days = [first, *(change.day for change in CHANGES if first < change.day <= last)]
    return tuple(era_of(day) for day in days)

"""Amounts and workings in a page's language: `81,536 tokens for a request of 131,072`.

The engines' rooms write a figure's cells and the lines of a working as plain text, which the API
and the command line show as it is. Their forms are few, so that a page can tell them apart and say
each in its own words; a text of no known form stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from app.web.marks import mark

# The forms, special ones first. What a placeholder may be is in _SHAPES, and else a number.
TEMPLATES = (
    mark("none"),
    mark("{count} tokens"),
    mark("{count} blocks"),
    mark("{count} cells"),
    mark("{count} CPU blocks"),
    mark("{low} to {high} tokens"),
    mark("{low} to {high} blocks"),
    mark("{count} tokens for a request of {length}"),
    mark("{count} tokens, {size}"),
    mark("{count} tokens / {parts}"),
    mark("a block that holds a state: {text} tokens"),
    mark("{text} = {count} tokens"),
    mark("{times}x of {count} tokens"),
    mark("{count} layers, at most {share} %"),
    mark("{count} cells ({name})"),
    mark("{size} of memory"),
    mark("{size} on all devices"),
    mark("{size} on {device}"),
    mark("{size} for {count} tokens"),
    mark("{size} ({count} cells)"),
    mark("{size} ({count} cells, {layers} layers)"),
    mark("{size} ({count} cells, {layers} layers, {streams} streams)"),
    mark("{low} to {high} B"),
    mark("stage {stage}: {count} B/block, the pages of the widest group"),
    mark("{count} × {name}: {bytes} B a page of {tokens} tokens, {blocks} blocks at {length}"
         " tokens"),
    mark("blocks = {count} by the printed figures"),
    mark("blocks = ⌊{low} to {high} B / {unit} B⌋ = {least} to {most}"),
    mark("blocks = ⌊{low} to {high} B / {unit} B⌋ = {count}"),
    mark("blocks = {text}"),
    mark("a request: {text} blocks, {text2} B"),
    mark("{name}: {layers} layers, {text} B a cell × {count} cells = {bytes} B"),
    mark("{name}: {layers} layers × {text} cells × {streams} streams = {bytes} B"),
    mark("{name}: {layers} layers × {text} cells = {bytes} B"),
    mark("{name}: {layers} layers × {text} rows = {bytes} B"),
    mark("{name}: {layers} layers × {rows} rows × {row} B + {more} B of index keys = {bytes} B"),
    mark("{name}: {layers} layers × {rows} rows × {row} B = {bytes} B"),
    mark("{name}: {layers} layers × {rows} slots × {row} B = {bytes} B"),
    mark("{name}: {blocks} blocks × {tokens} tokens × {each} B ({layers} layers) = {bytes} B"),
    mark("total = {text}"),
    mark("{text} + … ({count} more) = {bytes} B"),
    # Of releases, by the form of a log's lines.
    mark("up to {version}"),
    mark("{version} or later"),
)  # fmt: skip
_SHAPES = {
    "size": r"[-+−]?[\d.,]+ (?:[KMGT]i?)?B",
    "device": r"\S+",
    "name": r"[\w^][\w^ .-]*",
    "text": r".+",
    "text2": r".+",
    "version": r"\d[\w.]*",
}
_NUMBER = r"[-+−]?[\d.,]+"
_PLACEHOLDER = re.compile(r"\\\{(\w+)\\\}")
_LONGEST = 1_000


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((template, _pattern(template)) for template in TEMPLATES)


def _pattern(template: str) -> re.Pattern[str]:
    escaped = re.escape(template)
    return re.compile(
        _PLACEHOLDER.sub(lambda it: f"(?P<{it[1]}>{_SHAPES.get(it[1], _NUMBER)})", escaped)
    )


def form_of(text: str) -> tuple[str, dict[str, str]] | None:
    """Return the form of an amount or a working and its parts, or None where it is of none."""
    if len(text) > _LONGEST:
        return None
    for template, pattern in _patterns():
        found = pattern.fullmatch(text)
        if found is not None:
            return template, found.groupdict()
    return None


def in_words(text: str, say: Callable[[str], str]) -> str:
    """Return an amount or a working as a language says it."""
    form = form_of(text)
    return text if form is None else say(form[0]).format_map(form[1])

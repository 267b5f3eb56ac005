"""What happens to a block pool, one event a line, as a person types it.

    allocate a 1..8 21 22          a request with its tokens; adapter=… and salt=… may follow
    append a 23 24                 more tokens
    lookup 1..8                    what these tokens would find; adapter=… and salt=… may follow
    fork a b c                     b and c continue a
    free a                         a ends
    evict 3 4                      blocks lose their cached content
    preempt a                      a gives up its blocks; without a name, the last running request
    resume a                       a waiting request is tried again
    reset                          all cached content is dropped

A name with spaces stands in quotes; from # on a line is a comment.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from app.domain.errors import Malformed, Missing, OutOfRange, Unknown, shown
from app.domain.pool_events import MAX_CHILDREN, MAX_EVENT_TOKENS, MAX_EVENTS, OPS, PoolEvent
from app.readers.token_ids import checked_length, parse_token_ids, token_ids_text

MAX_EVENTS_CHARACTERS = 200_000

_NAMED = frozenset({"allocate", "append", "fork", "free", "resume"})
_OPTIONS = ("adapter", "salt")


def _words(line: str, number: int) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        raise Malformed(
            "{field}, line {line}: a quotation mark has no partner", field="events", line=number
        ) from None


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        words = _words(line, number)
        if words:
            yield number, words


def parse_events(text: str) -> tuple[tuple[int, PoolEvent], ...]:
    """Return the events of a text, each with the number of its line.

    Raises:
        Malformed, Missing, Unknown: for a line that is no event, the line named.
        OutOfRange: for too long a text or too many events.

    """
    checked_length(text, "events", MAX_EVENTS_CHARACTERS)
    events: list[tuple[int, PoolEvent]] = []
    for number, words in _lines(text):
        if len(events) == MAX_EVENTS:
            raise OutOfRange("{field} must be at most {high}", field="events", high=MAX_EVENTS)
        events.append((number, _event(words, number)))
    return tuple(events)


def _event(words: Sequence[str], line: int) -> PoolEvent:
    op, rest = words[0].lower(), list(words[1:])
    if op not in OPS:
        raise Unknown(
            "{field}, line {line}: an event begins with one of {known}, got {value}",
            field="events",
            line=line,
            known=", ".join(OPS),
            value=shown(words[0]),
        )
    if op in _NAMED and not rest:
        raise Missing(
            "{field}, line {line}: {op} needs the name of a request",
            field="events",
            line=line,
            op=op,
        )
    request = rest.pop(0) if op in _NAMED or (op == "preempt" and rest) else ""
    if op in {"allocate", "append", "lookup"}:
        options = {} if op == "append" else _options(rest)
        return PoolEvent(
            op=op,
            request=request,
            tokens=_numbers(rest, line),
            adapter=options.get("adapter"),
            salt=options.get("salt"),
        )
    if op == "fork":
        return PoolEvent(op=op, request=request, children=_children(rest, line))
    if op == "evict":
        return PoolEvent(op=op, blocks=_numbers(rest, line))
    if rest:
        raise Malformed(
            "{field}, line {line}: nothing follows here, got {value}",
            field="events",
            line=line,
            value=shown(rest[0]),
        )
    return PoolEvent(op=op, request=request)


def _options(words: list[str]) -> dict[str, str]:
    """Take the options off the end of a line."""
    found: dict[str, str] = {}
    while words:
        name, equals, value = words[-1].partition("=")
        if not equals or name not in _OPTIONS or name in found:
            break
        found[name] = value
        words.pop()
    return found


def _numbers(words: Sequence[str], line: int) -> tuple[int, ...]:
    numbers = parse_token_ids(" ".join(words), ("events", f"line {line}"), most=MAX_EVENT_TOKENS)
    if not numbers:
        raise Missing(
            "{field}, line {line}: numbers are missing at its end", field="events", line=line
        )
    return numbers


def _children(words: Sequence[str], line: int) -> tuple[str, ...]:
    if not 1 <= len(words) <= MAX_CHILDREN:
        raise OutOfRange(
            "{field}, line {line}: a fork needs {low} to {high} names after the first",
            field="events",
            line=line,
            low=1,
            high=MAX_CHILDREN,
        )
    return tuple(words)


def event_line(event: PoolEvent) -> str:
    """Return the line that `parse_events` reads back as this event."""
    words = [event.op]
    if event.request:
        words.append(shlex.quote(event.request))
    words.extend(shlex.quote(child) for child in event.children)
    numbers = token_ids_text((*event.tokens, *event.blocks))
    if numbers:
        words.append(numbers)
    for name in _OPTIONS:
        value = getattr(event, name)
        if value is not None:
            words.append(shlex.quote(f"{name}={value}"))
    return " ".join(words)

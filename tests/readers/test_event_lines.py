"""Events of a pool as lines: each kind, what is refused with its line, and the line back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import DomainError, Malformed, Missing, OutOfRange, Unknown
from app.domain.pool_events import MAX_EVENTS, PoolEvent
from app.domain.pool_scenarios import SCENARIOS, PoolScenario
from app.readers.event_lines import MAX_EVENTS_CHARACTERS, event_line, parse_events


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("allocate a 1..4 9", PoolEvent(op="allocate", request="a", tokens=(1, 2, 3, 4, 9))),
        ("allocate 7 1", PoolEvent(op="allocate", request="7", tokens=(1,))),
        ("Allocate a 1", PoolEvent(op="allocate", request="a", tokens=(1,))),
        (
            "allocate a 1 adapter=sql 'salt=of mine'",
            PoolEvent(op="allocate", request="a", tokens=(1,), adapter="sql", salt="of mine"),
        ),
        ("append 'beam 0' 5,6", PoolEvent(op="append", request="beam 0", tokens=(5, 6))),
        ("lookup 1 2 salt=", PoolEvent(op="lookup", tokens=(1, 2), salt="")),
        ("fork a b c", PoolEvent(op="fork", request="a", children=("b", "c"))),
        ("free a # the end", PoolEvent(op="free", request="a")),
        ("evict 3..5", PoolEvent(op="evict", blocks=(3, 4, 5))),
        ("preempt", PoolEvent(op="preempt")),
        ("preempt a", PoolEvent(op="preempt", request="a")),
        ("resume a", PoolEvent(op="resume", request="a")),
        ("reset", PoolEvent(op="reset")),
    ],
)
def test_each_kind_of_event(line: str, event: PoolEvent) -> None:
    """A line is an operation, a request's name and what the operation takes."""
    assert parse_events(f"\n# nothing\n  {line}\n") == ((3, event),)
    assert parse_events(event_line(event)) == ((1, event),)


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("alocate a 1", Unknown, "events, line 2: an event begins with one of allocate, append"),
        ("free", Missing, "events, line 2: free needs the name"),
        ("free a b", Malformed, "events, line 2: nothing follows here, got 'b'"),
        ("reset a", Malformed, "nothing follows here"),
        ("allocate a", Missing, "events, line 2: numbers are missing"),
        ("lookup salt=x", Missing, "numbers are missing"),
        ("evict", Missing, "numbers are missing"),
        ("append a 1 salt=x", Malformed, "events.line 2: 'salt=x' at character 3"),
        ("allocate a 1 salt=x salt=y", Malformed, "'salt=x'"),
        ("allocate a 1 colour=x", Malformed, "'colour=x'"),
        ("allocate a 1..40000", OutOfRange, "at most 32768"),
        ("fork a", OutOfRange, "events, line 2: a fork needs 1 to 64 names"),
        ("fork a" + " b" * 65, OutOfRange, "1 to 64"),
        ("free 'a", Malformed, "events, line 2: a quotation mark has no partner"),
        ("free a\n" * (MAX_EVENTS + 1), OutOfRange, "at most 1000"),
        ("#" * (MAX_EVENTS_CHARACTERS + 1), OutOfRange, "200000 characters"),
    ],
)
def test_what_is_refused(line: str, error: type[DomainError], words: str) -> None:
    """A mistake names its line, counted from 1, empty lines included."""
    with pytest.raises(error) as caught:
        parse_events(f"\n{line}")
    assert words in str(caught.value)
    assert caught.value.field[0] == "events"


@pytest.mark.parametrize("story", SCENARIOS, ids=lambda story: story.name)
def test_the_built_in_stories(story: PoolScenario) -> None:
    """Each story reads back from its own lines, and takes no line twice as long as a screen."""
    text = "\n".join(map(event_line, story.events))
    assert tuple(event for _, event in parse_events(text)) == story.events
    assert max(map(len, text.split("\n"))) < 100


NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"),
    min_size=1,
    max_size=8,
)
NUMBERS = st.lists(st.integers(0, 40), min_size=1, max_size=20).map(tuple)


@given(
    st.builds(PoolEvent, op=st.just("allocate"), request=NAMES, tokens=NUMBERS,
              adapter=st.none() | NAMES, salt=st.none() | NAMES)
    | st.builds(PoolEvent, op=st.just("append"), request=NAMES, tokens=NUMBERS)
    | st.builds(PoolEvent, op=st.just("fork"), request=NAMES,
                children=st.lists(NAMES, min_size=1, max_size=4).map(tuple))
    | st.builds(PoolEvent, op=st.sampled_from(["free", "resume", "preempt"]), request=NAMES)
    | st.builds(PoolEvent, op=st.just("evict"), blocks=NUMBERS)
)  # fmt: skip
def test_text_and_back(event: PoolEvent) -> None:
    """Whatever the names, an event reads back from its line."""
    assert parse_events(event_line(event)) == ((1, event),)


@given(st.text(max_size=60) | st.text(alphabet="free a'\"#\\\n=19.", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is typed gives events or a refusal, and nothing else."""
    try:
        events = parse_events(text)
    except DomainError:
        return
    assert all(1 <= line <= text.count("\n") + 1 for line, _ in events)

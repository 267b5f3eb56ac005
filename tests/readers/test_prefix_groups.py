"""Prefixes and branches as text: the trees they mean, and what is not understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import DomainError, Malformed, OutOfRange
from app.domain.prefix_tree import PrefixGroup, tree_of_groups
from app.readers.prefix_groups import MAX_GROUPS_CHARACTERS, parse_groups


def group(prefix: int, *branches: int | PrefixGroup, count: int = 1) -> PrefixGroup:
    """Return a group in one line."""
    return PrefixGroup(prefix_tokens=prefix, branches=branches, count=count)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("", ()),
        (" \n ; ", ()),
        ("32 -> 1, 1", (group(32, 1, 1),)),
        ("32->1,1", (group(32, 1, 1),)),
        ("512 -> 40 x 200 -> 3 x 60", (group(512, group(200, 60, 60, 60, count=40)),)),
        ("512 → 40×200 → 3*60", (group(512, group(200, 60, 60, 60, count=40)),)),
        ("512 => 2X5", (group(512, 5, 5),)),
        ("1 -> 17 x 3", (group(1, group(3, 0, count=17)),)),
        ("2k -> 1M, 1_000", (group(2048, 1_048_576, 1000),)),
        ("9 -> 2 x (4 -> 5, 6), 7", (group(9, group(4, 5, 6, count=2), 7),)),
        ("9 -> 2 x (3 x 4)", (group(9, 4, 4, 4, 4, 4, 4),)),
        ("9 -> (4)", (group(9, 4),)),
        ("9 -> 1 -> 2, 3", (group(9, group(1, 2, 3)),)),
        ("4 x 100", (group(100, 0, count=4),)),
        ("3 x (2 x (5 -> 1))", (group(5, 1, count=6),)),
        ("3 x 5 -> 1", (group(5, 1, count=3),)),
        ("7; 8\n9, 10", (group(7, 0), group(8, 0), group(9, 0), group(10, 0))),
        ("5 ->\n1,\n2", (group(5, 1, 2),)),
        ("（5 → 1， 2）", (group(5, 1, 2),)),
    ],
)
def test_what_is_read(text: str, groups: tuple[PrefixGroup, ...]) -> None:
    """An arrow leads from a prefix to its branches; a comma belongs to the nearest arrow."""
    assert parse_groups(text) == groups


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("32 ->", Malformed, "end where a size such as 512 is missing"),
        ("32 -> -> 1", Malformed, "'->' stands where a size"),
        ("x", Malformed, "'x' stands where a size"),
        ("5 x", Malformed, "end where a size"),
        ("5 6", Malformed, "'6' follows without an arrow"),
        ("2 x 3 x 4", Malformed, "'x' follows without an arrow"),
        ("(5 -> 1", Malformed, "a bracket is not closed"),
        ("5 -> 1)", Malformed, "')' follows without an arrow"),
        ("5 - 1", Malformed, "'-' is not understood"),
        ("5.5", Malformed, "'.5' is not understood"),
        ("5k6", Malformed, "'5k6' is not understood"),
        ("five", Malformed, "'five' is not understood"),
        ("1000000001", OutOfRange, "above 1000000000"),
        ("1000M", OutOfRange, "above 1000000000"),
        ("9" * 5000, OutOfRange, "above 1000000000"),
        ("1 -> " * 33 + "1", OutOfRange, "32 deep"),
        ("(" * 5000, OutOfRange, "32 deep"),
        (" " * (MAX_GROUPS_CHARACTERS + 1), OutOfRange, "100000 characters"),
    ],
)
def test_what_is_refused(text: str, error: type[DomainError], words: str) -> None:
    """A mistake names the piece at fault; numbers, depth and text are bounded."""
    with pytest.raises(error) as caught:
        parse_groups(text)
    assert words in str(caught.value)
    assert caught.value.field == ("groups",)


@given(st.text(alphabet="0159kM x->,();\n×→", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is typed gives groups that a tree takes or refuses, and nothing else."""
    try:
        tree = tree_of_groups(parse_groups(text))
    except DomainError:
        return
    assert tree.sequences >= (text.strip(" ,;\n") != "")

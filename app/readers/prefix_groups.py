"""Prefixes and their branches as a person types them, in sizes.

    512 -> 40 x 200 -> 3 x 60      a prompt of 512, 40 users of 200 after it, 3 answers of 60 each
    32 -> 1, 1                     a prefix of 32 and two branches of one token
    2k -> 2 x (300 -> 10, 20), 5   brackets hold a branch that branches itself
    4 x 100                        four requests that share nothing

One group a line, or between semicolons. A comma belongs to the nearest arrow before it; k is 1024,
m is 1024 × 1024; `x`, `*` and `×` mean the same, so do `->`, `=>` and `→`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from app.domain.errors import Malformed, OutOfRange, shown
from app.domain.prefix_tree import MAX_DEPTH, MAX_TREE_TOKENS, Branch, PrefixGroup
from app.readers.token_ids import checked_length

MAX_GROUPS_CHARACTERS = 100_000
# Up to so many equal branches are written out; more are one branch with a count.
LISTED_BRANCHES = 16

_FACTORS = {"": 1, "k": 1024, "m": 1024 * 1024}
_MOST_DIGITS = len(str(MAX_TREE_TOKENS))
_PIECE = re.compile(
    r"(?P<number>[0-9][0-9_]*[kKmM]?(?![0-9A-WYZa-wyz_]))|(?P<times>[xX*×])|(?P<arrow>[-=]>|→)"
    r"|(?P<comma>[,，、])|(?P<open>[(（])|(?P<close>[)）])|(?P<end>[;；\n])|(?P<space>[^\S\n]+)"
)
# After these a line may break.
_OPEN_ENDED = frozenset({"arrow", "comma", "open", "times"})


class _Piece(NamedTuple):
    kind: str
    text: str


_LAST = "last"


def _pieces(text: str) -> Iterator[_Piece]:
    """Return the pieces of a text, white space and broken lines left out."""
    at, before = 0, ""
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            raise Malformed(
                "{field}: {value} is not understood; write sizes and arrows such as "
                "512 -> 40 x 200 -> 3 x 60",
                field="groups",
                value=shown(text[at:].split(maxsplit=1)[0]),
            )
        kind = match.lastgroup or ""
        if kind != "space" and not (match[0] == "\n" and before in _OPEN_ENDED):
            yield _Piece(kind, match[0])
            before = kind
        at = match.end()
    yield _Piece(_LAST, "")


class _Parser:
    def __init__(self, text: str) -> None:
        self._pieces = _pieces(text)
        self._piece = next(self._pieces)

    def _take(self) -> _Piece:
        taken = self._piece
        self._piece = next(self._pieces)
        return taken

    def _no_size(self) -> Malformed:
        if self._piece.kind == _LAST:
            return Malformed("{field} end where a size such as 512 is missing", field="groups")
        return Malformed(
            "{field}: {value} stands where a size such as 512 should",
            field="groups",
            value=shown(self._piece.text),
        )

    def groups(self) -> tuple[PrefixGroup, ...]:
        """Return every group of the text."""
        found: list[PrefixGroup] = []
        while self._piece.kind != _LAST:
            if self._piece.kind in {"end", "comma"}:
                self._take()
                continue
            found.append(self._whole(*self._branch(1)))
            if self._piece.kind not in {"end", "comma", _LAST}:
                raise Malformed(
                    "{field}: {value} follows without an arrow, a comma or a semicolon",
                    field="groups",
                    value=shown(self._piece.text),
                )
        return tuple(found)

    def _whole(self, count: int, branch: Branch) -> PrefixGroup:
        """Return so many branches as one group."""
        if isinstance(branch, PrefixGroup) and count == 1:
            return branch
        if isinstance(branch, PrefixGroup):
            return PrefixGroup(
                prefix_tokens=branch.prefix_tokens,
                branches=branch.branches,
                count=branch.count * count,
            )
        return PrefixGroup(prefix_tokens=branch, branches=(0,), count=count)

    def _branch(self, depth: int) -> tuple[int, Branch]:
        """Return a branch, and how many of it."""
        if depth > MAX_DEPTH:
            raise OutOfRange(
                "{field} may be nested {high} deep at most", field="groups", high=MAX_DEPTH
            )
        count, tokens = 1, self._number_or_bracket(depth)
        if self._piece.kind == "times" and isinstance(tokens, int):
            self._take()
            count, tokens = tokens, self._number_or_bracket(depth)
        if not isinstance(tokens, int):
            inner, branch = tokens
            return count * inner, branch
        if self._piece.kind != "arrow":
            return count, tokens
        self._take()
        return count, PrefixGroup(prefix_tokens=tokens, branches=self._branches(depth + 1))

    def _number_or_bracket(self, depth: int) -> int | tuple[int, Branch]:
        if self._piece.kind == "open":
            self._take()
            inside = self._branch(depth + 1)
            if self._piece.kind != "close":
                raise Malformed("{field}: a bracket is not closed", field="groups")
            self._take()
            return inside
        if self._piece.kind != "number":
            raise self._no_size()
        return _number(self._take().text)

    def _branches(self, depth: int) -> tuple[Branch, ...]:
        found: list[Branch] = []
        while True:
            count, branch = self._branch(depth)
            if count <= LISTED_BRANCHES and not isinstance(branch, PrefixGroup):
                found.extend([branch] * count)
            else:
                found.append(branch if count == 1 else self._whole(count, branch))
            if self._piece.kind != "comma":
                return tuple(found)
            self._take()


def _number(text: str) -> int:
    unit = text[-1].lower() if text[-1].isalpha() else ""
    digits = text.removesuffix(text[-1] if unit else "").replace("_", "").lstrip("0") or "0"
    if len(digits) > _MOST_DIGITS or int(digits) * _FACTORS[unit] > MAX_TREE_TOKENS:
        raise OutOfRange(
            "{field}: {value} is above {high}",
            field="groups",
            value=shown(text),
            high=MAX_TREE_TOKENS,
        )
    return int(digits) * _FACTORS[unit]


def parse_groups(text: str) -> tuple[PrefixGroup, ...]:
    """Return the groups of a text; sizes that fit no tree are the tree's to refuse.

    Raises:
        Malformed: for what is not understood, with the piece at fault.
        OutOfRange: for too long a text, too deep a nesting or too large a number.

    """
    return _Parser(checked_length(text, "groups", MAX_GROUPS_CHARACTERS)).groups()

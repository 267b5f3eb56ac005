"""Matches module names against the lists in a quantisation config, in bounded time.

Such lists hold plain names (thousands of them), globs, and regular expressions. Names are looked
up, a glob with one star at its end is a prefix, and a regular expression is taken only in the small
language that such lists use, so that no pattern of a stranger's can hang us.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

from app.domain.errors import FieldPath, OutOfRange, Unsupported, WrongType, shown

MAX_NAMES = 65_536
MAX_PATTERNS = 256
MAX_PATTERN_CHARACTERS = 256
MAX_ALTERNATIVES = 64

_EXPRESSION = "re:"
# Pieces of the expressions that are read: an escaped or plain character, any run, a group of plain
# alternatives, a run of digits, an end mark.
_PIECE = re.compile(
    r"(?P<run>\.\*)|(?P<digits>(?:\\d|\[0-9\])[+*]?)|\\(?P<escaped>[.\-_])|(?P<any>\.)|(?P<end>\$)"
    r"|(?P<start>\^)|\((?:\?:)?(?P<group>[\w.\-|]*)\)|(?P<plain>[\w\-])"
)


@dataclass(slots=True)
class NameMatcher:
    """Names, prefixes and globs; a plain name matches a module, all under it, and any same tail.

    Only runs of path parts as long as some name, and prefixes as long as some prefix, are tried.
    """

    names: set[str] = field(default_factory=set)
    name_lengths: set[int] = field(default_factory=set)
    prefixes: set[str] = field(default_factory=set)
    prefix_lengths: set[int] = field(default_factory=set)
    globs: list[re.Pattern[str]] = field(default_factory=list)

    @classmethod
    def of(cls, items: Iterable[object], path: FieldPath) -> NameMatcher:
        """Return the matcher of a list.

        Raises:
            WrongType: for an entry that is no string.
            OutOfRange: for more entries or longer ones than are read.
            Unsupported: for a regular expression outside the language that is read.

        """
        matcher = cls()
        for position, item in enumerate(items):
            where = (*path, position)
            if not isinstance(item, str):
                raise WrongType("{field} must be a string, got {value}", field=where,
                                value=shown(item))  # fmt: skip
            if position >= MAX_NAMES or len(item) > MAX_PATTERN_CHARACTERS:
                raise OutOfRange(
                    "{field} must be within {high} entries of {longest} characters",
                    field=where, high=MAX_NAMES, longest=MAX_PATTERN_CHARACTERS,
                )  # fmt: skip
            matcher._add(item, where)
        return matcher

    def _add(self, item: str, where: FieldPath) -> None:
        if item.startswith(_EXPRESSION):
            for glob in globs_of(item.removeprefix(_EXPRESSION), where):
                self._add_glob(glob, where)
        elif "*" not in item and "?" not in item:
            self.names.add(item)
            self.name_lengths.add(item.count(".") + 1)
        elif item.endswith("*") and "*" not in item[:-1] and "?" not in item:
            self.prefixes.add(item[:-1])
            self.prefix_lengths.add(len(item) - 1)
        else:
            # A module under a name that matches is matched too: `model.layers.*.self_attn`.
            self._add_glob(item.replace("[", "[[]"), where)
            self._add_glob(item.replace("[", "[[]") + ".*", where)

    def _add_glob(self, glob: str, where: FieldPath) -> None:
        if len(self.globs) >= MAX_PATTERNS:
            raise OutOfRange("{field}: more than {high} patterns", field=where, high=MAX_PATTERNS)
        self.globs.append(re.compile(fnmatch.translate(glob)))

    @property
    def is_empty(self) -> bool:
        """Return whether the list names nothing."""
        return not (self.names or self.prefixes or self.globs)

    def matches(self, name: str) -> bool:
        """Return whether the list names the module, one that holds it, or a tail of its path."""
        if self.names:
            parts = name.split(".")
            for length in self.name_lengths:
                for first in range(len(parts) - length + 1):
                    if ".".join(parts[first : first + length]) in self.names:
                        return True
        if any(name[:length] in self.prefixes for length in self.prefix_lengths):
            return True
        return any(glob.match(name) for glob in self.globs)


def globs_of(expression: str, where: FieldPath) -> list[str]:
    r"""Return a regular expression as globs, one for each choice of its groups.

    `.*mlp\.(gate|up)_proj.*` becomes `*mlp.gate_proj*` and `*mlp.up_proj*`. An expression is
    matched from the start of a name, and to its end only where it says so.

    Raises:
        Unsupported: for any construct that such lists do not use.

    """
    choices: list[tuple[str, ...]] = []
    position, is_closed = 0, False
    while position < len(expression):
        found = _PIECE.match(expression, position)
        if found is None or is_closed:
            raise _unread(expression, where)
        position = found.end()
        kind = found.lastgroup
        if kind == "end":
            is_closed = True
        elif kind == "group":
            choices.append(tuple(found["group"].split("|")))
        elif kind in {"escaped", "plain"}:
            choices.append((found[kind],))
        elif kind != "start":
            choices.append(("?" if kind == "any" else "*",))
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MAX_ALTERNATIVES:
        raise _unread(expression, where)
    tail = "" if is_closed else "*"
    return ["".join(pieces) + tail for pieces in product(*choices)]


def _unread(expression: str, where: FieldPath) -> Unsupported:
    return Unsupported(
        "{field} has the expression {value}, which is not among those read here",
        field=where,
        value=shown(expression),
    )

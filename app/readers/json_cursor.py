"""Walks a large JSON object entry by entry, so that only what is wanted is ever built.

`json.loads` on a 20 MB tensor list would hold every nested dict at once, and of two equal keys it
keeps the last without a word. Here each entry is decoded, handed out and forgotten, and a repeated
key is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from app.domain.errors import Malformed, shown
from app.domain.notes import Note
from app.readers.json_text import RepeatedKeyError, unique_object

# JSON's own white space; a key without escapes, as nearly all are, is taken in one match.
_SPACE = re.compile(r"[ \t\n\r]*")
_OPEN = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*")
_NEXT = re.compile(r"[ \t\n\r]*([,}])[ \t\n\r]*")
_PLAIN_KEY = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")


def _no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and JSON does not know."""
    raise ValueError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=unique_object, parse_constant=_no_constant)


@dataclass(slots=True, kw_only=True)
class JsonCursor:
    """A position in a JSON text; `name` is what errors call it."""

    text: str
    name: str
    position: int = 0

    def entries(self) -> Iterator[str]:
        """Yield the keys of the object here; the caller takes each value before the next key.

        The value is taken by `value()`, by `string()`, or by walking it with `entries()` again.

        Raises:
            Malformed: for anything but an object with unique keys.

        """
        self._match(_OPEN, "an object is expected")
        if self.text.startswith("}", self.position):
            self.position += 1
            return
        seen: set[str] = set()
        mark = ","
        while mark == ",":
            key = self._key()
            if key in seen:
                self._refuse_twice(key)
            seen.add(key)
            yield key
            mark = self._match(_NEXT, "a comma or a closing brace is expected")[1]

    def value(self, longest: int) -> object:
        """Decode the value here, which may take up to `longest` characters.

        The bound is there for memory: a list of millions of empty lists is short as text.

        Raises:
            Malformed: for broken JSON, a longer value, a key twice, NaN and Infinity, an integer of
                thousands of digits, and nesting that the decoder gives up on.

        """
        piece = self.text[self.position : self.position + longest]
        try:
            decoded, size = _DECODER.raw_decode(piece)
        except RepeatedKeyError as error:
            self._refuse_twice(error.key)
        except (ValueError, RecursionError):
            self.refuse(
                "a value is broken, NaN, nested too deeply or over {longest} characters",
                longest=longest,
            )
        # A number cut off by the bound would read as a shorter one.
        if size == longest:
            self.refuse("a value is longer than {longest} characters", longest=longest)
        self.position += size
        return decoded

    def string(self) -> str:
        """Decode the string here, however long.

        Raises:
            Malformed: for anything else.

        """
        if not self.text.startswith('"', self.position):
            self.refuse("a string is expected")
        try:
            decoded, self.position = _DECODER.raw_decode(self.text, self.position)
        except ValueError:
            self.refuse("a string is broken")
        return str(decoded)

    def end(self) -> None:
        """Refuse anything but white space up to the end."""
        self._match(_SPACE, "")
        if self.position < len(self.text):
            self.refuse("nothing may follow the object")

    def refuse(self, template: str, **params: object) -> NoReturn:
        """Raise the one error for text that is not what it should be."""
        raise Malformed(
            "{field} cannot be read at character {position}: {problem}",
            field=self.name,
            position=self.position,
            problem=Note("", template, params),
        )

    def _refuse_twice(self, key: str) -> NoReturn:
        raise Malformed("{field} names {key} twice", field=self.name, key=shown(key))

    def _match(self, pattern: re.Pattern[str], template: str) -> re.Match[str]:
        """Step over the pattern, or refuse."""
        found = pattern.match(self.text, self.position)
        if found is None:
            self.refuse(template)
        self.position = found.end()
        return found

    def _key(self) -> str:
        found = _PLAIN_KEY.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
            return found[1]
        key = self.string()
        self._match(_COLON, "a colon is expected")
        return key

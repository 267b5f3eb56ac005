"""Errors of the arithmetic: each names the field, and says what would have been allowed.

The first argument is a template, so that a page can translate the sentence and still put the
request's own numbers into it. A parameter that is words, not a name or a number, is a note.
"""

from __future__ import annotations

import reprlib

from app.domain.notes import Note

FieldPath = tuple[str | int, ...]

_LONGEST_SHOWN_VALUE = 60
_LONGEST_SHOWN_BITS = 200

# A rejected value may be nested or long without end; no more of it is looked at than is shown.
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 3
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 2 * _LONGEST_SHOWN_VALUE


def shown(value: object) -> str:
    """Return a short form of a rejected value, safe to repeat in a message."""
    if type(value) is int and value.bit_length() > _LONGEST_SHOWN_BITS:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = _BRIEF.repr(value)
    except ValueError:  # an integer inside it has more digits than Python converts
        return "a value too long to show"
    return text if len(text) <= _LONGEST_SHOWN_VALUE else text[: _LONGEST_SHOWN_VALUE - 1] + "…"


class DomainError(ValueError):
    """Base of every refusal; `field` is the path to the offending input."""

    code = "invalid"

    def __init__(self, template: str, *, field: str | FieldPath, **params: object) -> None:
        self.template = template
        self.field: FieldPath = (field,) if isinstance(field, str) else tuple(field)
        self.params = {"field": ".".join(map(str, self.field)), **params}
        super().__init__(template.format_map(self.params))

    @property
    def note(self) -> Note:
        """Return its sentence, to stand in another one and be translated with that."""
        return Note(self.code, self.template, dict(self.params))

    def under(self, *prefix: str | int) -> DomainError:
        """Return the same error with its field seen from an enclosing object."""
        self.field = (*prefix, *self.field)
        self.params["field"] = ".".join(map(str, self.field))
        self.args = (self.template.format_map(self.params),)
        return self


class OutOfRange(DomainError):
    """A value of the right type outside its bounds."""

    code = "out_of_range"


class WrongType(DomainError):
    """A value of another type than the field takes (a bool is not an integer here)."""

    code = "wrong_type"


class Missing(DomainError):
    """A field without which the answer would be a guess."""

    code = "missing"


class Unknown(DomainError):
    """A name that is not among those known."""

    code = "unknown"


class Unsupported(DomainError):
    """A well-formed request that has no answer here; the field says which part of it."""

    code = "unsupported"


class Conflict(DomainError):
    """Fields that contradict each other."""

    code = "conflict"


class Malformed(DomainError):
    """Bytes that are not what they claim to be; the template says where reading stopped."""

    code = "malformed"


class Unavailable(DomainError):
    """Something outside this process that did not answer, or not as it should have."""

    code = "unavailable"

"""Settings by name: every value typed and bounded, every unknown name refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Conflict, OutOfRange, Unknown, WrongType, shown

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class SettingValues:
    """What was given, under the settings' own names; None counts as not given."""

    values: Mapping[str, object]

    def has(self, name: str) -> bool:
        """Return whether a value was given."""
        return name in self.values

    def integer(self, name: str, *, low: int, high: int) -> int | None:
        """Return the integer given, or None.

        Raises:
            WrongType, OutOfRange: naming the setting and its bounds.

        """
        if name not in self.values:
            return None
        return checked_int(self.values[name], name, low=low, high=high)

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return the truth value given (0 and 1 count, as in the engines' own flags)."""
        value = self.values.get(name, default)
        if isinstance(value, bool):
            return value
        if type(value) is int and value in (0, 1):
            return bool(value)
        raise WrongType("{field} must be true or false, got {value}", field=name,
                        value=shown(value))  # fmt: skip

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return the word given, one of `choices`.

        Raises:
            Unknown: for any other value, naming those that are known.

        """
        known = tuple(choices)
        value = self.values.get(name, default)
        if isinstance(value, str) and value in known:
            return value
        raise Unknown("{field} must be one of {known}, got {value}", field=name,
                      known=", ".join(known), value=shown(value))  # fmt: skip

    def number(self, name: str, *, low: float, high: float, default: float) -> float:
        """Return the number given (an integer or a decimal)."""
        value = self.values.get(name, default)
        return _number(value, (name,), low=low, high=high)

    def numbers(self, name: str, *, low: float, high: float, most: int) -> tuple[float, ...]:
        """Return the list of numbers given, or an empty one.

        Raises:
            WrongType: when it is no list of numbers.
            OutOfRange: when it is longer than `most`, or a number is out of bounds.

        """
        value = self._listed(name, most)
        return tuple(
            _number(item, (name, index), low=low, high=high) for index, item in enumerate(value)
        )

    def integers(self, name: str, *, low: int, high: int, most: int) -> tuple[int, ...]:
        """Return the list of integers given, or an empty one."""
        value = self._listed(name, most)
        return tuple(
            checked_int(item, (name, index), low=low, high=high) for index, item in enumerate(value)
        )

    def texts(self, name: str, *, most: int) -> tuple[str, ...]:
        """Return the list of short texts given, or an empty one."""
        result = []
        for index, item in enumerate(self._listed(name, most)):
            if not isinstance(item, str) or not 0 < len(item) <= _LONGEST_NAME:
                raise WrongType("{field} must be a text of 1 to {high} characters, got {value}",
                                field=(name, index), high=_LONGEST_NAME,
                                value=shown(item))  # fmt: skip
            result.append(item)
        return tuple(result)

    def _listed(self, name: str, most: int) -> Sequence[object]:
        value = self.values.get(name, ())
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise WrongType("{field} must be a list, got {value}", field=name,
                            value=shown(value))  # fmt: skip
        if len(value) > most:
            raise OutOfRange("{field} must have at most {high} elements, got {value}",
                             field=name, high=most, value=len(value))  # fmt: skip
        return value


def _number(value: object, field: tuple[str | int, ...], *, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongType("{field} must be a number, got {value}", field=field, value=shown(value))
    if not low <= value <= high:
        raise OutOfRange("{field} must be between {low} and {high}, got {value}", field=field,
                         low=low, high=high, value=shown(value))  # fmt: skip
    return float(value)


def own_names(given: Mapping[str, object], aliases: Mapping[str, str]) -> dict[str, object]:
    """Return settings under their own names; `aliases` are other spellings of the same.

    Raises:
        Conflict: when a setting is given under two names.

    """
    found: dict[str, object] = {}
    for name, value in given.items():
        own = aliases.get(name, name)
        if value is not None and found.get(own) is not None:
            raise Conflict("{field} is given twice, under two names", field=own)
        if value is not None or own not in found:
            found[own] = value
    return found


def named_settings(
    given: Mapping[str, object],
    known: Iterable[str],
    aliases: Mapping[str, str] | None = None,
) -> SettingValues:
    """Return the settings under their own names; `aliases` are other spellings of the same.

    Raises:
        Unknown: for a name that is no setting of this engine.
        Conflict: when a setting is given under two names.

    """
    names = frozenset(known)
    found = own_names(given, aliases or {})
    for name in found:
        if name not in names:
            raise Unknown("{field} is no setting of this engine; known are {known}",
                          field=str(name)[:_LONGEST_NAME],
                          known=", ".join(sorted(names)))  # fmt: skip
    return SettingValues({name: value for name, value in found.items() if value is not None})

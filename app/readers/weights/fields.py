"""Bounded access to the sizes in a config.json, with what its class assumes of those not there.

Defaults and other spellings are those of Transformers 5.24.0's config classes, read into
`class_defaults.json`. An absent field takes the class's value, and the reading says so; a number is
a JSON integer, and neither a string nor a bool passes for one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from app.domain.checks import checked_int
from app.domain.errors import Conflict, FieldPath, Missing, OutOfRange, WrongType, shown
from app.domain.notes import Note

MAX_SIZE = 2**31
MAX_LAYERS = 4096
MAX_LIST = 4096

# Names that other families and tools use for the sizes on which all else rests. A class that takes
# its own default beside one of them would describe some other model.
_FOREIGN = {
    "hidden_size": ("hidden_dim", "n_embd", "n_embed", "d_model", "embedding_length"),
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers", "block_count"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "intermediate_size": ("ffn_embed_dim", "feed_forward_length"),
}

_TABLE = Path(__file__).with_name("class_defaults.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFacts:
    """What one config class assumes: values, other spellings, and the classes of its parts."""

    values: Mapping[str, object] = field(default_factory=dict)
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


@cache
def _table() -> dict[str, ClassFacts]:
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))
    return {
        model_type: ClassFacts(
            values=row.get("values", {}),
            spellings={name: tuple(others) for name, others in row.get("spellings", {}).items()},
            parts=row.get("parts", {}),
        )
        for model_type, row in rows.items()
    }


def class_facts(model_type: str) -> ClassFacts:
    """Return what the class of a model type assumes; nothing when there is no such class."""
    return _table().get(model_type, ClassFacts())


@dataclass(slots=True, kw_only=True)
class Fields:
    """One config, or a nested one, and the defaults that were used while reading it."""

    raw: Mapping[str, object]
    model_type: str
    path: FieldPath = ()
    used: dict[str, object] = field(default_factory=dict)
    lists: dict[tuple[str, str], tuple[object, ...] | None] = field(default_factory=dict)
    nested: dict[str, Fields] = field(default_factory=dict)

    @property
    def facts(self) -> ClassFacts:
        """Return what the class assumes."""
        return class_facts(self.model_type)

    def at(self, name: str) -> FieldPath:
        """Return the path of a field, for an error."""
        return (*self.path, name)

    def find(self, name: str) -> tuple[str, object]:
        """Return (spelling, value) of a field as the file has it; its own name and None if absent.

        Raises:
            Conflict: when two spellings carry different values.

        """
        found: tuple[str, object] | None = None
        for spelling in (name, *self.facts.spellings.get(name, ())):
            value = self.raw.get(spelling)
            if value is None:
                continue
            if found is not None and found[1] != value:
                raise Conflict(
                    "{field} is {value}, but {other} is {other_value}",
                    field=self.at(spelling),
                    value=shown(value),
                    other=found[0],
                    other_value=shown(found[1]),
                )
            found = found or (spelling, value)
        return found or (name, None)

    def says(self, name: str) -> bool:
        """Return whether the file gives the field a value, under any spelling."""
        return self.find(name)[1] is not None

    def names(self, name: str) -> bool:
        """Return whether the file names the field at all, be it null."""
        return any(key in self.raw for key in (name, *self.facts.spellings.get(name, ())))

    def assumed(self, name: str) -> object:
        """Return what the class takes for an absent field, and remember that it was used.

        Raises:
            Missing: when the file names the size as no config of this class does.

        """
        value = self.facts.values.get(name)
        foreign = next((other for other in _FOREIGN.get(name, ()) if other in self.raw), None)
        if foreign is not None:
            raise Missing(
                "{field} is needed: the file has {foreign}, which a {model_type} does not read",
                field=self.at(name),
                foreign=foreign,
                model_type=self.model_type,
            )
        if value is not None:
            self.used[".".join(map(str, self.at(name)))] = value
        return value

    def _value(self, name: str) -> tuple[str, object]:
        spelling, value = self.find(name)
        if value is None and not self.names(name):
            value = self.assumed(name)
        return spelling, value

    def size(self, name: str, *, low: int = 1, high: int = MAX_SIZE) -> int:
        """Return an integer that the answer cannot do without.

        Raises:
            Missing: when neither the file nor the class gives one.
            WrongType, OutOfRange: for anything but an integer in low..high.

        """
        value = self.size_or_none(name, low=low, high=high)
        if value is None:
            raise Missing(
                "{field} is needed to count the weights of a {model_type}",
                field=self.at(name),
                model_type=self.model_type,
            )
        return value

    def size_or_none(self, name: str, *, low: int = 0, high: int = MAX_SIZE) -> int | None:
        """Return an integer, or None when it is null or nobody gives one."""
        spelling, value = self._value(name)
        return None if value is None else checked_int(value, self.at(spelling), low=low, high=high)

    def count(self, name: str, *, high: int = MAX_SIZE) -> int:
        """Return an integer that may be zero; null and unknown are zero."""
        return self.size_or_none(name, high=high) or 0

    def whole(self, name: str, factor: int) -> int:
        """Return `factor` times a ratio that may be a fraction in the file (`mlp_ratio` 4.0).

        Raises:
            Missing: when nobody gives one.
            WrongType: when it is no number.
            OutOfRange: when it is not positive, or too large.

        """
        spelling, value = self._value(name)
        if value is None:
            raise Missing("{field} is needed to count the weights of a {model_type}",
                          field=self.at(name), model_type=self.model_type)  # fmt: skip
        if type(value) is not int and type(value) is not float:
            raise WrongType("{field} must be a number, got {value}", field=self.at(spelling),
                            value=shown(value))  # fmt: skip
        if not 0 < value < MAX_SIZE:
            raise OutOfRange("{field} must be between {low} and {high}, got {value}",
                             field=self.at(spelling), low=0, high=MAX_SIZE,
                             value=shown(value))  # fmt: skip
        return checked_int(int(value * factor), self.at(spelling), low=1, high=MAX_SIZE)

    def flag(self, name: str, *, otherwise: bool = False) -> bool:
        """Return a bool; `otherwise` when neither the file nor the class gives one.

        Raises:
            WrongType: for anything but true and false.

        """
        spelling, value = self._value(name)
        if value is None:
            return otherwise
        if type(value) is not bool:
            raise WrongType("{field} must be true or false, got {value}", field=self.at(spelling),
                            value=shown(value))  # fmt: skip
        return value

    def word(self, name: str) -> str | None:
        """Return a string, or None.

        Raises:
            WrongType: for anything but a string.

        """
        spelling, value = self._value(name)
        if value is None or isinstance(value, str):
            return value
        raise WrongType("{field} must be a string, got {value}", field=self.at(spelling),
                        value=shown(value))  # fmt: skip

    def items(self, name: str, *, length: int | None = None) -> tuple[object, ...] | None:
        """Return a list of the file as a tuple, or None; a class's own list is not taken.

        Raises:
            WrongType: for anything but a list.
            OutOfRange: for a list over the bound.
            Conflict: for one of another length than the model needs.

        """
        spelling, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise WrongType("{field} must be a list, got {value}", field=self.at(spelling),
                            value=shown(value))  # fmt: skip
        if len(value) > MAX_LIST:
            raise OutOfRange("{field} has {value} entries; at most {high} are read",
                             field=self.at(spelling), value=len(value), high=MAX_LIST)  # fmt: skip
        if length is not None and len(value) < length:
            raise Conflict(
                "{field} has {value} entries for {layers} layers",
                field=self.at(spelling),
                value=len(value),
                layers=length,
            )
        return tuple(value)

    def words(self, name: str, *, length: int | None = None) -> tuple[str, ...] | None:
        """Return a list of strings, or None; checked once, since every layer asks.

        Raises:
            WrongType: when an entry is no string.

        """
        if ("words", name) not in self.lists:
            items = self.items(name, length=length)
            for position, item in enumerate(items or ()):
                if not isinstance(item, str):
                    raise WrongType("{field} must be a string, got {value}",
                                    field=(*self.at(name), position),
                                    value=shown(item))  # fmt: skip
            self.lists["words", name] = items
        return self.lists["words", name]  # type: ignore[return-value]  # strings, by the check

    def sizes(self, name: str, *, length: int | None = None) -> tuple[int, ...] | None:
        """Return a list of integers, or None; checked once, since every layer asks."""
        if ("sizes", name) not in self.lists:
            items = self.items(name, length=length)
            for position, item in enumerate(items or ()):
                checked_int(item, (*self.at(name), position), low=0, high=MAX_SIZE)
            self.lists["sizes", name] = items
        return self.lists["sizes", name]  # type: ignore[return-value]  # integers, by the check

    def part(self, name: str, *, model_type: str | None = None) -> Fields:
        """Return a nested config: the file's, else the one that the class builds by default.

        It is made once, since layers ask for theirs again and again.

        Raises:
            WrongType: when it is no object.
            Missing: when the file has none and the class names none.

        """
        if name not in self.nested:
            self.nested[name] = self._part(name, model_type)
        return self.nested[name]

    def _part(self, name: str, model_type: str | None) -> Fields:
        default = self.facts.parts.get(name, {})
        _, raw = self.find(name)
        if raw is None:
            if not default:
                raise Missing("{field} is needed to count the weights of a {model_type}",
                              field=self.at(name), model_type=self.model_type)  # fmt: skip
            self.used[".".join(map(str, self.at(name)))] = Note("", "the class's own")
            raw = {key: value for key, value in default.items() if key != "model_type"}
        if not isinstance(raw, Mapping):
            raise WrongType("{field} must be an object, got {value}", field=self.at(name),
                            value=shown(raw))  # fmt: skip
        named = raw.get("model_type") or model_type or default.get("model_type") or ""
        if not isinstance(named, str):
            raise WrongType("{field} must be a string, got {value}",
                            field=(*self.at(name), "model_type"), value=shown(named))  # fmt: skip
        return Fields(raw=raw, model_type=named, path=self.at(name), used=self.used)

    def notes(self) -> tuple[Note, ...]:
        """Return the assumptions: every size that the class gave and the file did not."""
        return tuple(
            Note(
                "class_default",
                "{field} is not in the file; its class takes {value}",
                {"field": name, "value": value if isinstance(value, Note) else shown(value)},
            )
            for name, value in self.used.items()
        )

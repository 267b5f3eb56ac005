"""Typed, bounded access to the fields of a config.json, and what its class assumes of absent ones.

Absent and null are two things: an absent field takes the class's default, which is then an
assumption of the answer; null means what the family says (no window, as many KV heads as heads).
A number is a JSON integer: no string, no float, no bool passes for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from app.domain.checks import checked_int
from app.domain.dtypes import ALIASES, DTYPES, DType
from app.domain.errors import Conflict, FieldPath, Missing, OutOfRange, WrongType, shown
from app.domain.notes import Note
from app.domain.state import MAX_DIM, MAX_HEADS, MAX_LAYERS
from app.readers.hf_config.defaults import class_defaults

__all__ = ["FOREIGN", "Fields", "class_defaults", "is_mapping", "weights_dtype"]

MAX_LIST = MAX_LAYERS
MAX_INT = 2**40
_LONGEST_WORD = 40
_WEIGHTS = ("bf16", "fp16", "fp32")

# Other projects' names for sizes, used where a file lacks the name of its own class: a table in
# their spelling would else be read as the class's default size.
FOREIGN: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers", "num_decoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "num_q_heads"),
    "hidden_size": ("hidden_dim", "n_embd", "d_model", "emb_size"),
}


def is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    """Return whether the value is a nested config."""
    return isinstance(value, Mapping)


def weights_dtype(raw: Mapping[str, object]) -> str | None:
    """Return the format that a config names for its weights, in its own word, or None."""
    for key in ("torch_dtype", "dtype"):
        value = raw.get(key)
        if isinstance(value, str) and 0 < len(value) <= _LONGEST_WORD:
            return value.removeprefix("torch.")
    return None


@dataclass(slots=True, kw_only=True)
class Fields:
    """The fields of one config (or nested config), and all that was assumed while reading them.

    `complete` is False for a table that gives some fields of a config and not its class: what it
    leaves out may be anything, so that no default of a class decides there. `outer` is the config
    that these are nested in.
    """

    raw: Mapping[str, object]
    model_type: str
    path: FieldPath = ()
    encoder_tokens: int | None = None
    weights_dtype: str | None = None
    complete: bool = True
    outer: Fields | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    not_null: frozenset[str] = frozenset()
    assumptions: list[Note] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, raw: Mapping[str, object], model_type: str, **more: object) -> Fields:
        """Return the fields of a config, with the defaults of its class."""
        row = class_defaults(model_type)
        return cls(
            raw=raw,
            model_type=model_type,
            defaults=row.values,
            aliases=row.aliases,
            not_null=row.not_null,
            **{"weights_dtype": weights_dtype(raw), **more},  # type: ignore[arg-type]
        )

    # What the file says

    def at(self, name: str, *rest: str | int) -> FieldPath:
        """Return the path of a field, for an error."""
        return (*self.path, name, *rest)

    def key(self, *names: str) -> str | None:
        """Return which of these spellings the file uses: one with a value, else one that is null.

        Raises:
            Conflict: when two spellings carry different values.

        """
        found: str | None = None
        for name in names:
            for spelling in (name, self.aliases.get(name)):
                if spelling is None:
                    continue
                self.asked.add(spelling)
                if spelling not in self.raw or spelling == found:
                    continue
                if found is None or self.raw[found] is None:
                    found = spelling
                elif self.raw[spelling] is not None and self.raw[spelling] != self.raw[found]:
                    raise Conflict(
                        "{field} is {value}, but {other} is {other_value}",
                        field=self.at(spelling),
                        value=shown(self.raw[spelling]),
                        other=found,
                        other_value=shown(self.raw[found]),
                    )
        return found

    def seen(self, *names: str) -> None:
        """Mark fields as understood, where what else the file says makes them idle."""
        self.asked.update(names)

    def value(self, *names: str) -> object:
        """Return the value as the file has it, or None when it is absent or null."""
        key = self.key(*names)
        return None if key is None else self.raw[key]

    def says(self, *names: str) -> bool:
        """Return whether the file gives one of these a value."""
        return self.value(*names) is not None

    def has(self, *names: str) -> bool:
        """Return whether the file names one of these at all, be it null."""
        return self.key(*names) is not None

    # What the class assumes

    def default(self, name: str) -> object:
        """Return the class's constant for an absent field, or None; the use of it is noted.

        A constant of nought says that there is no such thing, as any absent field does: no note.
        """
        value = self._constant(name)
        if value:
            if not self.complete:
                raise self.missing(name)
            self.assume_default(name, value)
        return value

    def _constant(self, name: str) -> object:
        value = self.defaults.get(name)
        if value is None and name in self.aliases:
            value = self.defaults.get(self.aliases[name])
        return None if isinstance(value, str) and value.startswith("=") else value

    def guess(self, name: str) -> None:
        """Refuse to fill in a field by its class's rule where the table is no whole config.

        Raises:
            Missing: when `complete` is False.

        """
        if not self.complete:
            raise self.missing(name)

    def assume(self, code: str, template: str, **params: object) -> None:
        """Add an assumption that the answer must carry; the same one is said once."""
        note = Note(code, template, params)
        if note not in self.assumptions:
            self.assumptions.append(note)

    def assume_default(self, name: str, value: object) -> None:
        """Note that the file does not say, and what the class takes."""
        self.assume(
            "class_default",
            "{field} is not in the file; {model_type} takes {value}",
            field=".".join(map(str, self.at(name))),
            model_type=self.model_type,
            value=shown(value),
        )

    def note(self, code: str, template: str, **params: object) -> None:
        """Add a remark that is no assumption."""
        self.notes.append(Note(code, template, params))

    def model_dtype(self) -> DType:
        """Return the format of states that follow the weights: the file's, else bf16 as assumed."""
        word = ALIASES.get((self.weights_dtype or "").lower(), self.weights_dtype)
        found = DTYPES.get(word or "")
        if found is not None and found.name in _WEIGHTS:
            return found
        self.assume("state_dtype", "the file names no usual format; states of the model's own "
                    "format are counted as {value}", value=DTYPES["bf16"].name)  # fmt: skip
        return DTYPES["bf16"]

    # Typed values

    def integer_or_none(self, *names: str, low: int = 1, high: int = MAX_INT) -> int | None:
        """Return the integer, else the class's constant; None when it is null or nobody says.

        Raises:
            WrongType: for anything but an integer, and for null where the class refuses it.
            OutOfRange: outside low..high.
            Conflict: when two spellings disagree.

        """
        key = self.key(*names) or self._foreign(names[0])
        if key is None:
            value = self.default(names[0])
            return (
                None if value is None else checked_int(value, self.at(names[0]), low=low, high=high)
            )
        value = self.raw[key]
        if value is None:
            if names[0] in self.not_null:
                raise WrongType(
                    "{field} is null, and {model_type} takes an integer",
                    field=self.at(key),
                    model_type=self.model_type,
                )
            return None
        return checked_int(value, self.at(key), low=low, high=high)

    def _foreign(self, name: str) -> str | None:
        """Return another project's spelling of a size that the file lacks under its own.

        The file is then a table in that project's names, and no whole config of the class.
        """
        for spelling in FOREIGN.get(name, ()):
            if self.raw.get(spelling) is not None:
                self.asked.add(spelling)
                self.complete = False
                self.assume(
                    "foreign_spelling",
                    "{field} is taken for {name}, which the file does not have",
                    field=".".join(map(str, self.at(spelling))),
                    name=name,
                )
                return spelling
        return None

    def integer(
        self, *names: str, low: int = 1, high: int = MAX_INT, otherwise: int | None = None
    ) -> int:
        """Return the integer, else the class's constant, else `otherwise` as an assumption.

        Raises:
            Missing: when nobody says; and what `integer_or_none` raises.

        """
        value = self.integer_or_none(*names, low=low, high=high)
        if value is not None:
            return value
        if otherwise is None:
            raise self.missing(names[0])
        self.guess(names[0])
        self.assume_default(names[0], otherwise)
        return otherwise

    def missing(self, name: str) -> Missing:
        """Return the error for a field without which the answer would be a guess."""
        return Missing(
            "{field} is missing, and nothing else in the config decides it", field=self.at(name)
        )

    def layers(self, *names: str) -> int:
        """Return a number of layers."""
        return self.integer(*(names or ("num_hidden_layers",)), low=1, high=MAX_LAYERS)

    def heads(self, *names: str) -> int:
        """Return a number of heads."""
        return self.integer(*(names or ("num_attention_heads",)), low=1, high=MAX_HEADS)

    def dim(self, *names: str, low: int = 1) -> int:
        """Return a width."""
        return self.integer(*names, low=low, high=MAX_DIM)

    def flag(self, *names: str, otherwise: bool = False) -> bool:
        """Return the boolean, else the class's own (noted where it is true), else `otherwise`.

        Null is no: it is how a file switches off what would else be on.
        """
        key = self.key(*names)
        if key is None:
            default = self._constant(names[0])
            if default is None:
                return otherwise
            if default is True:
                self.guess(names[0])
                self.assume_default(names[0], default)
            return default is True
        value = self.raw[key]
        if value is None:
            return False
        if not isinstance(value, bool):
            raise WrongType(
                "{field} must be true or false, got {value}",
                field=self.at(key),
                value=shown(value),
            )
        return value

    def text(self, *names: str) -> str | None:
        """Return the string, or None when it is absent or null."""
        key = self.key(*names)
        value = None if key is None else self.raw[key]
        if value is None:
            return None
        if not isinstance(value, str):
            raise WrongType(
                "{field} must be a string, got {value}",
                field=self.at(key or names[0]),
                value=shown(value),
            )
        return value

    def items(self, *names: str, length: int | None = None) -> list[object] | None:
        """Return a list of bounded length (of exactly `length` when given), or None."""
        key = self.key(*names)
        value = None if key is None else self.raw[key]
        if key is None or value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise WrongType(
                "{field} must be a list, got {value}", field=self.at(key), value=shown(value)
            )
        if len(value) > MAX_LIST:
            raise OutOfRange(
                "{field} has {count} entries; at most {high} are read",
                field=self.at(key),
                count=len(value),
                high=MAX_LIST,
            )
        if length is not None and len(value) != length:
            raise Conflict(
                "{field} has {count} entries for {length} layers",
                field=self.at(key),
                count=len(value),
                length=length,
            )
        return list(value)

    def integers(
        self, *names: str, length: int | None = None, low: int = 0, high: int = MAX_INT
    ) -> list[int] | None:
        """Return a list of integers, or None when it is absent or null."""
        values = self.items(*names, length=length)
        if values is None:
            return None
        key = self.key(*names) or names[0]
        return [
            checked_int(value, self.at(key, index), low=low, high=high)
            for index, value in enumerate(values)
        ]

    def words(self, *names: str, length: int | None = None) -> list[str] | None:
        """Return a list of strings, or None when it is absent or null."""
        values = self.items(*names, length=length)
        if values is None:
            return None
        key = self.key(*names) or names[0]
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise WrongType(
                    "{field} must be a string, got {value}",
                    field=self.at(key, index),
                    value=shown(value),
                )
        return [value for value in values if isinstance(value, str)]

    def part(self, name: str, *, model_type: str | None = None) -> Fields | None:
        """Return a nested config, or None when it is absent or null."""
        value = self.value(name)
        return None if value is None else self.nested(value, self.at(name), model_type=model_type)

    def nested(self, value: object, path: FieldPath, *, model_type: str | None = None) -> Fields:
        """Return the fields of a nested config.

        They share the notes of these, and have the defaults of the nested type, else of
        `model_type`, else of this one.
        """
        if not is_mapping(value):
            raise WrongType(
                "{field} must be an object, got {value}", field=path, value=shown(value)
            )
        named = value.get("model_type")
        own = named if isinstance(named, str) and named else model_type
        return Fields.of(
            value,
            own or self.model_type,
            path=path,
            encoder_tokens=self.encoder_tokens,
            weights_dtype=weights_dtype(value) or self.weights_dtype,
            complete=self.complete,
            outer=self,
            assumptions=self.assumptions,
            notes=self.notes,
        )

    def overlaid(self, own: Mapping[str, object], path: FieldPath) -> Fields:
        """Return these fields with some replaced, as for one layer that has its own."""
        return Fields(
            raw={**self.raw, **own},
            model_type=self.model_type,
            path=path,
            encoder_tokens=self.encoder_tokens,
            weights_dtype=self.weights_dtype,
            complete=self.complete,
            outer=self.outer,
            defaults=self.defaults,
            aliases=self.aliases,
            not_null=self.not_null,
            assumptions=self.assumptions,
            notes=self.notes,
            asked=self.asked,
        )

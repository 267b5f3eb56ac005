"""Typed, bounded access to the key–values of a GGUF header; every refusal names the full key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Missing, OutOfRange, WrongType, shown

# llama.cpp's own bound (LLAMA_MAX_LAYERS in src/llama-hparams.h).
MAX_GGUF_LAYERS = 512
MAX_COUNT = 2**31 - 1

ARCHITECTURE = "general.architecture"


@dataclass(frozen=True, slots=True)
class Keys:
    """The header's dict, asked by the part of a key that follows the architecture's name."""

    values: Mapping[str, object]
    architecture: str

    def name(self, suffix: str) -> str:
        """Return the whole key."""
        return f"{self.architecture}.{suffix}"

    def has(self, suffix: str) -> bool:
        """Return whether the header has this key."""
        return self.values.get(self.name(suffix)) is not None

    def integer(self, suffix: str, *, low: int = 0, high: int = MAX_COUNT) -> int:
        """Return a number that the loader cannot do without.

        Raises:
            Missing: when the key is absent.
            WrongType, OutOfRange: when it is no integer of that range.

        """
        if not self.has(suffix):
            raise Missing(
                "the header lacks {field}, without which this architecture cannot be read",
                field=(self.name(suffix),),
            )
        key = self.name(suffix)
        return checked_int(self.values[key], (key,), low=low, high=high)

    def optional(self, suffix: str, default: int, *, high: int = MAX_COUNT) -> int:
        """Return a number, or `default` when the header has no such key."""
        return self.integer(suffix, high=high) if self.has(suffix) else default

    def listed(self, suffix: str) -> bool:
        """Return whether the key is there and holds a list."""
        value = self.values.get(self.name(suffix))
        return isinstance(value, Sequence) and not isinstance(value, str | bytes)

    def row(self, suffix: str, sizes: tuple[int, ...], *, high: int) -> tuple[int, ...]:
        """Return a list with one non-negative number a layer; a true is 1.

        Raises:
            WrongType: when it is no list of integers.
            OutOfRange: when its length is none of `sizes`, or an element is out of range.

        """
        key = self.name(suffix)
        value = self.values.get(key)
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise WrongType(
                "{field} must be a list of integers, got {value}",
                field=(key,),
                value=shown(value),
            )
        if len(value) not in sizes:
            raise OutOfRange(
                "{field} must have one element a layer, {sizes}, got {length}",
                field=(key,),
                sizes=" or ".join(map(str, sorted(set(sizes)))),
                length=len(value),
            )
        return tuple(
            int(element)
            if isinstance(element, bool)
            else checked_int(element, (key, index), low=0, high=high)
            for index, element in enumerate(value)
        )

    def per_layer(
        self,
        suffix: str,
        layers: int,
        trunk: int,
        default: tuple[int, ...],
        *,
        high: int,
    ) -> tuple[int, ...]:
        """Return one number a layer, from a number, a list of `layers` or `trunk`, or `default`.

        A list that ends with the trunk leaves the layers after it at their default, as the loader
        does.
        """
        if self.listed(suffix):
            row = self.row(suffix, (layers, trunk), high=high)
            return row + default[len(row) :]
        if self.has(suffix):
            return (self.integer(suffix, high=high),) * layers
        return default


def keys_of(values: Mapping[str, object]) -> Keys:
    """Return access to a header's keys.

    Raises:
        Missing: without `general.architecture`.
        WrongType: when that is no text.

    """
    name = values.get(ARCHITECTURE)
    if name is None:
        raise Missing("the header lacks {field}", field=(ARCHITECTURE,))
    if not isinstance(name, str):
        raise WrongType("{field} must be text, got {value}", field=(ARCHITECTURE,),
                        value=shown(name))  # fmt: skip
    return Keys(values, name)

"""What one request costs an engine: a fixed part, parts that saturate, and a slope."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A request's bytes as a fixed part and a slope, true from `from_tokens` to some longest one.

    Between them a request takes `fixed_bytes` and `slope` bytes a token, begun blocks whole.
    """

    fixed_bytes: int
    slope: Fraction
    from_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingPart:
    """Bytes that grow with the tokens: so many for each unit of `unit_tokens`, begun units whole.

    `tokens_per_entry` tokens make one entry; entries come in units of `unit_entries` and stop at
    `most_entries` (None: never).
    """

    name: str
    bytes_per_entry: int
    unit_entries: int = 1
    tokens_per_entry: int = 1
    most_entries: int | None = None

    def bytes_at(self, tokens: int) -> int:
        """Return the bytes for a request of so many tokens."""
        entries = -(-tokens // self.tokens_per_entry)
        entries = -(-entries // self.unit_entries) * self.unit_entries
        if self.most_entries is not None:
            entries = min(entries, self.most_entries)
        return entries * self.bytes_per_entry

    @property
    def full_at_tokens(self) -> int | None:
        """Return the length from which the part takes no more; None where it never stops."""
        if self.most_entries is None:
            return None
        units = -(-self.most_entries // self.unit_entries)
        return (units - 1) * self.unit_entries * self.tokens_per_entry + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """The parts of a request's cost. A model's layers differ, so no single figure per token does.

    `fixed_bytes` come with any request; `parts` grow. The slope is that of the parts which never
    stop, exact over whole units.
    """

    fixed_bytes: int
    parts: tuple[GrowingPart, ...]

    def bytes_at(self, tokens: int) -> int:
        """Return the bytes of one request of so many tokens; an empty one costs nothing."""
        if tokens == 0:
            return 0
        return self.fixed_bytes + sum(part.bytes_at(tokens) for part in self.parts)

    @property
    def slope_bytes_per_token(self) -> int:
        """Return the bytes of one more token in the parts that never stop growing, rounded up."""
        return sum(
            -(-part.bytes_per_entry // part.tokens_per_entry)
            for part in self.parts
            if part.most_entries is None
        )

    def growth(self, longest_tokens: int) -> Growth:
        """Return the fixed part and the slope that hold up to that length, and from which on.

        Parts that even the longest request does not fill still grow with it.
        """
        fixed, slope, since = self.fixed_bytes, Fraction(0), 1
        for part in self.parts:
            full = part.full_at_tokens
            if part.most_entries is None or full is None or full > longest_tokens:
                slope += Fraction(part.bytes_per_entry, part.tokens_per_entry)
            else:
                fixed += part.most_entries * part.bytes_per_entry
                since = max(since, full)
        return Growth(fixed_bytes=fixed, slope=slope, from_tokens=since)

    @property
    def all_full_at_tokens(self) -> int:
        """Return the length from which no part that stops growing takes any more."""
        return max((part.full_at_tokens or 1 for part in self.parts), default=1)

    @property
    def saturating_bytes(self) -> int:
        """Return what the parts that stop growing take once they are full."""
        return sum(
            part.most_entries * part.bytes_per_entry
            for part in self.parts
            if part.most_entries is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Bytes spent beyond what the model needs, and on what; `code` is stable, `text` for people."""

    code: str
    bytes: int
    text: str

"""How many cached positions the queries of a sequence read, in closed form.

The query at position t (the first is 1) reads `seen(t)` rows. A pass that computes positions
1..m reads `seen_up_to(m)` pairs in all; computing every prefix of 1..n anew reads
`seen_by_all_prefixes(n)`. `rows(m)` is how many rows exist to be read once by a pass over m
positions, and `rows_of_all_prefixes(n)` their sum. All are exact for any length at once.
"""

from __future__ import annotations

from dataclasses import dataclass


def triangular(n: int) -> int:
    """Return 1 + 2 + … + n."""
    return n * (n + 1) // 2


def tetrahedral(n: int) -> int:
    """Return the sum of the first n triangular numbers."""
    return n * (n + 1) * (n + 2) // 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """One row for every `group` positions, at most the newest `limit` of them in sight.

    Full attention is group 1 without a limit; a sliding window of w is group 1 with limit w, the
    query's own row included.
    """

    group: int = 1
    limit: int | None = None

    def seen(self, t: int) -> int:
        """Return min(t // group, limit)."""
        return self.rows(t) if self.limit is None else min(self.rows(t), self.limit)

    def seen_up_to(self, m: int) -> int:
        """Return the sum of `seen` over 1..m: it grows as m² until the limit, then as m."""
        full = self._saturation(m)
        return self._unlimited(full) + (m - full) * self.seen(full)

    def seen_by_all_prefixes(self, n: int) -> int:
        """Return the sum of `seen_up_to` over 1..n."""
        full = self._saturation(n)
        beyond = n - full
        return (
            self._unlimited_prefixes(full)
            + beyond * self._unlimited(full)
            + triangular(beyond) * self.seen(full)
        )

    def rows(self, m: int) -> int:
        """Return the rows of m positions: each is in some query's sight, whatever the limit."""
        return m // self.group

    def rows_of_all_prefixes(self, n: int) -> int:
        """Return the sum of `rows` over 1..n."""
        return self._unlimited(n)

    def _saturation(self, m: int) -> int:
        return m if self.limit is None else min(m, self.limit * self.group)

    def _unlimited(self, m: int) -> int:
        """Return Σ t // group for t in 1..m, group by group."""
        whole, rest = divmod(m, self.group)
        return self.group * triangular(whole - 1) + whole * (rest + 1) if whole else 0

    def _unlimited_prefixes(self, n: int) -> int:
        """Return Σ (n + 1 − t) · (t // group): position t is computed in n + 1 − t prefixes."""
        whole, rest = divmod(n, self.group)
        if not whole:
            return 0
        first_powers = triangular(whole - 1)
        second_powers = (whole - 1) * whole * (2 * whole - 1) // 6
        size = self.group
        return (
            size * (n + 1) * first_powers
            - size * size * second_powers
            - triangular(size - 1) * first_powers
            + whole * triangular(rest + 1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked:
    """The rows since the last multiple of `chunk`; a query never looks across a boundary."""

    chunk: int

    def seen(self, t: int) -> int:
        """Return 1 at the start of a chunk up to `chunk` at its end."""
        return (t - 1) % self.chunk + 1 if t else 0

    def seen_up_to(self, m: int) -> int:
        """Return the sum of `seen` over 1..m: whole chunks, then a part of one."""
        whole, rest = divmod(m, self.chunk)
        return whole * triangular(self.chunk) + triangular(rest)

    def seen_by_all_prefixes(self, n: int) -> int:
        """Return the sum of `seen_up_to` over 1..n."""
        whole, rest = divmod(n, self.chunk)
        a_chunk = triangular(self.chunk)
        return (
            self.chunk * a_chunk * triangular(whole - 1)
            + whole * tetrahedral(self.chunk)
            + rest * whole * a_chunk
            + tetrahedral(rest)
        )

    def rows(self, m: int) -> int:
        """Return m: every row is in some query's sight."""
        return m

    def rows_of_all_prefixes(self, n: int) -> int:
        """Return the sum of `rows` over 1..n."""
        return triangular(n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same `count` rows for every query: an encoder's output in cross-attention."""

    count: int

    def seen(self, t: int) -> int:
        """Return the count, or 0 before the first position."""
        return self.count if t else 0

    def seen_up_to(self, m: int) -> int:
        """Return the count for each of m queries."""
        return m * self.count

    def seen_by_all_prefixes(self, n: int) -> int:
        """Return the sum of `seen_up_to` over 1..n."""
        return triangular(n) * self.count

    def rows(self, m: int) -> int:
        """Return the count: a pass reads the encoder's rows once."""
        return self.seen(m)

    def rows_of_all_prefixes(self, n: int) -> int:
        """Return the sum of `rows` over 1..n."""
        return n * self.count


Sight = Growing | Chunked | Constant

"""How many tokens a block of a log has, as the log's own numbers tell."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Bounds:
    """The block sizes at which every request so far names as many blocks as it did."""

    low: int = 1
    high: int | None = None

    def narrow(self, low: int, high: int | None) -> None:
        self.low = max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def holds(self, block_tokens: int) -> bool:
        return self.low <= block_tokens and (self.high is None or block_tokens <= self.high)

    @property
    def is_empty(self) -> bool:
        return self.high is not None and self.low > self.high

    def sizes(self) -> set[int] | None:
        """Return the powers of two within the bounds, or the one size; None without an end."""
        if self.high is None:
            return None
        if self.low == self.high:
            return {self.low}
        first = (self.low - 1).bit_length()
        return (
            {1 << power for power in range(first, self.high.bit_length())} if self.high else set()
        )


@dataclass(slots=True)
class BlockTokens:
    """Narrows down the block size from (tokens, blocks) of request after request.

    A log may name a block for the incomplete end of a prompt (n = ⌈t/b⌉, as Mooncake's does) or
    only for full ones (n = ⌊t/b⌋). The size is known where both rules together leave one size, or
    one power of two, as block sizes are.
    """

    _with_tail: _Bounds = field(default_factory=_Bounds)
    _full_only: _Bounds = field(default_factory=_Bounds)

    def add(self, tokens: int, blocks: int) -> None:
        """Take one request of so many prompt tokens and so many blocks."""
        # ⌈t/b⌉ = n with n > 0: t/n <= b < t/(n-1); only a prompt of no tokens has no block.
        if bool(tokens) != bool(blocks):
            self._with_tail.narrow(1, 0)
        elif blocks:
            self._with_tail.narrow(
                -(-tokens // blocks), (tokens - 1) // (blocks - 1) if blocks > 1 else None
            )
        # ⌊t/b⌋ = n: t/(n+1) < b <= t/n.
        self._full_only.narrow(tokens // (blocks + 1) + 1, tokens // blocks if blocks else None)

    @property
    def known(self) -> int | None:
        """Return the block size, or None where the log leaves it open or contradicts itself."""
        with_tail, full_only = self._with_tail.sizes(), self._full_only.sizes()
        if with_tail is None or full_only is None:
            return None
        sizes = with_tail | full_only
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def disagrees(self) -> bool:
        """Tell whether no size at all gives every request as many blocks as it names."""
        return self._with_tail.is_empty and self._full_only.is_empty

    def allows(self, block_tokens: int) -> bool:
        """Tell whether every request fits a given block size by one of the two rules."""
        return self._with_tail.holds(block_tokens) or self._full_only.holds(block_tokens)

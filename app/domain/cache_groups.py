"""The kinds of layer groups that an engine's cache manager keeps block tables for.

All layers of a group share one table per request. A group says which of a request's first tokens it
no longer needs, how many blocks one request can hold at most, and which full blocks are worth a
name. Source: vLLM 0.33.0 v1/core/single_type_kv_cache_manager.py and v1/kv_cache_interface.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from app.domain.checks import checked_int
from app.domain.errors import Unknown, shown
from app.domain.hashing import MAX_BLOCK_TOKENS

MAX_WINDOW = 10**9
MAX_SPECULATIVE_BLOCKS = 64


def ceil_div(amount: int, unit: int) -> int:
    """Return how many units hold the amount."""
    return -(-amount // unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGroup:
    """Layers that attend to every earlier position: nothing is dropped before the request ends.

    `drops_last_block` is set where a drafter of the EAGLE kind reads the group: a hit then gives up
    its last block, whose hidden states the drafter needs anew.
    """

    kind: ClassVar[str] = "full_attention"
    block_size: int
    drops_last_block: bool = False

    def __post_init__(self) -> None:
        checked_int(self.block_size, "block_size", low=1, high=MAX_BLOCK_TOKENS)

    def skipped_tokens(self, computed: int) -> int:
        """Return 0: every position stays in sight."""
        del computed
        return 0

    def most_blocks(self, in_flight: int, max_model_len: int) -> int | None:
        """Return None: the request's own length is the only bound."""
        del in_flight, max_model_len
        return None

    def is_reachable(self, index: int, alignment: int) -> bool:
        """Return True: any full block may serve a hit."""
        del index, alignment
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowGroup:
    """Layers that attend to the last `window` positions, the query's own included.

    `extra_retained` keeps so many positions more (several draft modules may compute them again).
    """

    kind: ClassVar[str] = "sliding_window"
    block_size: int
    window: int
    extra_retained: int = 0
    drops_last_block: bool = False

    def __post_init__(self) -> None:
        checked_int(self.block_size, "block_size", low=1, high=MAX_BLOCK_TOKENS)
        checked_int(self.window, "window", low=1, high=MAX_WINDOW)
        checked_int(self.extra_retained, "extra_retained", low=0, high=MAX_WINDOW)

    def skipped_tokens(self, computed: int) -> int:
        """Return the positions that the next query cannot see: computed − window + 1."""
        return max(computed - self.window + 1 - self.extra_retained, 0)

    def most_blocks(self, in_flight: int, max_model_len: int) -> int:
        """Return the blocks of window − 1 earlier tokens and those in flight, and one more.

        One more, because a window may begin inside a block.
        """
        tokens = min(self.window - 1 + self.extra_retained + in_flight, max_model_len)
        return ceil_div(tokens, self.block_size) + 1

    def blocks_for_hit(self, *, drops: bool) -> int:
        """Return how many blocks in a row a hit needs at its end: those in the window's sight."""
        return ceil_div(self.window - 1, self.block_size) + int(drops)

    def is_reachable(self, index: int, alignment: int) -> bool:
        """Return whether a hit that ends at a multiple of `alignment` can need block `index`."""
        per_stretch = alignment // self.block_size
        need = self.blocks_for_hit(drops=self.drops_last_block)
        shift = int(self.drops_last_block)
        return need >= per_stretch or (
            index >= shift and (index - shift) % per_stretch >= per_stretch - need
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkGroup:
    """Layers that attend within chunks of so many positions and never across a chunk's edge."""

    kind: ClassVar[str] = "chunked_attention"
    block_size: int
    chunk: int
    drops_last_block: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_int(self.block_size, "block_size", low=1, high=MAX_BLOCK_TOKENS)
        checked_int(self.chunk, "chunk", low=1, high=MAX_WINDOW)

    def skipped_tokens(self, computed: int) -> int:
        """Return the positions before the chunk of the next token."""
        return computed // self.chunk * self.chunk

    def most_blocks(self, in_flight: int, max_model_len: int) -> int:
        """Return the blocks of one chunk and the tokens in flight."""
        return ceil_div(min(self.chunk + in_flight, max_model_len), self.block_size)

    def is_reachable(self, index: int, alignment: int) -> bool:
        """Return True: blocks and hits have one size here."""
        del index, alignment
        return True


STATE_MODES = ("none", "align")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGroup:
    """Layers with a recurrent state: one block holds the whole state after some position.

    Mode `none` keeps the running state alone; `align` also leaves one behind at block boundaries,
    so that a later request can resume there. `speculative_blocks` are scratch states of a drafter.
    """

    kind: ClassVar[str] = "recurrent"
    block_size: int
    mode: str = "none"
    speculative_blocks: int = 0
    drops_last_block: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_int(self.block_size, "block_size", low=1, high=MAX_WINDOW)
        checked_int(
            self.speculative_blocks, "speculative_blocks", low=0, high=MAX_SPECULATIVE_BLOCKS
        )
        if self.mode not in STATE_MODES:
            raise Unknown(
                "{field} must be one of {known}, got {value}",
                field="mode",
                known=", ".join(STATE_MODES),
                value=shown(self.mode),
            )

    @property
    def aligns(self) -> bool:
        """Return whether states are kept at block boundaries."""
        return self.mode == "align"

    def skipped_tokens(self, computed: int) -> int:
        """Return all positions but the last: only the state after it is needed."""
        return max(computed - 1, 0)

    def most_blocks(self, in_flight: int, max_model_len: int) -> int | None:
        """Return None: a request never holds more than its own states."""
        del in_flight, max_model_len
        return None

    def is_reachable(self, index: int, alignment: int) -> bool:
        """Return True: every state that was kept may be resumed from."""
        del index, alignment
        return True


GroupSpec: TypeAlias = FullGroup | WindowGroup | ChunkGroup | StateGroup

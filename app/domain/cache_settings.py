"""What a cache manager is built from, and which combinations of groups it can cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from app.domain.cache_groups import GroupSpec, StateGroup
from app.domain.checks import checked_int
from app.domain.errors import Conflict, Unsupported
from app.domain.pool import NEWEST_RULES, PoolRules

MAX_GROUPS = 64
MAX_MODEL_LEN = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """What a manager is built from.

    `in_flight_tokens` bounds what a request of a window or chunk group is reserved for (None: its
    whole length); `watermark_blocks` stay free when a waiting request is admitted.
    """

    num_blocks: int
    groups: Sequence[GroupSpec]
    caching: bool = True
    max_model_len: int = MAX_MODEL_LEN
    in_flight_tokens: int | None = None
    watermark_blocks: int = 0
    rules: PoolRules = NEWEST_RULES

    def __post_init__(self) -> None:
        checked_int(len(self.groups), "groups", low=1, high=MAX_GROUPS)
        checked_int(self.max_model_len, "max_model_len", low=1, high=MAX_MODEL_LEN)
        checked_int(self.watermark_blocks, "watermark_blocks", low=0, high=MAX_MODEL_LEN)
        if self.in_flight_tokens is not None:
            checked_int(self.in_flight_tokens, "in_flight_tokens", low=1, high=MAX_MODEL_LEN)
        if self.caching:
            self._check_caching()

    def _check_caching(self) -> None:
        sizes = {spec.block_size for spec in self.groups}
        for index, spec in enumerate(self.groups):
            if isinstance(spec, StateGroup):
                if not spec.aligns:
                    raise Conflict(
                        "{field}: a recurrent group is cached in mode align only",
                        field=("groups", index, "mode"),
                    )
                if len(sizes) > 1:
                    raise Unsupported(
                        "{field}: recurrent states beside blocks of another size are cached at "
                        "positions inside a block, which is not modelled",
                        field=("groups", index, "block_size"),
                    )
            if spec.kind == "chunked_attention" and len(sizes) > 1:
                raise Conflict(
                    "{field}: chunked attention is cached only where all blocks have one size",
                    field=("groups", index, "block_size"),
                )

    @property
    def scheduler_block_size(self) -> int:
        """Return where a hit may end: a common multiple of the groups' blocks."""
        return lcm(*(spec.block_size for spec in self.groups))

    @property
    def hash_block_size(self) -> int:
        """Return the tokens of one hash: the groups' blocks are whole multiples of it."""
        return gcd(*(spec.block_size for spec in self.groups))

"""State beyond device memory: what a tier holds, and the least time to move it.

Times are bounds: bytes over bandwidth, with nothing for latency, copies in between or contention.
No transfer is faster; many are slower.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.capacity import MAX_BYTES, MAX_CONCURRENCY
from app.domain.checks import checked_int
from app.domain.state import MAX_TOKENS

MAX_BANDWIDTH = 10**15
NANOSECONDS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Memory beyond a device; `shared` by all workers of a replica, or one for each."""

    name: str
    capacity_bytes: int
    bandwidth_bytes_per_s: int
    shared: bool

    def __post_init__(self) -> None:
        checked_int(self.capacity_bytes, "capacity_bytes", low=0, high=MAX_BYTES)
        checked_int(self.bandwidth_bytes_per_s, "bandwidth_bytes_per_s", low=1,
                    high=MAX_BANDWIDTH)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What a tier does for requests of one length: how many it holds, and what one moves.

    `moved_bytes` go over one link: of one worker, or of all where the tier and its link are shared.
    `least_nanoseconds` is no promise but a bound.
    """

    tier: Tier
    requests: int
    tokens: int
    moved_bytes: int
    least_nanoseconds: int


def offload(tier: Tier, rank_bytes: tuple[int, ...], tokens: int) -> Offload:
    """Return what a tier holds and moves of requests that take `rank_bytes` on each rank.

    A tier of its own for each worker is full when the fullest rank's is; a shared one holds all.
    """
    checked_int(tokens, "context_tokens", low=1, high=MAX_TOKENS)
    each = sum(rank_bytes) if tier.shared else max(rank_bytes)
    requests = tier.capacity_bytes // each if each else MAX_CONCURRENCY
    return Offload(
        tier=tier,
        requests=min(requests, MAX_CONCURRENCY),
        tokens=min(requests, MAX_CONCURRENCY) * tokens,
        moved_bytes=each,
        least_nanoseconds=-(-each * NANOSECONDS // tier.bandwidth_bytes_per_s),
    )

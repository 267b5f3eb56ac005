"""From memory to blocks: the budget, its division over windows, and how counts are rounded.

The C++ runtime computes in 32-bit floats, so this does too where they decide.
"""

from __future__ import annotations

from functools import reduce

from app.domain.errors import Conflict, Missing, OutOfRange
from app.engines.float32 import float32
from app.engines.tensorrt_llm.ranks import LayerGroup, Rank
from app.engines.tensorrt_llm.settings import Settings

# Memory is divided evenly over windows since (TRTLLM_WINDOW_SIZE_SHARES came with it); before, each
# window got a part by its size and bytes.
EVEN_SHARES_SINCE = (1, 1)
# The PyTorch backend rounds down: one pool since 1.2, several since 1.3. The C++ runtime rounds up.
_ONE_POOL_FLOORED_SINCE = (1, 2)
_POOLS_FLOORED_SINCE = (1, 3)


def budget_of(settings: Settings, available_bytes: int | None) -> int | None:
    """Return the bytes that the pools may take, None when nothing says.

    With the PyTorch backend's own figures, the peak of a trial run is taken off the card's memory
    and the trial's cache added back; otherwise the fraction is of the memory that is free.

    Raises:
        Conflict: when the peak is more than the card.

    """
    budget = None
    if settings.card_bytes is not None and settings.peak_bytes is not None:
        left = settings.card_bytes - settings.peak_bytes + settings.trial_bytes
        if left < 0:
            raise Conflict("{field} is more than the card has", field="peak_memory")
        budget = int(left * settings.fraction)
    elif available_bytes is not None:
        budget = int(available_bytes * settings.fraction)
        if not settings.pytorch:
            budget = int(float32(float32(available_bytes) * float32(settings.fraction)))
    if settings.most_bytes is not None:
        budget = settings.most_bytes if budget is None else min(budget, settings.most_bytes)
    return budget


def blocks_of(rank: Rank, settings: Settings, budget: int | None) -> tuple[Rank, list[int]]:
    """Return the blocks of each group of layers, and the rank with the windows that fit.

    Raises:
        Missing: when neither memory nor tokens are given.
        Conflict: when there is not one share for each window.

    """
    most = settings.most_tokens
    several = len(rank.windows) > 1
    if several and most is not None and settings.version >= EVEN_SHARES_SINCE:
        # Tokens are memory there: so many in all layers, divided over the windows as memory is. The
        # C++ runtime ignores them beside memory.
        wanted = most * sum(group.budget_bytes for group in rank.windows)
        if budget is None or settings.pytorch:
            budget = wanted if budget is None else min(budget, wanted)
        most = None
    if budget is None:
        if most is None:
            raise Missing("{field} is needed: no memory is given to derive it from",
                          field="max_tokens")  # fmt: skip
        return rank, [_blocks(most, settings, several=several) for _ in rank.groups]
    cross = any(group.name == "cross" for group in rank.groups)
    part = int(budget * settings.cross_fraction) if cross else 0
    if several:
        rank = shrunk(rank, settings, budget - part)
    shares = _shares(rank, settings, budget - part)
    blocks = []
    for group, share in zip(rank.groups, [*shares, part], strict=False):
        tokens = share // group.budget_bytes
        tokens = tokens if most is None else min(tokens, most)
        blocks.append(_blocks(tokens, settings, several=several))
    return rank, blocks


def _blocks(tokens: int, settings: Settings, *, several: bool) -> int:
    since = _POOLS_FLOORED_SINCE if several else _ONE_POOL_FLOORED_SINCE
    if settings.pytorch and settings.version >= since:
        return tokens // settings.block_tokens
    return -(-tokens // settings.block_tokens)


def _shares(rank: Rank, settings: Settings, budget: int) -> list[int]:
    """Return the bytes of each window's layers, the shortest window first."""
    windows = rank.windows
    if len(windows) <= 1:
        return [budget] * len(windows)
    weights: list[float]
    if settings.window_shares:
        weights = list(settings.window_shares)
        if len(weights) != len(windows):
            raise Conflict("{field} must have one share for each of the {count} windows",
                           field="window_size_shares", count=len(windows))  # fmt: skip
    elif settings.version >= EVEN_SHARES_SINCE:
        weights = [1.0] * len(windows)
    else:
        total_bytes = sum(group.bytes_per_token for group in windows)
        weights = [
            float32(float32(float32(group.bytes_per_token) / total_bytes) * (group.window or 0))
            for group in windows
        ]
    if settings.pytorch and settings.version >= _POOLS_FLOORED_SINCE:
        return [int(budget * (weight / sum(weights))) for weight in weights]
    weights = [float32(weight) for weight in weights]
    total = reduce(lambda one, other: float32(one + other), weights)
    return [int(float32(float32(budget) * float32(weight / total))) for weight in weights]


def shrunk(rank: Rank, settings: Settings, budget: int) -> Rank:
    """Return the rank with its windows shortened until one sequence fits the memory.

    The shortest window is filled first, in all layers; what is left lengthens the next. Windows
    that become equal share a pool.

    Raises:
        OutOfRange: when not even one token of each layer fits.

    """
    windows = rank.windows
    need = sum((group.window or 0) * group.budget_bytes for group in windows)
    if need < budget:
        return rank
    lengths: list[int] = []
    left, reached, before = budget, 0, 0
    for place, group in enumerate(windows):
        size = sum(later.budget_bytes for later in windows[place:])
        window = group.window or 0
        if left > 0:
            more = min(left // size, window - before)
            left -= more * size
            reached += more
            if reached < window:
                left = 0
            if settings.most_tokens is not None and reached >= settings.most_tokens:
                reached, left = settings.most_tokens, 0
        lengths.append(reached)
        before = window
    if not reached:
        raise OutOfRange("{field} does not hold one token of every layer",
                         field="available_bytes")  # fmt: skip
    return _merged(rank, lengths)


def _merged(rank: Rank, lengths: list[int]) -> Rank:
    merged: dict[int, LayerGroup] = {}
    for group, window in zip(rank.windows, lengths, strict=True):
        known = merged.get(window)
        merged[window] = LayerGroup(
            name=group.name,
            window=window,
            layers=group.layers + (known.layers if known else 0),
            bytes_per_token=group.bytes_per_token + (known.bytes_per_token if known else 0),
            budget_bytes=group.budget_bytes + (known.budget_bytes if known else 0),
        )
    cross = tuple(group for group in rank.groups if group.name == "cross")
    return Rank(groups=(*merged.values(), *cross), state_bytes=rank.state_bytes,
                index_bytes=rank.index_bytes, copied=rank.copied)  # fmt: skip

"""What one block of a log takes in a pool of a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.cached_blocks import CachedBlock, cached_block
from app.domain.dtypes import DTYPES
from app.domain.errors import OutOfRange, WrongType
from app.domain.formats import KvFormats
from app.domain.per_token import grows, shape_of
from app.domain.state import (
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    SlidingWindow,
    State,
    StateTensor,
)
from tests.domain.strategies import models

FP16 = KvFormats.same(DTYPES["fp16"])
# 4 B a position each at fp16.
FULL = FullAttention(kv_heads=1, k_dim=1, v_dim=1)
WINDOW = SlidingWindow(kv_heads=1, k_dim=1, v_dim=1, window=8)
MAMBA = Recurrent(tensors=(StateTensor(name="state", shape=(100,), dtype=DTYPES["fp32"]),))


def block_of(*states: State, tokens: int = 16, engine: int = 16) -> CachedBlock:
    """Return a block of a model with one layer for each state."""
    model = ModelState.of_layers([Layer(states=(state,)) for state in states])
    return cached_block(shape_of(model, FP16).groups, tokens, engine)


def test_a_block_of_llama() -> None:
    """512 tokens at 131072 B/token take 64 MiB, and the working says so."""
    llama = ModelState.uniform(layers=32, kv_heads=8, head_dim=128)
    block = cached_block(shape_of(llama, FP16).groups, 512, 16)
    assert block.bytes == 67_108_864
    assert block.working.numbers == (
        "512 tokens × (2 × 32 layers × 8 KV heads × 128 × 2 B) = 67108864 B"
    )


@pytest.mark.parametrize(
    ("states", "size", "codes"),
    [
        ((FULL, FULL), 128, []),
        # A window keeps all of a block's positions: a hit may end in any block.
        ((FULL, WINDOW), 128, ["cached_windows"]),
        ((FULL, MAMBA), 64, ["cached_recurrent"]),
        ((MAMBA,), 0, ["cached_recurrent"]),
        # One entry of 6 B for four tokens: 16 tokens have four.
        ((LatentAttention(latent_dim=2, rope_dim=1, tokens_per_entry=4),), 24, []),
        # A third of an entry is still paid for.
        ((LatentAttention(latent_dim=2, rope_dim=1, tokens_per_entry=48),), 2, []),
    ],
)
def test_kinds_of_state(states: tuple[State, ...], size: int, codes: list[str]) -> None:
    """Only what is kept by positions is in a block; what is not says so."""
    block = block_of(*states)
    assert block.bytes == size
    assert [note.code for note in block.assumptions] == codes


@pytest.mark.parametrize(
    ("tokens", "engine", "codes"),
    [
        (512, 16, ["engine_block_smaller"]),
        (16, 16, []),
        (16, 256, ["engine_block_other"]),
        (24, 16, ["engine_block_other"]),
    ],
)
def test_an_engine_with_other_blocks(tokens: int, engine: int, codes: list[str]) -> None:
    """Blocks of another size than the engine's change its hits, which is said."""
    block = block_of(FULL, tokens=tokens, engine=engine)
    assert block.bytes == 4 * tokens
    assert [note.code for note in block.assumptions] == codes


@pytest.mark.parametrize(("tokens", "engine"), [(0, 16), (16, 0), (2**20 + 1, 16)])
def test_sizes_are_bounded(tokens: int, engine: int) -> None:
    """A block has at least one token."""
    with pytest.raises(OutOfRange):
        block_of(FULL, tokens=tokens, engine=engine)
    with pytest.raises(WrongType):
        block_of(FULL, tokens=True)


@given(model=models(), tokens=st.integers(1, 4096), times=st.integers(1, 64))
def test_a_block_grows_with_its_tokens(model: ModelState, tokens: int, times: int) -> None:
    """A block of n times the tokens takes at most n times as much; none is below the slope."""
    shape = shape_of(model, FP16)
    one, many = (cached_block(shape.groups, count, 16).bytes for count in (tokens, tokens * times))
    assert one <= many <= one * times
    growing = [group for group in shape.groups if grows(group.state)]
    assert one * shape.growth_tokens >= tokens * shape.growth_bytes or not growing

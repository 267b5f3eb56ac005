"""One workload reserved, padded and paged: waste, and what the same memory admits."""

from __future__ import annotations

from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.dtypes import DTYPES
from app.domain.errors import OutOfRange, WrongType
from app.domain.formats import KvFormats
from app.domain.fragmentation import STRATEGIES, Fragmentation, Layout, fragmentation
from app.domain.ledgers import ledgers
from app.domain.lengths import RequestLengths
from app.domain.request_bytes import effective_bytes, paged_bytes, reserved_bytes
from app.domain.state import (
    ChunkedAttention,
    Layer,
    ModelState,
    Recurrent,
    SlidingWindow,
    StateTensor,
)
from tests.domain.strategies import formats, models

FP16 = KvFormats.same(DTYPES["fp16"])
# 131072 B/token.
LLAMA = ModelState.uniform(layers=32, kv_heads=8, head_dim=128)
# 4 B/token.
TINY = ModelState.uniform(layers=1, kv_heads=1, head_dim=1)
MIB = 2**20


def of(
    lengths: list[int],
    longest: int,
    memory: int | None = None,
    model: ModelState = TINY,
    block_size: int = 16,
) -> Fragmentation:
    """Return the layouts of a list of lengths at fp16."""
    return fragmentation(
        model,
        FP16,
        RequestLengths.of_list(lengths),
        max_length_tokens=longest,
        block_size=block_size,
        memory_bytes=memory,
    )


def admitted(answer: Fragmentation) -> tuple[int | None, ...]:
    """Return how many requests each layout admits."""
    return tuple(layout.admitted_requests for layout in answer.layouts)


def test_two_requests_side_by_side() -> None:
    """1024 and 3072 tokens: 1 GiB reserved at 4096, 768 MiB padded, 512 MiB paged."""
    answer = of([1024, 3072], 4096, model=LLAMA)
    assert [layout.allocated_bytes // MIB for layout in answer.layouts] == [1024, 768, 512, 512]
    assert [layout.waste_bytes // MIB for layout in answer.layouts] == [512, 256, 0, 0]
    assert answer.memory_bytes == 1024 * MIB
    # A round of two takes 512 MiB paged; padded, each of the batch takes 384 MiB.
    assert admitted(answer) == (2, 2, 4, 4)
    assert answer.layout("paged") == answer.layouts[2]


def test_waste_inside_blocks() -> None:
    """17, 31 and 32 tokens in blocks of 16 leave 16 of 96 positions empty, at 4 B each."""
    answer = of([17, 31, 32], 40)
    assert [layout.allocated_bytes for layout in answer.layouts] == [480, 384, 384, 320]
    assert [layout.waste_bytes for layout in answer.layouts] == [160, 64, 64, 0]


@pytest.mark.parametrize(
    ("lengths", "memory", "expected"),
    [
        # 32 tokens are 128 B reserved; 8 and 24 take 64 and 128 B in blocks, 32 and 96 B bare.
        ([8, 24], 0, (0, 0, 0, 0)),
        ([8, 24], 31, (0, 0, 0, 0)),
        ([8, 24], 32, (0, 1, 0, 1)),
        ([8, 24], 64, (0, 1, 1, 1)),
        ([8, 24], 128, (1, 1, 1, 2)),
        ([8, 24], 191, (1, 1, 1, 3)),
        ([8, 24], 192, (1, 2, 2, 3)),
        ([8, 24], 256, (2, 2, 3, 4)),
        ([8, 24], 1920, (15, 20, 20, 30)),
        # The longer one first: a batch is as wide as it from the beginning.
        ([24, 8], 128, (1, 1, 1, 2)),
        # A request that does not fit stops the queue, even where a shorter one would.
        ([8, 32, 8], 100, (0, 1, 1, 1)),
        # Empty requests hold nothing, unless padded to one that does.
        ([0, 0, 8], 32, (0, 2, 2, 5)),
    ],
)
def test_what_the_same_memory_admits(
    lengths: list[int], memory: int, expected: tuple[int, ...]
) -> None:
    """Requests are admitted in their order, over and over, until one does not fit."""
    assert admitted(of(lengths, 32, memory)) == expected


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_nothing_held_is_admitted_without_bound(lengths: list[int]) -> None:
    """Requests that hold nothing fit any number of times, reserved ones do not."""
    answer = of(lengths, 32, 1000)
    assert admitted(answer) == ((None if not lengths else 7), None, None, None)
    assert answer.layouts[3].row() == ("effective", 0, 0, "")
    assert of(lengths, 0, 1000).layouts[0] == Layout(
        strategy="reserved", allocated_bytes=0, waste_bytes=0, admitted_requests=None
    )


def test_a_window_is_reserved_once() -> None:
    """A layer with a window of 8 never holds more than 7 positions, whatever the maximum."""
    state = SlidingWindow(kv_heads=1, k_dim=1, v_dim=1, window=8)
    answer = of([100, 5], 1000, model=ModelState.of_layers([Layer(states=(state,))]))
    assert answer.layout("reserved").allocated_bytes == 2 * 7 * 4
    assert answer.layout("effective").allocated_bytes == 7 * 4 + 5 * 4


def test_a_chunk_is_reserved_at_its_fullest() -> None:
    """A chunk of 8 is empty at 16 tokens, but held 7 positions on the way there."""
    state = ChunkedAttention(kv_heads=1, k_dim=1, v_dim=1, chunk=8)
    answer = of([16, 3], 16, model=ModelState.of_layers([Layer(states=(state,))]))
    assert answer.layout("reserved").allocated_bytes == 2 * 7 * 4
    assert answer.layout("padded").allocated_bytes == 2 * 3 * 4


def test_a_recurrent_state_is_the_same_in_every_layout() -> None:
    """A constant state has neither maximum nor blocks, and an empty request has none."""
    state = Recurrent(tensors=(StateTensor(name="s", shape=(100,), dtype=DTYPES["fp32"]),))
    answer = of([0, 5, 9], 10, 800, model=ModelState.of_layers([Layer(states=(state,))]))
    assert [layout.allocated_bytes for layout in answer.layouts] == [1200, 1200, 800, 800]
    assert admitted(answer) == (2, 2, 4, 4)


def test_totals_are_those_of_the_ledgers() -> None:
    """Runs of lengths give the same bytes as the ledgers of the same lengths."""
    lengths = RequestLengths.of_runs([(17, 3), (100, 2)])
    answer = fragmentation(LLAMA, FP16, lengths, max_length_tokens=128, block_size=16)
    base = ledgers(LLAMA, FP16, lengths, 16)
    assert [layout.allocated_bytes for layout in answer.layouts[1:]] == [
        base.padded_bytes,
        base.paged_bytes,
        base.effective_bytes,
    ]
    assert answer.requests == 5
    codes = [note.code for note in (*answer.assumptions, *answer.not_counted)]
    assert {"admission_in_order", "no_sharing", "external_fragmentation", "weights"} <= set(codes)


def queue_of_own(costs: list[int], memory: int) -> int:
    """Admit one by one, each at its own cost."""
    count = 0
    for cost in islice(cycle(costs), 10_000):
        if cost > memory:
            break
        memory -= cost
        count += 1
    return count


@given(
    models(), formats(), st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(1, 20)
)
def test_admission_equals_a_queue_taken_one_by_one(
    model: ModelState, kv_formats: KvFormats, lengths: list[int], block_size: int
) -> None:
    """Counting by runs and whole rounds gives what admitting one request after another gives."""
    answer = fragmentation(
        model,
        kv_formats,
        RequestLengths.of_list(lengths),
        max_length_tokens=70,
        block_size=block_size,
    )
    groups = ledgers(model, kv_formats, RequestLengths.of_list(lengths), block_size).shape.groups
    assert answer.layout("reserved").allocated_bytes == len(lengths) * reserved_bytes(groups, 70)
    for strategy, costs in (
        ("paged", [paged_bytes(groups, length, block_size) for length in lengths]),
        ("effective", [effective_bytes(groups, length) for length in lengths]),
    ):
        layout = answer.layout(strategy)
        assert layout.allocated_bytes == sum(costs)
        if any(costs):
            expected = queue_of_own(costs, answer.memory_bytes)
            assert layout.admitted_requests == expected
        else:
            assert layout.admitted_requests is None


@given(models(), st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(0, 10**5))
def test_a_padded_batch_equals_one_filled_one_by_one(
    model: ModelState, lengths: list[int], memory: int
) -> None:
    """A batch takes the next request while the batch, padded to its longest, still fits."""
    kept = RequestLengths.of_list(lengths)
    answer = fragmentation(
        model, FP16, kept, max_length_tokens=60, block_size=16, memory_bytes=memory
    )
    batch: list[int] = []
    for length in islice(cycle(lengths), 60):
        wider = [*batch, length]
        if ledgers(model, FP16, RequestLengths.of_list(wider), 16).padded_bytes > memory:
            break
        batch = wider
    found = answer.layout("padded").admitted_requests
    assert found is None or min(found, 60) == len(batch)
    assert found is not None or ledgers(model, FP16, kept, 16).padded_bytes == 0


@given(models(), st.lists(st.integers(0, 10**4), max_size=20), st.integers(1, 64))
def test_waste_is_never_negative_and_ordered(
    model: ModelState, lengths: list[int], block_size: int
) -> None:
    """Reserving takes at least what padding takes, and nothing takes less than the state itself."""
    answer = of(lengths, 10**4, model=model, block_size=block_size)
    reserved, padded, paged, effective = (layout.allocated_bytes for layout in answer.layouts)
    assert reserved >= padded >= effective
    assert paged >= effective
    assert effective == answer.layout("effective").allocated_bytes
    assert answer.layout("effective").waste_bytes == 0
    assert tuple(layout.strategy for layout in answer.layouts) == STRATEGIES


@pytest.mark.parametrize(
    ("lengths", "longest", "memory", "block_size", "field", "error"),
    [
        ([40], 39, None, 16, "max_length_tokens", OutOfRange),
        ([40], -1, None, 16, "max_length_tokens", OutOfRange),
        ([40], 10**9 + 1, None, 16, "max_length_tokens", OutOfRange),
        ([40], 40, -1, 16, "memory_bytes", OutOfRange),
        ([40], 40, 2**53 + 1, 16, "memory_bytes", OutOfRange),
        ([40], 40, True, 16, "memory_bytes", WrongType),
        ([40], 40, None, 0, "block_size", OutOfRange),
        ([1] * 3_000_000, 10**9, None, 16, "max_length_tokens", OutOfRange),
    ],
)
def test_inputs_are_bounded(
    lengths: list[int],
    longest: int,
    memory: int | None,
    block_size: int,
    field: str,
    error: type[Exception],
) -> None:
    """What is out of bounds is refused by its name."""
    with pytest.raises(error, match=field):
        of(lengths, longest, memory, block_size=block_size)

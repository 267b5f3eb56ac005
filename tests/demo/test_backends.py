"""NumPy, torch and the plain reference: one attention, within a stated bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.demo import backends as module
from app.demo.backends import Backend, NumpyBackend, choose_backend, is_torch_installed
from app.demo.bounds import agreement_bound
from app.demo.caches import ContiguousCache, PagedCache, PagePool, RowShape
from app.demo.masks import causal, everything, padded
from app.demo.quantise import LAB_DTYPES, Floats
from app.domain.attention import AttentionInputs, Rows, attend
from app.domain.errors import OutOfRange, Unknown, Unsupported
from tests.demo.strategies import Case, cases

needs_torch = pytest.mark.skipif(not is_torch_installed(), reason="torch is not installed")

TORCH_DEVICES = [
    pytest.param("cpu", id="torch-cpu", marks=pytest.mark.torch),
    pytest.param("cuda", id="torch-cuda", marks=[pytest.mark.gpu, pytest.mark.torch]),
]


def opened(device: str) -> Backend:
    """Return the backend of a device, or skip the test where it is not."""
    if device != "numpy" and not is_torch_installed():
        pytest.skip("torch is not installed")
    try:
        return choose_backend(device)
    except Unsupported as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module", params=["numpy", *TORCH_DEVICES])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return each backend that this machine has."""
    return opened(request.param)


@pytest.fixture(scope="module", params=TORCH_DEVICES)
def torch_backend(request: pytest.FixtureRequest) -> Backend:
    """Return torch on each device that this machine has."""
    return opened(request.param)


def through_cache(backend: Backend, case: Case, dtype: str) -> tuple[Floats, Floats]:
    """Return keys and values as a cache of the format gives them back, on the host."""
    row = RowShape(
        heads=case.keys.shape[1], key_width=case.keys.shape[3], value_width=case.values.shape[3]
    )
    kept = ContiguousCache(backend, capacity=case.keys.shape[2], row=row, dtype=dtype)
    kept.append(backend.put(case.keys[0]), backend.put(case.values[0]))
    keys, values = kept.read()
    return backend.get(keys), backend.get(values)


def outputs_of(backend: Backend, case: Case, keys: Floats, values: Floats) -> Floats:
    """Return the outputs of a backend over rows given by the host."""
    put = backend.put
    attended = backend.attend(put(case.queries), put(keys), put(values), case.visible)
    return backend.get(attended.outputs)


def reference(case: Case, keys: Floats, values: Floats) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the same from plain Python, head by head, in binary64."""

    def rows(array: Floats) -> Rows:
        return tuple(tuple(map(float, row)) for row in array)

    group = case.queries.shape[1] // keys.shape[1]
    heads = []
    for head in range(case.queries.shape[1]):
        own_keys, own_values = rows(keys[0, head // group]), rows(values[0, head // group])
        inputs = AttentionInputs(
            queries=rows(case.queries[0, head]),
            past_keys=own_keys[: case.past],
            past_values=own_values[: case.past],
            new_keys=own_keys[case.past :],
            new_values=own_values[case.past :],
            window=case.window,
        )
        heads.append(attend(inputs).outputs)
    return np.asarray([heads], dtype=np.float64)


@pytest.mark.parametrize("dtype", LAB_DTYPES)
@settings(max_examples=25)
@given(case=cases())
def test_backends_agree_with_the_reference(backend: Backend, dtype: str, case: Case) -> None:
    """Over rows kept in any format a backend's output lies within the bound of the exact one."""
    keys, values = through_cache(backend, case, dtype)
    got = outputs_of(backend, case, keys, values).astype(np.float64)
    bound = agreement_bound(case.queries, keys, values, case.visible)
    assert np.abs(got - reference(case, keys, values)).max() <= bound


@pytest.mark.parametrize("dtype", LAB_DTYPES)
@settings(max_examples=15)
@given(case=cases())
def test_backends_keep_the_same_bits(torch_backend: Backend, dtype: str, case: Case) -> None:
    """NumPy's emulated formats and torch's own give back equal keys and values, bit for bit."""
    own = through_cache(NumpyBackend(), case, dtype)
    other = through_cache(torch_backend, case, dtype)
    assert np.array_equal(own[0], other[0])
    assert np.array_equal(own[1], other[1])


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
def test_every_kind_of_float_rounds_alike(dtype: str) -> None:
    """A sweep through the bit patterns of binary32 rounds alike in NumPy and in torch."""
    bits = np.arange(0, 2**32, 65_521, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 65_000)]
    assert len(values) > 30_000
    own, other = NumpyBackend(), choose_backend("cpu")
    one = own.decode(own.encode(values, dtype))
    two = other.get(other.decode(other.encode(other.put(values), dtype)))
    assert np.array_equal(one, two)


@settings(max_examples=25)
@given(case=cases())
def test_weights_sum_to_one(backend: Backend, case: Case) -> None:
    """The weights of a query are none below zero and sum to one within binary32's rounding."""
    put = backend.put
    attended = backend.attend(put(case.queries), put(case.keys), put(case.values), case.visible)
    weights = backend.get(attended.weights).astype(np.float64)
    assert weights.min() >= 0
    assert np.abs(weights.sum(axis=-1) - 1).max() <= (weights.shape[-1] + 2) * 2.0**-24
    hidden = ~np.broadcast_to(case.visible[:, None], weights.shape)
    assert not weights[hidden].any()


@pytest.mark.parametrize("dtype", LAB_DTYPES)
@settings(max_examples=15)
@given(case=cases(), block_size=st.integers(1, 7), seed=st.integers(0, 1000))
def test_paged_equals_contiguous(
    backend: Backend, dtype: str, case: Case, block_size: int, seed: int
) -> None:
    """Rows gathered through any block table give the contiguous output, to the last bit."""
    total = case.keys.shape[2]
    blocks = -(-total // block_size)
    table = np.random.default_rng(seed).permutation(blocks + 3)[:blocks].tolist()
    row = RowShape(
        heads=case.keys.shape[1], key_width=case.keys.shape[3], value_width=case.values.shape[3]
    )
    pool = PagePool(backend, blocks=blocks + 3, block_size=block_size, row=row, dtype=dtype)
    kept = ContiguousCache(backend, capacity=total, row=row, dtype=dtype)
    outputs = []
    for cache in (PagedCache(pool, table), kept):
        cache.append(backend.put(case.keys[0]), backend.put(case.values[0]))
        keys, values = cache.read()
        attended = backend.attend(backend.put(case.queries), keys, values, case.visible)
        outputs.append(backend.get(attended.outputs))
    assert np.array_equal(outputs[0], outputs[1])


@pytest.mark.parametrize("dtype", LAB_DTYPES)
@settings(max_examples=10)
@given(case=cases())
def test_cached_steps_equal_the_recompute_within_the_bound(
    backend: Backend, dtype: str, case: Case
) -> None:
    """Queries one after another over a growing cache differ from all at once by rounding alone."""
    keys, values = through_cache(backend, case, dtype)
    together = outputs_of(backend, case, keys, values)
    bound = agreement_bound(case.queries, keys, values, case.visible)
    put = backend.put
    for index in range(case.queries.shape[2]):
        end = case.past + index + 1
        step = backend.attend(
            put(case.queries[:, :, index : index + 1]),
            put(keys[:, :, :end]),
            put(values[:, :, :end]),
            causal(end - 1, 1, case.window),
        )
        alone = backend.get(step.outputs)[:, :, 0].astype(np.float64)
        assert np.abs(alone - together[:, :, index]).max() <= 2 * bound


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    on_left=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_ragged_batch_equals_its_sequences_alone(
    backend: Backend, lengths: list[int], seed: int, *, on_left: bool
) -> None:
    """With its padding hidden a batch gives each sequence what it gets alone, on either side."""
    longest = max(lengths)
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((len(lengths), 2, longest, 3), dtype=np.float32)
    values = rng.standard_normal((len(lengths), 2, longest, 4), dtype=np.float32)
    queries = rng.standard_normal((len(lengths), 4, 1, 3), dtype=np.float32)
    put, mask = backend.put, padded(lengths, on_left=on_left)
    batch = backend.get(backend.attend(put(queries), put(keys), put(values), mask).outputs)
    for index, size in enumerate(lengths):
        own = slice(longest - size, longest) if on_left else slice(0, size)
        part = (queries[index, None], keys[index, None, :, own], values[index, None, :, own])
        asked, kept_keys, kept_values = map(put, part)
        own_mask = everything(1, size)
        alone = backend.get(backend.attend(asked, kept_keys, kept_values, own_mask).outputs)
        bound = agreement_bound(*part, own_mask)
        assert np.abs(batch[index] - alone[0]).max() <= 2 * bound + longest * 2.0**-23


def test_a_query_that_sees_nothing_gets_zero(backend: Backend) -> None:
    """A padding query has no visible row: zero weights and a zero output, not a NaN."""
    rows = np.ones((2, 1, 3, 2), dtype=np.float32)
    mask = padded([3, 1], on_left=True, new_tokens=3)
    put = backend.put
    attended = backend.attend(put(rows), put(rows), put(rows), mask)
    assert backend.get(attended.outputs)[1, 0].tolist() == [[0, 0], [0, 0], [1, 1]]
    assert backend.get(attended.weights)[1, 0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_the_largest_scores_do_not_overflow(backend: Backend) -> None:
    """Scores of 10^30 that are alike weigh alike on every backend."""
    rows = np.full((1, 1, 2, 1), 1e15, dtype=np.float32)
    values = np.array([[[[2], [4]]]], dtype=np.float32)
    put = backend.put
    attended = backend.attend(put(rows[:, :, :1]), put(rows), put(values), everything(1, 2))
    assert backend.get(attended.outputs).tolist() == [[[[3.0]]]]


def test_small_operations_are_what_they_say(backend: Backend) -> None:
    """Normalising 3 and 4 divides by their root mean square, 3.5355; negatives become zero."""
    rows = backend.put(np.array([[3, 4]], dtype=np.float32))
    got = backend.get(backend.normalise(rows))
    assert got[0] == pytest.approx([0.848528, 1.131371], abs=1e-6)
    signed = backend.put(np.array([[-1, 2]], dtype=np.float32))
    assert backend.get(backend.rectify(signed)).tolist() == [[0, 2]]
    assert backend.get(backend.linear(rows, rows.reshape(2, 1))).tolist() == [[25]]
    backend.wait()


@pytest.mark.parametrize(
    ("past", "new", "window", "mask"),
    [
        (0, 3, None, ["100", "110", "111"]),
        (2, 2, None, ["1110", "1111"]),
        (2, 2, 2, ["0110", "0011"]),
        (0, 2, 1, ["10", "01"]),
    ],
)
def test_triangular_masks(past: int, new: int, window: int | None, mask: list[str]) -> None:
    """A query sees itself and what came before, as far back as the window goes."""
    rows = ["".join("01"[seen] for seen in row) for row in causal(past, new, window)[0].tolist()]
    assert rows == mask


@pytest.mark.parametrize(
    ("on_left", "masks"),
    [(True, [["110", "111"], ["000", "001"]]), (False, [["110", "111"], ["000", "100"]])],
)
def test_padding_masks(masks: list[list[str]], *, on_left: bool) -> None:
    """The last two queries of sequences of 3 and 1: a query before the start sees nothing."""
    got = padded([3, 1], on_left=on_left, new_tokens=2)
    assert [["".join("01"[s] for s in row) for row in one] for one in got.tolist()] == masks


def test_caches_refuse_what_does_not_fit() -> None:
    """A position beyond the reservation, or beyond the block table, is refused by name."""
    backend, row = NumpyBackend(), RowShape(heads=1, key_width=2, value_width=2)
    rows = np.ones((1, 3, 2), dtype=np.float32)
    small = ContiguousCache(backend, capacity=2, row=row, dtype="fp32")
    pool = PagePool(backend, blocks=4, block_size=2, row=row, dtype="fp32")
    paged = PagedCache(pool, [3])
    with pytest.raises(OutOfRange, match="is 3 positions, and the cache has room for 2"):
        small.append(rows, rows)
    assert small.length == 0
    with pytest.raises(OutOfRange, match="is 3 positions, and the cache has room for 2"):
        paged.append(rows, rows)


def test_a_cache_can_forget_its_newest_positions() -> None:
    """After a rewind the next row takes the place of the forgotten one."""
    backend, row = NumpyBackend(), RowShape(heads=1, key_width=1, value_width=1)
    kept = ContiguousCache(backend, capacity=2, row=row, dtype="fp32")
    for value in (1, 2):
        kept.append(*[np.full((1, 1, 1), value, dtype=np.float32)] * 2)
    kept.rewind(1)
    kept.rewind(2)
    assert kept.length == 1
    kept.append(*[np.full((1, 1, 1), 3, dtype=np.float32)] * 2)
    assert kept.read()[0].tolist() == [[[[1], [3]]]]


@pytest.mark.parametrize("device", ["abacus", "", "CUDA", 3, ["cpu"]])
def test_unknown_devices_are_refused(device: Any) -> None:
    """A name that is no device is an error that lists the devices."""
    with pytest.raises(Unknown, match="auto, numpy, cpu, cuda, mps") as caught:
        choose_backend(device)
    assert caught.value.field == ("device",)


def test_without_torch_numpy_computes_and_a_gpu_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without torch the CPU is NumPy's, and a GPU asked for is refused, not replaced."""
    monkeypatch.setattr(module, "is_torch_installed", lambda: False)
    for device in (None, "auto", "cpu", "numpy"):
        backend = choose_backend(device)
        assert (backend.name, backend.device) == ("numpy", "cpu")
    for device in ("cuda", "mps"):
        with pytest.raises(Unsupported, match="needs torch") as caught:
            choose_backend(device)
        assert caught.value.field == ("device",)


@pytest.mark.torch
@needs_torch
def test_with_torch_an_absent_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch, `auto` takes the best present device and an absent one is refused."""
    from app.demo.torch_backend import load_torch  # noqa: PLC0415 - torch may be absent

    torch = load_torch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    chosen = choose_backend()
    assert (chosen.name, chosen.device) == ("torch", "cpu")
    assert torch.get_num_threads() == 1
    for device in ("cuda", "mps"):
        with pytest.raises(Unsupported, match="is not available on this machine"):
            choose_backend(device)


@pytest.mark.torch
@needs_torch
def test_what_a_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS is taken before the CPU and has no fp8; work on a device is waited for."""
    from app.demo.torch_backend import TorchBackend, load_torch  # noqa: PLC0415 - as above

    torch = load_torch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_backend("auto").device == "mps"
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    for device in ("cuda", "mps", "cpu"):
        TorchBackend(device).wait()
    assert waited == ["cuda", "mps"]
    with pytest.raises(Unsupported, match="fp8 is not available on mps"):
        TorchBackend("mps").encode(torch.ones(2), "fp8")

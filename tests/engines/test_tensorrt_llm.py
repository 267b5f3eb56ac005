"""TensorRT-LLM's blocks: published logs, budgets, windows by release, refusals."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.dtypes import dtype_named
from app.domain.errors import (
    Conflict,
    DomainError,
    Missing,
    OutOfRange,
    Unknown,
    Unsupported,
    WrongType,
)
from app.domain.state import (
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
    StateTensor,
)
from app.engines.measured import PRINTED
from app.engines.measured_logs import log_result
from app.engines.tensorrt_llm import KNOWN, TensorrtLlmPlan, plan

DATA = Path(__file__).parents[1] / "data"
LOGS: list[dict[str, Any]] = [
    case
    for case in json.loads((DATA / "engine_logs.json").read_text())
    if case["engine"] == "tensorrt-llm"
]
GIB = 2**30


def layers_of(*states: State, times: int = 1) -> ModelState:
    """Return a model with one layer for each state, repeated."""
    return ModelState.of_layers([Layer(states=(state,)) for state in states] * times)


FULL = FullAttention(kv_heads=8, k_dim=64, v_dim=64)
WINDOW = SlidingWindow(kv_heads=8, k_dim=64, v_dim=64, window=128)
CROSS = CrossAttention(kv_heads=8, k_dim=64, v_dim=64, encoder_tokens=1500)
LATENT = LatentAttention(latent_dim=512, rope_dim=64)
INDEXED = LatentAttention(latent_dim=512, rope_dim=64, index_dim=128)
RECURRENT = Recurrent(
    tensors=(
        StateTensor(name="conv", shape=(1024, 3), dtype=dtype_named("bf16"), split_axis=0),
        StateTensor(name="ssm", shape=(48, 128), dtype=dtype_named("fp32"), split_axis=0),
        StateTensor(name="pos", shape=(4,), dtype=dtype_named("fp32")),
    )
)
STATE_BYTES = 1024 * 3 * 2 + 48 * 128 * 4 + 16
DENSE = ModelState.uniform(layers=64, kv_heads=8, head_dim=128)
OSS = layers_of(WINDOW, FULL, times=12)
DEEPSEEK = layers_of(LATENT, times=61)
SPARSE = layers_of(INDEXED, LATENT, times=30)
HYBRID = layers_of(RECURRENT, RECURRENT, RECURRENT, FULL, times=8)
WHISPER = ModelState.of_layers([Layer(states=(FULL, CROSS))] * 4)


def planned(
    state: ModelState, available: int | None = None, /, **settings: object
) -> TensorrtLlmPlan:
    """Return the plan of a model whose config says nothing."""
    return plan(None, state, None, settings, available)


def overheads(answer: TensorrtLlmPlan) -> dict[str, int]:
    """Return what is spent beyond the need, by its code."""
    return {part.code: part.bytes for part in answer.overheads}


# Measured


def test_there_are_logs() -> None:
    """The measured file is there, whole."""
    assert len(LOGS) == 5


@pytest.mark.parametrize("case", LOGS, ids=lambda case: case["id"])
def test_published_logs(case: dict[str, Any]) -> None:
    """Every figure of a published log is reproduced to its digit."""
    result = log_result(case)
    assert result.figures
    assert result.verdict == PRINTED, result


# Memory to blocks


def test_the_documented_example() -> None:
    """70.48 GiB free, 90 % of it, 256 KiB a token: 4,060 blocks of 64, the last rounded up."""
    answer = planned(DENSE, int(70.48 * GIB), backend="cpp", max_seq_len=8192)
    assert (answer.blocks, answer.tokens) == (4060, 259_840)
    assert answer.bytes_per_token == 262_144
    assert answer.max_concurrency == "31.72"
    assert answer.printed == (
        "Number of tokens per block: 64.",
        "Number of blocks in KV cache primary pool: 4060",
        "Max KV cache pages/blocks per sequence: 128 [window size=8192]",
        "[MemUsageChange] Allocated 63.44 GiB for max tokens in paged KV cache (259840).",
    )
    assert answer.budget_bytes is not None
    assert overheads(answer) == {"last_block": answer.pool_bytes - answer.budget_bytes}
    assert answer.formula == (
        "self: 4060 blocks × 64 tokens × 262144 B (64 layers) = 68115496960 B",
    )


@pytest.mark.parametrize(
    ("settings", "block", "blocks"),
    [
        ({"version": "1.3"}, 32, 1151),
        ({"version": "1.2.0"}, 32, 1151),
        ({"version": "1.1"}, 32, 1152),
        ({"version": "1.3", "backend": "cpp"}, 64, 576),
        ({"version": "0.8", "backend": "cpp"}, 128, 288),
        ({"version": "1.3", "tokens_per_block": 16}, 16, 2302),
    ],
)
def test_blocks_by_release(settings: dict[str, object], block: int, blocks: int) -> None:
    """Blocks have 32, 64 or 128 tokens; the C++ runtime rounds up, the newer PyTorch one down."""
    answer = planned(DENSE, 10 * GIB - 2**23, **settings)
    assert (answer.tokens_per_block, answer.blocks) == (block, blocks)


def test_the_runtime_computes_in_32_bit_floats() -> None:
    """0.9 is a little less in 32 bits, and so is the memory: the budget is a multiple of 4,096."""
    free = 70 * GIB + 12_345
    exact = planned(DENSE, free)
    rounded = planned(DENSE, free, backend="cpp")
    assert exact.budget_bytes == 67_645_746_022
    assert rounded.budget_bytes == 67_645_747_200
    assert rounded.budget_bytes % 4096 == 0


def test_a_trial_run_gives_the_budget() -> None:
    """Card less the peak of a trial run plus the trial's cache, and the fraction of that."""
    answer = planned(DENSE, total_gpu_memory=80 * GIB, peak_memory=30 * GIB,
                     temporary_kv_bytes=2 * GIB, free_gpu_memory_fraction=0.5)  # fmt: skip
    assert answer.budget_bytes == 26 * GIB
    assert answer.blocks == 26 * GIB // (262_144 * 32)
    with pytest.raises(Conflict, match="peak_memory is more"):
        planned(DENSE, total_gpu_memory=GIB, peak_memory=2 * GIB)
    with pytest.raises(Conflict, match="peak_memory and total_gpu_memory go together"):
        planned(DENSE, total_gpu_memory=GIB)


def test_the_smallest_bound_holds() -> None:
    """Bytes and tokens given beside the memory bound it, and never raise it."""
    assert planned(DENSE, 10 * GIB, max_gpu_total_bytes=GIB).tokens == 4096
    assert planned(DENSE, None, max_gpu_total_bytes=GIB).tokens == 4096
    assert planned(DENSE, 10 * GIB, max_gpu_total_bytes=20 * GIB).budget_bytes == 9 * GIB
    assert planned(DENSE, 10 * GIB, max_tokens=1000).tokens == 992
    assert planned(DENSE, 10 * GIB, max_tokens=10**9).tokens == 36_864


def test_tokens_alone_are_taken_to_fit() -> None:
    """With tokens and no memory the tokens are planned, and that is said."""
    answer = planned(DENSE, max_tokens=1000)
    assert (answer.blocks, answer.budget_bytes) == (31, None)
    assert [note.code for note in answer.assumptions] == ["dtype_default", "tokens_given"]
    with pytest.raises(Missing, match="max_tokens"):
        planned(DENSE)


def test_host_memory_holds_more_blocks() -> None:
    """The host's pool has as many blocks as its bytes hold whole."""
    assert planned(DENSE, GIB, host_cache_size=GIB + 1).secondary_blocks == 128
    assert planned(layers_of(RECURRENT), GIB, host_cache_size=GIB).secondary_blocks == 0


# Ranks


@pytest.mark.parametrize(
    ("heads", "ranks", "kept", "copied"),
    [
        (8, 2, 4, Fraction(0)),
        (8, 16, 1, Fraction(1, 2)),
        (3, 9, 1, Fraction(2, 3)),
    ],
)
def test_heads_are_divided_or_copied(heads: int, ranks: int, kept: int, copied: Fraction) -> None:
    """A rank has its part of the heads, one of them at least; what others hold too is named."""
    state = ModelState.uniform(layers=2, kv_heads=heads, head_dim=64)
    answer = planned(state, tp_size=ranks, max_tokens=320)
    assert answer.bytes_per_token == 2 * kept * 128 * 2
    assert overheads(answer).get("copied_heads", 0) == int(answer.pool_bytes * copied)


@pytest.mark.parametrize(("heads", "ranks"), [(5, 2), (3, 8), (8, 7), (8, 12)])
def test_heads_that_ranks_do_not_divide_are_refused(heads: int, ranks: int) -> None:
    """Key-value heads divide by the ranks or are copied to as many ranks each; else no start."""
    state = ModelState.uniform(layers=2, kv_heads=heads, head_dim=64)
    with pytest.raises(Conflict, match=rf"tp_size: {heads} key-value heads can neither") as refused:
        planned(state, tp_size=ranks, max_tokens=320)
    assert refused.value.field == ("tp_size",)


@pytest.mark.parametrize(
    "config", [{"num_attention_heads": 40}, {"text_config": {"num_attention_heads": 40}}]
)
def test_query_heads_divide_by_the_ranks(config: dict[str, object]) -> None:
    """Where a config names its query heads, ranks that do not divide them are refused."""
    with pytest.raises(Conflict, match="tp_size: 40 attention heads do not divide by 16 tensor"):
        plan(None, DENSE, config, {"tp_size": 16, "max_tokens": 320})
    assert plan(None, DENSE, config, {"tp_size": 8, "max_tokens": 320}).bytes_per_token == 32_768
    alone = {"tp_size": 16, "max_tokens": 320, "enable_attention_dp": True}
    assert plan(None, DENSE, config, alone).bytes_per_token == 262_144


def test_attention_data_parallel_keeps_all_heads() -> None:
    """With attention data parallel a rank has all heads of its own requests."""
    answer = planned(DENSE, tp_size=8, enable_attention_dp=True, max_tokens=32)
    assert answer.bytes_per_token == 262_144
    assert answer.overheads == ()


def test_a_latent_is_kept_whole_by_every_rank() -> None:
    """Tensor ranks copy the compressed vector."""
    answer = planned(DEEPSEEK, 10 * GIB, tp_size=8)
    assert answer.bytes_per_token == 61 * 1152
    assert overheads(answer)["copied_heads"] == answer.pool_bytes * 7 // 8


@pytest.mark.parametrize(
    ("layers", "stages", "version", "largest"),
    [(64, 4, "1.3", 16), (61, 4, "1.3", 16), (61, 4, "0.20", 16), (64, 4, "0.19", 16)],
)
def test_stages(layers: int, stages: int, version: str, largest: int) -> None:
    """The first pipeline stages have one layer more, and the largest stage decides."""
    state = ModelState.uniform(layers=layers, kv_heads=8, head_dim=64)
    answer = planned(state, GIB, pp_size=stages, version=version)
    assert answer.bytes_per_token == largest * 2048


def test_a_thousand_stages_of_ten_layers() -> None:
    """Windows of the list given go over the model's layers, whichever stage these are in."""
    state = ModelState.uniform(layers=10_000, kv_heads=8, head_dim=64)
    answer = planned(state, GIB, pp_size=1000, max_attention_window=[128, 4096], max_seq_len=4096)
    assert [(pool.window_tokens, pool.layers) for pool in answer.pools] == [(128, 5), (4096, 5)]
    assert answer.bytes_per_token == 10 * 2048


@pytest.mark.parametrize(("stages", "version"), [(4, "0.19"), (62, "1.3")])
def test_stages_that_cannot_be(stages: int, version: str) -> None:
    """Early releases divide layers evenly, and no stage may be empty."""
    state = ModelState.uniform(layers=61, kv_heads=8, head_dim=64)
    with pytest.raises(Conflict, match=f"pp_size {stages} does not divide the 61 layers"):
        planned(state, GIB, pp_size=stages, version=version)


def test_drafts_are_in_the_last_stage() -> None:
    """Drafting layers are as wide as the model's and lie in the last stage."""
    answer = planned(DENSE, GIB, draft_layers=2)
    assert answer.bytes_per_token == 66 * 4096
    assert "draft_shape" in [note.code for note in answer.assumptions]
    assert planned(DENSE, GIB, draft_layers=2, pp_size=2).bytes_per_token == 34 * 4096
    assert planned(layers_of(RECURRENT), GIB, draft_layers=2).bytes_per_token == 0


# Formats


@pytest.mark.parametrize(
    ("kind", "size"),
    [("auto", 512), ("fp8", 256), ("int8", 256), ("float32", 1024), ("nvfp4", 144), ("fp4", 144)],
)
def test_formats(kind: str, size: int) -> None:
    """Four-bit elements take half a byte and one byte of scale for sixteen of them."""
    state = layers_of(FullAttention(kv_heads=1, k_dim=128, v_dim=128))
    assert planned(state, max_tokens=32, kv_cache_dtype=kind).bytes_per_token == size


@pytest.mark.parametrize(
    ("settings", "config", "size", "assumed"),
    [
        ({}, None, 2, ["dtype_default"]),
        ({}, {"torch_dtype": "float32"}, 4, []),
        ({}, {"text_config": {"dtype": "bf16"}}, 2, []),
        ({"dtype": "torch.float32"}, {"dtype": "float16"}, 4, []),
        ({"dtype": "float32", "kv_cache_dtype": "fp8"}, None, 1, []),
    ],
)
def test_format_in_order(
    settings: dict[str, object], config: dict[str, object] | None, size: int, assumed: list[str]
) -> None:
    """The cache's own format goes before the flag of the model, its config, and 16 bits."""
    state = layers_of(FullAttention(kv_heads=1, k_dim=1, v_dim=1))
    answer = plan(None, state, config, settings | {"max_tokens": 32})
    assert answer.bytes_per_token == 2 * size
    assert [n.code for n in answer.assumptions] == [*assumed, "tokens_given"]


# Sparse latents


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({}, 1152 + 132),
        ({"kv_cache_dtype": "fp8"}, 576 + 132),
        ({"kv_cache_dtype": "fp8", "indexer_k_dtype": "fp4"}, 576 + 68),
    ],
)
def test_index_keys(settings: dict[str, object], row: int) -> None:
    """Every latent layer keeps an index key: 132 B, 68 in fp4, in a cache of any format."""
    answer = planned(SPARSE, 10 * GIB, **settings)
    assert answer.bytes_per_token == 60 * row
    assert answer.blocks == 9 * GIB // (60 * row) // 32
    index = row - (1152 if "kv_cache_dtype" not in settings else 576)
    assert overheads(answer) == {"index_keys": answer.tokens * 60 * index}


def test_index_keys_once_took_more_of_the_budget() -> None:
    """Before 1.3 the budget multiplied the index key's part by the latent and by its format."""
    answer = planned(SPARSE, 10 * GIB, version="1.2")
    counted = 2 * (60 * 576 * 260 // 128)
    assert answer.blocks == 9 * GIB // counted // 32
    assert answer.bytes_per_token == 60 * 1284
    assert "index_budget" in [note.code for note in answer.assumptions]


# Windows


def windowed(available: int | None, /, **settings: object) -> list[tuple[int | None, int]]:
    """Return window and blocks of each pool of a model with 12 short and 12 long layers."""
    asked = {"max_attention_window": [128, 131_072], "max_seq_len": 131_072} | settings
    return [(pool.window_tokens, pool.blocks) for pool in planned(OSS, available, **asked).pools]


def test_windows_that_are_not_set_are_full_length() -> None:
    """Without a list of windows every layer keeps the full length, in one pool."""
    answer = planned(OSS, 10 * GIB, max_seq_len=4096)
    assert [(p.window_tokens, p.layers) for p in answer.pools] == [(4096, 24)]
    assert "full_length" in [note.code for note in answer.assumptions]


@pytest.mark.parametrize(
    ("settings", "pools"),
    [
        # Half of 9 GiB is 196,608 tokens of 12 layers.
        ({"version": "1.3"}, [(128, 6144), (131_072, 6144)]),
        ({"version": "1.3", "window_size_shares": [0.25, 0.75]}, [(128, 3072), (131_072, 9216)]),
        ({"version": "1.1", "window_size_shares": [0.2, 0.6]}, [(128, 3072), (131_072, 9216)]),
        # 1 : 1024, by size and bytes; the C++ runtime rounds up.
        ({"version": "1.0"}, [(128, 12), (131_072, 12_276)]),
        ({"version": "0.20", "backend": "cpp"}, [(128, 6), (131_072, 6138)]),
    ],
)
def test_memory_is_divided_over_windows(
    settings: dict[str, object], pools: list[tuple[int, int]]
) -> None:
    """Windows get even or set parts of the memory, before 1.1 parts by size, the shortest first."""
    found = windowed(10 * GIB, free_gpu_memory_fraction=0.9, **settings)
    assert found == pools


def test_one_share_for_each_window() -> None:
    """Shares of the memory must be as many as the windows."""
    with pytest.raises(Conflict, match="window_size_shares must have one share for each of the 2"):
        windowed(GIB, window_size_shares=[1.0])


def test_tokens_bound_windows_as_memory() -> None:
    """So many tokens are their bytes in all layers, divided as memory is; once, each window's."""
    # 64,000 tokens of 24 layers are 128,000 of each 12.
    assert windowed(None, max_tokens=64_000) == [(128, 2000), (64_000, 2000)]
    assert windowed(10 * GIB, max_tokens=64_000) == windowed(None, max_tokens=64_000)
    assert windowed(10 * GIB, max_tokens=10**9) == windowed(10 * GIB)
    # The C++ runtime ignores tokens beside memory.
    assert windowed(10 * GIB, max_tokens=200_000, backend="cpp") == windowed(
        10 * GIB, backend="cpp"
    )
    assert windowed(None, max_tokens=6400, version="1.0") == [(128, 200), (131_072, 200)]
    assert windowed(10 * GIB, max_tokens=320_000, version="1.0")[1] == (131_072, 10_000)


def test_windows_shrink_until_one_sequence_fits() -> None:
    """The long window is shortened to what is left once the short one is filled in all layers."""
    memory = (128 * 24 + 1000 * 12) * 2048
    found = windowed(None, max_gpu_total_bytes=memory)
    assert [window for window, _ in found] == [128, 1128]
    assert [blocks for _, blocks in found] == [memory // 2 // (12 * 2048) // 32] * 2


def test_windows_that_shrink_to_one_share_a_pool() -> None:
    """Windows shortened to the same length are one pool with all their layers."""
    answer = planned(OSS, max_gpu_total_bytes=100 * 24 * 2048, max_seq_len=4096,
                     max_attention_window=[128, 4096])  # fmt: skip
    assert [(p.window_tokens, p.layers, p.blocks) for p in answer.pools] == [(100, 24, 3)]
    with pytest.raises(OutOfRange, match="available_bytes does not hold one token"):
        windowed(100)


def test_a_window_as_long_as_the_context_is_none() -> None:
    """Windows are cut at the context; equal ones share a pool."""
    answer = planned(OSS, GIB, max_attention_window=[128, 999_999], max_seq_len=100)
    assert [(p.window_tokens, p.layers, p.blocks_per_sequence) for p in answer.pools] == [
        (100, 24, 4)
    ]  # fmt: skip
    # Without a context the windows are all that is known.
    answer = planned(OSS, GIB, max_attention_window=[128, 256])
    assert [(p.window_tokens, p.blocks_per_sequence) for p in answer.pools] == [(128, 4), (256, 8)]
    assert answer.max_concurrency is None


def test_windows_run_over_the_model_or_a_stage() -> None:
    """The list of windows begins anew in each stage before 1.3."""
    state = ModelState.uniform(layers=6, kv_heads=8, head_dim=64)
    asked = {"max_attention_window": [128, 4096], "max_seq_len": 4096, "pp_size": 2}
    new, old = (planned(state, GIB, version=v, **asked) for v in ("1.3", "1.2"))
    # Layers 3, 4, 5 are long, short, long; counted from the stage, short, long, short.
    assert [pool.layers for pool in old.pools] == [2, 1]
    assert sorted(pool.layers for pool in new.pools) == [1, 2]


def test_sinks_lengthen_windows() -> None:
    """Attention sinks are kept beside the window, in its blocks for a sequence."""
    asked = {"max_attention_window": [128, 4096], "max_seq_len": 4096}
    answer = planned(OSS, GIB, sink_token_length=4, **asked)
    assert [pool.blocks_per_sequence for pool in answer.pools] == [5, 128]


@pytest.mark.parametrize(("version", "spare"), [("1.0", 0), ("1.1", 32)])
def test_a_request_stops_growing_in_windows(version: str, spare: int) -> None:
    """A window's part of a request stops at whole blocks, one more since 1.1."""
    request = planned(OSS, GIB, version=version, max_attention_window=[128, 4096],
                      max_seq_len=4096).request  # fmt: skip
    assert request.slope_bytes_per_token == 12 * 2048
    assert request.bytes_at(4096) == 12 * 2048 * (4096 + 128 + spare)
    assert request.bytes_at(1) == 24 * 2048 * 32


# Cross-attention and states


def test_cross_attention_has_its_own_part() -> None:
    """Cross-attention takes half of the memory by default, in a pool of its own, last."""
    answer = planned(WHISPER, 10 * GIB)
    assert [(p.name, p.layers) for p in answer.pools] == [("self", 4), ("cross", 4)]
    assert [p.blocks for p in answer.pools] == [9 * GIB // 2 // (4 * 2048) // 32] * 2
    quarter = planned(WHISPER, 10 * GIB, cross_kv_cache_fraction=0.25)
    assert quarter.pools[1].blocks * 3 == quarter.pools[0].blocks
    for backend in ("pytorch", "cpp"):
        alone = planned(layers_of(CROSS), 10 * GIB, backend=backend)
        assert [pool.name for pool in alone.pools] == ["cross"]


def test_states_come_off_the_budget() -> None:
    """Each request of the largest batch has its states, times the pipeline's stages."""
    answer = planned(HYBRID, GIB, max_batch_size=16, free_gpu_memory_fraction=1.0)
    assert answer.state_bytes == 24 * 16 * STATE_BYTES
    assert answer.tokens == (GIB - answer.state_bytes) // (8 * 2048) // 32 * 32
    assert answer.request.fixed_bytes == 24 * STATE_BYTES
    assert "states_live" in [note.code for note in answer.assumptions]
    two = planned(HYBRID, GIB, max_batch_size=16, pp_size=2)
    assert two.state_bytes == 12 * 32 * STATE_BYTES


def test_states_are_divided_where_they_can_be() -> None:
    """Tensor ranks divide a state's axis, and keep whole what has none."""
    answer = planned(HYBRID, GIB, tp_size=2)
    assert answer.state_bytes == 24 * ((STATE_BYTES - 16) // 2 + 16)
    with pytest.raises(Conflict, match="tp_size 32 does not divide the state axis of 48"):
        planned(HYBRID, GIB, tp_size=32)


def test_nothing_but_states() -> None:
    """A model without attention has no pool."""
    answer = planned(layers_of(RECURRENT, times=3), GIB)
    assert (answer.pools, answer.tokens, answer.pool_bytes) == ((), 0, 0)
    assert answer.formula == ("total = 0 B",)


def test_states_beyond_the_memory_leave_nothing() -> None:
    """States that take more than there is leave no block."""
    assert planned(HYBRID, GIB, max_batch_size=2**20).blocks == 0


def test_shared_layers_keep_nothing() -> None:
    """A layer that reads another's keys has no blocks of its own."""
    answer = planned(layers_of(FULL, Shared(with_layer=0)), max_tokens=32)
    assert answer.bytes_per_token == 2048


# Words


def test_early_lines() -> None:
    """Up to 0.8 two plain lines announce bytes and tokens."""
    answer = planned(ModelState.uniform(layers=32, kv_heads=32, head_dim=128), version="0.8.0",
                     max_tokens=132_608)  # fmt: skip
    assert answer.printed == (
        "Allocate 69524783104 bytes for k/v cache.",
        "Using 132608 tokens in paged KV cache.",
    )
    assert answer.version == "0.8"


def test_the_last_line_counts_all_pools() -> None:
    """The tokens of all windows' blocks are added up in the last line."""
    answer = planned(OSS, 10 * GIB, max_attention_window=[128, 4096], max_seq_len=4096)
    assert answer.printed[-1].endswith("Allocated 9.00 GiB for max tokens in paged KV cache"
                                       " (393216).")  # fmt: skip
    assert answer.tokens == 196_608
    assert answer.formula[-1] == f"total = {answer.pool_bytes} B"


@pytest.mark.parametrize(
    ("config", "settings", "context", "concurrency"),
    [
        (None, {}, None, None),
        ({"max_position_embeddings": 400}, {}, 400, "2.40"),
        ({"text_config": {"max_position_embeddings": 300}}, {}, 300, "3.20"),
        ({"max_position_embeddings": 400}, {"max_seq_len": 100}, 100, "9.60"),
        ({"max_position_embeddings": True}, {}, None, None),
    ],
)
def test_concurrency_by_context(
    config: dict[str, object] | None, settings: dict[str, object], context: int | None,
    concurrency: str | None,
) -> None:  # fmt: skip
    """Requests of the full context, by the flag or else the config; unknown where neither says."""
    answer = plan(None, DENSE, config, settings | {"max_tokens": 960})
    assert (answer.context_tokens, answer.max_concurrency) == (context, concurrency)


# Refusals


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"version": "0.4"}, OutOfRange, "version must be between 0.5 and 1.3"),
        ({"version": "2.0.0"}, OutOfRange, "version must be between 0.5 and 1.3"),
        ({"version": "main"}, Unknown, "version must be a release such as 1.2.0"),
        ({"version": 1.2}, Unknown, "version must be a release such as 1.2.0"),
        ({"backend": "triton"}, Unknown, "backend must be one of pytorch, cpp"),
        ({"speed": 1}, Unknown, "speed is no setting of this engine"),
        ({"tensor_parallel_size": 2, "tp_size": 2}, Conflict, "tp_size is given twice"),
        ({"tp_size": 0}, OutOfRange, "tp_size"),
        ({"tp_size": "2"}, WrongType, "tp_size"),
        ({"tokens_per_block": 2048}, OutOfRange, "tokens_per_block"),
        ({"free_gpu_memory_fraction": 1.5}, OutOfRange, "free_gpu_memory_fraction"),
        ({"free_gpu_memory_fraction": float("nan")}, OutOfRange, "free_gpu_memory_fraction"),
        ({"free_gpu_memory_fraction": "most"}, WrongType, "free_gpu_memory_fraction"),
        ({"kv_cache_dtype": "int4"}, Unknown, "kv_cache_dtype must be one of"),
        ({"dtype": 16}, Unknown, "dtype must be one of"),
        ({"indexer_k_dtype": "bf16"}, Unknown, "indexer_k_dtype must be one of fp8, fp4"),
        ({"max_attention_window": 128}, WrongType, "max_attention_window must be a list"),
        ({"max_attention_window": [0]}, OutOfRange, "max_attention_window.0"),
        ({"max_attention_window": [1] * 10_001}, OutOfRange, "max_attention_window must have"),
        ({"window_size_shares": [0, 0.0]}, OutOfRange, "window_size_shares must not all be 0"),
        ({"window_size_shares": [2]}, OutOfRange, "window_size_shares.0"),
        ({"enable_attention_dp": "yes"}, WrongType, "enable_attention_dp"),
        ({"host_cache_size": -1}, OutOfRange, "host_cache_size"),
    ],
)
def test_settings_are_checked(
    settings: dict[str, object], error: type[DomainError], text: str
) -> None:
    """Each setting is known by name, typed and bounded; the refusal names it."""
    with pytest.raises(error, match=text):
        plan(None, DENSE, None, {"max_tokens": 100} | settings)


def test_release_candidates_and_posts_are_releases() -> None:
    """A release may be written with its patch, candidate or post number."""
    for name in ("v1.2.0rc6", "0.17.0.post1", "1.2"):
        assert planned(DENSE, GIB, version=name).version in {"1.2", "0.17"}


def test_a_model_is_needed() -> None:
    """Settings alone plan nothing."""
    with pytest.raises(Missing, match="model"):
        plan(None, None, None, {"max_tokens": 100})


def test_memory_is_bounded() -> None:
    """Available bytes are a whole number within bounds."""
    with pytest.raises(OutOfRange, match="available_bytes"):
        planned(DENSE, 2**60)


@pytest.mark.parametrize(
    ("layers", "what"),
    [
        ((FullAttention(kv_heads=1, k_dim=8, v_dim=8, index_dim=8),), "index keys beside plain"),
        ((LatentAttention(latent_dim=512, rope_dim=64, tokens_per_entry=4),), "compressed"),
        ((LatentAttention(latent_dim=512, rope_dim=64, window=128),), "windowed latent"),
        (
            (INDEXED, LatentAttention(latent_dim=512, rope_dim=64, index_dim=64)),
            "index keys of different widths",
        ),
    ],
)
def test_layers_without_a_pool_are_refused(layers: tuple[State, ...], what: str) -> None:
    """Layers that no pool of this engine is known to hold are refused, saying which."""
    with pytest.raises(Unsupported, match=what):
        planned(layers_of(*layers), max_tokens=9)


# Whatever comes

MODELS = [DENSE, OSS, HYBRID, DEEPSEEK, SPARSE, WHISPER]


@given(
    memory=st.integers(0, 2**40),
    ranks=st.sampled_from([1, 2, 4, 8, 16]),
    version=st.sampled_from(["0.8", "1.0", "1.1", "1.2", "1.3"]),
    backend=st.sampled_from(["pytorch", "cpp"]),
    state=st.sampled_from(MODELS),
)
def test_pools_fit_but_for_the_last_blocks(
    memory: int, ranks: int, version: str, backend: str, state: ModelState
) -> None:
    """More memory holds no fewer blocks; all pools fit, but for one block each rounded up."""
    settings: dict[str, object] = {"version": version, "tp_size": ranks, "backend": backend}
    less = plan(None, state, None, settings, memory)
    more = plan(None, state, None, settings, memory + memory // 3)
    assert less.blocks <= more.blocks
    assert less.budget_bytes is not None
    block = less.tokens_per_block * less.bytes_per_token
    assert less.pool_bytes <= less.budget_bytes + block


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.lists(st.integers(1, 5000), max_size=3), st.just({"a": 1}), st.integers(1, 10**6),
)  # fmt: skip


@given(
    settings=st.dictionaries(st.sampled_from([*KNOWN, "x"]), JUNK, max_size=5),
    state=st.sampled_from(MODELS),
    config=st.none()
    | st.dictionaries(
        st.sampled_from(["dtype", "text_config", "max_position_embeddings"]), JUNK, max_size=2
    ),
    memory=st.none() | st.integers(-1, 2**60),
)
def test_fuzzed_settings_are_answered_or_refused(
    settings: dict[str, object], state: ModelState, config: dict[str, object] | None,
    memory: int | None,
) -> None:  # fmt: skip
    """Whatever is set to whatever, there is a plan or a refusal that names a field."""
    refusal: DomainError | None = None
    tokens = -1
    try:
        tokens = plan(None, state, config, settings, memory).tokens
    except DomainError as error:
        refusal = error
    assert tokens >= 0 if refusal is None else bool(refusal.field and str(refusal))


# Versions


@pytest.mark.parametrize("version", ["0.5", "v0.21.0", "1.0.0rc1", "1.3"])
def test_releases_that_were_made_are_taken(version: str) -> None:
    """The ends of every series are releases; a leading v and what stands behind are allowed."""
    assert planned(DENSE, version=version, max_tokens=640).version.startswith(
        version[:3].lstrip("v")
    )


@pytest.mark.parametrize("version", ["0.22", "0.33.0", "1.4", "9.9", 0.33, 5])
def test_what_is_no_release_is_refused(version: object) -> None:
    """A version is a release as text; none is put in the place of one that was never made."""
    with pytest.raises((Unknown, OutOfRange)) as refused:
        planned(DENSE, version=version, max_tokens=640)
    assert refused.value.field == ("version",)

"""SGLang's pools: measured tensors, published logs, budgets by release, refusals."""

from __future__ import annotations

import json
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
    ChunkedAttention,
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
from app.engines.measured import EXACT, PRINTED, sglang_run
from app.engines.measured_logs import log_result
from app.engines.sglang import KNOWN, SglangPlan, plan

DATA = Path(__file__).parents[1] / "data"
RUNS: list[dict[str, Any]] = [
    case
    for case in json.loads((DATA / "engine_runs.json").read_text())
    if case["engine"] != "llama.cpp"
]
LOGS: list[dict[str, Any]] = [
    case
    for case in json.loads((DATA / "engine_logs.json").read_text())
    if case["engine"] == "sglang"
]
GIB = 2**30


def layers_of(*states: State, times: int = 1) -> ModelState:
    """Return a model with one layer for each state, repeated."""
    return ModelState.of_layers([Layer(states=(state,)) for state in states] * times)


FULL = FullAttention(kv_heads=8, k_dim=64, v_dim=64)
WINDOW = SlidingWindow(kv_heads=8, k_dim=64, v_dim=64, window=128)
LATENT = LatentAttention(latent_dim=512, rope_dim=64)
INDEXED = LatentAttention(latent_dim=512, rope_dim=64, index_dim=128)
CHUNKED = ChunkedAttention(kv_heads=8, k_dim=128, v_dim=128, chunk=8192)
RECURRENT = Recurrent(
    tensors=(
        StateTensor(name="conv", shape=(10240, 3), dtype=dtype_named("bf16"), split_axis=0),
        StateTensor(name="ssm", shape=(48, 128, 128), dtype=dtype_named("fp32"), split_axis=0),
    )
)
WIDE = FullAttention(kv_heads=4, k_dim=256, v_dim=256)
DENSE = ModelState.uniform(layers=64, kv_heads=8, head_dim=128)
OSS = layers_of(WINDOW, FULL, times=12)
HYBRID = layers_of(RECURRENT, RECURRENT, RECURRENT, WIDE, times=16)
DEEPSEEK = layers_of(LATENT, times=61)
SPARSE = layers_of(INDEXED, times=61)


def planned(state: ModelState, available: int | None = None, /, **settings: object) -> SglangPlan:
    """Return the plan of a model whose config says nothing."""
    return plan(None, state, None, settings, available)


def overheads(answer: SglangPlan) -> dict[str, int]:
    """Return what is spent beyond the need, by its code."""
    return {part.code: part.bytes for part in answer.overheads}


# Measured


def test_there_are_runs_and_logs() -> None:
    """The measured files are there, whole."""
    assert len(RUNS) == 71
    assert len(LOGS) == 9


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_measured_pools(number: int) -> None:
    """Every tensor that the engine's own pools allocated is reproduced to the byte."""
    result = sglang_run(RUNS[number], number)
    assert result.figures
    assert result.verdict == EXACT, result


@pytest.mark.parametrize("case", LOGS, ids=lambda case: case["id"])
def test_published_logs(case: dict[str, Any]) -> None:
    """Every size that a published log prints is reproduced to its digit."""
    result = log_result(case)
    assert result.figures
    assert result.verdict == PRINTED, result


# Memory to tokens


def test_a_server_keeps_a_share_of_the_memory_that_was_free() -> None:
    """What must stay free is a share of what was free before the load, not of the card."""
    memory = {"free_before_load_gib": 21.63, "free_after_load_gib": 6.09}
    given = planned(DENSE, tp_size=4, version="0.4.3", mem_fraction_static=0.85, **memory)
    assert (given.tokens, given.cell_bytes) == (46_620, 65_536)
    # 0.85 is the default of four ranks in this release.
    assert planned(DENSE, tp_size=4, version="0.4.3", **memory).tokens == 46_620


@pytest.mark.parametrize(("ranks", "tokens"), [(1, 3276), (2, 5734), (4, 8191), (8, 3276)])
def test_old_shares_by_ranks(ranks: int, tokens: int) -> None:
    """Up to 0.4.6 the share falls with the ranks: 88, 87, 85, 81 %, in the engine's own floats."""
    answer = planned(DENSE, version="0.4.6", tp_size=ranks, free_before_load_gib=10,
                     free_after_load_gib=2)  # fmt: skip
    assert answer.tokens == tokens


def test_a_share_may_leave_nothing() -> None:
    """Sixteen ranks keep 21 % of what was free: with less after the load, no pool is left."""
    with pytest.raises(OutOfRange, match="mem_fraction_static leaves nothing"):
        planned(DENSE, version="0.4.6", tp_size=16, free_before_load_gib=10, free_after_load_gib=2)


def test_a_later_release_needs_its_share() -> None:
    """After 0.4.6 the default share follows batch sizes and the card, so it must be given."""
    with pytest.raises(Missing, match="mem_fraction_static"):
        planned(DENSE, free_before_load_gib=80, free_after_load_gib=40)


def test_memory_given_is_spent_whole() -> None:
    """Available bytes hold so many tokens of the cell; the spare page comes on top."""
    answer = planned(DENSE, 10 * GIB)
    assert answer.cell_bytes == 64 * 8 * 2 * 128 * 2
    assert answer.tokens == 10 * GIB // 262_144
    assert answer.budget_bytes == 10 * GIB
    assert answer.pool_bytes == (answer.tokens + 1) * 262_144
    assert overheads(answer) == {"spare_page": 262_144}
    assert [note.code for note in answer.assumptions] == ["dtype_default", "budget_given"]


def test_tokens_are_whole_pages() -> None:
    """Tokens are rounded down to pages, and one page is spare."""
    answer = planned(DENSE, 10 * GIB, page_size=64)
    assert answer.tokens == 10 * GIB // 262_144 // 64 * 64
    assert answer.pools[0].rows == answer.tokens + 64


def test_the_smaller_of_memory_and_limit() -> None:
    """max_total_tokens bounds what memory would hold, and does not raise it."""
    assert planned(DENSE, 10 * GIB, max_total_tokens=1000).tokens == 1000
    assert planned(DENSE, 10 * GIB, max_total_tokens=10**9).tokens == 40_960


def test_something_must_say_how_many_tokens() -> None:
    """Without memory and without a limit there is no answer."""
    with pytest.raises(Missing, match="max_total_tokens"):
        planned(DENSE)


def test_heads_are_divided_and_then_copied() -> None:
    """More ranks than heads keep one head each, and the copies are named."""
    answer = planned(DENSE, tp_size=16, page_size=128, max_total_tokens=387_968)
    assert answer.pool_bytes == 64 * (387_968 + 128) * 512
    assert overheads(answer)["copied_heads"] == answer.pool_bytes // 2


@pytest.mark.parametrize(("heads", "ranks"), [(5, 2), (3, 8), (8, 7), (8, 12)])
def test_heads_that_ranks_do_not_divide_are_refused(heads: int, ranks: int) -> None:
    """Key-value heads divide by the ranks or are copied to as many ranks each; else no start."""
    state = ModelState.uniform(layers=2, kv_heads=heads, head_dim=64)
    with pytest.raises(Conflict, match=rf"tp_size: {heads} key-value heads can neither") as refused:
        planned(state, tp_size=ranks, max_total_tokens=320)
    assert refused.value.field == ("tp_size",)


def test_query_heads_divide_by_the_ranks_of_attention() -> None:
    """Where a config names its query heads, attention's own ranks must divide them."""
    config = {"num_attention_heads": 40}
    with pytest.raises(Conflict, match="tp_size: 40 attention heads do not divide by 16 tensor"):
        plan(None, DENSE, config, {"tp_size": 16, "max_total_tokens": 320})
    fewer = {"tp_size": 16, "dp_size": 2, "enable_dp_attention": True, "max_total_tokens": 320}
    assert plan(None, DENSE, config, fewer).cell_bytes == 32_768
    with pytest.raises(Conflict, match="tp_size: 40 attention heads do not divide by 16 tensor"):
        plan(None, DEEPSEEK, config, {"tp_size": 16, "max_total_tokens": 320})


def test_attention_data_parallel_divides_less() -> None:
    """With attention data parallel, heads are divided among tp / dp ranks."""
    answer = planned(DENSE, tp_size=8, dp_size=4, enable_dp_attention=True, max_total_tokens=100)
    assert answer.cell_bytes == planned(DENSE, tp_size=2, max_total_tokens=100).cell_bytes
    # Data parallel alone makes whole copies of the server.
    alone = planned(DENSE, tp_size=8, dp_size=4, max_total_tokens=100)
    assert alone.cell_bytes == planned(DENSE, tp_size=8, max_total_tokens=100).cell_bytes


def test_pipeline_stages_divide_layers() -> None:
    """The stage that holds the fewest tokens decides."""
    assert planned(DENSE, 10 * GIB, pp_size=4).tokens == 4 * 40_960
    uneven = layers_of(FULL, FULL, WIDE, WIDE)
    answer = planned(uneven, 10 * GIB, pp_size=2)
    assert answer.cell_bytes == 2 * 4 * 512 * 2


def test_values_of_their_own_width_count_since_a_release() -> None:
    """Before 0.5.7 the budget took values as wide as keys; the pools never did."""
    state = layers_of(FullAttention(kv_heads=4, k_dim=192, v_dim=128), times=10)
    old = planned(state, GIB, version="0.5.6")
    new = planned(state, GIB, version="0.5.7")
    assert (old.cell_bytes, new.cell_bytes) == (10 * 4 * 384 * 2, 10 * 4 * 320 * 2)
    assert old.pool_bytes == (old.tokens + 1) * 10 * 4 * 320 * 2


# Formats


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("auto", 4096), ("bf16", 4096), ("float16", 4096), ("float32", 8192), ("fp8_e5m2", 2048),
        ("mxfp8", 2048 + 64), ("fp4_e2m1", 1024 + 128),
    ],
)  # fmt: skip
def test_formats(kind: str, row: int) -> None:
    """A row takes its elements and, in block formats, a scale for 32 or 16 of them."""
    answer = planned(layers_of(FullAttention(kv_heads=8, k_dim=128, v_dim=128)),
                     max_total_tokens=99, kv_cache_dtype=kind)  # fmt: skip
    assert answer.pools[0].row_bytes == row
    assert answer.pool_bytes == 100 * row


@pytest.mark.parametrize(
    ("settings", "config", "row", "assumed"),
    [
        ({}, None, 2, ["dtype_default"]),
        ({}, {"torch_dtype": "float32"}, 4, []),
        ({}, {"text_config": {"dtype": "float16"}}, 2, []),
        ({}, {"llm_config": {"dtype": "float32"}}, 4, []),
        ({"dtype": "float32"}, {"dtype": "float16"}, 4, []),
        ({"dtype": "float32", "kv_cache_dtype": "fp8"}, None, 1, []),
    ],
)
def test_format_in_order(
    settings: dict[str, object], config: dict[str, object] | None, row: int, assumed: list[str]
) -> None:
    """The cache's own format goes before the flag of the model, its config, and bfloat16."""
    state = layers_of(FullAttention(kv_heads=1, k_dim=1, v_dim=1))
    answer = plan(None, state, config, settings | {"max_total_tokens": 9})
    assert answer.pools[0].row_bytes == 2 * row
    assert [note.code for note in answer.assumptions] == assumed


# Latent layers


def test_a_latent_is_kept_whole_by_every_rank() -> None:
    """Tensor ranks copy the compressed vector: the pool does not shrink, the copies are named."""
    one = planned(DEEPSEEK, max_total_tokens=274_934, version="0.4.6")
    assert one.printed == ("KV Cache is allocated. #tokens: 274934, KV size: 17.99 GB",)
    assert one.pool_bytes == 61 * 274_935 * 1152
    eight = planned(DEEPSEEK, max_total_tokens=274_934, version="0.4.6", tp_size=8)
    assert eight.pool_bytes == one.pool_bytes
    assert overheads(eight)["copied_heads"] == one.pool_bytes - one.pool_bytes // 8


def test_a_sparse_latent_in_fp8() -> None:
    """Sparse models keep 656 B of latent and 132 B of index key a token in fp8, pages of 64."""
    answer = planned(SPARSE, 10 * GIB, kv_cache_dtype="fp8", version="0.5.4")
    assert answer.page_size == 64
    assert answer.cell_bytes == 61 * (656 + 132)
    assert answer.tokens == 10 * GIB // (61 * 788) // 64 * 64
    index = 61 * (answer.tokens + 64) * 132
    assert overheads(answer)["index_keys"] == index
    assert answer.pool_bytes == 61 * (answer.tokens + 64) * 656 + index
    assert answer.request.slope_bytes_per_token == 61 * 788


def test_raw_layout_has_a_byte_for_each_element() -> None:
    """The raw layout of sparse models in fp8 keeps 576 B."""
    answer = planned(SPARSE, max_total_tokens=64, kv_cache_dtype="fp8", nsa_raw_layout=True)
    assert answer.cell_bytes == 61 * (576 + 132)


def test_index_keys_entered_budget_and_log_at_a_release() -> None:
    """Before 0.5.4 neither the budget nor the line counts index keys, though they are allocated."""
    old = planned(SPARSE, GIB, version="0.5.3")
    new = planned(SPARSE, GIB, version="0.5.4")
    assert (old.cell_bytes, new.cell_bytes) == (61 * 1152, 61 * (1152 + 132))
    assert old.pool_bytes > GIB
    size = old.pool_bytes - overheads(old)["index_keys"]
    assert old.printed[-1].endswith(f"KV size: {size / GIB:.2f} GB")
    assert new.printed[-1].endswith(f"KV size: {new.pool_bytes / GIB:.2f} GB")


def test_shared_indexers_count_once() -> None:
    """Since 0.5.23 only layers that own an indexer keep index keys."""
    state = layers_of(INDEXED, LATENT, LATENT, times=10)
    old = planned(state, max_total_tokens=64, version="0.5.22")
    new = planned(state, max_total_tokens=64, version="0.5.23")
    assert old.cell_bytes - new.cell_bytes == 20 * 132


def test_latent_in_fp4_has_scales() -> None:
    """Four-bit latents keep one scale for 16 elements."""
    answer = planned(DEEPSEEK, max_total_tokens=99, kv_cache_dtype="fp4_e2m1")
    assert answer.cell_bytes == 61 * (288 + 36)
    assert answer.pool_bytes == 100 * 61 * 324


# Windows


@pytest.mark.parametrize(
    ("version", "tokens", "windowed", "line"),
    [
        ("0.4.8", 218_453, None, "KV Cache is allocated. #tokens: 218453"),
        ("0.5.6", 242_725, 194_180, "Use Sliding window memory pool. full_layer_tokens=242725"),
        ("0.5.15", 242_725, 194_180, "Use sliding window memory pool. full_layer_tokens=242725"),
    ],
)
def test_windows_by_release(version: str, tokens: int, windowed: int | None, line: str) -> None:
    """Since 0.4.9 windowed layers have a pool of 0.8 as many tokens; before, they lie with all."""
    answer = planned(OSS, 10 * GIB, version=version)
    assert (answer.tokens, answer.window_tokens) == (tokens, windowed)
    assert answer.printed[0].startswith(line)
    layers = 24 if windowed is None else 12
    assert [pool.layers for pool in answer.pools] == [layers] * (24 // layers)


def test_window_pool_can_be_refused() -> None:
    """Without the hybrid pool all layers keep every token."""
    answer = planned(OSS, 10 * GIB, disable_hybrid_swa_memory=True)
    assert [(pool.name, pool.layers) for pool in answer.pools] == [("full", 24)]
    assert answer.window_tokens is None


def test_windows_of_another_shape_lie_apart() -> None:
    """Windowed layers with other heads get a pool of their own, of the same tokens."""
    other = SlidingWindow(kv_heads=4, k_dim=128, v_dim=128, window=128)
    answer = planned(layers_of(other, FULL), 10 * GIB, disable_hybrid_swa_memory=True)
    assert [(pool.name, pool.tokens) for pool in answer.pools] == [
        ("window", answer.tokens), ("full", answer.tokens),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "tokens", "windowed"), [("0.5.6", 80_625, 24_187), ("0.5.23", 81_000, 24_000)]
)
def test_window_ratio_and_pages(version: str, tokens: int, windowed: int) -> None:
    """The ratio divides rounded tokens before 0.5.15, bytes after; then both are whole pages."""
    state = layers_of(WINDOW, WINDOW, FULL)
    answer = planned(state, 2**28, version=version, swa_full_tokens_ratio=0.3, page_size=1000)
    assert (answer.tokens, answer.window_tokens) == (tokens, windowed)


def test_only_windows() -> None:
    """A model with nothing but windows keeps as many tokens there as fit."""
    answer = planned(layers_of(WINDOW, times=4), 2**28, version="0.5.23")
    assert answer.tokens == answer.window_tokens == 2**28 // (4 * 2048)
    old = planned(layers_of(WINDOW, times=4), 2**28, version="0.5.6")
    assert (old.tokens, old.window_tokens) == (40_960, 32_768)


def test_limit_bounds_window_pools() -> None:
    """A limit of tokens is the full layers' number since 0.5.15."""
    answer = planned(OSS, max_total_tokens=1000, version="0.5.15")
    assert (answer.tokens, answer.window_tokens) == (1000, 800)


def test_a_request_stops_growing_in_windows() -> None:
    """A window's part of a request stops at its window, in whole pages; the rest is the slope."""
    answer = planned(OSS, 10 * GIB, page_size=64)
    assert answer.request.slope_bytes_per_token == 12 * 2048
    assert answer.request.bytes_at(100_032) == 12 * 2048 * (100_032 + 128)
    assert answer.request.bytes_at(1) == 24 * 2048 * 64


@pytest.mark.parametrize(
    ("settings", "tokens", "windowed"),
    [
        ({"version": "0.5.6"}, 16_384, None),
        ({"version": "0.5.6", "hybrid_kvcache_ratio": 0, "context_length": 99}, 16_384, 16_384),
        ({"version": "0.5.6", "hybrid_kvcache_ratio": 1, "context_length": 16_384}, 26_215, 13_107),
        ({"version": "0.5.23"}, 19_275, 15_420),
    ],
)
def test_chunks_by_release(settings: dict[str, object], tokens: int, windowed: int | None) -> None:
    """Chunked layers get a pool when a ratio asks for it, and since 0.5.15 always."""
    state = layers_of(CHUNKED, CHUNKED, CHUNKED, FullAttention(kv_heads=8, k_dim=128, v_dim=128))
    answer = planned(state, 2**28, **settings)
    assert (answer.tokens, answer.window_tokens) == (tokens, windowed)


def test_a_chunk_ratio_needs_the_context() -> None:
    """The chunk's share of the context divides the tokens, so the context must be known."""
    with pytest.raises(Missing, match="context_length"):
        planned(layers_of(CHUNKED), GIB, version="0.5.6", hybrid_kvcache_ratio=0.5)


# States


def test_states_have_slots() -> None:
    """Recurrent layers get slots: one more than asked for, the tail in bf16, the state as set."""
    answer = planned(HYBRID, max_total_tokens=171_008, max_mamba_cache_size=43,
                     mamba_ssm_dtype="bfloat16", draft_layers=1)  # fmt: skip
    assert answer.state_slots == 43
    assert answer.pools[0].parts == {
        "conv": 48 * 44 * 10_240 * 3 * 2, "ssm": 48 * 44 * 48 * 128 * 128 * 2,
    }  # fmt: skip
    assert answer.printed == (
        (
            "Mamba Cache is allocated. max_mamba_cache_size: 43, conv_state size: 0.12GB,"
            " ssm_state size: 3.09GB"
        ),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 171008, K size: 5.22 GB,"
            " V size: 5.22 GB"
        ),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 171008, K size: 0.33 GB,"
            " V size: 0.33 GB"
        ),
    )
    assert answer.request.fixed_bytes == 48 * (10_240 * 3 + 48 * 128 * 128) * 2


def test_states_share_the_memory() -> None:
    """States take ratio / (1 + ratio) of the memory, 0.9 by default, and attention the rest."""
    answer = planned(HYBRID, 40 * GIB, context_length=262_144)
    assert (answer.state_slots, answer.tokens) == (132, 345_292)
    assert answer.max_concurrency == "1.32"
    few = planned(HYBRID, 40 * GIB, mamba_full_memory_ratio=0.1)
    assert few.state_slots == 25
    assert few.tokens == (40 * GIB - 25 * 153_944_064) // 65_536


def test_states_are_divided_among_ranks() -> None:
    """Tensor ranks divide channels and heads of a state, where they divide evenly."""
    one = planned(HYBRID, max_total_tokens=64, max_mamba_cache_size=9)
    two = planned(HYBRID, max_total_tokens=64, max_mamba_cache_size=9, tp_size=2)
    assert two.pools[0].bytes * 2 == one.pools[0].bytes
    with pytest.raises(Conflict, match="tp_size 32 does not divide the state axis of 48"):
        planned(HYBRID, max_total_tokens=64, max_mamba_cache_size=9, tp_size=32)


def test_a_state_without_slots_is_not_guessed() -> None:
    """Without memory the slots must be given."""
    with pytest.raises(Missing, match="max_mamba_cache_size"):
        planned(HYBRID, max_total_tokens=64)


def test_nothing_but_states() -> None:
    """A model without attention has slots and no token pool."""
    answer = planned(layers_of(RECURRENT, times=4), 4 * GIB)
    assert answer.tokens == 0
    assert answer.cell_bytes == 0
    assert [pool.name for pool in answer.pools] == ["mamba"]
    assert answer.request.slope_bytes_per_token == 0


def test_states_beyond_the_memory_leave_nothing() -> None:
    """Slots that take more than there is leave no token."""
    assert planned(HYBRID, GIB, max_mamba_cache_size=100).tokens == 0


def test_empty_states_take_no_pool() -> None:
    """A state without elements is no state."""
    empty = Recurrent(tensors=(StateTensor(name="s", shape=(0,), dtype=dtype_named("fp32")),))
    answer = planned(layers_of(empty, FULL), max_total_tokens=10)
    assert [pool.name for pool in answer.pools] == ["full"]


# Drafts


def test_drafts_count_since_a_release() -> None:
    """Draft layers are allocated beside the model's, and in the budget since 0.5.10."""
    old = planned(DENSE, GIB, version="0.5.9", draft_layers=1)
    new = planned(DENSE, GIB, version="0.5.10", draft_layers=1)
    assert (old.cell_bytes, new.cell_bytes) == (64 * 4096, 65 * 4096)
    assert old.pool_bytes > GIB
    assert [pool.name for pool in old.pools] == ["full", "draft"]


def test_latents_have_no_draft_pool_here() -> None:
    """A draft is as wide as the plain attention layers; a latent model has none."""
    answer = planned(DEEPSEEK, max_total_tokens=9, draft_layers=1)
    assert [pool.name for pool in answer.pools] == ["latent"]


# Words


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.3.6", "KV Cache is allocated. K size: 0.24 GB, V size: 0.24 GB"),
        ("0.4.4.post1", "KV Cache is allocated. #tokens: 1000, K size: 0.24 GB, V size: 0.24 GB"),
        ("0.5.15", ("KV Cache is allocated. dtype: torch.float16, #tokens: 1000, K size: 0.24 GB,"
         " V size: 0.24 GB")),
    ],
)  # fmt: skip
def test_lines_by_release(version: str, line: str) -> None:
    """The same pool is announced with more words in later releases."""
    answer = planned(ModelState.uniform(layers=64, kv_heads=16, head_dim=128), version=version,
                     max_total_tokens=1000, kv_cache_dtype="fp16")  # fmt: skip
    assert answer.printed == (line,)
    assert answer.version == version


def test_formula_adds_up() -> None:
    """The formula names each pool's layers, rows and bytes, and the total of several pools."""
    answer = planned(OSS, max_total_tokens=1000)
    assert answer.formula == (
        "window: 12 layers × 801 rows × 2048 B = 19685376 B",
        "full: 12 layers × 1001 rows × 2048 B = 24600576 B",
        "total = 44285952 B",
    )
    assert planned(SPARSE, max_total_tokens=64).formula == (
        "latent: 61 layers × 128 rows × 1152 B + 1030656 B of index keys = 10025472 B",
    )


@pytest.mark.parametrize(
    ("config", "settings", "context", "concurrency"),
    [
        (None, {}, None, None),
        ({"max_position_embeddings": 400}, {}, 400, "2.50"),
        ({"text_config": {"max_position_embeddings": 300}}, {}, 300, "3.33"),
        ({"llm_config": {"max_position_embeddings": 300}}, {}, 300, "3.33"),
        ({"max_position_embeddings": 400}, {"context_length": 100}, 100, "10.00"),
        ({"max_position_embeddings": "many"}, {}, None, None),
    ],
)
def test_concurrency_by_context(
    config: dict[str, object] | None, settings: dict[str, object], context: int | None,
    concurrency: str | None,
) -> None:  # fmt: skip
    """Requests of the full context, by the flag or else the config; unknown where neither says."""
    answer = plan(None, DENSE, config, settings | {"max_total_tokens": 1000})
    assert (answer.context_tokens, answer.max_concurrency) == (context, concurrency)


# Refusals


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"version": "0.3.5"}, OutOfRange, "version must be between 0.3.6 and 0.5.23"),
        ({"version": "0.6.0"}, OutOfRange, "version must be between 0.3.6 and 0.5.23"),
        ({"version": "main"}, Unknown, "version must be a release such as 0.5.23"),
        ({"version": 5}, Unknown, "version must be a release such as 0.5.23"),
        ({"speed": 1}, Unknown, "speed is no setting of this engine"),
        ({"tp": 2, "tp_size": 2}, Conflict, "tp_size is given twice"),
        ({"tp": 0}, OutOfRange, "tp_size"),
        ({"tp": "2"}, WrongType, "tp_size"),
        ({"pp_size": 3}, Conflict, "pp_size 3 does not divide the 64 layers"),
        ({"page_size": 0}, OutOfRange, "page_size"),
        ({"mem_fraction_static": 1.5}, OutOfRange, "mem_fraction_static"),
        ({"mem_fraction_static": float("nan")}, OutOfRange, "mem_fraction_static"),
        ({"kv_cache_dtype": "int4"}, Unknown, "kv_cache_dtype must be one of"),
        ({"dtype": 16}, Unknown, "dtype must be one of"),
        ({"mamba_ssm_dtype": "fp8_e4m3"}, Unknown, "mamba_ssm_dtype must be one of"),
        ({"swa_full_tokens_ratio": 0}, OutOfRange, "swa_full_tokens_ratio"),
        ({"hybrid_kvcache_ratio": 2}, OutOfRange, "hybrid_kvcache_ratio"),
        ({"enable_dp_attention": "yes"}, WrongType, "enable_dp_attention"),
        ({"enable_dp_attention": True, "tp": 4, "dp": 3}, Conflict, "dp_size 3"),
        ({"free_before_load_gib": -1}, OutOfRange, "free_before_load_gib"),
    ],
)
def test_settings_are_checked(
    settings: dict[str, object], error: type[DomainError], text: str
) -> None:
    """Each setting is known by name, typed and bounded; the refusal names it."""
    with pytest.raises(error, match=text):
        plan(None, DENSE, None, {"max_total_tokens": 100} | settings)


def test_a_model_is_needed() -> None:
    """Settings alone plan nothing."""
    with pytest.raises(Missing, match="model"):
        plan(None, None, None, {"max_total_tokens": 100})


def test_memory_is_bounded() -> None:
    """Available bytes are a whole number within bounds."""
    with pytest.raises(OutOfRange, match="available_bytes"):
        planned(DENSE, -1)


def test_a_config_of_an_unknown_format_is_refused() -> None:
    """A dtype that the engine does not know is named, not replaced."""
    with pytest.raises(Unknown, match="dtype must be one of"):
        plan(None, DENSE, {"dtype": "int7"}, {"max_total_tokens": 9})


@pytest.mark.parametrize(
    ("layers", "what"),
    [
        ((CrossAttention(kv_heads=1, k_dim=8, v_dim=8, encoder_tokens=9),), "cross_attention"),
        ((WINDOW, CHUNKED), "windows beside chunks"),
        ((LATENT, FULL), "latent beside plain attention"),
        ((FullAttention(kv_heads=1, k_dim=8, v_dim=8, index_dim=8),), "index keys beside plain"),
        ((FULL, WIDE), "different heads, widths or windows"),
        ((LATENT, LatentAttention(latent_dim=256, rope_dim=64)), "latent layers of different"),
        ((LatentAttention(latent_dim=512, rope_dim=64, tokens_per_entry=4),), "compressed entries"),
        ((LatentAttention(latent_dim=512, rope_dim=64, window=128),), "compressed entries"),
        ((INDEXED, LatentAttention(latent_dim=512, rope_dim=64, index_dim=64)), "latent layers"),
        ((RECURRENT, Recurrent(tensors=RECURRENT.tensors[:1])), "recurrent states of different"),
    ],
)
def test_layers_without_a_pool_are_refused(layers: tuple[State, ...], what: str) -> None:
    """Layers that no pool of this engine is known to hold are refused, saying which."""
    with pytest.raises(Unsupported, match=what):
        planned(layers_of(*layers), max_total_tokens=9, max_mamba_cache_size=9)


def test_shared_layers_keep_nothing() -> None:
    """A layer that reads another's keys has no rows of its own."""
    answer = planned(layers_of(FULL, Shared(with_layer=0)), max_total_tokens=9)
    assert answer.cell_bytes == 2048


# Whatever comes


@given(
    memory=st.integers(0, 2**40),
    page=st.sampled_from([1, 16, 64, 256]),
    ranks=st.sampled_from([1, 2, 4, 8, 16]),
    version=st.sampled_from(["0.4.6", "0.5.6", "0.5.14", "0.5.15", "0.5.23"]),
    state=st.sampled_from([DENSE, OSS, HYBRID, DEEPSEEK, SPARSE]),
)
def test_more_memory_holds_no_fewer_tokens(
    memory: int, page: int, ranks: int, version: str, state: ModelState
) -> None:
    """Tokens or slots grow with memory, are whole pages, and pools less the spare fit it."""
    settings: dict[str, object] = {"version": version, "page_size": page, "tp_size": ranks}
    less = plan(None, state, None, settings, memory)
    more = plan(None, state, None, settings, memory + memory // 3)
    # One more slot is taken off the tokens.
    if less.state_slots == more.state_slots:
        assert less.tokens <= more.tokens
    assert (less.state_slots or 0) <= (more.state_slots or 0)
    # The old division by ratio left window pools unrounded.
    if state is not OSS or version not in {"0.5.6", "0.5.14"}:
        assert less.tokens % page == 0
    # The first releases did not count index keys.
    if state is not SPARSE or version != "0.4.6":
        assert less.pool_bytes - overheads(less).get("spare_page", 0) <= memory


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=3), st.just({"a": 1}),
)  # fmt: skip


@given(
    settings=st.dictionaries(st.sampled_from([*KNOWN, "x"]), JUNK, max_size=5),
    state=st.sampled_from([DENSE, OSS, HYBRID, DEEPSEEK, SPARSE, layers_of(CHUNKED, FULL)]),
    config=st.none() | st.dictionaries(
        st.sampled_from(["dtype", "text_config", "max_position_embeddings"]), JUNK, max_size=2
    ),
    memory=st.none() | st.integers(-1, 2**60),
)  # fmt: skip
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


@pytest.mark.parametrize("version", ["0.3.6", "v0.4.10", "0.4.6.post5", "0.5.23"])
def test_releases_that_were_made_are_taken(version: str) -> None:
    """The ends of every series are releases; a leading v and what stands behind are allowed."""
    assert planned(DENSE, version=version, max_total_tokens=640).version.startswith(
        version[:3].lstrip("v")
    )


@pytest.mark.parametrize(
    "version", ["0.3.7", "0.4.11", "0.4.6.post99999", "0.5.24", "0.6.0", "9.9", 0.5, 5]
)
def test_what_is_no_release_is_refused(version: object) -> None:
    """A version is a release as text; none is put in the place of one that was never made."""
    with pytest.raises((Unknown, OutOfRange)) as refused:
        planned(DENSE, version=version, max_total_tokens=640)
    assert refused.value.field == ("version",)

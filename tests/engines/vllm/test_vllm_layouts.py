"""Blocks, states and groups where the measured models have no case: by the rule, in numbers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, DomainError, Missing, OutOfRange, Unsupported
from app.domain.state import (
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    StateTensor,
)
from app.engines.vllm import plan
from app.engines.vllm.capacity import PoolSettings, fill_pool
from app.engines.vllm.grouping import form_groups
from app.engines.vllm.heads import kv_heads_per_rank
from app.engines.vllm.packing import packed_groups
from app.engines.vllm.printed import printed_lines
from app.engines.vllm.specs import (
    ChunkedSpec,
    CrossSpec,
    FullSpec,
    HiddenStateSpec,
    LayerSpec,
    MambaSpec,
    MlaSpec,
    RequestBounds,
    RingSpec,
    SlidingMlaSpec,
    SlidingSpec,
    UniformSpec,
)
from app.engines.vllm.spending import request_bytes
from app.engines.vllm.types import Group, Padding, on_workers
from app.engines.vllm.versions import NEWEST, release
from app.readers.hf_config import read_config
from tests.engines.vllm.cases import load

CONFIGS: dict[str, dict[str, Any]] = load("vllm_architecture_configs")
GIB = 2**30
LATEST = release(NEWEST)
FULL = FullSpec(block_size=16, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16")
SLIDING = SlidingSpec(
    block_size=16, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16", window=1024
)
LATENT = MlaSpec(block_size=16, k_dim=576, dtype="bfloat16")
HIDDEN = HiddenStateSpec(block_size=16, kv_heads=1, k_dim=4096, dtype="bfloat16")
BOUNDS = RequestBounds(max_model_len=4096, in_flight_tokens=1024)


def state_plan(name: str, settings: dict[str, object]) -> Any:
    """Return the plan of one of the models written by hand, without bytes."""
    return plan(CONFIGS[name], read_config(CONFIGS[name]).state, settings, None)


# Block sizes


@pytest.mark.parametrize(
    ("name", "block_size", "text"),
    [
        ("llama3.1-8b", 24, "must be 16 or a multiple of it"),
        ("deepseek-v3.2", 16, "must be 64 or a multiple of it"),
        ("deepseek-v4-flash", 512, "must be 256, as"),
    ],
)
def test_a_block_that_no_kernel_takes_is_refused(name: str, block_size: int, text: str) -> None:
    """Attention kernels read blocks of 16 tokens or more."""
    with pytest.raises(OutOfRange, match=text):
        state_plan(name, {"block_size": block_size})


def test_states_alone_ask_no_kernel() -> None:
    """A pure state-space model takes any block; its state does not depend on it."""
    assert state_plan("mamba-2.8b", {"block_size": 7}).groups[0].page_size_bytes == 194560


@pytest.mark.parametrize(
    ("capability", "version", "size"),
    [("9.0", "0.33.0", 128), ("10.0", "0.33.0", 64), ("10.0", "0.30.0", 128)],
)
def test_windows_take_the_largest_block_of_their_kernel(
    capability: str, version: str, size: int
) -> None:
    """FlashInfer, first on Blackwell, takes 16, 32 and 64 tokens; since 0.31 windows follow it."""
    settings = {"block_size": 128, "device_capability": capability, "version": version}
    got = state_plan("mistral-7b-v0.1", settings)
    assert got.groups[0].block_size == size


@pytest.mark.parametrize(
    ("version", "settings", "mode"),
    [
        ("0.33.0", {}, "align"),
        ("0.33.0", {"enable_prefix_caching": False}, "none"),
        ("0.27.1", {}, "none"),
        ("0.27.1", {"enable_prefix_caching": True}, "align"),
        ("0.15.1", {"enable_prefix_caching": True}, "none"),
        ("0.31.0", {"enable_prefix_caching": True, "mamba_cache_mode": "all"}, "all"),
        ("0.31.0", {"enable_prefix_caching": True, "mamba_cache_mode": "none"}, "align"),
    ],
)
def test_states_follow_prefix_caching(version: str, settings: dict[str, object], mode: str) -> None:
    """Hybrids cache prefixes unless told otherwise since 0.28; modes exist since 0.16."""
    got = state_plan("granite4-h-small", settings | {"version": version})
    state = next(s for s in got.layer_specs[0].values() if isinstance(s, MambaSpec))
    assert state.cache_mode == mode


def test_several_prediction_modules_keep_more_behind_a_window() -> None:
    """Each reads one token further: two tokens ahead of two modules keep one more."""
    config = CONFIGS["mistral-7b-v0.1"] | {"num_nextn_predict_layers": 2}
    state = read_config(CONFIGS["mistral-7b-v0.1"]).state
    for method, retained in (("mtp", 1), ("ngram", 0)):
        settings = {"num_speculative_tokens": 2, "speculative_method": method}
        got = plan(config, state, settings, None)
        window = got.layer_specs[0]["layers.0.attn"]
        assert isinstance(window, SlidingSpec)
        assert window.extra_retained_tokens == retained


# States


def test_states_that_do_not_divide_are_refused() -> None:
    """24 heads of states do not divide over 16 ranks, though 32 attention heads do."""
    tensors = (
        StateTensor(name="conv", shape=(48, 3), dtype=DTYPES["bf16"], split_axis=0),
        StateTensor(name="ssm", shape=(24, 8, 8), dtype=DTYPES["fp32"], split_axis=0),
    )
    attention = FullAttention(kv_heads=16, k_dim=64, v_dim=64)
    for kept in (tensors[1:], (replace(tensors[0], shape=(40, 3)),)):
        model = ModelState.of_layers([
            Layer(states=(Recurrent(tensors=kept),)), Layer(states=(attention,)),
        ])  # fmt: skip
        with pytest.raises(Conflict, match="over 16 tensor ranks"):
            plan({}, model, {"tensor_parallel_size": 16}, None)


def test_a_state_that_ranks_keep_whole_is_not_divided() -> None:
    """Without an axis of heads, every rank holds all of it."""
    state = Recurrent(tensors=(StateTensor(name="sum", shape=(7, 3), dtype=DTYPES["fp32"]),))
    model = ModelState.of_layers([Layer(states=(state,))])
    got = plan({}, model, {"tensor_parallel_size": 2}, None)
    assert got.groups[0].page_size_bytes == 7 * 3 * 4


def test_groups_of_mamba_2_are_copied_where_ranks_outnumber_them() -> None:
    """Nemotron-H: 8 groups over 16 ranks become 16 copies, 2 × 8 × 128 channels more."""
    config = CONFIGS["nemotron-h-8b"] | {"num_key_value_heads": 16}
    got = plan(config, read_config(config).state, {"tensor_parallel_size": 16}, None)
    state = next(s for s in got.layer_specs[0].values() if isinstance(s, MambaSpec))
    assert state.shapes == ((3, (10240 + 2 * 8 * 128) // 16), (8, 64, 128))


def test_a_convolution_alone_has_no_groups() -> None:
    """Nothing says how its channels fall into groups; they are divided as they are."""
    config = {"model_type": "bamba"}
    conv = StateTensor(name="conv", shape=(64, 3), dtype=DTYPES["bf16"], split_axis=0)
    model = ModelState.of_layers([Layer(states=(Recurrent(tensors=(conv,)),))])
    got = plan(config, model, {"tensor_parallel_size": 4}, None)
    state = next(iter(got.layer_specs[0].values()))
    assert isinstance(state, MambaSpec)
    assert state.shapes == ((3, 16),)


@pytest.mark.parametrize(
    ("settings", "dtypes"),
    [
        ({}, ("bfloat16", "float32")),
        ({"mamba_ssm_cache_dtype": "float16"}, ("bfloat16", "float16")),
        ({"mamba_cache_dtype": "float32"}, ("float32", "float32")),
    ],
)
def test_states_have_types_of_their_own(
    settings: dict[str, object], dtypes: tuple[str, str]
) -> None:
    """Nemotron-H sums in float32 unless a flag says otherwise."""
    got = state_plan("nemotron-h-8b", settings)
    state = next(s for s in got.layer_specs[0].values() if isinstance(s, MambaSpec))
    assert state.dtypes == dtypes


def test_a_bounded_gate_leaves_checkpoints_on_hopper() -> None:
    """Kimi's delta layers stop inside a prefill where their fused kernel runs (width 128)."""
    linear = CONFIGS["kimi-linear-48b"]["linear_attn_config"] | {"gate_lower_bound": -5.0}
    config = CONFIGS["kimi-linear-48b"] | {"linear_attn_config": linear}
    state = read_config(CONFIGS["kimi-linear-48b"]).state
    for capability, blocks in (("9.0", 3), ("8.0", 2)):
        got = plan(config, state, {"device_capability": capability}, None)
        assert {g.blocks_per_request for g in got.groups if g.kind == "mamba"} == {blocks}


def test_states_beside_nothing_that_sets_a_page_are_refused() -> None:
    """A hybrid's page is that of an attention layer."""
    config = {"model_type": "bamba"}
    state = Recurrent(tensors=(StateTensor(name="ssm", shape=(2, 2), dtype=DTYPES["fp32"]),))
    chunked = read_config(CONFIGS["llama4-scout-text"]).state.runs[0].layer
    model = ModelState.of_layers([Layer(states=(state,)), chunked])
    with pytest.raises(Unsupported, match="sets a page"):
        plan(config, model, {}, None)


# DeepSeek-V4


@pytest.mark.parametrize(
    ("change", "settings", "error", "text"),
    [
        ({"compress_ratios": None}, {}, Missing, "compress_ratios"),
        ({"compress_ratios": [4]}, {}, Missing, "for each of 43 layers"),
        ({"compress_ratios": [8] * 43}, {}, OutOfRange, "0, 1, 4 or 128"),
        ({"index_head_dim": None}, {}, Missing, "index_head_dim"),
        ({}, {"version": "0.28.0"}, Unsupported, "0.28.0 packs"),
        ({}, {"kv_cache_dtype": "bfloat16"}, Unsupported, "not in bfloat16"),
    ],
)
def test_compressed_layers_need_their_ratios(
    change: dict[str, object], settings: dict[str, object], error: type[DomainError], text: str
) -> None:
    """And a release and a format that are described here."""
    config = CONFIGS["deepseek-v4-flash"] | change
    with pytest.raises(error, match=text):
        plan(config, read_config(CONFIGS["deepseek-v4-flash"]).state, settings, None)


def test_ratios_may_stand_by_type_of_layer() -> None:
    """compress_rates by the names in layer_types is the same as a list."""
    plain = CONFIGS["deepseek-v4-flash"]
    words = {0: "sliding", 4: "sparse", 128: "compressed"}
    named = {key: value for key, value in plain.items() if key != "compress_ratios"} | {
        "layer_types": [words[ratio] for ratio in plain["compress_ratios"]],
        "compress_rates": {"sparse": 4, "compressed": 128},
    }
    state = read_config(plain).state
    assert plan(named, state, {}, GIB).groups == plan(plain, state, {}, GIB).groups


# Latents read as plain heads


def test_an_expanded_latent_needs_its_widths() -> None:
    """MiniCPM3 keeps 96 wide keys of 40 heads; without the widths there is no plan."""
    config = {"model_type": "minicpm3"}
    state = ModelState.of_layers([Layer(states=(LatentAttention(latent_dim=256, rope_dim=32),))])
    with pytest.raises(Missing, match="qk_nope_head_dim"):
        plan(config, state, {}, None)


def test_heads_that_ranks_can_neither_split_nor_copy_are_refused() -> None:
    """6 heads over 4 ranks."""
    with pytest.raises(Conflict, match="key-value heads"):
        kv_heads_per_rank(6, 4)


# Groups


def groups_of(layers: dict[str, LayerSpec], **more: Any) -> list[tuple[tuple[str, ...], int, int]]:
    """Return names, block size and page of each group."""
    found = form_groups(layers, release=LATEST, **more)
    return [(g.layers, g.spec.block_size, g.spec.page_bytes) for g in found.groups]


def test_a_model_without_layers_has_no_groups() -> None:
    """And nothing to warn of."""
    assert form_groups({}, release=LATEST).groups == ()


def test_hidden_states_take_a_group_each_on_the_common_page() -> None:
    """8,192 bytes a token on a page of 65,536: 8 tokens, the largest divisor of 16 within."""
    layers: dict[str, LayerSpec] = {"a": FULL, "b": SLIDING, "h": HIDDEN}
    assert groups_of(layers) == [
        (("a",), 16, 65536), (("b",), 16, 65536), (("h",), 8, 65536),
    ]  # fmt: skip


def test_a_hidden_state_beyond_the_page_grows_every_block() -> None:
    """One of 98,304 bytes a token needs pages of twice 65,536, and holds one token a block."""
    wide = replace(HIDDEN, k_dim=49152)
    padded = replace(SLIDING, page_bytes_padded=65536)
    layers: dict[str, LayerSpec] = {"a": FULL, "b": padded, "h": wide}
    assert groups_of(layers) == [
        (("a",), 32, 131072), (("b",), 32, 131072), (("h",), 1, 131072),
    ]  # fmt: skip


def test_hidden_states_stand_alone_beside_packed_groups() -> None:
    """In a block-outermost layout they are not packed."""
    small = replace(FULL, kv_heads=4)
    found = groups_of({"a": FULL, "b": small, "c": SLIDING, "h": HIDDEN}, block_outermost=True)
    assert found[-1] == (("h",), 16, HIDDEN.page_bytes)
    assert {name for names, _, _ in found for name in names} == {"a", "b", "c", "h"}


def test_pages_of_one_size_need_no_packing() -> None:
    """Then groups are formed as in any other layout."""
    assert packed_groups({"a": FULL, "b": SLIDING}) is None


def test_windows_become_full_where_the_hybrid_manager_is_off() -> None:
    """If any layer is full, windows and chunks are allocated as it is; latents of each kind too."""
    chunked = ChunkedSpec(
        block_size=16, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16", chunk=512
    )
    found = form_groups({"a": FULL, "b": SLIDING}, release=LATEST, hybrid_manager=False)
    assert [(g.layers, g.spec.kind) for g in found.groups] == [(("a", "b"), "full_attention")]
    assert found.hybrid_off_warning
    found = form_groups({"a": FULL, "b": chunked}, release=LATEST, hybrid_manager=False)
    assert [(g.layers, g.spec.kind) for g in found.groups] == [(("a", "b"), "full_attention")]
    window = SlidingMlaSpec(block_size=16, k_dim=576, dtype="bfloat16", window=128)
    found = form_groups({"a": LATENT, "b": window}, release=LATEST, hybrid_manager=False)
    assert [(g.layers, g.spec.page_bytes) for g in found.groups] == [(("a", "b"), 2 * 18432)]


def test_a_padded_window_stays_padded_when_it_becomes_full() -> None:
    """Its page is at least what its larger block holds."""
    padded = replace(SLIDING, block_size=8, page_bytes_padded=40000)
    found = form_groups({"a": FULL, "b": padded}, release=LATEST, hybrid_manager=False)
    assert found.groups[0].spec.page_bytes == 2 * 65536


@pytest.mark.parametrize("layers", [
    {"a": SLIDING, "b": replace(SLIDING, window=512)},
    {"a": FULL, "b": replace(SLIDING, block_size=32), "c": replace(FULL, block_size=32)},
])  # fmt: skip
def test_kinds_that_cannot_be_one_are_refused_with_the_manager_off(
    layers: dict[str, LayerSpec],
) -> None:
    """Two windows without a full layer, or full layers of two block sizes."""
    with pytest.raises(Unsupported, match="hybrid manager off"):
        form_groups(layers, release=LATEST, hybrid_manager=False)


def test_a_latent_beside_windows_that_no_page_fits_is_kept_in_full() -> None:
    """Since 0.27 with a warning; before, the engine could not start."""
    window = replace(SLIDING, kv_heads=1, k_dim=80, v_dim=80)
    layers: dict[str, LayerSpec] = {"a": LATENT, "b": window}
    found = form_groups(layers, release=release("0.28.0"))
    assert found.full_allocation_warning or len(found.groups) == 2
    wide = replace(SLIDING, kv_heads=5)
    layers = {"a": LATENT, "b": wide}
    found = form_groups(layers, release=LATEST)
    assert found.full_allocation_warning
    assert [g.layers for g in found.groups] == [("a", "b")]
    with pytest.raises(Unsupported, match="neither divides"):
        form_groups(layers, release=release("0.26.0"))


@pytest.mark.parametrize(
    "other",
    [
        replace(FULL, kv_heads=5),
        ChunkedSpec(block_size=16, kv_heads=5, k_dim=128, v_dim=128, dtype="bfloat16", chunk=64),
        SlidingMlaSpec(block_size=16, k_dim=1000, dtype="bfloat16", window=64),
    ],
)
def test_only_windows_beside_a_latent_are_kept_in_full(other: LayerSpec) -> None:
    """Any third kind whose page does not fit stops the engine."""
    layers: dict[str, LayerSpec] = {"a": LATENT, "b": replace(SLIDING, kv_heads=7), "c": other}
    if isinstance(other, FullSpec):
        assert form_groups(layers, release=LATEST).full_allocation_warning
        return
    with pytest.raises(Unsupported, match="neither divides"):
        form_groups(layers, release=LATEST)


def test_pages_that_differ_were_an_error_until_0_12() -> None:
    """Then smaller ones grew."""
    layers: dict[str, LayerSpec] = {"a": FULL, "b": replace(SLIDING, kv_heads=4)}
    with pytest.raises(Unsupported, match="different pages"):
        form_groups(layers, release=release("0.11.2"))
    found = form_groups(layers, release=release("0.12.0"))
    assert [g.spec.block_size for g in found.groups] == [16, 32]


def test_empty_places_are_a_share_of_their_kind() -> None:
    """Two empty places beside ten layers cost up to a fifth."""
    assert Padding(layers=2, bucket_layers=10, kind="full_attention").share == Fraction(1, 5)


# Bytes of a request


def test_a_ring_is_one_block_for_life() -> None:
    """The raw keys of the group of tokens that is being compressed."""
    ring = RingSpec(block_size=16, kv_heads=1, k_dim=64, v_dim=0, dtype="float32")
    got = request_bytes((Group(layers=("r",), spec=ring),), ring.page_bytes, BOUNDS, None)
    assert got.total_bytes == got.need_bytes == got.fixed_bytes == 4096
    assert got.slope_bytes_per_token == 0


def test_an_encoder_of_unknown_length_needs_what_is_reserved() -> None:
    """Where the model does not say how many positions its encoder has."""
    cross = CrossSpec(block_size=16, kv_heads=1, k_dim=64, v_dim=64, dtype="bfloat16")
    bounds = replace(BOUNDS, encoder_tokens=32)
    got = request_bytes((Group(layers=("c",), spec=cross),), cross.page_bytes, bounds, None)
    assert got.total_bytes == got.need_bytes == 2 * 4096


def test_states_of_every_block_grow_with_the_request() -> None:
    """The mode `all` keeps one a block."""
    state = MambaSpec(block_size=64, shapes=((8,),), dtypes=("float32",), cache_mode="all")
    got = request_bytes((Group(layers=("s",), spec=state),), 32, BOUNDS, None)
    assert got.total_bytes == 64 * 32
    assert got.slope_bytes_per_token == Fraction(32, 64)
    assert (got.fixed_bytes, got.need_bytes) == (0, 32)


# Lines that the measured releases do not show


def pool_lines(version: str, context_parallel: int, **more: Any) -> list[str]:
    """Return the lines about a pool of 512 blocks of one full layer."""
    bounds = replace(BOUNDS, decode_context_parallel=context_parallel)
    settings = PoolSettings(release=release(version), bounds=bounds, **more)
    pool = fill_pool([{"a": FULL}], [512 * 65536], settings)
    lines = printed_lines(
        pool, release(version), context_parallel=context_parallel,
        blocks_override=more.get("blocks_override"), auto_fit=more.get("auto_fit", False),
    )  # fmt: skip
    return [line.text for line in lines]


def test_context_ranks_multiply_the_printed_tokens() -> None:
    """0.10.2 to 0.20.0 print tokens of all context ranks, and say so."""
    assert pool_lines("0.10.2", 2) == [
        "Multiplying the GPU KV cache size by the dcp_world_size 2.",
        "GPU KV cache size: 16,384 tokens",
        "Maximum concurrency for 4,096 tokens per request: 4.00x",
    ]
    assert pool_lines("0.20.0", 2)[0] == (
        "Multiplying the GPU KV cache size by the cp_world_size 2"
        " (pcp_world_size 1 * dcp_world_size 2)."
    )
    assert pool_lines("0.33.0", 2) == [
        "GPU KV cache size: 16,384 tokens, Maximum concurrency for 4,096 tokens per request: 4.00x"
    ]


@pytest.mark.parametrize(
    ("version", "fits", "line"),
    [
        (
            "0.14.0", False,
            ("reduced from 4096000 to 8192 to fit in available GPU memory (0.03 GiB available for"
            " KV cache)"),
        ),
        ("0.14.0", True, "full model context length 4096 fits in available GPU memory"),
        (
            "0.33.0", False,
            "reduced from 4096000 to 8176 to fit in available KV cache memory (0.03 GiB GPU)",
        ),
        (
            "0.33.0", True,
            "full model context length 4096 fits in available KV cache memory (0.03 GiB GPU)",
        ),
    ],
)  # fmt: skip
def test_a_fitted_length_is_printed(version: str, fits: bool, line: str) -> None:  # noqa: FBT001
    """With what it was, what it is, and the memory that set it."""
    bounds = BOUNDS if fits else BOUNDS.at(4096000)
    settings = PoolSettings(release=release(version), bounds=bounds, auto_fit=True)
    pool = fill_pool([{"a": FULL}], [512 * 65536], settings)
    lines = printed_lines(pool, release(version), auto_fit=True)
    assert lines[0].text == f"Auto-fit max_model_len: {line}"


def test_without_layers_a_fitted_length_is_the_models_own() -> None:
    """There is nothing that it would have to fit in."""
    pool = fill_pool([{}], [GIB], PoolSettings(release=LATEST, bounds=BOUNDS, auto_fit=True))
    assert [line.text for line in printed_lines(pool, LATEST, auto_fit=True)] == [
        "Auto-fit max_model_len: attention-free model, using derived max_model_len=4096"
    ]


@pytest.mark.parametrize(
    ("version", "share"),
    [("0.33.0", Fraction(23, 25)), ("0.20.0", Fraction(23, 25)), ("0.19.1", Fraction(9, 10))],
)
def test_the_engines_share_of_the_device(version: str, share: Fraction) -> None:
    """0.92 since 0.20, nine tenths before."""
    assert release(version).default_gpu_memory_utilization == share


def test_an_encoder_caches_no_window_and_no_chunk() -> None:
    """Whatever the kind of its attention."""
    state = read_config(CONFIGS["llama4-scout-text"]).state
    got = plan({"is_causal": False}, state, {}, None)
    assert got.layer_specs == ({},)
    state = read_config(CONFIGS["mistral-7b-v0.1"]).state
    assert plan({"is_causal": False}, state, {}, None).layer_specs == ({},)


def test_a_stage_that_keeps_nothing_beside_others_is_refused() -> None:
    """The engine divides by the bytes of its block, which are none."""
    settings = PoolSettings(release=LATEST, bounds=BOUNDS)
    with pytest.raises(Conflict, match="stage 1 keeps no cache"):
        fill_pool([{"a": FULL}, {}], [512 * 65536, 512 * 65536], settings)


def test_mixed_pages_split_by_stage() -> None:
    """A stage sees the members that it holds."""
    members: dict[str, LayerSpec] = {"a": FULL, "b": replace(FULL, kv_heads=4)}
    group = Group(layers=("a", "b"), spec=UniformSpec.of(members))
    part, none = (groups[0] for groups in on_workers([group], [{"b": 1}, {}]))
    assert part.spec.page_bytes == 32768
    assert none.layers == ()

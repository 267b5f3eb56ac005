"""What a plan answers beside the measured figures: bytes of a request, refusals, notes, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.dtypes import DTYPES
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
    StateTensor,
)
from app.engines.vllm import VllmPlan, plan
from app.engines.vllm.specs import MambaSpec
from app.readers.hf_config import read_config
from tests.engines.vllm.cases import load

CONFIGS: dict[str, dict[str, Any]] = load("vllm_architecture_configs")
GIB = 2**30
UNIFORM = ModelState.uniform(layers=32, kv_heads=8, head_dim=128)


def of(name: str, settings: Mapping[str, object], available_bytes: int | None = None) -> VllmPlan:
    """Return the plan of one of the models written by hand."""
    return plan(CONFIGS[name], read_config(CONFIGS[name]).state, settings, available_bytes)


def test_numbers_alone_make_a_plan() -> None:
    """32 layers of 8 heads of 128: 65,536 bytes a page, 2 MiB a block, ⌊10 GiB / 2 MiB⌋ blocks."""
    got = plan({}, UNIFORM, {"max_model_len": 4096}, 10 * GIB)
    assert got.num_gpu_blocks == 5120
    assert got.max_concurrency == 20
    assert got.kv_cache_tokens == 81920
    assert got.groups[0].page_size_bytes == 65536
    assert got.ranks[0].bytes_per_block == 2**21
    assert got.ranks[0].unused_bytes == 0
    assert got.formula == "blocks = ⌊10737418240 B / 2097152 B⌋ = 5120"
    assert "no_config" in {note.code for note in got.assumptions}
    assert {"weights", "activations"} <= {note.code for note in got.not_counted}


def test_a_model_of_nothing_known_is_refused() -> None:
    """Neither config nor layers say what to keep."""
    with pytest.raises(Missing, match="model is missing"):
        plan({}, None, {}, GIB)


@pytest.mark.parametrize("value", [-1, 2**60, True, 1.5, "8"])
def test_available_bytes_are_bounded(value: Any) -> None:
    """A whole number of bytes, not negative."""
    with pytest.raises((OutOfRange, WrongType), match="available_bytes"):
        plan({}, UNIFORM, {}, value)


def test_unknown_settings_and_versions_are_refused() -> None:
    """The error lists what is known."""
    with pytest.raises(Unknown, match="block_sise"):
        plan({}, UNIFORM, {"block_sise": 16}, GIB)
    with pytest.raises(Unknown, match="known are"):
        plan({}, UNIFORM, {"version": "1.0"}, GIB)


def test_without_bytes_a_plan_still_knows_a_request() -> None:
    """The pool's figures are None, the request's bytes are not."""
    got = plan({}, UNIFORM, {"max_model_len": 1000}, None)
    assert got.num_gpu_blocks is None
    assert got.kv_cache_tokens is None
    assert got.max_concurrency is None
    assert got.printed == ()
    assert not got.refused
    assert got.blocks_per_request == 63
    assert got.needed_bytes == 63 * 2**21
    assert got.formula == "a request: 63 blocks, 63 × 2097152 B = 132120576 B"
    assert got.ranks[0].own_blocks is None
    assert got.ranks[0].available_bytes is None


def test_bytes_of_a_request_are_need_and_rounding() -> None:
    """1,000 tokens of 131,072 bytes fill 62.5 blocks; the rest of the last is block rounding."""
    request = plan({}, UNIFORM, {"max_model_len": 1000}, None).request
    assert request.need_bytes == 1000 * 131072
    assert request.total_bytes == 63 * 2**21
    assert [(part.code, part.size_bytes) for part in request.spent] == [
        ("block_rounding", 8 * 131072)
    ]
    assert request.fixed_bytes == 0
    assert request.slope_bytes_per_token == 131072
    assert request.spent[0].reason == "the unused end of the last block"


def test_a_window_stops_growing() -> None:
    """Gemma 3 12B: 40 of 48 layers slide; in 6 groups of 8, one grows and five are fixed.

    A window of 1,024 and 16,384 tokens in flight are 17,407 tokens, 1,088 blocks and one more.
    """
    got = of("gemma3-12b-text", {"max_num_batched_tokens": 8192})
    request = got.request_bytes(131072)
    unit = 8 * 131072
    assert [group.blocks_per_request for group in got.groups] == [
        1089,
        1089,
        1089,
        1089,
        1089,
        8192,
    ]
    assert request.fixed_bytes == 5 * 1089 * unit
    assert request.slope_bytes_per_token == unit // 16
    assert request.total_bytes == request.fixed_bytes + 8192 * unit
    assert {part.code for part in request.spent} == {"window_reserve"}
    assert got.request_bytes(1).total_bytes == (5 * 2 + 1) * unit


def test_a_length_beyond_the_maximum_is_refused() -> None:
    """A request cannot be longer than max_model_len."""
    got = plan({}, UNIFORM, {"max_model_len": 1000}, None)
    for length in (0, 1001):
        with pytest.raises(OutOfRange, match="length"):
            got.request_bytes(length)


def test_states_are_copied_for_prefix_caching() -> None:
    """Granite 4 keeps three blocks of states: running, aligned, and a prefill's checkpoint."""
    got = of("granite4-h-small", {"max_num_batched_tokens": 8192, "max_num_seqs": 4096}, 4 * GIB)
    state_bytes = 36 * 2 * (3 * 8448 + 128 * 64 * 128)
    assert {group.kind for group in got.groups} == {"mamba", "full_attention"}
    assert [group.blocks_per_request for group in got.groups if group.kind == "mamba"] == [3] * 9
    parts = {part.code: part.size_bytes for part in got.spent}
    assert parts["state_copies"] == 2 * state_bytes
    assert got.max_sequences == got.num_gpu_blocks == 496
    assert "max_num_seqs 4096 exceeds the 496 blocks" in {n.code: n.text for n in got.assumptions}[
        "max_num_seqs"
    ]  # fmt: skip


def test_without_prefix_caching_one_state_is_kept() -> None:
    """Then the state's block is as long as the longest request."""
    got = of("granite4-h-small", {"enable_prefix_caching": False, "max_num_batched_tokens": 8192})
    states = [group for group in got.groups if group.kind == "mamba"]
    assert {(group.blocks_per_request, group.block_size) for group in states} == {(1, 131072)}
    assert "state_copies" not in {part.code for part in got.spent}


def test_copies_of_heads_on_ranks_are_counted() -> None:
    """8 heads on 16 ranks are held twice: 8 of 16 ranks hold copies, of 16 MiB a rank here."""
    settings = {"tensor_parallel_size": 16, "max_model_len": 1024}
    got = plan({}, UNIFORM, settings, GIB)
    assert got.ranks[0].tensor_ranks == 16
    assert got.request.total_bytes == 64 * 2**18
    assert got.replicated_bytes == 8 * 64 * 2**18
    assert plan({}, UNIFORM, {"max_model_len": 1024}, GIB).replicated_bytes == 0


def test_context_ranks_take_the_place_of_copies() -> None:
    """16 ranks over 8 heads and 2 parts of the context hold nothing twice."""
    settings = {
        "tensor_parallel_size": 16,
        "decode_context_parallel_size": 2,
        "max_model_len": 1024,
    }
    got = plan({}, UNIFORM, settings, GIB)
    assert got.blocks_per_request == 32
    assert got.request.need_bytes == 512 * 131072 // 8
    assert got.replicated_bytes == 0


@pytest.mark.parametrize(
    ("name", "settings", "error", "text"),
    [
        ("llama3.1-8b", {"tensor_parallel_size": 4}, Conflict, "at most the copies"),
        ("gemma3-1b", {"tensor_parallel_size": 4}, Unsupported, "sliding_window layers"),
    ],
)
def test_context_parallelism_has_its_limits(
    name: str, settings: dict[str, object], error: type[DomainError], text: str
) -> None:
    """Only copies of heads divide the context, and no window does."""
    with pytest.raises(error, match=text):
        of(name, settings | {"decode_context_parallel_size": 2})


def test_a_latent_divides_its_positions_over_all_ranks() -> None:
    """DeepSeek-V3 on 8 ranks: copies without context parallelism, an eighth each with it."""
    alone = of("deepseek-v3", {"tensor_parallel_size": 8, "max_model_len": 4096}, 10 * GIB)
    shared = of(
        "deepseek-v3",
        {"tensor_parallel_size": 8, "max_model_len": 4096, "decode_context_parallel_size": 8},
        10 * GIB,
    )
    assert alone.replicated_bytes == 7 * alone.request.total_bytes
    assert shared.replicated_bytes == 0
    assert (alone.blocks_per_request, shared.blocks_per_request) == (256, 32)
    assert shared.max_concurrency == 8 * (alone.max_concurrency or 0)


def test_stages_share_the_smallest_pool() -> None:
    """80 layers in 3 stages: 27, 27 and 26; the wider ones decide, the last leaves bytes over."""
    got = of("llama3.1-70b", {"pipeline_parallel_size": 3, "max_model_len": 16384}, 40 * GIB)
    assert [(rank.first_layer, rank.last_layer) for rank in got.ranks] == [
        (0, 26), (27, 53), (54, 79),
    ]  # fmt: skip
    assert [rank.caches for rank in got.ranks] == [27, 27, 26]
    assert got.num_gpu_blocks == min(rank.own_blocks or 0 for rank in got.ranks) == 24272
    assert got.ranks[2].own_blocks == 25206
    assert [rank.unused_bytes for rank in got.ranks] == [
        40 * GIB - 24272 * rank.bytes_per_block for rank in got.ranks
    ]


def test_a_partition_may_be_set_by_hand() -> None:
    """VLLM_PP_LAYER_PARTITION must name every stage and every layer."""
    settings = {"pipeline_parallel_size": 2, "layers_per_stage": [20, 12], "max_model_len": 4096}
    got = of("llama3.1-8b", settings, 10 * GIB)
    assert [rank.caches for rank in got.ranks] == [20, 12]
    with pytest.raises((Conflict, OutOfRange), match="layers_per_stage"):
        of("llama3.1-8b", settings | {"layers_per_stage": [20, 13]})


def test_blocks_may_be_set_by_hand() -> None:
    """num_gpu_blocks_override takes the place of the quotient, with or without bytes."""
    settings = {"num_gpu_blocks_override": 1000, "max_model_len": 4096}
    bare = plan({}, UNIFORM, settings, None)
    assert bare.num_gpu_blocks == 1000
    assert bare.max_concurrency == Fraction(1000, 256)
    assert bare.formula == "blocks = 1000, set by hand"
    assert bare.ranks[0].unused_bytes is None
    given_bytes = plan({}, UNIFORM, settings, 10 * GIB)
    assert given_bytes.num_gpu_blocks == 1000
    assert given_bytes.printed[0] == (
        "Overriding num_gpu_blocks=5120 with num_gpu_blocks_override=1000"
    )


def test_bytes_may_stand_in_the_settings() -> None:
    """--kv-cache-memory-bytes takes the place of what profiling found."""
    settings = {"kv_cache_memory_bytes": 5 * GIB, "max_model_len": 4096}
    assert plan({}, UNIFORM, settings, 10 * GIB).num_gpu_blocks == 2560


def test_a_refusal_says_what_would_fit() -> None:
    """1 GiB holds 512 blocks, less the null block: 511 × 16 tokens; the error is the engine's."""
    got = plan({}, UNIFORM, {"max_model_len": 131072}, GIB)
    assert got.refused
    assert got.num_gpu_blocks is None
    assert got.estimated_max_model_len == 511 * 16
    assert got.needed_bytes == 16 * GIB
    assert "the estimated maximum model length is 8176" in got.printed[-1]
    assert got.ranks[0].own_blocks == 512
    assert got.ranks[0].allocated_bytes is None


def test_no_memory_at_all_is_refused() -> None:
    """The engine then estimates nothing."""
    got = plan({}, UNIFORM, {"max_model_len": 16}, 0)
    assert got.refused
    assert got.estimated_max_model_len == 0
    assert got.printed[-1].startswith("No available memory for the cache blocks.")


def test_a_length_that_fits_is_found() -> None:
    """Auto takes the model's own length if it fits, else the longest that does."""
    less = of("llama3.1-8b", {"max_model_len": "auto"}, GIB)
    assert less.max_model_len == 8176
    assert "reduced from 131072 to 8176" in less.printed[0]
    assert less.request.total_bytes == 511 * 2**21
    enough = of("llama3.1-8b", {"max_model_len": -1}, 20 * GIB)
    assert enough.max_model_len == 131072
    assert "full model context length 131072 fits" in enough.printed[0]


def test_a_length_that_nothing_names_is_vllms_own() -> None:
    """2,048 tokens, and the plan says so."""
    got = plan({}, UNIFORM, {}, GIB)
    assert got.max_model_len == 2048
    assert "max_model_len" in {note.code for note in got.assumptions}


@pytest.mark.parametrize(
    ("capability", "tokens"), [("8.0", 2048), ("9.0", 8192), ("10.0", 16384), (None, 8192)]
)
def test_batched_tokens_follow_the_device(capability: str | None, tokens: int) -> None:
    """What a server takes unless told, and windows reserve by it."""
    settings = {} if capability is None else {"device_capability": capability}
    got = of("mistral-7b-v0.1", settings)
    assert got.bounds.in_flight_tokens == 2 * tokens
    assert f"{tokens} batched tokens" in {n.code: n.text for n in got.assumptions}[
        "max_num_batched_tokens"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ({}, 2),
        ({"async_scheduling": False}, 1),
        ({"pipeline_parallel_size": 4}, 5),
        ({"pipeline_parallel_size": 4, "version": "0.32.0"}, 4),
        ({"pipeline_parallel_size": 4, "async_scheduling": False}, 4),
        ({"version": "0.25.0"}, 1),
    ],
)
def test_batches_in_flight(settings: dict[str, object], batches: int) -> None:
    """One a stage, one more where scheduling runs ahead; before 0.26 windows reserved one."""
    got = plan({}, UNIFORM, settings | {"max_num_batched_tokens": 1000}, None)
    assert got.bounds.in_flight_tokens == batches * 1000


def test_notes_name_what_changes_nothing() -> None:
    """A share of memory is not the bytes, and each replica has a pool of its own."""
    got = plan({}, UNIFORM, {"gpu_memory_utilization": 0.9, "data_parallel_size": 2}, GIB)
    codes = {note.code for note in got.assumptions}
    assert {"gpu_memory_utilization", "data_parallel"} <= codes
    assert all(note.text for note in got.assumptions)


def test_a_model_without_caches_has_one_block() -> None:
    """An encoder keeps nothing; vLLM still makes the null block, and prints nothing."""
    config = CONFIGS["qwen2.5-7b"] | {"is_causal": False}
    got = plan(config, read_config(CONFIGS["qwen2.5-7b"]).state, {"max_model_len": 512}, GIB)
    assert got.num_gpu_blocks == 1
    assert got.groups == ()
    assert got.kv_cache_tokens is None
    assert got.blocks_per_request is None
    assert got.request.total_bytes == 0
    assert got.formula == "no layer keeps a cache: 1 block, the null block"


def test_shared_layers_keep_nothing_of_their_own() -> None:
    """Two layers that read a third's cache add no bytes."""
    own = FullAttention(kv_heads=2, k_dim=64, v_dim=64)
    layers = [Layer(states=(own,))] + [Layer(states=(Shared(with_layer=0),))] * 2
    got = plan({}, ModelState.of_layers(layers), {}, GIB)
    assert [group.layers for group in got.groups] == [1]


def test_cross_attention_reserves_the_schedulers_bound() -> None:
    """Whisper's encoder has 1,500 positions; vLLM reserves as many as it may batch."""
    got = of("whisper-large-v3", {"max_num_batched_tokens": 8192}, 10 * GIB)
    cross = next(group for group in got.groups if group.kind == "cross_attention")
    assert cross.blocks_per_request == 512
    parts = {part.code: part.size_bytes for part in got.spent}
    assert parts["encoder_reserve"] == (8192 - 1500) * 32 * 2 * 20 * 64 * 2
    alone = CrossAttention(kv_heads=1, k_dim=64, v_dim=64, encoder_tokens=10)
    state = ModelState.of_layers([Layer(states=(alone,))])
    assert plan({}, state, {"max_num_batched_tokens": 16}, GIB).request.need_bytes == 10 * 256


def test_states_given_by_hand_stay_as_they_are() -> None:
    """Without a config, a state's own type is kept, padded to the attention page beside it."""
    state = Recurrent(tensors=(StateTensor(name="ssm", shape=(8, 64, 64), dtype=DTYPES["fp32"]),))
    attention = FullAttention(kv_heads=2, k_dim=64, v_dim=64)
    model = ModelState.of_layers([Layer(states=(state,)), Layer(states=(attention,))])
    got = plan({}, model, {"enable_prefix_caching": False}, GIB)
    assert got.layer_specs[0]["layers.0.state"].unpadded_page_bytes == 8 * 64 * 64 * 4
    assert got.block_size == 256
    assert {group.page_size_bytes for group in got.groups} == {131072}
    pure = plan({}, ModelState.of_layers([Layer(states=(state,))]), {}, GIB)
    assert pure.num_gpu_blocks == 8192
    assert pure.max_concurrency == 8192


def test_an_index_beside_heads_without_a_type_is_assumed() -> None:
    """Its keys get pages of their own, in the model's 16 bits."""
    heads = FullAttention(kv_heads=4, k_dim=128, v_dim=128, index_dim=128)
    got = plan({}, ModelState.of_layers([Layer(states=(heads,))] * 2), {}, GIB)
    assert [spec.page_bytes for spec in got.layer_specs[0].values()] == [
        128 * 256, 128 * 2048, 128 * 256, 128 * 2048,
    ]  # fmt: skip
    assert [note.code for note in got.assumptions].count("index") == 1
    with pytest.raises(Unsupported, match="index of llama"):
        plan({"model_type": "llama"}, ModelState.of_layers([Layer(states=(heads,))]), {}, GIB)


@pytest.mark.parametrize(
    ("config", "state", "text"),
    [
        ({"model_type": "t5"}, UNIFORM, "has no t5"),
        ({"model_type": "inkling"}, UNIFORM, "caches of inkling"),
        (
            {"model_type": "rwkv7"},
            ModelState.of_layers([
                Layer(states=(
                    Recurrent(tensors=(
                        StateTensor(name="wkv", shape=(8, 8), dtype=DTYPES["fp32"]),
                    )),
                ))
            ]),
            "caches of rwkv7",
        ),
        (
            {},
            ModelState.of_layers([
                Layer(states=(LatentAttention(latent_dim=64, rope_dim=0, tokens_per_entry=4),))
            ]),
            "compressed latents of this model",
        ),
    ],
)  # fmt: skip
def test_a_layout_that_no_rule_describes_is_refused(
    config: dict[str, object], state: ModelState, text: str
) -> None:
    """Unknown is refused and never guessed."""
    with pytest.raises(Unsupported, match=text):
        plan(config, state, {}, GIB)


def test_an_architecture_that_was_given_up_is_noted() -> None:
    """Through Transformers it may still be served; recurrent layers may not."""
    config = {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"]}
    for version, noted in (("0.23.0", False), ("0.24.0", True), ("0.33.0", True)):
        codes = {note.code for note in plan(config, UNIFORM, {"version": version}, GIB).assumptions}
        assert ("architecture" in codes) is noted
    state = Recurrent(tensors=(StateTensor(name="linear", shape=(8, 8), dtype=DTYPES["fp32"]),))
    model = ModelState.of_layers([Layer(states=(state,))])
    config = {"model_type": "minimax", "architectures": ["MiniMaxForCausalLM"]}
    assert plan(config, model, {"version": "0.23.0"}, GIB).num_gpu_blocks
    with pytest.raises(Unsupported, match="was the last vLLM release with MiniMax"):
        plan(config, model, {}, GIB)


def test_a_windowed_latent_is_a_window_of_latents() -> None:
    """Its pages hold no values of their own."""
    latent = LatentAttention(latent_dim=512, rope_dim=64, window=128)
    got = plan({}, ModelState.of_layers([Layer(states=(latent,))]), {}, GIB)
    assert [(g.kind, g.page_size_bytes, g.window) for g in got.groups] == [
        ("sliding_window_mla", 16 * 1152, 128)
    ]


def test_an_index_alone_is_a_cache_of_its_own() -> None:
    """A layer that only keeps index keys has no latent: 128 values and a 4-byte scale."""
    latent = LatentAttention(latent_dim=0, rope_dim=0, index_dim=128)
    got = plan({}, ModelState.of_layers([Layer(states=(latent,))]), {}, GIB)
    assert [(g.block_size, g.page_size_bytes) for g in got.groups] == [(64, 64 * 132)]


def test_windows_beside_full_layers_are_full_in_types_of_one_window() -> None:
    """Qwen2 tells all its attention one window or none: its first layers' windows are lost."""
    full = FullAttention(kv_heads=2, k_dim=64, v_dim=64)
    window = SlidingWindow(kv_heads=2, k_dim=64, v_dim=64, window=128)
    layers = [Layer(states=(full,)), Layer(states=(window,))]
    kinds = [
        [group.kind for group in plan(config, ModelState.of_layers(part), {}, GIB).groups]
        for config, part in (
            ({"model_type": "qwen2"}, layers),
            ({"model_type": "qwen2"}, layers[1:]),
            ({"model_type": "gemma3_text"}, layers),
        )
    ]
    assert kinds == [["full_attention"], ["sliding_window"], ["full_attention", "sliding_window"]]


def test_draft_layers_of_multi_token_prediction_are_cached() -> None:
    """DeepSeek-V3 has one; as many tokens ahead as asked use it again and again."""
    got = of("deepseek-v3", {"num_speculative_tokens": 2, "max_model_len": 4096}, 10 * GIB)
    assert got.groups[0].layers == 62
    assert "draft.0.attn" in got.layer_specs[0]
    assert "speculation is taken to be mtp" in {n.code: n.text for n in got.assumptions}[
        "speculative_method"
    ]  # fmt: skip
    settings = {"num_speculative_tokens": 2, "speculative_method": "ngram"}
    assert of("deepseek-v3", settings, 40 * GIB).groups[0].layers == 61
    with pytest.raises(Missing, match="multi-token prediction"):
        of("llama3.1-8b", settings | {"speculative_method": "mtp"})


def test_each_speculative_token_keeps_a_state() -> None:
    """Two tokens ahead: two blocks more, and two columns more of each convolution."""
    settings = {"num_speculative_tokens": 2, "speculative_method": "ngram"}
    got = of("granite4-h-small", settings | {"max_num_batched_tokens": 8192}, 40 * GIB)
    states = [spec for spec in got.layer_specs[0].values() if isinstance(spec, MambaSpec)]
    assert {group.blocks_per_request for group in got.groups if group.kind == "mamba"} == {5}
    assert {spec.shapes[0] for spec in states} == {(5, 8448)}


@given(
    layers=st.integers(1, 80),
    kv_heads=st.sampled_from([1, 2, 4, 8, 16]),
    head_dim=st.sampled_from([64, 80, 128, 256]),
    length=st.integers(1, 200_000),
    memory=st.integers(0, 200 * GIB),
)
def test_the_pool_fits_the_memory(
    layers: int, kv_heads: int, head_dim: int, length: int, memory: int
) -> None:
    """No block too many, none too few; a refusal's estimate fits, and one token more does not."""
    state = ModelState.uniform(layers=layers, kv_heads=kv_heads, head_dim=head_dim)
    got = plan({}, state, {"max_model_len": length}, memory)
    unit = got.ranks[0].bytes_per_block
    assert unit == layers * 16 * kv_heads * head_dim * 4
    if got.refused:
        estimate = got.estimated_max_model_len
        assert estimate is not None
        assert -(-estimate // 16) * unit <= max(memory - unit, 0)
        assert -(-(estimate + 1) // 16) * unit > memory - unit
    else:
        blocks = got.num_gpu_blocks
        assert blocks is not None
        assert blocks * unit <= memory < (blocks + 1) * unit
        assert got.max_concurrency == Fraction(blocks, -(-length // 16))


@given(length=st.integers(1, 131_071))
def test_a_longer_request_never_takes_less(length: int) -> None:
    """Bytes, need and fixed part grow with the length; parts add up at every one."""
    got = of("gemma3-12b-text", {"max_num_batched_tokens": 2048})
    now, after = got.request_bytes(length), got.request_bytes(length + 1)
    assert now.total_bytes <= after.total_bytes
    assert now.need_bytes < after.need_bytes
    assert now.need_bytes + sum(part.size_bytes for part in now.spent) == now.total_bytes


# Many layers


def deep(layers: int, *, windows: int = 0) -> ModelState:
    """Return full layers, with so many windowed ones in front."""
    full = Layer(states=(FullAttention(kv_heads=8, k_dim=128, v_dim=128),))
    short = Layer(states=(SlidingWindow(kv_heads=8, k_dim=128, v_dim=128, window=128),))
    return ModelState.of_layers([short] * windows + [full] * (layers - windows))


def test_stages_that_pay_the_same_are_named_in_one_line() -> None:
    """Ten layers over four stages: 2, 3, 3, 2, and as many bytes a block."""
    got = plan({}, deep(10), {"pipeline_parallel_size": 4}, 2**30)
    assert [line for line in got.formulas if line.startswith("stage")] == [
        "stage 0: 131072 B/block, the pages of the widest group",
        "stages 1 to 2: 196608 B/block, the pages of the widest group",
        "stage 3: 131072 B/block, the pages of the widest group",
    ]
    assert (
        got.formula == "blocks = min(⌊1073741824 B / 131072 B⌋, ⌊1073741824 B / 196608 B⌋) = 5461"
    )


def test_a_thousand_stages_are_planned_and_no_more() -> None:
    """Each stage of 10,000 layers has its own nine or ten; 1,025 stages are refused."""
    got = plan({}, deep(10_000), {"pipeline_parallel_size": 1024}, 2**30)
    assert len(got.ranks) == 1024
    assert {rank.caches for rank in got.ranks} == {9, 10}
    assert sum(rank.caches for rank in got.ranks) == 10_000
    assert got.num_gpu_blocks == 2**30 // (10 * 65_536)
    with pytest.raises(OutOfRange, match="pipeline_parallel_size must be between 1 and 1024"):
        plan({}, deep(10_000), {"pipeline_parallel_size": 1025}, 2**30)


def test_stages_times_groups_are_bounded() -> None:
    """One window beside 9,999 full layers makes 10,000 groups, of which each stage has a part."""
    with pytest.raises(OutOfRange, match="at most 26 where the layers form 10000 groups, got 27"):
        plan({}, deep(10_000, windows=1), {"pipeline_parallel_size": 27}, 2**40)


# Settings that change nothing, or more than there is


def test_blocks_by_hand_may_exceed_the_memory() -> None:
    """The engine takes the number as it is, and fails when it allocates: the plan says so."""
    settings = {"num_gpu_blocks_override": 2**40, "max_model_len": 4096}
    got = plan({}, UNIFORM, settings, 40 * GIB)
    assert got.num_gpu_blocks == 2**40
    assert (got.ranks[0].own_blocks, got.ranks[0].unused_bytes) == (20_480, 0)
    assert got.ranks[0].allocated_bytes == 2**61
    (said,) = (n.text for n in got.assumptions if n.code == "override_exceeds_memory")
    assert said == (
        "1099511627776 blocks were set by hand and take 2048 PiB, of 40 GiB that are there:"
        " vLLM takes the number as it is and fails when it allocates them"
    )
    fits = plan({}, UNIFORM, settings | {"num_gpu_blocks_override": 20_480}, 40 * GIB)
    assert "override_exceeds_memory" not in [note.code for note in fits.assumptions]


def test_a_method_of_speculation_is_never_ignored() -> None:
    """Without a number, prediction layers give it; a model without them, or ngram, is refused."""
    got = of("deepseek-v3", {"speculative_method": "mtp", "max_model_len": 4096}, 10 * GIB)
    one = {"speculative_method": "mtp", "num_speculative_tokens": 1, "max_model_len": 4096}
    assert got.groups == of("deepseek-v3", one, 10 * GIB).groups
    assert got.groups[0].layers == 62
    assert "speculative tokens: 1, one for each" in got.assumptions[0].text
    with pytest.raises(Missing, match="speculative_method: the config names no layers of multi"):
        of("llama3.1-8b", {"speculative_method": "mtp"})
    with pytest.raises(Missing, match="num_speculative_tokens is missing: ngram"):
        of("llama3.1-8b", {"speculative_method": "ngram"})
    with pytest.raises(Conflict, match="num_speculative_tokens: mtp speculates by 1 token"):
        of("deepseek-v3", {"speculative_method": "mtp", "num_speculative_tokens": 0})


@pytest.mark.parametrize(("version", "noted"), [("0.10.1", True), ("0.10.2", False)])
def test_bytes_are_set_since_some_release(version: str, noted: bool) -> None:  # noqa: FBT001 - a table's cell
    """--kv-cache-memory-bytes came with 0.10.2: before, the bytes are said to be the profile's."""
    settings = {"kv_cache_memory_bytes": 5 * GIB, "max_model_len": 4096, "version": version}
    found = plan({}, UNIFORM, settings, None)
    codes = {note.code for note in found.assumptions}
    assert ("no_kv_cache_memory_bytes" in codes) is noted


@pytest.mark.parametrize(
    ("version", "noted"), [("0.13.0", False), ("0.14.0", True), ("0.18.1", True), ("0.19.0", False)]
)
def test_a_check_that_asks_for_one_group(version: str, noted: bool) -> None:  # noqa: FBT001 - a table's cell
    """0.14 to 0.18 ask for one group of several: one block may start, and holds no request."""
    settings = {"max_model_len": 4096, "version": version}
    found = plan({}, deep(4, windows=2), settings, None)
    notes = [note for note in found.assumptions if note.code == "check_sees_first_group"]
    assert bool(notes) is noted
    alike = {note.code for note in plan({}, deep(4), settings, None).assumptions}
    assert "check_sees_first_group" not in alike
    if noted:
        assert found.needed_bytes < found.request.total_bytes

"""llama.cpp's contexts, the fork's and Ollama's: measured runs, published logs, eras, refusals."""

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
    StateTensor,
)
from app.engines.llama_cpp import LlamaCppPlan, plan
from app.engines.llama_cpp.fork import FORK_ERA
from app.engines.llama_cpp.lines import printed_mib
from app.engines.llama_cpp.versions import Indexers, Lines, era_of, version_named
from app.engines.measured import EXACT, EXPLAINED, PRINTED, llama_cpp_run
from app.engines.measured_logs import log_result
from app.readers.gguf_model import read_gguf_model

DATA = Path(__file__).parents[1] / "data"
HEADERS: dict[str, dict[str, Any]] = json.loads((DATA / "engine_gguf_metadata.json").read_text())
RUNS: list[dict[str, Any]] = [
    case
    for case in json.loads((DATA / "engine_runs.json").read_text())
    if case["engine"] == "llama.cpp"
]
LOGS: list[dict[str, Any]] = [
    case
    for case in json.loads((DATA / "engine_logs.json").read_text())
    if case["engine"] not in {"sglang", "tensorrt-llm"}
]

LLAMA = HEADERS["llama-3.1-8B geometry"]
GEMMA3 = HEADERS["gemma-3-27b geometry"]
OSS = HEADERS["gpt-oss-20b geometry"]
QWEN35 = HEADERS["Qwen3.5/3.8-27B geometry (qwen35)"]
DSV3 = HEADERS["DeepSeek-V3 geometry (deepseek2, MLA)"]
DSV4 = HEADERS["DeepSeek-V4-Flash geometry (deepseek4)"]
GLM52 = HEADERS["GLM-5.2 geometry (glm-dsa, shared indexers: 21 full)"]
OLD_LATENT = HEADERS["ds2old.gguf"]


def planned(kv: dict[str, Any], **settings: object) -> LlamaCppPlan:
    """Return the plan of a header."""
    return plan(kv, None, None, settings)


def test_there_are_runs_and_logs() -> None:
    """The measured files are there, whole."""
    assert len(RUNS) == 435
    assert len(LOGS) == 64


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_measured_contexts(number: int) -> None:
    """Every context that real llama.cpp code made is reproduced: its bytes, or its lines."""
    case = RUNS[number]
    result = llama_cpp_run(case, HEADERS, number)
    assert result.figures
    assert result.verdict == (EXACT if "engine_bytes" in case else PRINTED), result


@pytest.mark.parametrize("case", LOGS, ids=lambda case: case["id"])
def test_published_logs(case: dict[str, Any]) -> None:
    """Every figure of every published log is reproduced to its digit, but one that says why not."""
    result = log_result(case)
    assert result.figures
    if case["id"] == "ik-105":
        assert result.verdict == EXPLAINED
        assert [f.name for f in result.figures if not f.agrees] == ["CPU buffer, whole layers"]
        return
    assert result.verdict == PRINTED, result


@pytest.mark.parametrize(
    ("version", "flash", "tokens", "cells"),
    [
        ("2023-06-01", False, 1001, 1001),
        ("2024-03-21", False, 1001, 1001),
        ("2024-03-22", False, 1001, 1024),
        ("2024-05-01", False, 1001, 1024),
        ("2024-05-01", False, 1025, 1280),
        ("2024-05-13", False, 1025, 1056),
        ("2024-05-13", True, 1025, 1280),
        ("2025-08-14", False, 1025, 1056),
        ("2025-11-08", False, 1025, 1280),
        (None, False, 1, 256),
    ],
)
def test_padding_by_era(version: str | None, flash: bool, tokens: int, cells: int) -> None:  # noqa: FBT001
    """Contexts are padded to 1, 32 or 256 cells, by date and by flash attention."""
    answer = planned(LLAMA, version=version, flash_attn=flash, n_ctx=tokens)
    assert [cache.cells for cache in answer.caches] == [cells]


@pytest.mark.parametrize(
    ("version", "sequences", "unified", "cells", "streams"),
    [
        ("2025-05-08", 3, False, 1024, 1),
        ("2025-08-14", 3, False, 512, 3),
        ("2025-08-14", 3, True, 1024, 1),
        ("2026-10-01", 3, False, 512, 3),
        ("2026-10-01", 4, False, 256, 4),
        ("2026-10-01", 4, True, 1024, 1),
    ],
)
def test_slots_by_era(
    version: str, sequences: int, unified: bool, cells: int, streams: int  # noqa: FBT001
) -> None:  # fmt: skip
    """-c 1000 is divided among the slots and padded after it: three slots take more than four."""
    answer = planned(
        LLAMA, version=version, n_ctx=1000, n_seq_max=sequences, kv_unified=unified, flash_attn=True
    )
    assert [(c.cells, c.streams) for c in answer.caches] == [(cells, streams)]
    assert answer.n_ctx_seq == cells


@pytest.mark.parametrize(
    ("version", "settings", "cells"),
    [
        ("2025-05-08", {}, [8192]),
        ("2025-05-25", {"n_batch": 2048}, [8192, 3072]),
        ("2025-06-10", {"n_batch": 2048}, [8192, 1536]),
        ("2025-06-10", {"n_seq_max": 2}, [8192, 2560]),
        ("2025-08-14", {"n_seq_max": 2, "kv_unified": True}, [8192, 2560]),
        ("2025-08-14", {"n_seq_max": 2}, [4096, 1536]),
        ("2025-08-14", {"n_ubatch": 100}, [8192, 1280]),
        ("2025-08-14", {"n_ubatch": 100, "flash_attn": False}, [8192, 1152]),
        ("2026-10-01", {"n_ubatch": 100}, [8192, 1280]),
        ("2026-10-01", {"n_ubatch": 2048}, [8192, 3072]),
        ("2026-10-01", {"n_ubatch": 0, "n_batch": 256}, [8192, 1280]),
        ("2026-10-01", {"swa_full": True}, [8192, 8192]),
    ],
)
def test_window_cells_by_era(version: str, settings: dict[str, object], cells: list[int]) -> None:
    """Windowed layers of Gemma 3 get window + (micro-)batch cells since May 2025."""
    base: dict[str, object] = {"version": version, "n_ctx": 8192, "flash_attn": True}
    answer = plan(GEMMA3, None, None, base | settings)
    assert [cache.cells for cache in answer.caches] == cells


def test_windows_stayed_f16_for_three_days() -> None:
    """From 1 to 3 April 2026 the windowed cache ignored the cache types."""
    for day, kind in (("2026-03-31", "q8_0"), ("2026-04-02", "f16"), ("2026-04-04", "q8_0")):
        answer = planned(GEMMA3, version=day, n_ctx=4096, cache_type_k="q8_0", cache_type_v="q8_0")
        assert [cache.k_type for cache in answer.caches] == ["q8_0", kind], day


@pytest.mark.parametrize(
    ("version", "keys", "values"),
    [("2025-05-08", 61 * 576 * 2, 61 * 512 * 2), ("2026-01-25", 61 * 576 * 2, 0)],
)
def test_latent_rows_by_era(version: str, keys: int, values: int) -> None:
    """Latent rows were keys and values from April 2025 on, and are keys alone since 2026."""
    cache = planned(DSV3, version=version, n_ctx=256).caches[0]
    assert (cache.k_bytes, cache.v_bytes) == (keys * 256, values * 256)


def test_an_old_latent_file_keeps_heads_for_ever() -> None:
    """A file without the compressed keys is cached head by head, in the newest version too."""
    answer = planned(OLD_LATENT, n_ctx=256)
    assert answer.total_bytes == 27 * 16 * (192 + 128) * 2 * 256
    assert [o.code for o in answer.overheads] == ["wider_rows"]


def test_glm_indexers_by_era() -> None:
    """GLM-5.2 kept no index keys at first, then all 78 layers did, then the 21 that own them."""
    for day, layers in (("2026-06-20", 0), ("2026-08-01", 78), ("2026-10-01", 21)):
        caches = planned(GLM52, version=day, n_ctx=256).caches
        found = [cache.layers for cache in caches if cache.name == "indexer"]
        assert found == ([layers] if layers else []), day


def test_left_out_index_keys_are_a_negative_overhead() -> None:
    """What a version does not keep is told apart from what it wastes; the sum still holds."""
    answer = planned(GLM52, version="2026-06-20", n_ctx=5120)
    assert answer.needed_bytes is not None
    assert [(o.code, o.bytes) for o in answer.overheads] == [("left_out", -21 * 128 * 2 * 5120)]


def test_flash_attention_off_widens_value_rows() -> None:
    """Without flash attention every layer, even one without heads, gets the widest value row."""
    deci = HEADERS["Nemotron-Super-49B style geometry (deci, zero-kv layers)"]
    on = planned(deci, n_ctx=2048, flash_attn="on")
    off = planned(deci, n_ctx=2048, flash_attn="off")
    assert off.total_bytes - on.total_bytes == 8 * 1024 * 2 * 2048
    assert [o.code for o in off.overheads] == ["wider_rows"]


def test_states_are_rows_of_sequences_and_rollbacks() -> None:
    """A state row for each sequence and each token that can be taken back, fp32."""
    one = planned(QWEN35, n_ctx=4096)
    assert one.recurrent is not None
    assert one.recurrent.bytes == 156_893_184
    five = planned(QWEN35, n_ctx=4096, n_rs_seq=4)
    assert five.recurrent is not None
    assert five.recurrent.bytes == 5 * 156_893_184
    assert five.request.fixed_bytes == 5 * 156_893_184
    extra = next(o for o in five.overheads if o.code == "rollback_states")
    assert extra.bytes == 4 * 156_893_184


def test_rollback_states_are_only_for_those_that_use_them() -> None:
    """Qwen3-Next cannot roll back: the setting changes nothing."""
    header = HEADERS["Qwen3-Next-80B geometry"]
    assert planned(header, n_ctx=256).total_bytes == planned(header, n_ctx=256, rs=4).total_bytes


def test_hybrids_before_july_2025_are_refused() -> None:
    """No version before then loads a hybrid."""
    with pytest.raises(Unsupported, match="hybrid"):
        planned(QWEN35, n_ctx=256, version="2025-06-01")


def test_latent_files_before_april_2025_are_refused() -> None:
    """No version before then loads a file with compressed keys."""
    with pytest.raises(Unsupported, match="2025-04-15"):
        planned(DSV3, n_ctx=256, version="2025-03-01")


@pytest.mark.parametrize(
    ("header", "total"),
    [
        ("GLM-5 MTP draft context (only the nextn layer)", 576 * 2 * 5120),
        ("Qwen3.8-27B with nextn=1, MTP ctx", 2 * 1024 * 2 * 5120),
        ("GLM-4.5-Air geometry (glm4moe, 46+1 layers)", 2 * 1024 * 2 * 5120),
    ],
)
@pytest.mark.parametrize("alias", [{"context_type": "mtp"}, {"mtp": 1}, {"ctx_type": True}])
def test_a_drafting_context_holds_the_drafting_layers(
    header: str, total: int, alias: dict[str, object]
) -> None:
    """The context of multi-token prediction has one layer, no index keys and no states."""
    answer = plan(HEADERS[header], None, None, {"n_ctx": 5000} | alias)
    assert answer.total_bytes == total
    assert answer.recurrent is None
    assert answer.needed_bytes is None
    assert answer.overheads == ()


def test_a_drafting_context_needs_drafting_layers() -> None:
    """A model without such layers has no such context."""
    with pytest.raises(Unsupported, match="drafting"):
        planned(LLAMA, n_ctx=256, context_type="mtp")


def test_deepseek_v4_ignores_a_unified_cache() -> None:
    """Four sequences take four full caches even when the context is unified."""
    apart = planned(DSV4, n_ctx=4 * 4096, n_seq_max=4)
    unified = planned(DSV4, n_ctx=4096, n_seq_max=4, kv_unified=True)
    assert unified.total_bytes == apart.total_bytes


def test_an_encoder_has_no_context_memory() -> None:
    """A BERT's context holds nothing."""
    header = {
        "general.architecture": "bert",
        "bert.block_count": 2,
        "bert.attention.head_count": 2,
        "bert.embedding_length": 64,
    }
    answer = planned(header, n_ctx=512)
    assert (answer.caches, answer.total_bytes) == ((), 0)
    assert answer.formula == ("total = 0 B",)


def test_server_slots() -> None:
    """llama-server without -np takes four slots in one cache; with it each slot has its own."""
    auto = planned(LLAMA, runner="llama-server", n_ctx=4096)
    assert (auto.n_seq_max, auto.kv_unified) == (4, True)
    assert "server_slots" in [note.code for note in auto.assumptions]
    given = planned(LLAMA, runner="llama-server", n_ctx=4096, parallel=2)
    assert (given.n_seq_max, given.kv_unified) == (2, False)


def test_the_trained_context_is_the_default() -> None:
    """-c 0, or none, is the length the model was trained with."""
    assert planned(LLAMA).n_ctx == 131072
    assert planned(LLAMA, n_ctx=0).n_ctx == 131072


@pytest.mark.parametrize(
    ("build", "lines"),
    [("b4615", 2), ("b5913", 1), ("b6840", 1), ("b8643", 1)],
)
def test_a_build_of_known_day(build: str, lines: int) -> None:
    """A build whose day is known needs no note."""
    answer = planned(LLAMA, version=build, n_ctx=512)
    assert len(answer.printed) == lines
    assert "build_between" not in [note.code for note in answer.assumptions]


def test_a_build_between_known_days() -> None:
    """A build between two days is answered where no change between them matters, else refused."""
    answer = planned(LLAMA, version="b7500", n_ctx=512)
    assert "build_between" in [note.code for note in answer.assumptions]
    with pytest.raises(Unsupported, match="give a date"):
        planned(DSV3, version="b7500", n_ctx=512)


@pytest.mark.parametrize(
    ("version", "error"),
    [
        ("b6900", Unsupported),
        ("2025-11-01", Unsupported),
        ("b0", OutOfRange),
        ("b99999", OutOfRange),
        ("2022-01-01", OutOfRange),
        ("2026-10-02", OutOfRange),
        ("2026-13-01", Unknown),
        ("2026-02-30", Unknown),
        ("deadbeef", Unknown),
        ("0c1e57", Unknown),
        ("newest", Unknown),
        ("", Unknown),
        (7, Unknown),
    ],
)
def test_unknown_versions_are_refused(version: object, error: type[DomainError]) -> None:
    """A version that was not read, or is none, is refused by name."""
    with pytest.raises(error) as caught:
        planned(LLAMA, version=version, n_ctx=512)
    assert caught.value.field == ("version",)


def test_known_commits_are_versions() -> None:
    """A commit that was run is a version, short or whole."""
    assert version_named("f49e9178").eras == (era_of(version_named("2026-04-03").eras[0].day),)
    assert version_named("f49e9178" + "0" * 32).eras[0].windows_stay_f16
    assert version_named(None).eras[0].indexers is Indexers.OWNING_LAYERS
    assert FORK_ERA.lines is Lines.SELF_SIZE


@pytest.mark.parametrize(
    ("settings", "error", "field"),
    [
        ({"surprise": 1}, Unknown, "surprise"),
        ({"n_ctx": "512"}, WrongType, "n_ctx"),
        ({"n_ctx": True}, WrongType, "n_ctx"),
        ({"n_ctx": -1}, OutOfRange, "n_ctx"),
        ({"n_ctx": 10**30}, OutOfRange, "n_ctx"),
        ({"n_seq_max": 0}, OutOfRange, "n_seq_max"),
        ({"n_seq_max": 257}, OutOfRange, "n_seq_max"),
        ({"n_seq": 1, "parallel": 2}, Conflict, "n_seq_max"),
        ({"kv_unified": "yes"}, WrongType, "kv_unified"),
        ({"flash_attn": "maybe"}, Unknown, "flash_attn"),
        ({"flash_attn": 2}, WrongType, "flash_attn"),
        ({"cache_type_k": "q6_0"}, Unknown, "cache_type_k"),
        ({"cache_type_v": "fp8"}, Unknown, "cache_type_v"),
        ({"cache_type_k": 8}, Unknown, "cache_type_k"),
        ({"cache_type_v": "q8_0", "flash_attn": False}, Conflict, "cache_type_v"),
        ({"n_batch": 0}, OutOfRange, "n_batch"),
        ({"n_rs_seq": 257}, OutOfRange, "n_rs_seq"),
        ({"context_type": "draft"}, Unknown, "context_type"),
        ({"runner": "vllm"}, Unknown, "runner"),
        ({"num_ctx": 4096}, Conflict, "num_ctx"),
        ({"runner": "ollama", "num_ctx": 4096, "n_ctx": 1}, Conflict, "n_ctx"),
        ({"runner": "ollama", "num_parallel": 1, "n_seq_max": 1}, Conflict, "n_seq_max"),
        ({"n_gpu_layers": 9, "tensor_split": 1}, WrongType, "tensor_split"),
        ({"n_gpu_layers": 9, "tensor_split": "1,2"}, WrongType, "tensor_split"),
        ({"n_gpu_layers": 9, "tensor_split": [1, "2"]}, WrongType, "tensor_split.1"),
        ({"n_gpu_layers": 9, "tensor_split": [-1]}, OutOfRange, "tensor_split.0"),
        ({"n_gpu_layers": 9, "tensor_split": [1] * 65}, OutOfRange, "tensor_split"),
        ({"n_gpu_layers": 9, "devices": [""]}, WrongType, "devices.0"),
        ({"n_gpu_layers": 9, "devices": ["A"], "tensor_split": [1, 1]}, Conflict, "tensor_split"),
        ({"n_gpu_layers": 9, "split_mode": "column"}, Unknown, "split_mode"),
    ],
)
def test_settings_are_refused_by_name(
    settings: dict[str, object], error: type[DomainError], field: str
) -> None:
    """A setting that is unknown, mistyped, out of bounds or contradicted is refused by its name."""
    with pytest.raises(error) as caught:
        plan(LLAMA, None, None, settings)
    assert ".".join(map(str, caught.value.field)) == field
    assert str(caught.value)


def test_a_row_that_no_block_holds_is_refused() -> None:
    """A key row of 80 elements does not divide into blocks of 32."""
    header = LLAMA | {"llama.attention.head_count_kv": 1, "llama.attention.key_length": 80}
    with pytest.raises(Unsupported, match="does not divide"):
        planned(header, n_ctx=256, cache_type_k="q8_0")


def test_a_model_is_needed() -> None:
    """Neither a header nor layers: nothing to plan."""
    with pytest.raises(Missing) as caught:
        plan(None, None, None, {"n_ctx": 256})
    assert caught.value.field == ("model",)


def test_a_context_is_needed_for_plain_layers() -> None:
    """Layers by hand name no trained context."""
    with pytest.raises(Missing) as caught:
        plan(None, ModelState.uniform(layers=1, kv_heads=1, head_dim=64), None, {})
    assert caught.value.field == ("n_ctx",)


# Devices


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 131_072}, 131_072),
        ({"text_config": {"max_position_embeddings": 4096}, "n_ctx": 512}, 4096),
        ({"n_positions": 1024, "model_max_length": 2048}, 1024),
        ({"max_position_embeddings": 0, "n_ctx": 768}, 768),
        ({"max_position_embeddings": 2**40}, 2**30),
    ],
)
def test_a_config_names_the_trained_context(config: dict[str, object], tokens: int) -> None:
    """Without n_ctx the context is what a file converted from the config would name."""
    state = ModelState.uniform(layers=2, kv_heads=8, head_dim=64)
    answer = plan(None, state, config, {})
    assert answer.n_ctx == tokens
    assert "trained_context" in [note.code for note in answer.assumptions]
    chosen = plan(None, state, config, {"n_ctx": 256})
    assert chosen.n_ctx == 256
    assert "trained_context" not in [note.code for note in chosen.assumptions]


def test_values_of_many_layers_are_widened_to_one_width() -> None:
    """Of 10,000 layers with 1 to 8 heads each, every layer's values get the row of 8 heads."""
    layers = [
        Layer(states=(FullAttention(kv_heads=1 + index % 8, k_dim=64, v_dim=64),))
        for index in range(10_000)
    ]
    answer = plan(None, ModelState.of_layers(layers), None,
                  {"n_ctx": 256, "version": "2025-08-01", "flash_attn": "off"}, 2**40)  # fmt: skip
    assert answer.caches[0].v_bytes == 10_000 * 8 * 64 * 2 * 256
    assert answer.caches[0].k_bytes == 10_000 * 9 // 2 * 64 * 2 * 256


def test_the_last_layers_go_to_the_device() -> None:
    """gpt-oss-120b with 11 layers offloaded in August 2025: 12 and 13 of 18 stay on the host."""
    header = OSS | {"gpt-oss.block_count": 36}
    answer = planned(header, version="2025-08-15", n_ctx=16384, flash_attn=False,
                     n_gpu_layers=11, devices=["Vulkan1"])  # fmt: skip
    shares = {(row.cache, row.device): (row.layers, row.bytes) for row in answer.devices}
    assert shares == {
        ("non-SWA", "CPU"): (12, 384 * 2**20),
        ("non-SWA", "Vulkan1"): (6, 192 * 2**20),
        ("SWA", "CPU"): (13, 17_039_360),
        ("SWA", "Vulkan1"): (5, 6_553_600),
    }
    assert sum(answer.bytes_by_device.values()) == answer.total_bytes


def test_the_output_layer_counts_since_2026() -> None:
    """With as many offloaded as there are layers, the first one stays on the host since 2026."""
    for day, host in (("2025-12-01", 0), ("2026-02-01", 1)):
        answer = planned(LLAMA, version=day, n_ctx=256, n_gpu_layers=32)
        assert sum(row.layers for row in answer.devices if row.device == "CPU") == host


def test_a_split_divides_by_running_shares() -> None:
    """3:1 over 33 active layers: 25 layers on the first device, 7 on the second."""
    answer = planned(LLAMA, n_ctx=256, ngl=99, tensor_split=[3, 1])
    assert [(row.device, row.layers) for row in answer.devices] == [("CUDA0", 25), ("CUDA1", 7)]


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        ({}, []),
        ({"kv_offload": False}, ["CPU"]),
        ({"ngl": 0}, ["CPU"]),
        ({"ngl": 99}, ["CUDA0"]),
        ({"ngl": 99, "split_mode": "row", "main_gpu": 1, "tensor_split": [1, 1]}, ["CUDA1"]),
        ({"ngl": 99, "split_mode": "none", "main_gpu": 2}, ["CUDA2"]),
        ({"ngl": 99, "split_mode": "tensor"}, []),
        ({"ngl": 99, "devices": ["ROCm0", "ROCm1"]}, []),
    ],
)
def test_where_the_cache_goes(settings: dict[str, object], devices: list[str]) -> None:
    """The cache follows the layers, the main device or the host; no unknown split is guessed."""
    answer = plan(LLAMA, None, None, {"n_ctx": 256, **settings})
    assert sorted({row.device for row in answer.devices}) == devices


def test_a_cuda_buffer_pads_quantised_rows() -> None:
    """A row of 576 q8_0 elements gets 448 more in its tensor's buffer: 1166.65 against 1166.62."""
    answer = planned(DSV3, n_ctx=32768, cache_type_k="q8_0", ngl=99)
    assert "KV buffer size =  1166.65 MiB" in answer.printed[0]
    assert "size = 1166.62 MiB" in answer.printed[1]
    host = planned(DSV3, n_ctx=32768, cache_type_k="q8_0", kv_offload=False)
    assert "KV buffer size =  1166.62 MiB" in host.printed[0]


def test_states_lie_with_their_layers() -> None:
    """The recurrent states are divided over the devices like the layers they belong to."""
    answer = planned(QWEN35, n_ctx=256, ngl=99, tensor_split=[1, 1])
    states = [row for row in answer.devices if row.cache == "recurrent"]
    assert [row.layers for row in states] == [25, 23]
    assert answer.recurrent is not None
    assert sum(row.bytes for row in states) == answer.recurrent.bytes


# Printed lines


def test_size_lines_go_through_a_32_bit_float() -> None:
    """A count of bytes that a 32-bit float rounds is printed as rounded."""
    assert printed_mib(1_223_294_976) == "1166.62"
    assert printed_mib(2**24 + 1) == "16.00"
    assert printed_mib(2_174_746_624) == "2074.00"


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("2023-06-01", ["llama_init_from_file: kv self size  =  128.00 MB"]),
        (
            "2024-11-01",
            [
                (
                    "llama_new_context_with_model: KV self size  =  128.00 MiB,"
                    " K (f16):   64.00 MiB, V (f16):   64.00 MiB"
                ),
            ],
        ),
        (
            "2025-01-20",
            [
                (
                    "llama_kv_cache_init: kv_size = 1024, offload = 1, type_k = 'f16',"
                    " type_v = 'f16', n_layer = 32, can_shift = 1"
                ),
                (
                    "llama_init_from_model: KV self size  =  128.00 MiB,"
                    " K (f16):   64.00 MiB, V (f16):   64.00 MiB"
                ),
            ],
        ),
        (
            "2025-04-01",
            [
                (
                    "init: kv_size = 1024, offload = 1, type_k = 'f16', type_v = 'f16',"
                    " n_layer = 32, can_shift = 1"
                ),
                (
                    "llama_context: KV self size  =  128.00 MiB,"
                    " K (f16):   64.00 MiB, V (f16):   64.00 MiB"
                ),
            ],
        ),
        (
            "2025-05-08",
            [
                (
                    "llama_kv_cache_unified: kv_size = 1024, offload = 1, type_k = 'f16',"
                    " type_v = 'f16', n_layer = 32, can_shift = 1"
                ),
                (
                    "llama_kv_cache_unified: KV self size  =  128.00 MiB,"
                    " K (f16):   64.00 MiB, V (f16):   64.00 MiB"
                ),
            ],
        ),
        (
            "2025-06-10",
            [
                (
                    "llama_kv_cache_unified: size =  128.00 MiB"
                    " (  1024 cells,  32 layers,  1 seqs),"
                    " K (f16):   64.00 MiB, V (f16):   64.00 MiB"
                ),
            ],
        ),
        (
            "2026-10-01",
            [
                (
                    "llama_kv_cache: size =  128.00 MiB (  1024 cells,  32 layers,  1/1 seqs),"
                    " K (f16):   64.00 MiB, V (f16):   64.00 MiB"
                ),
            ],
        ),
    ],
)
def test_lines_by_era(version: str, lines: list[str]) -> None:
    """The same cache is announced in the words of each year."""
    assert list(planned(LLAMA, version=version, n_ctx=1024).printed) == lines


def test_two_caches_are_announced() -> None:
    """A model with windows announces both caches before it creates them."""
    printed = planned(OSS, n_ctx=131072).printed
    assert printed[0] == "llama_kv_cache_iswa: creating non-SWA KV cache, size = 131072 cells"
    assert printed[2] == "llama_kv_cache_iswa: creating     SWA KV cache, size = 768 cells"
    assert "size =   18.00 MiB (   768 cells,  12 layers,  1/1 seqs)" in printed[3]


def test_recurrent_lines_count_all_layers() -> None:
    """65 layers with the drafting one are printed though 48 hold state."""
    header = HEADERS["Qwen3.8-27B with nextn=1, main ctx"]
    line = planned(header, n_ctx=768, n_seq_max=3).printed[-1]
    assert line == (
        "llama_memory_recurrent: size =  448.88 MiB (     3 cells,  65 layers,  3 seqs  0 rs_seq),"
        " R (f32):   16.88 MiB, S (f32):  432.00 MiB"
    )
    earlier = planned(header, version="2026-05-01", n_ctx=768, n_seq_max=3).printed[-1]
    assert "( 3 seqs)" in earlier.replace("     3 cells,  65 layers, ", "")


def test_sparse_and_compressed_caches_are_announced() -> None:
    """Index caches, and DeepSeek-V4's five caches and three compressors, have their own lines."""
    printed = "\n".join(planned(GLM52, n_ctx=5000).printed)
    assert "llama_kv_cache_dsa: creating main KV cache, size = 5120 cells" in printed
    assert "llama_kv_cache_dsa: creating indexer KV cache, size = 5120 cells" in printed
    printed = "\n".join(planned(DSV4, n_ctx=64000, n_ubatch=4096, n_batch=4096).printed)
    assert "llama_kv_cache_dsv4: creating DSV4 raw KV cache" in printed
    assert "creating     SWA KV cache, size = 4352 cells" in printed
    assert "creating DSV4 CSA compressed KV cache, size = 16000 cells" in printed
    assert "creating DSV4 HCA compressed KV cache, size = 500 cells" in printed
    assert "lid ratio = 4, state = 8 x 256, streams = 1, rs_seq = 0, layers = 21" in printed


# The fork and Ollama


@pytest.mark.parametrize(
    ("settings", "keys", "values"),
    [
        ({"mla": 1}, 576, 512),
        ({"mla": 1, "flash_attn": True}, 576, 0),
        ({"mla": 2}, 576, 0),
        ({"mla": 3}, 576, 0),
        ({"mla": 0}, 16 * 192, 16 * 128),
    ],
)
def test_the_fork_caches_latents_three_ways(
    settings: dict[str, object], keys: int, values: int
) -> None:
    """-mla decides whether heads, the latent, or the latent twice is cached."""
    answer = plan(OLD_LATENT, None, None, {"runner": "ik_llama.cpp", "n_ctx": 512, **settings})
    cache = answer.caches[0]
    assert (cache.k_bytes, cache.v_bytes) == (27 * keys * 1024, 27 * values * 1024)


def test_the_fork_takes_its_own_types() -> None:
    """q6_0 is a cache type of the fork: 26 bytes for 32 elements."""
    answer = planned(LLAMA, runner="ik_llama.cpp", n_ctx=512, cache_type_k="q6_0")
    assert answer.caches[0].k_bytes == 32 * 1024 * 26 // 32 * 512
    assert "K (q6_0)" in answer.printed[-1]


@pytest.mark.parametrize(
    ("header", "settings", "error", "field"),
    [
        (DSV3, {}, Missing, "mla"),
        (DSV3, {"mla": 0}, Unsupported, "mla"),
        (QWEN35, {}, Unsupported, "runner"),
        (LLAMA, {"mla": 4}, OutOfRange, "mla"),
    ],
)
def test_what_the_fork_is_not_known_to_do(
    header: dict[str, Any], settings: dict[str, object], error: type[DomainError], field: str
) -> None:
    """A way of caching that was not measured is refused."""
    with pytest.raises(error) as caught:
        plan(header, None, None, {"runner": "ik_llama.cpp", "n_ctx": 512, **settings})
    assert caught.value.field == (field,)


def test_ollama_passes_its_context_on() -> None:
    """num_ctx is per request: four requests of 2,048 are one context of 8,192."""
    answer = planned(LLAMA, runner="ollama", num_ctx=2048, num_parallel=4, kv_cache_type="q8_0",
                     flash_attn=True)  # fmt: skip
    assert (answer.n_ctx, answer.n_seq_max) == (8192, 4)
    assert answer.total_bytes == 32 * 2048 * 34 // 32 * 8192


def test_ollama_estimates_a_quantised_element_as_a_byte() -> None:
    """q8_0 counts as 1 byte and q4_0 as a half, 6 and 12 percent less than the cache takes."""
    eight = planned(LLAMA, runner="ollama-estimate", num_ctx=4096, kv_cache_type="q8_0")
    assert eight.total_bytes == 32 * 2048 * 4096
    assert eight.overheads[0].bytes == -32 * 2048 * 4096 * 2 // 32
    four = planned(LLAMA, runner="ollama-estimate", num_ctx=4096, kv_cache_type="q4_0")
    assert four.total_bytes * 2 == eight.total_bytes
    assert "estimate_bytes" in [note.code for note in four.assumptions]
    with pytest.raises(Unsupported):
        planned(LLAMA, runner="ollama-estimate", num_ctx=4096, kv_cache_type="q5_1")


def test_ollama_estimates_windows_of_two_models() -> None:
    """Gemma 3's windows count in its estimate since March 2025; states count four bytes each."""
    gemma = planned(GEMMA3, runner="ollama-estimate", num_ctx=8192)
    assert [(c.name, c.layers, c.cells) for c in gemma.caches] == [
        ("full", 10, 8192),
        ("window", 52, 1024 + 512),
    ]
    hybrid = planned(QWEN35, runner="ollama-estimate", num_ctx=4096)
    assert [c.name for c in hybrid.caches] == ["full", "states"]
    assert hybrid.caches[1].bytes == 156_893_184


def test_ollamas_engine_pads_and_keeps_one_more_for_several() -> None:
    """Windowed cells are sequences × window (+1 for several) + batch, padded to 32 or 256."""
    one = planned(GEMMA3, runner="ollama-engine", num_ctx=8192, flash_attn=True)
    assert [c.cells for c in one.caches] == [8192, 1536]
    two = planned(GEMMA3, runner="ollama-engine", num_ctx=8192, num_parallel=2)
    assert [c.cells for c in two.caches] == [16384, 2 * 1025 + 512 + 30]
    short = planned(OSS, runner="ollama-engine", num_ctx=1000)
    assert [c.cells for c in short.caches] == [1024, 1536]
    plain = planned(LLAMA, runner="ollama-engine", num_ctx=1000, n_batch=64)
    assert [c.name for c in plain.caches] == ["full"]


@pytest.mark.parametrize(
    ("header", "runner"),
    [(DSV4, "ollama-estimate"), (DSV3, "ollama-engine"), (QWEN35, "ollama-engine")],
)
def test_ollama_refuses_what_was_not_read(header: dict[str, Any], runner: str) -> None:
    """Models whose rules in Ollama are not known are refused."""
    with pytest.raises(Unsupported):
        plan(header, None, None, {"runner": runner, "num_ctx": 4096})


@pytest.mark.parametrize(
    ("size", "text"),
    [(5_079_040_000, "4.7 GiB"), (471_859_200, "450.0 MiB"), (2048, "2.0 KiB"), (12, "12 B")],
)
def test_ollama_prints_one_decimal(size: int, text: str) -> None:
    """Sizes are printed with one decimal, in GiB from 1 GiB on."""
    from app.engines.llama_cpp.ollama import human_bytes  # noqa: PLC0415

    assert human_bytes(size) == text


# Layers by hand


def test_layers_by_hand_are_cached_like_a_file() -> None:
    """What a header's own layers give is what the header gives, wherever layers say enough."""
    compared = 0
    for name, header in HEADERS.items():
        if name == "ds2old.gguf" or "deepseek4" in name:
            continue
        state = read_gguf_model(header).state
        settings: dict[str, object] = {"n_ctx": 5000, "n_seq_max": 3, "flash_attn": "on"}
        by_hand = plan(None, state, None, settings)
        from_file = plan(header, None, None, settings)
        assert by_hand.total_bytes == from_file.total_bytes, name
        compared += 1
    assert compared >= 40


def test_plain_numbers() -> None:
    """32 layers of 8 heads × 128 at 8,192: 1 GiB, and what 2 GiB would hold."""
    state = ModelState.uniform(layers=32, kv_heads=8, head_dim=128)
    answer = plan(None, state, None, {"n_ctx": 8192}, 2 * 2**30)
    assert answer.total_bytes == 2**30
    assert answer.overheads == ()
    assert (answer.fits, answer.largest_n_ctx) == (True, 16384)
    assert plan(None, state, None, {"n_ctx": 8192}).fits is None
    assert plan(None, state, None, {"n_ctx": 8192}, 2**29).fits is False
    assert answer.formula == (
        "kv: 32 layers × (1024 × 2 B + 1024 × 2 B) × 8192 cells = 1073741824 B",
    )


FULL = FullAttention(kv_heads=1, k_dim=64, v_dim=64)
STATE = Recurrent(tensors=(StateTensor(name="conv", shape=(4,), dtype=dtype_named("fp32")),))


@pytest.mark.parametrize(
    "layers",
    [
        [(FULL, SlidingWindow(kv_heads=1, k_dim=64, v_dim=64, window=9))],
        [(STATE, STATE)],
        [(CrossAttention(kv_heads=1, k_dim=64, v_dim=64, encoder_tokens=9),)],
        [(LatentAttention(latent_dim=64, rope_dim=0, tokens_per_entry=4),)],
        [(LatentAttention(latent_dim=64, rope_dim=0),), (FULL,)],
        [
            (SlidingWindow(kv_heads=1, k_dim=64, v_dim=64, window=9),),
            (SlidingWindow(kv_heads=1, k_dim=64, v_dim=64, window=8),),
        ],
        [
            (STATE,),
            (Recurrent(tensors=(StateTensor(name="ssm", shape=(4,), dtype=dtype_named("fp32")),)),),
        ],
        [
            (FullAttention(kv_heads=1, k_dim=64, v_dim=64, index_dim=64),),
            (FullAttention(kv_heads=1, k_dim=64, v_dim=64, index_dim=32),),
        ],
    ],
)
def test_layers_that_no_llama_cpp_model_has(layers: list[tuple[Any, ...]]) -> None:
    """Layers whose cache is known from a header only are refused, not approximated."""
    state = ModelState.of_layers([Layer(states=states) for states in layers])
    with pytest.raises(Unsupported) as caught:
        plan(None, state, None, {"n_ctx": 256})
    assert caught.value.field == ("model",)


def test_shared_and_chunked_layers_by_hand() -> None:
    """A layer that shares owns nothing; chunked layers get the short cache."""
    chunked = ChunkedAttention(kv_heads=1, k_dim=64, v_dim=64, chunk=300)
    state = ModelState.of_layers(
        [Layer(states=(s,)) for s in (FULL, chunked, Shared(with_layer=0))]
    )
    answer = plan(None, state, None, {"n_ctx": 4096, "n_ubatch": 64})
    assert [(c.layers, c.cells) for c in answer.caches] == [(1, 4096), (1, 512)]


def test_rows_that_no_block_divides_have_no_need() -> None:
    """Cached rows may fit blocks where the model's own parts do not: then no need is stated."""
    state = ModelState.of_layers([Layer(states=(LatentAttention(latent_dim=496, rope_dim=16),))])
    answer = plan(None, state, None, {"cache_type_k": "q8_0", "n_ctx": 256})
    assert answer.total_bytes == 512 // 32 * 34 * 256
    assert answer.needed_bytes is None
    assert answer.overheads == ()


# Properties


FITTING = sorted(set(HEADERS) - {"DeepSeek-V4-Flash geometry (deepseek4)"})
DAYS = ("2025-08-14", "2026-10-01")


@given(
    name=st.sampled_from(sorted(HEADERS)),
    tokens=st.integers(1, 20_000),
    sequences=st.integers(1, 8),
    unified=st.booleans(),
    flash=st.sampled_from(["on", "off"]),
    ubatch=st.integers(1, 4096),
)
def test_overheads_add_up_and_more_tokens_never_cost_less(
    name: str, tokens: int, sequences: int, unified: bool, flash: str, ubatch: int  # noqa: FBT001
) -> None:  # fmt: skip
    """Total = need + overheads to the byte, and one more token never takes a byte less."""
    settings: dict[str, object] = {
        "n_ctx": tokens,
        "n_seq_max": sequences,
        "kv_unified": unified,
        "flash_attn": flash,
        "n_ubatch": ubatch,
    }
    answer = plan(HEADERS[name], None, None, settings)
    assert answer.needed_bytes is not None
    assert answer.needed_bytes + sum(o.bytes for o in answer.overheads) == answer.total_bytes
    more = plan(HEADERS[name], None, None, settings | {"n_ctx": tokens + 1})
    assert more.total_bytes >= answer.total_bytes
    assert answer.total_bytes == sum(c.bytes for c in answer.caches) + (
        answer.recurrent.bytes if answer.recurrent else 0
    )


@given(
    name=st.sampled_from(FITTING), tokens=st.integers(1, 20_000), day=st.sampled_from(DAYS),
    asked=st.integers(1, 100_000),
)  # fmt: skip
def test_a_request_costs_what_a_context_of_its_length_takes(
    name: str, tokens: int, day: str, asked: int
) -> None:
    """Fixed part, saturating windows and slope together give the context of one such request."""
    if day == "2025-08-14" and (
        HEADERS[name]["general.architecture"] in {"kimi-linear", "deepseek32", "glm-dsa"}
    ):
        day = "2026-10-01"
    settings: dict[str, object] = {"version": day, "flash_attn": "on"}
    request = plan(HEADERS[name], None, None, settings | {"n_ctx": asked}).request
    alone = plan(HEADERS[name], None, None, settings | {"n_ctx": tokens})
    assert request.bytes_at(tokens) == alone.total_bytes
    assert request.bytes_at(0) == 0
    # Beyond every window only the slope is left, over whole units of all parts.
    far, unit = 2**20, 2**15
    growth = request.bytes_at(far + unit) - request.bytes_at(far)
    assert growth == request.slope_bytes_per_token * unit


@given(name=st.sampled_from(sorted(HEADERS)), memory=st.integers(0, 2**36))
def test_the_largest_context_fits_and_the_next_does_not(name: str, memory: int) -> None:
    """largest_n_ctx is the last length whose context the memory holds."""
    answer = plan(HEADERS[name], None, None, {"n_ctx": 512}, memory)
    largest = answer.largest_n_ctx
    assert largest is not None
    if largest:
        assert plan(HEADERS[name], None, None, {"n_ctx": largest}).total_bytes <= memory
    if largest < 2**30:
        assert plan(HEADERS[name], None, None, {"n_ctx": largest + 1}).total_bytes > memory


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=3), st.just({"a": 1}),
)  # fmt: skip


@given(
    settings=st.dictionaries(
        st.sampled_from(["n_ctx", "n_seq_max", "version", "flash_attn", "cache_type_k", "runner",
                         "tensor_split", "devices", "n_gpu_layers", "mla", "x", "context_type",
                         "num_ctx", "n_ubatch", "split_mode", "main_gpu", "kv_offload"]),
        JUNK, max_size=5,
    ),
    name=st.sampled_from(sorted(HEADERS)),
)  # fmt: skip
def test_fuzzed_settings_are_answered_or_refused(settings: dict[str, object], name: str) -> None:
    """Whatever is set to whatever, there is a plan or a refusal that names a setting or key."""
    refusal: DomainError | None = None
    total = -1
    try:
        total = plan(HEADERS[name], None, None, settings).total_bytes
    except DomainError as error:
        refusal = error
    assert total >= 0 if refusal is None else bool(refusal.field and str(refusal))


def test_available_bytes_are_checked() -> None:
    """The memory given is a number of bytes."""
    for value in (-1, 2**60):
        with pytest.raises(OutOfRange):
            plan(LLAMA, None, None, {"n_ctx": 256}, value)

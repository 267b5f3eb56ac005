"""llama.cpp: an allocation that failed, with and without a model; and what all figures bear out.

Llama 3.1 8B keeps 131,072 B a token at 16 bits: 131,072 cells are 16,384 MiB. Qwen3.5-27B keeps
65,536 B in its 16 layers with attention: 24,576 cells are 1,536 MiB, and 149.62 MiB of states
stand on a line of their own.
"""

from __future__ import annotations

import pytest

from app.engines.logs.agreement import alternatives_note
from tests.engines.logs.asking import advice, ask, figure_of, reasons, verdicts

LLAMA = "meta-llama/Llama-3.1-8B"
FAILED = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {size} MiB on device 0: "
    "cudaMalloc failed: out of memory"
)
EXACT = "alloc_tensor_range: failed to allocate CUDA0 buffer of size 17179869184"
OF_CACHE = "llama_kv_cache: failed to allocate buffer for kv cache"
CONTEXT = "llama_context: n_ctx = 131072"


def test_a_failure_without_a_model_shows_its_figure() -> None:
    """Size and device stand in the answer, unchecked, with the advice that needs no model."""
    found = ask(FAILED.format(size="16384.00"))
    item = figure_of(found, "failed_allocation")
    assert (item.printed, item.computed, item.agrees) == ("16384.00 MiB on device 0", None, None)
    assert item.interval == (17_179_863_942, 17_179_874_426)
    assert reasons(found, "failed_allocation") == {"failed_buffer", "no_model"}
    assert set(advice(found)) == {"free_memory"}


def test_a_cache_that_failed_without_a_model_has_formats_and_lengths() -> None:
    """34 bytes for 32 elements instead of 64, and half the context: 8,704 and 8,192 MiB."""
    found = ask("\n".join([FAILED.format(size="16384.00"), EXACT, OF_CACHE, CONTEXT]))
    assert [item.printed for item in found.figures] == [
        "16384.00 MiB on device 0", "17,179,869,184 B on CUDA0",
    ]  # fmt: skip
    told = advice(found)
    assert told["cache_types"] == "the buffer then takes 8,704.00 MiB instead of 16,384.00 MiB"
    assert "8,192.00 MiB" in told["ctx_size"]
    assert found.advice[-1].change.text == "--ctx-size 65536"


@pytest.mark.parametrize(
    "types",
    ["-ctk q8_0 -ctv q8_0", "-ctk q4_0 -ctv q4_0", "-ctk q8_0 -ctv f16", "-ctk odd -ctv odd"],
)
def test_no_format_is_advised_that_takes_no_less(types: str) -> None:
    """What is kept in eight bits or fewer, or in two types, is not promised a share."""
    command = f"$ llama-server {types} -c 0"
    found = ask("\n".join([command, FAILED.format(size="512.00"), OF_CACHE]))
    assert set(advice(found)) == {"free_memory"}


@pytest.mark.parametrize(
    ("size", "agrees", "code"),
    [
        ("16384.00", True, "failed_cache"),
        ("8192.00", None, "failed_beside"),
        ("260.50", None, "failed_beside"),
    ],
)
def test_a_failure_against_the_model(size: str, agrees: bool | None, code: str) -> None:  # noqa: FBT001 - a table's cell
    """The whole cache is recognised; a part, or another buffer, is left unchecked beside it."""
    found = ask(f"{FAILED.format(size=size)}\n{CONTEXT}", LLAMA)
    assert figure_of(found, "failed_allocation").agrees is agrees
    assert code in reasons(found, "failed_allocation")
    assert not found.disagrees


# What settings are inferred of


HYBRID = "Qwen/Qwen3.5-27B"
STATES = "llama_memory_recurrent: size = 149.62 MiB, R (f32): 5.62 MiB, S (f32): 144.00 MiB"


def test_states_have_a_line_of_their_own() -> None:
    """The context is found of the cache's line alone: 24,576 cells, exactly as printed."""
    found = ask(f"llama_kv_cache: size = 1536.00 MiB\n{STATES}", HYBRID)
    assert found.inferred["n_ctx"] == 24_576
    assert verdicts(found) == {"kv_cache": True, "recurrent_states": True}
    assert figure_of(found, "kv_cache").computed == "1536.00 MiB"
    assert "inferred" in reasons(found, "kv_cache")


def test_buffers_of_states_are_not_the_caches() -> None:
    """KV buffers add up to the cache without the states."""
    found = ask(
        f"CUDA0 KV buffer size = 1024.00 MiB\nCUDA1 KV buffer size = 512.00 MiB\n{STATES}", HYBRID
    )
    assert found.inferred["n_ctx"] == 24_576
    assert verdicts(found) == {"buffer": True, "recurrent_states": True}


def test_not_all_figures_agree() -> None:
    """817 MiB are no whole cells: what agrees is not said to agree in all."""
    found = ask(f"llama_kv_cache: size = 817.00 MiB\n{STATES}", HYBRID)
    assert verdicts(found) == {"kv_cache": None, "recurrent_states": True}
    assert "inferred_partly" in reasons(found, "recurrent_states")
    assert "inferred" not in reasons(found, "recurrent_states")


def test_nothing_is_inferred_where_nothing_agrees() -> None:
    """Settings that no figure bears out are not given as found."""
    found = ask(
        "KV self size  =  545.00 MiB, K (f16):  272.00 MiB, V (f16):  273.00 MiB", LLAMA
    )  # fmt: skip
    assert figure_of(found, "kv_self_size").agrees is None
    assert found.inferred == {}


def test_other_settings_are_named_once_and_few() -> None:
    """Settings that give the same are listed each once, four at most, and none makes no word."""
    others = [{"tp_size": n % 6, "x": 1} for n in range(12)]
    (note,) = alternatives_note(others)
    assert note.text == (
        "the same figures come of tp_size=0, x=1; tp_size=1, x=1; tp_size=2, x=1; tp_size=3, x=1"
    )
    assert alternatives_note([{}]) == ()

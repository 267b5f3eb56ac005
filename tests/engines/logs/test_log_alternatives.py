"""Half the heads in twice the bytes: ranks and formats that give the same pool are both named.

Qwen3-30B-A3B keeps 4 heads, 128 wide, in each of 48 layers: 1,106,305 rows of 1,024 B a layer in
all are 27,188,551,680 B of keys, either 2 heads at 16 bits or 4 at 8 (tests/data/engine_logs.json,
sg-27537, which ran on two ranks). Llama 3.1 8B keeps 131,072 B a token: 511,872 tokens are
62.48 GiB, and half of that on two ranks or at 8 bits.
"""

from __future__ import annotations

import pytest

from app.engines.logs import Explained
from tests.engines.logs.asking import ask, figure_of, reasons

QWEN = "Qwen/Qwen3-30B-A3B"
LLAMA = "meta-llama/Llama-3.1-8B"
SGLANG = "#tokens: 1106304, K size: 25.32 GB"
TENSORRT = (
    "[TensorRT-LLM][INFO] Number of tokens per block: 64.\n"
    "[MemUsageChange] Allocated {size} GiB for max tokens in paged KV cache (511872)."
)


def _others(found: Explained) -> list[str]:
    return [
        note.text for item in found.figures for note in item.reasons if note.code == "alternatives"
    ]


def test_two_ranks_or_eight_bits_in_sglang() -> None:
    """Sixteen bits on two ranks are taken, and eight bits on one named beside them."""
    found = ask(SGLANG, QWEN)
    assert figure_of(found, "k_pool").agrees
    assert found.inferred["tp_size"] == 2
    assert "kv_cache_dtype" not in found.inferred
    assert _others(found) == ["the same figures come of kv_cache_dtype=fp8_e4m3, tp_size=1"]


@pytest.mark.parametrize(
    ("given", "inferred"),
    [
        ({"tp_size": 1}, {"kv_cache_dtype": "fp8_e4m3"}),
        ({"kv_cache_dtype": "bfloat16"}, {"tp_size": 2}),
    ],
)
def test_what_is_said_decides(given: dict[str, object], inferred: dict[str, object]) -> None:
    """Where ranks or format are known, the other follows, and nothing else gives the same."""
    found = ask(SGLANG, QWEN, **given)
    assert inferred.items() <= found.inferred.items()
    assert _others(found) == []


def test_copied_heads_are_alternatives() -> None:
    """Eight ranks keep one of four heads each, as four do: 13,594,275,840 B, 12.66 GB."""
    found = ask("#tokens: 1106304, K size: 12.66 GB", QWEN)
    assert found.inferred["tp_size"] == 4
    (text,) = _others(found)
    assert "kv_cache_dtype=fp8_e4m3, tp_size=2" in text
    assert "kv_cache_dtype=auto, tp_size=8" in text


def test_two_ranks_or_eight_bits_in_tensorrt_llm() -> None:
    """31.24 GiB for as many tokens: two ranks, or eight bits on one."""
    found = ask(TENSORRT.format(size="31.24"), LLAMA)
    assert figure_of(found, "kv_pool").agrees
    assert found.inferred["tp_size"] == 2
    assert _others(found) == ["the same figures come of kv_cache_dtype=fp8, tp_size=1"]
    said = ask(TENSORRT.format(size="31.24"), LLAMA, tp_size=1)
    assert said.inferred["kv_cache_dtype"] == "fp8"
    assert _others(said) == []


@pytest.mark.parametrize(
    ("log", "model"),
    [
        ("KV Cache is allocated. #tokens: 1106304, K size: 50.64 GB, V size: 50.64 GB", QWEN),
        (TENSORRT.format(size="62.48"), LLAMA),
    ],
)
def test_what_a_start_has_anyway_needs_no_alternative(log: str, model: str) -> None:
    """One rank at sixteen bits is what nobody has to say."""
    found = ask(log, model)
    assert found.figures[0].agrees
    assert _others(found) == []
    assert "inferred" not in {code for item in found.figures for code in reasons(found, item.name)}


@pytest.mark.parametrize(
    ("log", "model"),
    [
        ("KV Cache is allocated. #tokens: 1106304, K size: 25.32 GB, V size: 29.00 GB", QWEN),
        (TENSORRT.format(size="40.00"), LLAMA),
    ],
)
def test_no_alternatives_of_figures_that_disagree(log: str, model: str) -> None:
    """Where nothing gives all figures, none is said to, nor are other settings."""
    found = ask(log, model)
    codes = {note.code for item in found.figures for note in item.reasons}
    assert found.disagrees
    assert not codes & {"inferred", "alternatives"}

"""Public start-up logs of vLLM, each with the settings that its source states.

Every figure that the lines allow to check lies inside what its printed decimals leave open; those
that do not are listed with the reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.engines.logs import Explained
from app.engines.model import EngineModel
from tests.engines.logs.asking import ask, figure_of, model_named

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "vllm_logs.json").read_text(encoding="utf-8")
)
# What the source calls the model, where that is no name of one.
NAMES = {
    "Mistral-7B": "mistralai/Mistral-7B-v0.1",
    "Qwen2/2.5-0.5B": "Qwen/Qwen2.5-0.5B",
    "Qwen3.6-27B,": "Qwen/Qwen3.6-27B",
    "Cosmos-Reason": "nvidia/Cosmos-Reason2-8B",
}
# Without a name: full attention of the shape that the source gives.
SHAPES = {"80-layer", "40-layer"}
SAME_NAME = frozenset(
    {
        "enable_prefix_caching", "max_num_batched_tokens", "max_num_seqs", "mamba_cache_mode",
        "mamba_ssm_cache_dtype", "decode_context_parallel_size", "async_scheduling",
        "kv_cache_memory_bytes",
    }
)  # fmt: skip

# One line says that the tokens do not reach the model's length; the memory is in no line, so that
# there is nothing to compare with. The answer says how much memory they are.
ONLY_TOKENS = {
    "mistral-7b-v01-26064", "smaug-72b-tp4", "phi3-vision-5976", "llama31-405b-fp8-8xh100",
    "qwen15-7b-gptq-3090", "qwen15-72b-2xa100", "qwen15-7b-295", "glm4-9b-chat",
    "mistral-7b-runpod",
}  # fmt: skip
NOTHING_TO_CHECK = {
    "gptoss-120b-h100-negative",  # the memory left is negative: no pool was made
    "dsv4-flash-h20-tp2",  # a sentence of somebody's, no line of the engine
    "deepseek-v2-83",  # the source does not say which of three models it is
}
# What the lines say of each other, or of the model, does not hold with any usual setting.
UNLIKE = {
    "llama31-8b-l4": {"max_concurrency"},  # 30.03 of 4,096 tokens, from 123,472: they make 30.14
    "glm52-mi300-1m": {"needed_memory"},  # the drafter's own indexers are not known
}


def said_settings(case: dict[str, Any]) -> dict[str, object]:
    """Return what a source says of the start, in the engine's own words."""
    settings: dict[str, object] = {}
    for name, field in (("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp")):
        if case[field] != 1:
            settings[name] = case[field]
    if case["kv_cache_dtype"] not in ("auto", "auto?", None):
        settings["kv_cache_dtype"] = case["kv_cache_dtype"]
    if case["dtype"] == "fp16":
        settings["dtype"] = "float16"
    for field in ("block_size", "max_model_len"):
        if case.get(field):
            settings[field] = case[field]
    return settings | flags_of(case.get("other_flags", {}))


def flags_of(flags: dict[str, Any]) -> dict[str, object]:
    """Return a source's other flags; those that say nothing about the cache are left out."""
    settings: dict[str, object] = {}
    for name, value in flags.items():
        if name == "speculative" and value.startswith("mtp"):
            settings["num_speculative_tokens"] = int(value.split()[1])
            settings["speculative_method"] = "mtp"
        elif name == "VLLM_PP_LAYER_PARTITION":
            settings["layers_per_stage"] = [int(part) for part in value.split(",")]
        elif name in SAME_NAME:
            settings[name] = value
    return settings


def model_of(case: dict[str, Any]) -> EngineModel:
    """Return the model that a source names, or the shape that it gives."""
    name = case["model_name"].split(" ")[0]
    if name not in SHAPES:
        return model_named(NAMES.get(name, name))
    from app.api.engine_models import engine_model  # noqa: PLC0415 - for two cases
    from app.api.schemas import UniformModel  # noqa: PLC0415

    shape = case["geometry"]
    return engine_model(UniformModel(layers=shape["layers"], kv_heads=shape["kv_heads"],
                                     head_dim=shape["head_dim"]))  # fmt: skip


def answer(case: dict[str, Any]) -> Explained:
    """Return a log explained with what its source says."""
    return ask("\n".join(case["log_lines"]), model_of(case), **said_settings(case))


def test_there_are_cases() -> None:
    """The file of public logs holds 86, and each exception is one of them."""
    known = {case["id"] for case in CASES}
    assert len(CASES) == 86
    assert (ONLY_TOKENS | NOTHING_TO_CHECK | UNLIKE.keys()) <= known


CHECKED = [
    case for case in CASES if case["id"] not in ONLY_TOKENS | NOTHING_TO_CHECK | UNLIKE.keys()
]


@pytest.mark.parametrize("case", CHECKED, ids=lambda case: case["id"])
def test_figures_agree(case: dict[str, Any]) -> None:
    """Some figure agrees and none disagrees; each says why it is what it is."""
    found = answer(case)
    assert any(item.agrees for item in found.figures)
    assert [item.name for item in found.figures if item.agrees is False] == []
    assert all(item.reasons for item in found.figures)


@pytest.mark.parametrize("name", sorted(ONLY_TOKENS))
def test_tokens_alone_say_how_much_memory_they_are(name: str) -> None:
    """Where no memory is printed the figure is left unchecked, with what it takes to hold it."""
    found = answer(next(case for case in CASES if case["id"] == name))
    (item,) = [item for item in found.figures if item.name == "stored_tokens"]
    assert item.agrees is None
    assert item.computed is not None
    assert item.computed.endswith("GiB of memory")
    assert [note.code for note in found.missing] == ["no_memory_line"]


@pytest.mark.parametrize(("name", "figures"), UNLIKE.items())
def test_what_does_not_hold_is_said(name: str, figures: set[str]) -> None:
    """A figure that no usual setting gives is told as such, with its difference and a reason."""
    found = answer(next(case for case in CASES if case["id"] == name))
    unlike = [item for item in found.figures if "not_reproduced" in {n.code for n in item.reasons}]
    assert {item.name for item in unlike} == figures
    assert all(item.agrees is not True and item.difference for item in unlike)


FLASH = "deepseek-ai/DeepSeek-V4-Flash"
FORK = (
    "Available KV cache memory: 26.3 GiB\nGPU KV cache size: {tokens} tokens\n"
    "Maximum concurrency for 1,048,576 tokens per request: 2.61x"
)


def test_a_build_that_packs_as_a_later_release() -> None:
    """The lines are those of 0.27 and before; 28,172 blocks are what 0.33 makes of them."""
    found = ask(FORK.format(tokens="2,740,813"), FLASH)
    (text,) = {
        note.text
        for item in found.figures
        for note in item.reasons
        if note.code == "agrees_by_newest"
    }
    assert "vLLM 0.27.1 packs DeepSeek-V4's pages is not described here" in text
    assert "By the rules of vLLM 0.33.0 its figures agree" in text
    assert "6.237 GiB and 3,915 B a token" in text
    later = ask(FORK.format(tokens="2,740,813"), FLASH, version="0.33.0")
    assert figure_of(later, "available_memory").computed == "26.30 GiB = 28,172 × 1,002,240 B"


def test_a_build_that_no_release_packs_as() -> None:
    """Tokens that 0.33 does not print lead to no release."""
    found = ask(FORK.format(tokens="2,700,000"), FLASH)
    codes = {note.code for item in found.figures for note in item.reasons}
    assert "agrees_by_newest" not in codes
    assert "unsupported" in codes

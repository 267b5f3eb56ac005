"""Models by the names that people write, and by what a token takes."""

from __future__ import annotations

import json

import pytest

from app.catalog.alike import ALIKE, alike_in_bytes, named_model
from app.readers.hf_config import read_config


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("META-LLAMA/LLAMA-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "meta-llama/Llama-3.1-8B"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a16", "meta-llama/Llama-3.1-8B"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-7B"),
        ("Qwen3-Coder-30B-A3B-Instruct-FP8", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3"),
    ],
)
def test_what_was_done_to_a_model_keeps_its_layers(name: str, found: str) -> None:
    """Case, owner, tuning, quantisation and dates do not change what the layers keep."""
    answer = named_model(name)
    expected = named_model(found)
    assert answer is not None
    assert expected is not None
    assert answer.reading.state == expected.reading.state
    assert answer.exact == (name.casefold() == answer.id.casefold())


@pytest.mark.parametrize(
    "name", ["", " ", "/", "no-such-model", "8B", "instruct", "x" * 10_000, "../../etc/passwd"]
)
def test_no_model_is_guessed(name: str) -> None:
    """A name that leads to no model, or to several shapes, leads to none."""
    assert named_model(name) is None


def test_every_model_alike_has_a_source_and_can_be_read() -> None:
    """Each added name says where that is written, and its layers can be read."""
    entries = json.loads(ALIKE.read_text(encoding="utf-8"))
    assert len(entries) > 20
    assert len({entry["name"] for entry in entries}) == len(entries)
    for entry in entries:
        assert entry["source"].startswith("https://"), entry["name"]
        assert ("like" in entry) != ("config" in entry), entry["name"]
        found = named_model(entry["name"])
        assert found is not None, entry["name"]
        assert found.reading.state.num_layers > 0
        if "config" in entry:
            assert read_config(dict(entry["config"])).state.num_layers > 0


def test_models_by_what_a_token_takes() -> None:
    """131,072 B a token are Llama 3.1 8B's and a few other shapes, the most common first."""
    found = alike_in_bytes(131_072, 131_072)
    assert found[0] == "meta-llama/Llama-3.1-8B"
    assert len(found) == len(set(found)) <= 8
    assert alike_in_bytes(1, 2) == []
    assert len(alike_in_bytes(0, 2**40, most=3)) == 3

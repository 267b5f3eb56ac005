"""Public logs of llama.cpp and its fork, Ollama, SGLang and TensorRT-LLM.

Each is asked with the layers that its source describes, and nothing else: the settings are read or
found from the lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.engines.logs import Explained
from app.engines.measured_logs import gguf_of
from app.engines.measured_servers import _state_of
from app.engines.model import EngineModel
from tests.engines.logs.asking import ask

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "engine_logs.json").read_text(encoding="utf-8")
)
ENGINES = {
    "llama.cpp": "llama_cpp",
    "llama.cpp (ik_llama.cpp fork)": "llama_cpp",
    "llama.cpp (through Ollama 0.5)": "llama_cpp",
    "ollama": "ollama",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt_llm",
}
# Sentences in which somebody told the figures; no engine writes such lines.
PROSE = {
    "lc-geniex1346a", "lc-unsloth5225-1-4096", "lc-unsloth5225-2-4096", "lc-unsloth5225-4-4096",
    "lc-unsloth5225-8-4096", "lc-unsloth7530-3", "lc-unsloth7530-4", "lc-fs14033481518",
    "lc-fs25362796195", "trt-q3-8b", "trt-82",
}  # fmt: skip
UNCHECKED = {
    "lc-hexagon",  # one line told of four devices at once: not the sum that the plan gives
    "ol-9678",  # the length is not in the line, and another one than the default was set
}
READ = [case for case in CASES if case["id"] not in PROSE | UNCHECKED]


def answer(case: dict[str, Any]) -> Explained:
    """Return a log explained with the layers that its source describes."""
    if case["engine"] in ("sglang", "tensorrt-llm"):
        model = EngineModel(name=case["model_name"], state=_state_of(case["geometry"]))
    else:
        model = EngineModel(name=case["model_name"], gguf=gguf_of(case))
    return ask("\n".join(case["log_lines"]), model)


def test_there_are_cases() -> None:
    """The file holds 78 logs; 65 of them have lines of an engine's own that can be checked."""
    assert len(CASES) == 78
    assert len(READ) == 65
    assert {case["id"] for case in CASES} >= (PROSE | UNCHECKED)


@pytest.mark.parametrize("case", READ, ids=lambda case: case["id"])
def test_figures_agree(case: dict[str, Any]) -> None:
    """The engine shows in its lines, some figure agrees, and none is other than printed."""
    found = answer(case)
    assert found.engine == ENGINES[case["engine"]]
    assert any(item.agrees for item in found.figures)
    assert [item.name for item in found.figures if item.agrees is False] == []


@pytest.mark.parametrize("name", sorted(PROSE))
def test_prose_is_not_guessed_at(name: str) -> None:
    """What is not an engine's line leads to no engine, no figure, and a word of what is known."""
    found = answer(next(case for case in CASES if case["id"] == name))
    assert found.engine is None
    assert found.figures == ()
    assert [note.code for note in found.missing] == ["unknown_engine"]


@pytest.mark.parametrize("name", sorted(UNCHECKED))
def test_what_cannot_be_checked_is_said(name: str) -> None:
    """A figure that the lines leave open has no verdict, and a reason."""
    found = answer(next(case for case in CASES if case["id"] == name))
    assert found.figures
    assert all(item.agrees is None and item.reasons for item in found.figures)

"""Lines that no engine means, and more lines than any start prints: answered, in bounded work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import app.engines.llama_cpp
import app.engines.vllm
from app.domain.dtypes import dtype_named
from app.domain.state import Layer, ModelState, Recurrent, StateTensor
from app.engines.logs.kinds import MOST_DIFFERENT
from app.engines.logs.vllm.evidence import MOST_REFUSALS
from app.engines.logs.vllm.fit import MOST_PLANS
from app.engines.model import EngineModel
from tests.engines.logs.asking import ask, verdicts

LLAMA = "meta-llama/Llama-3.1-8B"
REFUSAL = (
    "ValueError: To serve at least one request with the models's max seq len ({length}), "
    "({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
    "({there:.2f} GiB). Based on the available memory, the estimated maximum model length is "
    "{estimate}."
)


ZEROS = {
    "no tokens": "KV Cache is allocated. #tokens: 0, K size: 0.00 GB, V size: 0.00 GB",
    "a pool of none": """the rest of the memory reserved for KV Cache is 0.5GiB
The model's max seq len (131072) is larger than the maximum number of tokens that can be stored \
in KV cache (0).""",
    "a request of none": REFUSAL.format(length=0, needed=1, there=0.5, estimate=0),
    "blocks of none": """Number of tokens per block: 0.
Number of blocks in KV cache primary pool: 10
Allocated 1.00 GiB for max tokens in paged KV cache (100)""",
}


@pytest.mark.parametrize("model", [LLAMA, None])
@pytest.mark.parametrize("log", ZEROS.values(), ids=ZEROS)
def test_nothing_is_divided_by_a_printed_zero(log: str, model: str | None) -> None:
    """A figure of zero is read, and none is said to agree because of it."""
    found = ask(log, model)
    assert found.engine is not None
    own = verdicts(found)
    own.pop("available_memory", None)
    assert True not in own.values()


def test_a_model_without_a_slope_has_no_blocks_by_tokens() -> None:
    """A model of states alone takes no bytes a token: its blocks are shown, not computed."""
    tensor = StateTensor(name="state", shape=(1024,), dtype=dtype_named("int8"))
    state = ModelState.of_layers([Layer(states=(Recurrent(tensors=(tensor,)),))] * 4)
    model = EngineModel(name="states", config={}, state=state, max_context_tokens=None)
    log = (
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: "
        "total: 79.10 GiB, available: 70.48 GiB\n"
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 10\n"
    )
    assert verdicts(ask(log, model))["blocks"] is None


def counted(monkeypatch: pytest.MonkeyPatch, engine: Any) -> list[int]:
    """Return a list that grows by one with every plan of an engine."""
    made: list[int] = []
    plan: Callable[..., Any] = engine.plan

    def watched(*args: Any, **settings: Any) -> Any:
        made.append(1)
        return plan(*args, **settings)

    monkeypatch.setattr(engine, "plan", watched)
    return made


def test_an_estimate_is_that_of_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two true refusals in one paste give an estimate each, and both agree."""
    log = "\n".join(
        REFUSAL.format(length=131072, needed=16, there=there, estimate=estimate)
        for there, estimate in ((4.10, 33584), (8.20, 67168))
    )
    found = ask(log, LLAMA, version="0.19.1")
    estimates = [item for item in found.figures if item.name == "estimated_length"]
    assert [item.agrees for item in estimates] == [True, True]
    made = counted(monkeypatch, app.engines.vllm)
    ask(log.replace("33584", "33585"), LLAMA, version="0.19.1")
    assert 0 < len(made) <= 6 * MOST_PLANS


def test_work_does_not_grow_with_the_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of refusals the first few are explained, and the others counted."""
    lines = [
        REFUSAL.format(length=131072 + i, needed=16 + i / 100, there=8, estimate=65536 + i)
        for i in range(300)
    ]
    made = counted(monkeypatch, app.engines.vllm)
    found = ask("\n".join(lines), LLAMA)
    assert len([item for item in found.figures if item.name == "needed_memory"]) == MOST_REFUSALS
    assert found.lines_passed_over >= 300 - MOST_DIFFERENT
    assert len(made) <= 6 * MOST_PLANS


def test_so_many_different_readings_of_a_kind_are_looked_at() -> None:
    """Equal lines of many ranks all count as one reading; the others beyond are passed over."""
    same = ["llama_kv_cache: CUDA0 KV buffer size = 64.00 MiB"] * 200
    others = [f"llama_kv_cache: CUDA{i} KV buffer size = {i}.37 MiB" for i in range(1, 101)]
    found = ask("\n".join(["llama_context: n_ctx = 4096", *same, *others]), LLAMA)
    buffers = [item for item in found.figures if item.name == "buffer"]
    assert len({item.printed for item in buffers}) == MOST_DIFFERENT
    assert found.lines_passed_over >= 101 - MOST_DIFFERENT

"""What requests take of vLLM's pool, asked for any length at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.catalog.models import entry, read_entry
from app.domain.capacity import longest_context
from app.engines.vllm import plan
from app.engines.vllm.command import serve_command
from app.engines.vllm.demand import VllmDemand, vllm_demands

MODELS = (
    "meta-llama/Llama-3.1-8B",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "mistralai/Mistral-Small-4-119B-2603",
    "google/gemma-3-27b-it",
)
SETTINGS = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}
LONG = 131_072
DEMANDS = {
    model: vllm_demands(entry(model)["config"], read_entry(model).state, SETTINGS)[0]
    for model in MODELS
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tokens", [1, 1000, 8192, LONG])
def test_a_demand_is_the_plan_s_own(model: str, tokens: int) -> None:
    """A request takes what the plan of exactly that length says."""
    planned = plan(entry(model)["config"], read_entry(model).state,
                   {**SETTINGS, "max_model_len": tokens}, None)  # fmt: skip
    assert DEMANDS[model](tokens) == planned.request_bytes(tokens).total_bytes
    assert DEMANDS[model](0) == 0


@pytest.mark.parametrize("model", MODELS)
def test_the_longest_context_is_the_engine_s_estimate(model: str) -> None:
    """In too small a pool the longest context is the one that the engine's refusal names."""
    demand = DEMANDS[model]
    room = demand(LONG) * 2 // 3
    planned = plan(entry(model)["config"], read_entry(model).state,
                   {**SETTINGS, "max_model_len": LONG}, room)  # fmt: skip
    assert planned.refused
    assert planned.estimated_max_model_len is not None
    longest = longest_context([demand], [demand.usable(room)], 1)
    assert min(longest, LONG) == planned.estimated_max_model_len


@given(st.sampled_from(MODELS), st.integers(0, 2**37))
def test_a_pool_keeps_a_null_block(model: str, room: int) -> None:
    """Requests get whole blocks, and one block fewer than the room holds."""
    demand: VllmDemand = DEMANDS[model]
    unit = demand.plan.ranks[0].bytes_per_block
    usable = demand.usable(room)
    if room < unit:
        assert usable == 0
    else:
        assert usable % unit == 0
        assert usable + unit <= room < usable + 2 * unit


def test_no_room_lacks_what_it_lacks() -> None:
    """A room below nothing stays as it is."""
    assert DEMANDS[MODELS[0]].usable(-5) == -5


def test_stages_hand_out_as_many_blocks() -> None:
    """Two stages of a model in equal halves each take half of what one device would."""
    model = MODELS[0]
    stages = vllm_demands(entry(model)["config"], read_entry(model).state,
                          {**SETTINGS, "pipeline_parallel_size": 2})  # fmt: skip
    assert [stage(1024) * 2 for stage in stages] == [DEMANDS[model](1024)] * 2


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ({"tensor-parallel-size": 1, "kv-cache-dtype": "auto"}, "vllm serve a/b"),
        ({"tensor-parallel-size": 8, "block-size": None, "enforce-eager": True, "async": False},
         "vllm serve a/b --tensor-parallel-size 8 --enforce-eager"),
        ({"max-model-len": 5}, "vllm serve a/b --max-model-len 5"),
    ],
)  # fmt: skip
def test_the_command_says_what_differs(flags: dict[str, object], command: str) -> None:
    """Only what the engine would not take anyway is said; a flag of its own stands alone."""
    assert serve_command("a/b", flags) == command


def test_the_command_quotes() -> None:
    """A name cannot become another command."""
    assert serve_command("a; rm -rf b", {}) == "vllm serve 'a; rm -rf b'"

"""Pipelines whose stages hold different layers: each pays for its own.

Qwen3-Coder-30B keeps 2,048 B a token in each of its 48 layers: 16 of them 32,768 B, 32 of them
65,536 B; 262,144 tokens are 8 and 16 GiB.
"""

from __future__ import annotations

import pytest

from app.engines import vllm
from app.engines.logs import Explained
from tests.engines.logs.asking import advice, ask, figure_of, model_named, remarks, verdicts

CODER = "Qwen/Qwen3-Coder-30B-A3B-Instruct"
REFUSED = (
    "To serve at least one request with the models's max seq len (262144), ({needed} GiB KV cache"
    " is needed, which is larger than the available KV cache memory (3.18 GiB)."
)


def _asked(needed: str, version: str, stages: list[int]) -> Explained:
    return ask(
        REFUSED.format(needed=needed), CODER, pipeline_parallel_size=len(stages),
        layers_per_stage=stages, version=version,
    )  # fmt: skip


def _remark(found: Explained, code: str) -> str:
    return next(note.text for note in found.remarks if note.code == code)


@pytest.mark.parametrize(
    ("stages", "slopes", "needs"),
    [
        ([16, 32], "PP0 32,768 B, PP1 65,536 B", "PP0 8.00 GiB, PP1 16.00 GiB"),
        ([32, 16], "PP0 65,536 B, PP1 32,768 B", "PP0 16.00 GiB, PP1 8.00 GiB"),
        ([8, 8, 32], "PP0–PP1 16,384 B, PP2 65,536 B", "PP0–PP1 4.00 GiB, PP2 16.00 GiB"),
    ],
)
def test_each_stage_has_a_slope_and_a_need(stages: list[int], slopes: str, needs: str) -> None:
    """What a token and a request cost is named rank by rank, and by no single figure."""
    found = _asked("24.0", "0.15.1", stages)
    text = _remark(found, "stage_costs")
    assert f"{slopes}; one request of 262,144 tokens needs {needs}" in text
    assert "slope" not in remarks(found)


def test_like_stages_have_one_slope() -> None:
    """24 layers on each of two ranks are 49,152 B a token on both."""
    found = _asked("24.0", "0.15.1", [24, 24])
    assert "49,152 B on each rank" in _remark(found, "slope")
    assert "stage_costs" not in remarks(found)


@pytest.mark.parametrize(
    ("version", "needed", "named"), [("0.15.1", "24.0", True), ("0.18.0", "16.0", False)]
)
def test_a_newer_release_asks_for_less(version: str, needed: str, named: bool) -> None:  # noqa: FBT001 - a table's cell
    """Releases that charge a stage with all layers are to be left; later ones are not."""
    found = _asked(needed, version, [16, 32])
    assert ("newer_release" in advice(found)) is named
    if named:
        assert "PP0 8.00 GiB, PP1 16.00 GiB" in advice(found)["newer_release"]


def test_one_stage_is_charged_with_its_own_layers() -> None:
    """Without a pipeline no stage pays for another's layers, so no release helps."""
    found = ask(REFUSED.format(needed="24.0"), CODER, version="0.15.1")
    assert found.figures[0].agrees
    assert "newer_release" not in advice(found)


def _refusal_of(model: str, memory: int, **settings: object) -> Explained:
    """Return the plan's own error, asked about with the plan's own settings."""
    known = model_named(model)
    (line,) = vllm.plan(known.config, known.state, settings, memory).printed
    return ask(line, model, **settings)


@pytest.mark.parametrize("version", ["0.11.0", "0.20.2", "0.33.0"])
def test_an_error_is_of_the_first_stage_that_refuses(version: str) -> None:
    """Of 13, 14 and 13 layers the first refuses: 9.92 GiB, where the second would need 10.68."""
    found = _refusal_of(
        "meta-llama/Llama-2-13b-hf", 2**30,
        version=version, pipeline_parallel_size=3, max_model_len=40_000,
    )  # fmt: skip
    assert figure_of(found, "needed_memory").computed == "9.92 GiB = 10,649,600,000 B"
    assert verdicts(found)["needed_memory"] is True
    assert verdicts(found)["estimated_length"] is True
    (stage,) = [n for n in figure_of(found, "needed_memory").reasons if n.code == "refusing_stage"]
    assert stage.params["needs"] == "PP0 9.92 GiB, PP1 10.68 GiB, PP2 9.92 GiB"


def test_the_longest_request_is_that_of_every_stage() -> None:
    """4,032 tokens pass the first stage of 13 layers and not the second of 14, which holds 3,712.

    3,712 is the whole blocks in the least that prints as 1.00 GiB: 1,068,373,115 // 4,587,520 × 16.
    """
    found = _refusal_of(
        "meta-llama/Llama-2-13b-hf", 2**30,
        version="0.20.2", pipeline_parallel_size=3, max_model_len=40_000,
    )  # fmt: skip
    (change,) = [item.change for item in found.advice if item.change.code == "max_model_len"]
    assert change.params["length"] == 3_712


def test_a_stage_that_just_fits_leaves_the_next_to_refuse() -> None:
    """2^28 B hold 4 layers of 131,072 tokens and not 5: the error is the second stage's."""
    found = _refusal_of(
        "baidu/ERNIE-4.5-0.3B-PT", 2**28, version="0.11.0",
        tensor_parallel_size=4, pipeline_parallel_size=4, max_model_len=131_072,
    )  # fmt: skip
    assert figure_of(found, "estimated_length").interval == (102_752, 106_944)
    assert verdicts(found)["estimated_length"] is True

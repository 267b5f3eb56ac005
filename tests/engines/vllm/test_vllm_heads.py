"""Heads to tensor ranks and layers to pipeline stages, as measured."""

from __future__ import annotations

import pytest

from app.domain.errors import Conflict, OutOfRange
from app.engines.vllm.heads import (
    check_query_heads,
    checked_partition,
    kv_heads_per_rank,
    layers_per_stage,
    stages_of_layers,
)
from app.engines.vllm.versions import release
from tests.engines.vllm.cases import load

MEASURED = load("vllm_parallel")
NEWEST = release("0.33.0")


def test_there_are_cases() -> None:
    """165 partitions and 153 head counts."""
    assert (len(MEASURED["pp_partition"]), len(MEASURED["kv_heads_per_rank"])) == (165, 153)


@pytest.mark.parametrize("row", MEASURED["pp_partition"], ids=lambda r: f"{r['L']}/{r['pp']}")
def test_spare_layers_go_before_the_last_stage(row: dict[str, object]) -> None:
    """One each, counted backwards from the last but one."""
    layers, stages = row["L"], row["pp"]
    assert isinstance(layers, int)
    assert isinstance(stages, int)
    counts = layers_per_stage(layers, stages, NEWEST)
    assert list(counts) == row["partition"]
    held = stages_of_layers(counts)
    assert (len(held), held[0], held[-1]) == (layers, 0, stages - 1)


def test_until_0_7_3_the_last_stage_took_the_remainder() -> None:
    """61 layers over 4 stages were 15, 15, 15, 16."""
    assert layers_per_stage(61, 4, release("0.7.3")) == (15, 15, 15, 16)
    assert layers_per_stage(61, 4, release("0.8.0")) == (15, 15, 16, 15)


def test_more_stages_than_layers_are_refused() -> None:
    """A stage without layers is no stage."""
    with pytest.raises(OutOfRange) as caught:
        layers_per_stage(4, 5, NEWEST)
    assert caught.value.field == ("pipeline_parallel_size",)


@pytest.mark.parametrize("row", MEASURED["kv_heads_per_rank"], ids=str)
def test_heads_are_split_or_copied_evenly_or_refused(row: dict[str, int]) -> None:
    """A rank keeps its share, one copy where ranks outnumber heads, and nothing in between."""
    heads, ranks = row["total_kv_heads"], row["tp"]
    if row["exact_split"] or row["exact_replication"]:
        assert kv_heads_per_rank(heads, ranks) == row["model_config_kv_heads_per_rank"]
    else:
        with pytest.raises(Conflict):
            kv_heads_per_rank(heads, ranks)


def test_query_heads_must_divide() -> None:
    """28 heads over 8 ranks are refused, over 4 they are not."""
    check_query_heads(28, 4)
    with pytest.raises(Conflict) as caught:
        check_query_heads(28, 8)
    assert str(caught.value) == (
        "tensor_parallel_size: 28 attention heads do not divide by 8 tensor ranks"
    )


def test_a_partition_by_hand_must_fit() -> None:
    """As many stages as asked, as many layers as the model has."""
    assert checked_partition([5, 3], 8, 2) == (5, 3)
    for wrong in ([8], [4, 5]):
        with pytest.raises(Conflict):
            checked_partition(wrong, 8, 2)

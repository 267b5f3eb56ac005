"""How heads and layers are dealt out to tensor ranks and pipeline stages.

vLLM 0.33.0 config/model.py `get_num_kv_heads` and distributed/utils.py `get_pp_indices`; measured:
tests/data/vllm_parallel.json.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.errors import Conflict, OutOfRange
from app.engines.head_split import check_query_heads, kv_heads_per_rank
from app.engines.vllm.versions import Release

__all__ = [
    "check_query_heads",
    "checked_partition",
    "kv_heads_per_rank",
    "layers_per_stage",
    "stages_of_layers",
]


def layers_per_stage(layers: int, stages: int, release: Release) -> tuple[int, ...]:
    """Return how many layers each pipeline stage gets.

    Every stage gets the quotient; spare layers go one each to the stages before the last, counted
    backwards, so that the last, which also holds the output head, never gets one. Until 0.7.3 the
    last took them all. 61 layers over 4 stages: 15, 15, 16, 15; before, 15, 15, 15, 16.
    """
    if stages > layers:
        raise OutOfRange(
            "{field} must be at most the number of layers ({high}), got {value}",
            field="pipeline_parallel_size",
            high=layers,
            value=stages,
        )
    share, spare = divmod(layers, stages)
    counts = [share] * stages
    if not release.balances_stages_inwards:
        counts[-1] += spare
        return tuple(counts)
    for index in range(spare):
        counts[-2 - index] += 1
    return tuple(counts)


def checked_partition(partition: Sequence[int], layers: int, stages: int) -> tuple[int, ...]:
    """Return a partition given by hand (VLLM_PP_LAYER_PARTITION) if it fits the model.

    Raises:
        Conflict: if its length is not the number of stages, or its sum not that of the layers.

    """
    if len(partition) != stages or sum(partition) != layers:
        raise Conflict(
            "{field} must name {stages} stages of {layers} layers in all",
            field="layers_per_stage",
            stages=stages,
            layers=layers,
        )
    return tuple(partition)


def stages_of_layers(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the stage that holds each layer."""
    return tuple(stage for stage, count in enumerate(counts) for _ in range(count))

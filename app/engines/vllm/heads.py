"""How heads and layers are dealt out to tensor ranks and pipeline stages.

vLLM 0.33.0 config/model.py `get_num_kv_heads` and distributed/utils.py `get_pp_indices`; measured:
tests/data/vllm_parallel.json.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.errors import Conflict, OutOfRange
from app.engines.vllm.versions import Release


def kv_heads_per_rank(total_kv_heads: int, tensor_parallel: int) -> int:
    """Return the heads that one rank keeps: its share, or one copy where ranks outnumber heads.

    Raises:
        Conflict: where neither divides the other; vLLM's layers refuse that.

    """
    if total_kv_heads % tensor_parallel and tensor_parallel % total_kv_heads:
        raise Conflict(
            "{field}: {heads} key-value heads can neither be split nor copied evenly over {ranks}"
            " tensor ranks",
            field="tensor_parallel_size",
            heads=total_kv_heads,
            ranks=tensor_parallel,
        )
    return max(1, total_kv_heads // tensor_parallel)


def check_query_heads(total_heads: int, tensor_parallel: int) -> None:
    """Raise Conflict unless the attention heads divide by the tensor ranks, as vLLM asks."""
    if total_heads % tensor_parallel:
        raise Conflict(
            "{field}: {heads} attention heads do not divide by {ranks} tensor ranks",
            field="tensor_parallel_size",
            heads=total_heads,
            ranks=tensor_parallel,
        )


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


def stage_of_layer(counts: Sequence[int], layer: int) -> int:
    """Return the stage that holds that layer."""
    first = 0
    for stage, count in enumerate(counts):
        if layer < first + count:
            return stage
        first += count
    return len(counts) - 1

"""What a request takes on the rank of each stage that holds most of it."""

from __future__ import annotations

from functools import lru_cache

from app.domain.capacity import StateDemand
from app.domain.checks import checked_int
from app.domain.formats import KvFormats, state_groups
from app.domain.ledgers import MAX_BLOCK_SIZE
from app.domain.parallel import formats_of_stage, stages_of, states_only
from app.domain.per_token import MAX_REMEMBERED_RUNS
from app.domain.rank_shares import Degrees, share_of, stage_layers
from app.domain.state import ModelState


def rank_demands(
    model: ModelState, formats: KvFormats, degrees: Degrees, block_size: int
) -> tuple[StateDemand, ...]:
    """Return one demand for each stage.

    Tensor ranks of a stage differ by which positions they hold; the first of them holds as many as
    any, so that it stands for all. The last few answers are remembered.

    Raises:
        Unsupported, Conflict: for degrees by which the model cannot be split.

    """
    checked_int(block_size, "block_size", low=1, high=MAX_BLOCK_SIZE)
    if len(model.runs) + len(formats.ranges) > MAX_REMEMBERED_RUNS:
        return _demands(model, formats, degrees, block_size)
    return _remembered(model, formats, degrees, block_size)


@lru_cache(maxsize=128)
def _remembered(
    model: ModelState, formats: KvFormats, degrees: Degrees, block_size: int
) -> tuple[StateDemand, ...]:
    return _demands(model, formats, degrees, block_size)


def _demands(
    model: ModelState, formats: KvFormats, degrees: Degrees, block_size: int
) -> tuple[StateDemand, ...]:
    formats.check_within(model.num_layers)
    stages = stage_layers(model.num_layers, degrees.pipeline, degrees.layers_per_stage)
    demands = []
    for first, own in stages_of(model, stages):
        here = formats_of_stage(formats, first, len(own))
        split = {
            state: share_of(state, degrees, 0)
            for state in dict.fromkeys(state for layer in own for state in layer.states)
        }
        demands.append(
            StateDemand(
                plain=state_groups(states_only(own, split, interleaved=False), here),
                interleaved=state_groups(states_only(own, split, interleaved=True), here),
                context=degrees.decode_context,
                block_size=block_size,
            )
        )
    return tuple(demands)

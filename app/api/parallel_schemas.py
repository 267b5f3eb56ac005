"""Requests of `/parallel`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StrictInt

from app.api import schemas as s
from app.api.weights_input import WeightsInput
from app.domain.rank_shares import MAX_RANKS, MAX_STAGES

Ranks = Annotated[StrictInt, Field(ge=1, le=MAX_RANKS)]
StageLayers = Annotated[
    list[Annotated[StrictInt, Field(ge=1, le=s.MAX_LAYERS)]],
    Field(min_length=1, max_length=MAX_STAGES),
]


class Parallelism(s.WithModel):
    """How many ways a model is split."""

    tensor_parallel: Ranks = 1
    pipeline_parallel: Annotated[StrictInt, Field(ge=1, le=MAX_STAGES)] = 1
    decode_context_parallel: Ranks = 1
    data_parallel: Ranks = Field(
        default=1, description="Replicas; each keeps the whole state of its own requests."
    )
    expert_parallel: Ranks = Field(
        default=1, description="Ranks over which whole experts are dealt out; 1 cuts each expert."
    )
    layers_per_stage: StageLayers | None = None
    weights: WeightsInput | None = Field(
        default=None, description="Left out: from the model's config, where it has one."
    )


class ParallelRequest(Parallelism):
    """What every rank of one replica holds for requests of these lengths."""

    lengths: s.LengthsInput
    block_size: s.BlockSize = 16

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
                    "kv_dtype": "fp16",
                    "lengths": [131072],
                    "tensor_parallel": 16,
                }
            ]
        }
    )

"""What `/cost` is asked."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StrictInt

from app.api.schemas import FormatName, ModelId, Strict, WithModel
from app.domain.cost import (
    MAX_BANDWIDTH_BYTES_PER_S,
    MAX_BATCH,
    MAX_COST_TOKENS,
    MAX_WEIGHTS_BYTES,
)
from app.domain.projections import MAX_INTERMEDIATE, MAX_MLP_MATRICES, MAX_VOCABULARY
from app.domain.state import MAX_DIM, MAX_HEADS

CostTokens = Annotated[StrictInt, Field(ge=1, le=MAX_COST_TOKENS)]


class ShapeInput(Strict):
    """Sizes around the caches, for a model that is given by its layers alone.

    They take the place of whatever a model's own file says.
    """

    hidden_size: Annotated[StrictInt, Field(ge=1, le=MAX_DIM)] | None = None
    query_heads: Annotated[StrictInt, Field(ge=1, le=MAX_HEADS)] | None = None
    intermediate_size: Annotated[StrictInt, Field(ge=0, le=MAX_INTERMEDIATE)] | None = Field(
        default=None, description="Width of the MLP that one token uses."
    )
    vocab_size: Annotated[StrictInt, Field(ge=1, le=MAX_VOCABULARY)] | None = None
    mlp_matrices: Annotated[StrictInt, Field(ge=2, le=MAX_MLP_MATRICES)] = Field(
        default=3, description="3 with a gate, 2 without."
    )


class WeightsChoice(Strict):
    """How the weights are stored: as if in another format, or how large they are in all."""

    format: FormatName | None = Field(
        default=None, description="bf16, fp8, awq_int4, mxfp4 …; left out, as the model's file."
    )
    bytes: Annotated[StrictInt, Field(ge=1, le=MAX_WEIGHTS_BYTES)] | None = Field(
        default=None, description="What one decode step reads of them."
    )


class CostRequest(WithModel):
    """A prompt and an output, and the decode step to hold against a device's bandwidth."""

    prompt_tokens: CostTokens
    output_tokens: CostTokens
    shape: ShapeInput | None = None
    weights: WeightsChoice | None = None
    batch: Annotated[StrictInt, Field(ge=1, le=MAX_BATCH)] = Field(
        default=1, description="Sequences that decode together."
    )
    decode_tokens: CostTokens | None = Field(
        default=None, description="Length of each at that step; left out, the last step's."
    )
    device: ModelId | None = Field(
        default=None,
        description="An id of the devices, for its bandwidth.",
        examples=["h100-sxm-80"],
    )
    bandwidth_bytes_per_s: (
        Annotated[StrictInt, Field(ge=1, le=MAX_BANDWIDTH_BYTES_PER_S)] | None
    ) = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"id": "meta-llama/Llama-3.1-8B"},
                    "kv_dtype": "fp16",
                    "prompt_tokens": 1024,
                    "output_tokens": 128,
                    "device": "h100-sxm-80",
                }
            ]
        }
    )

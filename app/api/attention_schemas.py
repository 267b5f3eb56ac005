"""What `/attention` and its experiments are asked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, StrictStr

from app.api.schemas import Strict
from app.domain.attention import (
    MAX_MAGNITUDE,
    MAX_POSITIONS,
    MAX_QUERIES,
    MAX_WIDTH,
    MAX_WINDOW,
)

# The lab's own bounds; its module would load NumPy here, so a test holds them together.
MIN_LAB_TOKENS = 4
MAX_LAB_TOKENS = 1024
DEFAULT_LAB_TOKENS = 64
MAX_SEED = 2**32 - 1

Experiment = Literal[
    "history_dropped",
    "rows_permuted",
    "window_narrowed",
    "step_against_recompute",
    "pages_in_any_order",
    "sequences_mixed",
    "left_padding",
    "error_by_length",
    "eviction_compared",
]

Element = Annotated[StrictFloat, Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
Vector = Annotated[list[Element], Field(min_length=1, max_length=MAX_WIDTH)]
PastRows = Annotated[list[Vector], Field(max_length=MAX_POSITIONS)]
NewRows = Annotated[list[Vector], Field(min_length=1, max_length=MAX_QUERIES)]
LabDType = Annotated[
    StrictStr,
    Field(max_length=40, description="How the cache keeps its rows: fp32 … int4."),
]
Device = Annotated[
    StrictStr,
    Field(max_length=40, description="auto, numpy, cpu, cuda or mps; an absent one is refused."),
]
Seed = Annotated[StrictInt, Field(ge=0, le=MAX_SEED)]


class AttentionRequest(Strict):
    """One head: what is cached, and the new positions with their queries.

    The singular names are about one query, whose answer has no outer list; the plural ones about
    several, each of which sees the new positions up to its own.
    """

    query: Vector | None = None
    queries: NewRows | None = None
    past_keys: PastRows = Field(default_factory=list)
    past_values: PastRows = Field(default_factory=list)
    new_key: Vector | None = None
    new_keys: NewRows | None = None
    new_value: Vector | None = None
    new_values: NewRows | None = None
    window: Annotated[StrictInt, Field(ge=1, le=MAX_WINDOW)] | None = Field(
        default=None, description="Positions that a query sees, itself included."
    )
    dtype: LabDType = "fp32"
    device: Device | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "query": [0],
                    "past_keys": [[0]],
                    "past_values": [[2]],
                    "new_key": [0],
                    "new_value": [4],
                }
            ]
        }
    )


class ExperimentRequest(Strict):
    """One of the lab's experiments, on numbers drawn by a seed."""

    experiment: Experiment
    seed: Seed = 0
    length_tokens: Annotated[StrictInt, Field(ge=MIN_LAB_TOKENS, le=MAX_LAB_TOKENS)] = (
        DEFAULT_LAB_TOKENS
    )
    device: Device | None = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"experiment": "history_dropped"}]})

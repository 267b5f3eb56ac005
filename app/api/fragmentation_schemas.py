"""Requests of `/fragmentation`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StrictInt

from app.api import schemas as s
from app.domain.ledgers import MAX_TOTAL_BYTES


class FragmentationRequest(s.WithModel):
    """One workload, laid out in three ways: reserved at a maximum, padded, in blocks."""

    lengths: s.LengthsInput
    max_length_tokens: s.Tokens = Field(
        description="What is reserved for every request: the longest that is admitted."
    )
    block_size: s.BlockSize = 16
    memory_bytes: Annotated[StrictInt, Field(ge=0, le=MAX_TOTAL_BYTES)] | None = Field(
        default=None, description="What there is; left out, as much as reserving takes."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
                    "kv_dtype": "fp16",
                    "lengths": [1024, 3072],
                    "max_length_tokens": 4096,
                }
            ]
        }
    )

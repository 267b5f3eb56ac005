"""Requests of `/block-pool`: a pool, and what happens to it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StrictStr

from app.api.schemas import Strict, Window
from app.domain.hashing import MAX_BLOCK_TOKENS, MAX_TEXT_BYTES, MAX_TOKEN_ID
from app.domain.pool_events import (
    MAX_CHILDREN,
    MAX_EVENT_TOKENS,
    MAX_EVENTS,
    MAX_NAME_BYTES,
    MAX_SIMULATED_BLOCKS,
)

Name = Annotated[StrictStr, Field(max_length=MAX_NAME_BYTES)]
ShortText = Annotated[StrictStr, Field(max_length=MAX_TEXT_BYTES)]
TokenId = Annotated[StrictInt, Field(ge=0, le=MAX_TOKEN_ID)]
BlockId = Annotated[StrictInt, Field(ge=0, le=MAX_SIMULATED_BLOCKS)]


class EventInput(Strict):
    """One thing that happens: which fields it takes depends on `op`."""

    op: Literal[
        "allocate", "append", "lookup", "fork", "free", "evict", "preempt", "resume", "reset"
    ]
    request: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_EVENT_TOKENS)] = Field(
        default_factory=list, description="Of allocate, append and lookup."
    )
    children: Annotated[list[Name], Field(max_length=MAX_CHILDREN)] = Field(
        default_factory=list, description="Of fork: the requests that continue this one."
    )
    blocks: Annotated[list[BlockId], Field(max_length=MAX_SIMULATED_BLOCKS)] = Field(
        default_factory=list, description="Of evict."
    )
    adapter: ShortText | None = None
    salt: ShortText | None = None


class BlockPoolRequest(Strict):
    """A pool of equal blocks through a series of events."""

    num_blocks: Annotated[StrictInt, Field(ge=2, le=MAX_SIMULATED_BLOCKS)]
    block_size: Annotated[StrictInt, Field(ge=1, le=MAX_BLOCK_TOKENS)] = 16
    events: Annotated[list[EventInput], Field(max_length=MAX_EVENTS)]
    policy: Literal["engine", "textbook"] | None = Field(
        default=None, description="Left out: engine, as vLLM; textbook copies on write."
    )
    when_full: Literal["refuse", "preempt"] | None = Field(
        default=None,
        description="What a full pool does to the next token; left out, as the policy has it.",
    )
    caching: StrictBool = True
    window: Window | None = Field(default=None, description="All layers slide; engine only.")
    version: Annotated[StrictStr, Field(max_length=40)] | None = Field(
        default=None, description="The release of vLLM whose free queue is followed."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "num_blocks": 8,
                    "block_size": 4,
                    "events": [
                        {"op": "allocate", "request": "a", "tokens": [1, 2, 3, 4, 5, 6]},
                        {"op": "allocate", "request": "b", "tokens": [1, 2, 3, 4, 7]},
                        {"op": "append", "request": "a", "tokens": [8]},
                        {"op": "free", "request": "a"},
                    ],
                }
            ]
        }
    )

"""Requests of `/sharing`: sequences by their token ids, by sizes, or as samples of one prompt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Discriminator, Field, StrictInt, Tag

from app.api.schemas import BlockSize, Strict, WithModel
from app.domain.hashing import MAX_TOKEN_ID
from app.domain.prefix_tree import (
    MAX_GROUP_NODES,
    MAX_LEAVES,
    MAX_SEQUENCE_TOKENS,
    MAX_SEQUENCES,
    MAX_TREE_TOKENS,
)

TokenId = Annotated[StrictInt, Field(ge=0, le=MAX_TOKEN_ID)]
SequenceIds = Annotated[list[TokenId], Field(max_length=MAX_SEQUENCE_TOKENS)]
PrefixTokens = Annotated[StrictInt, Field(ge=0, le=MAX_TREE_TOKENS)]


def _branch_form(value: object) -> str:
    return "as:group" if isinstance(value, dict | GroupInput) else "as:tokens"


BranchInput = Annotated[
    Annotated[PrefixTokens, Tag("as:tokens")] | Annotated["GroupInput", Tag("as:group")],
    Discriminator(_branch_form),
]


class GroupInput(Strict):
    """`count` requests of one prefix each, with branches after it; a branch may be a group."""

    prefix_tokens: PrefixTokens
    branches: Annotated[list[BranchInput], Field(min_length=1, max_length=MAX_GROUP_NODES)] = Field(
        description="Each a number of tokens of its own, or a group whose prefix goes on from here."
    )
    count: Annotated[StrictInt, Field(ge=1, le=MAX_LEAVES)] = 1


class SamplesInput(Strict):
    """So many samples or beams of one prompt, each with so many tokens of its own."""

    prompt_tokens: PrefixTokens
    samples: Annotated[StrictInt, Field(ge=1, le=MAX_SEQUENCES)]
    own_tokens: PrefixTokens


class SharingRequest(WithModel):
    """Sequences with common prefixes: exactly one of `sequences`, `groups` and `samples`."""

    sequences: Annotated[list[SequenceIds], Field(max_length=MAX_SEQUENCES)] | None = None
    groups: Annotated[list[GroupInput], Field(max_length=MAX_GROUP_NODES)] | None = None
    samples: SamplesInput | None = None
    block_size: BlockSize = 16
    policy: Literal["full_blocks", "copy_on_write"] | None = Field(
        default=None,
        description="Left out: full_blocks for token ids (found by hash), copy_on_write for forks.",
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
                    "kv_dtype": "fp16",
                    "block_size": 16,
                    "groups": [{"prefix_tokens": 32, "branches": [1, 1]}],
                },
                {
                    "model": {"id": "meta-llama/Llama-3.1-8B"},
                    "block_size": 2,
                    "sequences": [[1, 2, 3, 4], [9, 2, 3, 4], [1, 2, 3, 4, 5]],
                },
            ]
        }
    )

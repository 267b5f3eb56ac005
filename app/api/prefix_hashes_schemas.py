"""Requests of `/prefix-hashes`: a prompt, a scheme, and perhaps a second prompt to compare with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StrictStr

from app.api.schemas import Strict
from app.domain.hashing import (
    IDENTITY_FIELDS,
    MAX_BLOCK_TOKENS,
    MAX_IDENTITY_FIELDS,
    MAX_PROMPT_TOKENS,
    MAX_TEXT_BYTES,
    MAX_TOKEN_ID,
)
from app.domain.vllm_prompt import (
    MAX_EMBEDDING_BYTES,
    MAX_LOOKAHEAD_TOKENS,
    MAX_MULTIMODAL_ITEMS,
    NEWEST_RELEASE,
)

TokenId = Annotated[StrictInt, Field(ge=0, le=MAX_TOKEN_ID)]
ShortText = Annotated[StrictStr, Field(max_length=MAX_TEXT_BYTES)]
Place = Annotated[StrictInt, Field(ge=0, le=MAX_PROMPT_TOKENS)]
MAX_BLOCK_PAGE = 1_000
_MAX_BASE64 = 4 * (MAX_EMBEDDING_BYTES // 3 + 1)


class LoraInput(Strict):
    """A request's adapter; since 0.31 an adapter is hashed by name and path."""

    name: ShortText
    path: ShortText | None = None
    int_id: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] | None = None


class MultimodalInput(Strict):
    """An image, video or sound in the prompt."""

    identifier: ShortText = Field(description="The hash of its content, as the engine names it.")
    offset: Place
    length: Annotated[StrictInt, Field(ge=1, le=MAX_PROMPT_TOKENS)]


class EmbeddingsInput(Strict):
    """Prompt embeddings before the tokens; each of their positions counts as token 0."""

    data: Annotated[StrictStr, Field(max_length=_MAX_BASE64)] = Field(
        description="The raw bytes of all positions, in base64."
    )
    bytes_per_position: Annotated[StrictInt, Field(ge=1, le=MAX_EMBEDDING_BYTES)]


class PromptInput(Strict):
    """One prompt, and what beside its tokens shapes its keys and values."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS)]
    identity: (
        Annotated[dict[ShortText, ShortText], Field(max_length=MAX_IDENTITY_FIELDS)] | None
    ) = Field(
        default=None,
        description=f"Textbook scheme: {', '.join(IDENTITY_FIELDS)}, and whatever else.",
    )
    lora: LoraInput | None = None
    multimodal: Annotated[list[MultimodalInput], Field(max_length=MAX_MULTIMODAL_ITEMS)] = Field(
        default_factory=list
    )
    cache_salt: ShortText | None = None
    embeddings: EmbeddingsInput | None = None


class PrefixHashesRequest(PromptInput):
    """A prompt's block hashes; with `compare_with`, what the second could reuse of the first."""

    block_size: Annotated[StrictInt, Field(ge=1, le=MAX_BLOCK_TOKENS)] = 16
    scheme: Literal["textbook", "vllm"] = "textbook"
    algorithm: Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"] | None = Field(
        default=None, description="vLLM's algorithm; left out, sha256."
    )
    hash_seed: ShortText | None = Field(
        default=None, description="The value of PYTHONHASHSEED, or null where it was not set."
    )
    none_hash: ShortText | None = Field(
        default=None, description="The parent of block 0 in hexadecimal, where it is known."
    )
    lookahead_tokens: Annotated[StrictInt, Field(ge=0, le=MAX_LOOKAHEAD_TOKENS)] = 0
    drops_last_block: StrictBool = Field(
        default=False, description="A drafter of the EAGLE kind gives up the last matched block."
    )
    version: Annotated[StrictStr, Field(max_length=40)] | None = Field(
        default=None, description=f"A release of vLLM; left out, {NEWEST_RELEASE}."
    )
    compare_with: PromptInput | None = Field(
        default=None, description="A second prompt, under the same settings."
    )
    offset: Annotated[StrictInt, Field(ge=0, le=MAX_PROMPT_TOKENS)] = Field(
        default=0, description="First block of the page of blocks."
    )
    limit: Annotated[StrictInt, Field(ge=0, le=MAX_BLOCK_PAGE)] = Field(
        default=100, description="Blocks of the page; `hashes` are always all."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "scheme": "textbook",
                    "tokens": [1, 2, 3, 4, 5],
                    "block_size": 2,
                    "identity": {
                        "model": "llama",
                        "adapter": "none",
                        "tokenizer": "llama",
                        "position": "rope",
                        "dtype": "fp16",
                        "salt": "",
                    },
                },
                {
                    "scheme": "vllm",
                    "algorithm": "sha256_cbor",
                    "hash_seed": "0",
                    "tokens": [1, 2, 3, 4],
                    "block_size": 2,
                    "cache_salt": "tenant-7",
                },
            ]
        }
    )

"""Pairs of prompts that can be loaded into `/hashes`: the counter-examples, and an engine's own."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from app.domain.hash_compare import COUNTER_EXAMPLES, CounterExample
from app.domain.notes import Note
from app.readers.token_ids import token_ids_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Two prompts that can be loaded with a click."""

    query: str
    text: Note


def _counter_query(example: CounterExample) -> str:
    query = {
        "a": token_ids_text(example.first_tokens),
        "b": token_ids_text(example.second_tokens),
        "block_size": str(example.block_size),
    }
    if example.second_adapter != example.first_adapter:
        query["b_adapter"] = example.second_adapter
    return urlencode(query)


EXAMPLES = (
    *(Example(query=_counter_query(example), text=example.title) for example in COUNTER_EXAMPLES),
    Example(
        query=urlencode(
            {"scheme": "vllm", "algorithm": "sha256_cbor", "hash_seed": "0", "block_size": "16",
             "a": "1..64", "b": "1..64", "b_cache_salt": "tenant-7"}
        ),
        text=Note("", "vLLM: a salt of one's own keeps equal prompts of two tenants apart"),
    ),
    Example(
        query=urlencode(
            {"scheme": "vllm", "hash_seed": "0", "block_size": "16", "a": "1..64", "b": "1..64",
             "a_media": "cat.png @ 20 + 12", "b_media": "dog.png @ 20 + 12"}
        ),
        text=Note("", "vLLM: another image behind the same placeholder tokens"),
    ),
    Example(
        query=urlencode(
            {"read": "text", "block_size": "16",
             "a": "You are a helpful assistant. What is a KV cache?",
             "b": "You are a helpful assistant. What is a block table?"}
        ),
        text=Note("", "Two questions after one system prompt, as plain text read byte by byte"),
    ),
)  # fmt: skip

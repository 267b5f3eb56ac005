"""A prompt as vLLM sees it when it names blocks: its parts, their bounds, the releases' rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from app.domain.checks import checked_int
from app.domain.errors import Conflict, Malformed, OutOfRange, Unsupported, shown
from app.domain.hashing import MAX_PROMPT_TOKENS, checked_text

NEWEST_RELEASE = "0.33.0"
MAX_MULTIMODAL_ITEMS = 4_096
MAX_LOOKAHEAD_TOKENS = 64
MAX_EMBEDDING_BYTES = 16 * 2**20

Release: TypeAlias = tuple[int, int, int]

# The first release with each rule. All were read but UNREAD, which lie between a release that has
# the older rule and one that has the newer, and are taken for the newer.
_OLDEST: Release = (0, 10, 2)
SINCE_ADAPTER_BY_NAME: Release = (0, 11, 1)
SINCE_EMBEDDINGS: Release = (0, 11, 1)
SINCE_XXHASH: Release = (0, 13, 0)
SINCE_EMBEDDINGS_DIGEST: Release = (0, 17, 0)
SINCE_ITEM_OFFSET: Release = (0, 19, 0)
SINCE_FIXED_SEED: Release = (0, 29, 0)
SINCE_TAGGED: Release = (0, 31, 0)
SINCE_LOOKAHEAD: Release = (0, 33, 0)
UNREAD: frozenset[Release] = frozenset({(0, 17, 0), (0, 19, 0)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """A request's adapter: hashed by id until 0.11.0, then by name, since 0.31 by name and path."""

    name: str
    path: str | None = None
    int_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalItem:
    """An image, video or sound in the prompt: its content's identifier and where it stands."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEmbeddings:
    """A prompt given as vectors: the raw bytes of all positions, so many bytes each."""

    data: bytes
    bytes_per_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPrompt:
    """One prompt as vLLM hashes it.

    `hash_seed` is the value of PYTHONHASHSEED, or None where it was not set; `none_hash` (hex) is
    the parent of block 0 where it is known from the engine itself. `embeddings` come before
    `tokens`, and each of their positions counts as token 0. `drops_last_block` is a drafter of the
    EAGLE kind without look-ahead hashes.
    """

    tokens: Sequence[int]
    block_size: int
    algorithm: str = "sha256"
    hash_seed: str | None = None
    none_hash: str | None = None
    lora: LoraAdapter | None = None
    multimodal: Sequence[MultimodalItem] = ()
    cache_salt: str | None = None
    embeddings: PromptEmbeddings | None = None
    lookahead_tokens: int = 0
    drops_last_block: bool = False
    version: str = NEWEST_RELEASE


def release_of(version: str) -> Release:
    """Return the numbers of a release whose hashing was read.

    Raises:
        Malformed: when it is not a release number.
        Unsupported: before 0.10.2 (hashes of another type) or after the newest that was read.

    """
    match = re.fullmatch(
        r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:\.?(?:post|rc)\d{1,3})?", version
    )
    if match is None:
        raise Malformed(
            "{field} must be a release such as {example}, got {value}",
            field="version",
            example=NEWEST_RELEASE,
            value=shown(version),
        )
    major, minor, patch = (int(number or 0) for number in match.groups())
    release = (major, minor, patch)
    if release < _OLDEST:
        raise Unsupported(
            "{field} must be 0.10.2 or later, got {value}: before, blocks were named by Python's "
            "own hash() or by integers",
            field="version",
            value=version,
        )
    if (major, minor) > (0, 33):
        raise Unsupported(
            "{field} must be at most {newest}, the newest release that was read, got {value}",
            field="version",
            newest=NEWEST_RELEASE,
            value=version,
        )
    return release


def checked_items(items: Sequence[MultimodalItem], tokens: int) -> tuple[MultimodalItem, ...]:
    """Return the items in the order of their offsets.

    Raises:
        OutOfRange: when one does not lie within the prompt's tokens, or there are too many.
        Conflict: when two overlap.
        WrongType, Malformed: for a bad identifier.

    """
    checked_int(len(items), "multimodal", low=0, high=MAX_MULTIMODAL_ITEMS)
    for index, item in enumerate(items):
        path = ("multimodal", index)
        checked_text(item.identifier, (*path, "identifier"))
        checked_int(item.offset, (*path, "offset"), low=0, high=max(tokens - 1, 0))
        checked_int(item.length, (*path, "length"), low=1, high=max(tokens - item.offset, 0))
    ordered = tuple(sorted(items, key=lambda item: item.offset))
    for before, after in pairwise(ordered):
        if before.offset + before.length > after.offset:
            raise Conflict(
                "{field}: the items at {first} and {second} overlap",
                field="multimodal",
                first=before.offset,
                second=after.offset,
            )
    return ordered


def checked_embeddings(embeddings: PromptEmbeddings | None) -> int:
    """Return how many positions the embeddings stand for."""
    if embeddings is None:
        return 0
    size, width = len(embeddings.data), embeddings.bytes_per_position
    checked_int(size, ("embeddings", "data"), low=1, high=MAX_EMBEDDING_BYTES)
    checked_int(width, ("embeddings", "bytes_per_position"), low=1, high=MAX_EMBEDDING_BYTES)
    positions, rest = divmod(size, width)
    if rest or positions > MAX_PROMPT_TOKENS:
        raise OutOfRange(
            "{field} must be 1 to {high} whole positions of {width} bytes, got {value} bytes",
            field=("embeddings", "data"),
            high=MAX_PROMPT_TOKENS,
            width=width,
            value=size,
        )
    return positions


def checked_lora(lora: LoraAdapter | None) -> None:
    """Raise WrongType, OutOfRange or Malformed when a name, path or id is not one."""
    if lora is None:
        return
    checked_text(lora.name, ("lora", "name"))
    if lora.path is not None:
        checked_text(lora.path, ("lora", "path"))
    if lora.int_id is not None:
        checked_int(lora.int_id, ("lora", "int_id"), low=1, high=2**31 - 1)


def checked_lookahead(prompt: VllmPrompt, release: Release) -> None:
    """Refuse look-ahead tokens that no hash of the release covers.

    Raises:
        Conflict: when the release hashes none, or the last block is dropped instead.
        WrongType, OutOfRange: for another number than 0..MAX_LOOKAHEAD_TOKENS.

    """
    ahead = checked_int(
        prompt.lookahead_tokens, "lookahead_tokens", low=0, high=MAX_LOOKAHEAD_TOKENS
    )
    if ahead and release < SINCE_LOOKAHEAD:
        raise Conflict(
            "{field} are hashed since 0.33.0, not in {version}",
            field="lookahead_tokens",
            version=prompt.version,
        )
    if ahead and prompt.drops_last_block:
        raise Conflict(
            "{field} takes the place of dropping the last block; give one of the two",
            field="lookahead_tokens",
        )

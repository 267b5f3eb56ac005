"""The block hashes that vLLM itself computes, release by release.

Source: vLLM v1/core/kv_cache_utils.py and utils/hashing.py of 0.10.2 to 0.33.0; measured:
tests/data/vllm_prefix_hash_cases.json. A block's hash is H((parent, tokens, extra)), where extra is
None or a tuple of what beside the tokens shaped the block, and block 0's parent is H(seed).
"""

from __future__ import annotations

import hashlib
import pickle
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from app.domain.cbor import CborValue, deterministic_cbor
from app.domain.errors import Conflict, Malformed, Missing, Unknown, shown
from app.domain.hashing import (
    NOT_COUNTED,
    HashChain,
    HashedBlock,
    IdentityPart,
    checked_block_size,
    checked_text,
    checked_tokens,
    max_hit,
)
from app.domain.notes import Note
from app.domain.vllm_prompt import (
    SINCE_ADAPTER_BY_NAME,
    SINCE_EMBEDDINGS,
    SINCE_EMBEDDINGS_DIGEST,
    SINCE_FIXED_SEED,
    SINCE_ITEM_OFFSET,
    SINCE_TAGGED,
    SINCE_XXHASH,
    UNREAD,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    Release,
    VllmPrompt,
    checked_embeddings,
    checked_items,
    checked_lookahead,
    checked_lora,
    release_of,
)
from app.domain.xxh3 import xxh3_128_digest

_DEFAULT_SEED = "vllm-none-hash"

_Extra: TypeAlias = tuple[CborValue, ...] | None


def _pickled(value: object) -> bytes:
    # Protocol 5 by number: it is what HIGHEST_PROTOCOL means in every Python that runs vLLM.
    return pickle.dumps(value, protocol=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Algorithm:
    encode: Callable[..., bytes]
    digest: Callable[[bytes], bytes]
    secret_seed: bool

    def __call__(self, value: CborValue) -> bytes:
        return self.digest(self.encode(value))


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


_ALGORITHMS = {
    "sha256": _Algorithm(encode=_pickled, digest=_sha256, secret_seed=False),
    "sha256_cbor": _Algorithm(encode=deterministic_cbor, digest=_sha256, secret_seed=False),
    "xxhash": _Algorithm(encode=_pickled, digest=xxh3_128_digest, secret_seed=True),
    "xxhash_cbor": _Algorithm(encode=deterministic_cbor, digest=xxh3_128_digest, secret_seed=True),
}
ALGORITHMS = tuple(_ALGORITHMS)


def _own_copy(text: str) -> str:
    """Return an equal string that is another object.

    Pickle writes a string that it has met before as a reference, and decides by object, not by
    value. In the engine the texts of a request arrive as separate objects, whereas here equal ones
    may be one object; a string of one character is always shared, there as here.
    """
    return text.encode("utf-8").decode("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """What of a prompt falls into a range of positions, in the form of one release."""

    release: Release
    lora: LoraAdapter | None
    items: tuple[MultimodalItem, ...]
    item_ends: tuple[int, ...]
    salt: str | None
    embeddings: PromptEmbeddings | None

    def extra_keys(self, start: int, end: int) -> tuple[_Extra, tuple[IdentityPart, ...]]:
        """Return the extra keys of positions start..end−1, and the same for people to read."""
        keys: list[CborValue] = []
        parts: list[IdentityPart] = []
        if self.lora is not None:
            keys.append(self._adapter_key(self.lora))
            parts.append(IdentityPart(kind="adapter", value=self._adapter_text(self.lora)))
        # Items do not overlap, so their ends are in order as their offsets are.
        for item in self.items[bisect_right(self.item_ends, start) :]:
            if item.offset >= end:
                break
            keys.append(self._item_key(item, item.offset - start))
            parts.append(IdentityPart(kind="image", value=self._item_text(item, start)))
        if self.salt and start == 0:
            keys.append(
                ("cache_salt", _own_copy(self.salt)) if self._tagged else _own_copy(self.salt)
            )
            parts.append(IdentityPart(kind="salt", value=self.salt))
        if self.embeddings is not None and self.release >= SINCE_EMBEDDINGS:
            key, digest = self._embeddings_key(self.embeddings, start, end)
            keys.append(key)
            parts.append(IdentityPart(kind="embeddings", value=digest))
        return (tuple(keys) or None), tuple(parts)

    @property
    def _tagged(self) -> bool:
        return self.release >= SINCE_TAGGED

    def _adapter_key(self, lora: LoraAdapter) -> CborValue:
        if self._tagged:
            if lora.path is None:
                raise Missing(
                    "{field} is missing: since 0.31 an adapter is hashed by name and path",
                    field=("lora", "path"),
                )
            return ("lora", _own_copy(lora.name), _own_copy(lora.path))
        if self.release >= SINCE_ADAPTER_BY_NAME:
            return _own_copy(lora.name)
        if lora.int_id is None:
            raise Missing(
                "{field} is missing: until 0.11.0 an adapter is hashed by its integer id",
                field=("lora", "int_id"),
            )
        return lora.int_id

    def _adapter_text(self, lora: LoraAdapter) -> str:
        if self._tagged:
            return f"{lora.name} ({lora.path})"
        return lora.name if self.release >= SINCE_ADAPTER_BY_NAME else str(lora.int_id)

    def _item_key(self, item: MultimodalItem, offset: int) -> CborValue:
        if self._tagged:
            return ("mm", _own_copy(item.identifier), offset)
        if self.release >= SINCE_ITEM_OFFSET:
            return (_own_copy(item.identifier), offset)
        return _own_copy(item.identifier)

    def _item_text(self, item: MultimodalItem, start: int) -> str:
        if self.release >= SINCE_ITEM_OFFSET:
            return f"{item.identifier} @ {item.offset - start}"
        return item.identifier

    def _embeddings_key(
        self, embeddings: PromptEmbeddings, start: int, end: int
    ) -> tuple[CborValue, str]:
        width = embeddings.bytes_per_position
        data = embeddings.data[start * width : end * width]
        digest = _sha256(data)
        if self._tagged:
            return ("prompt_embeds", digest), digest.hex()
        return (digest if self.release >= SINCE_EMBEDDINGS_DIGEST else data), digest.hex()


def _checked_algorithm(prompt: VllmPrompt, release: Release) -> _Algorithm:
    algorithm = _ALGORITHMS.get(prompt.algorithm)
    if algorithm is None:
        raise Unknown(
            "{field} must be one of {known}, got {value}",
            field="algorithm",
            known=", ".join(ALGORITHMS),
            value=shown(prompt.algorithm),
        )
    if algorithm.secret_seed and release < SINCE_XXHASH:
        raise Conflict(
            "{field} {algorithm} exists since 0.13.0, not in {version}",
            field="algorithm",
            algorithm=prompt.algorithm,
            version=prompt.version,
        )
    return algorithm


def _seed_hash(prompt: VllmPrompt, algorithm: _Algorithm, release: Release) -> bytes:
    """Return the parent of block 0."""
    if prompt.none_hash is not None:
        if prompt.hash_seed is not None:
            raise Conflict(
                "{field} and hash_seed both say where the chain begins; give one",
                field="none_hash",
            )
        if not re.fullmatch(r"(?:[0-9a-f]{32}|[0-9a-f]{64})", prompt.none_hash):
            raise Malformed(
                "{field} must be 32 or 64 hexadecimal digits, got {value}",
                field="none_hash",
                value=shown(prompt.none_hash),
            )
        return bytes.fromhex(prompt.none_hash)
    if prompt.hash_seed is not None:
        return algorithm(checked_text(prompt.hash_seed, "hash_seed"))
    if release < SINCE_FIXED_SEED:
        raise Missing(
            "{field} is missing: without PYTHONHASHSEED, releases before 0.29 start every chain "
            "from 32 random bytes, so their hashes cannot be foretold",
            field="hash_seed",
        )
    if algorithm.secret_seed:
        raise Missing(
            "{field} is missing: without PYTHONHASHSEED, {algorithm} starts from a random seed in "
            "every process, since it does not resist collisions",
            field="hash_seed",
            algorithm=prompt.algorithm,
        )
    return algorithm(_DEFAULT_SEED)


def _assumptions(prompt: VllmPrompt, release: Release, items: int) -> tuple[Note, ...]:
    notes = [
        Note(
            "engine_instance",
            "Hashes compare within one engine configuration: model, tokenizer, positions and KV "
            "format are not hashed by vLLM {version}, they are equal because the engine is one.",
            {"version": prompt.version},
        )
    ]
    if prompt.hash_seed is None and prompt.none_hash is None:
        notes.append(
            Note(
                "default_seed",
                "PYTHONHASHSEED is not set, so the chain starts from the hash of the constant "
                "{seed}, as since 0.29.",
                {"seed": _DEFAULT_SEED},
            )
        )
    if release in UNREAD:
        notes.append(
            Note(
                "release_not_read",
                "{version} was not read itself; it is taken to hash as the release after it.",
                {"version": prompt.version},
            )
        )
    if items and _ALGORITHMS[prompt.algorithm].encode is _pickled:
        notes.append(
            Note(
                "pickle_by_object",
                "Pickle writes a text it has met before as a reference to that object. Equal "
                "identifiers of two items are taken for two objects, as in a request that arrived "
                "over the network.",
            )
        )
    if prompt.embeddings is not None and release < SINCE_EMBEDDINGS:
        notes.append(
            Note(
                "embeddings_not_hashed",
                "Before 0.11.1 prompt embeddings are not part of the hash: different vectors give "
                "equal hashes.",
            )
        )
    return tuple(notes)


def _hashed_blocks(
    ids: tuple[int, ...], prompt: VllmPrompt, reader: _Reader, seed_hash: bytes
) -> tuple[HashedBlock, ...]:
    """Return every full block that its look-ahead tokens follow, hashed over its parent's hash."""
    size, ahead = prompt.block_size, prompt.lookahead_tokens
    algorithm = _ALGORITHMS[prompt.algorithm]
    blocks: list[HashedBlock] = []
    parent = seed_hash
    for start in range(0, len(ids) - ahead - size + 1, size):
        end = start + size
        extra, parts = reader.extra_keys(start, end + ahead)
        if ahead:
            following = ids[end : end + ahead]
            extra = (extra, *following)
            parts = (*parts, IdentityPart(kind="lookahead", value=" ".join(map(str, following))))
        digest = algorithm((parent, ids[start:end], extra))
        blocks.append(
            HashedBlock(
                index=start // size,
                tokens=ids[start:end],
                parent=parent.hex(),
                parts=parts,
                hash=digest.hex(),
            )
        )
        parent = digest
    return tuple(blocks)


def vllm_chain(prompt: VllmPrompt) -> HashChain:
    """Return the hashes that vLLM computes for a prompt, equal to its own byte for byte.

    With `lookahead_tokens` L each hash also covers the L tokens after its block, and a block is
    hashed only once they exist.

    Raises:
        Unsupported: for a release whose hashing is of another kind or was not read.
        Missing: when the chain's start, or the form in which the adapter is hashed, is not known.
        Conflict: for settings that exclude each other, or items that overlap.
        Unknown, Malformed, WrongType, OutOfRange: for a bad algorithm, seed, token, size or text.

    """
    release = release_of(prompt.version)
    algorithm = _checked_algorithm(prompt, release)
    embedded = checked_embeddings(prompt.embeddings)
    ids = checked_tokens((0,) * embedded + checked_tokens(prompt.tokens))
    size = checked_block_size(prompt.block_size, len(ids))
    checked_lookahead(prompt, release)
    checked_lora(prompt.lora)
    if prompt.cache_salt is not None:
        checked_text(prompt.cache_salt, "cache_salt")
    items = checked_items(prompt.multimodal, len(ids))
    reader = _Reader(
        release=release,
        lora=prompt.lora,
        items=items,
        item_ends=tuple(item.offset + item.length for item in items),
        salt=prompt.cache_salt,
        embeddings=prompt.embeddings,
    )
    seed_hash = _seed_hash(prompt, algorithm, release)
    blocks = _hashed_blocks(ids, prompt, reader, seed_hash)
    hit, reason = max_hit(len(ids), size, len(blocks), drops_last_block=prompt.drops_last_block)
    return HashChain(
        scheme="vllm",
        settings=(("algorithm", prompt.algorithm), ("version", prompt.version)),
        prompt_tokens=len(ids),
        block_size=size,
        seed_hash=seed_hash.hex(),
        blocks=blocks,
        tail=ids[len(blocks) * size :],
        max_hit_tokens=hit,
        max_hit_reason=reason,
        assumptions=_assumptions(prompt, release, len(items)),
        not_counted=NOT_COUNTED,
    )

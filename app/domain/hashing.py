"""Chained hashes of full blocks: what a block's keys and values were computed from.

The keys and values of a position depend on every token before it, so a block is named by its own
tokens, its parent's name and everything else that shaped the computation:

    h(0) = H(nothing, tokens of block 0, identity)
    h(j) = H(h(j − 1), tokens of block j, identity)

Two blocks may be shared when their names are equal, and only full blocks have one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.cbor import deterministic_cbor
from app.domain.checks import checked_int
from app.domain.errors import FieldPath, Malformed, Missing, OutOfRange, WrongType, shown
from app.domain.notes import Note

MAX_PROMPT_TOKENS = 262_144
MAX_HASHED_BLOCKS = 32_768
MAX_BLOCK_TOKENS = 65_536
MAX_TOKEN_ID = 2**32 - 1
MAX_TEXT_BYTES = 4_096
MAX_IDENTITY_FIELDS = 64

# What must agree before equal tokens may be taken for equal keys and values. More may be given.
IDENTITY_FIELDS = ("model", "adapter", "tokenizer", "position", "dtype", "salt")

# Our own encoding's name and version, hashed with every block: a later encoding is another name.
_ENCODING = "kv-ledger textbook block 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityPart:
    """One thing beside tokens and parent that a hash covers: an adapter, a salt, an image."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedBlock:
    """One full block with the inputs of its hash, so that two can be compared input by input."""

    index: int
    tokens: tuple[int, ...]
    parent: str
    parts: tuple[IdentityPart, ...]
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HashChain:
    """The hashes of a prompt's full blocks, and how much of it a lookup may reuse.

    `tail_tokens` counts the positions that no hash covers. `seed_hash` is the parent of block 0
    (empty in the textbook scheme). `settings` names what the two sides of a comparison must share.
    """

    scheme: str
    settings: tuple[tuple[str, str], ...]
    prompt_tokens: int
    block_size: int
    seed_hash: str
    blocks: tuple[HashedBlock, ...]
    tail: tuple[int, ...]
    max_hit_tokens: int
    max_hit_reason: Note
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]

    @property
    def hashes(self) -> tuple[str, ...]:
        """Return the hashes in hexadecimal, one a full block."""
        return tuple(block.hash for block in self.blocks)

    @property
    def tail_tokens(self) -> int:
        """Return how many positions no hash covers."""
        return len(self.tail)


def checked_tokens(tokens: Sequence[int], field: str | FieldPath = "tokens") -> tuple[int, ...]:
    """Return the token ids as a tuple.

    Raises:
        WrongType: for an id that is not an int (a bool is not).
        OutOfRange: for a negative or oversized id, or too many of them.

    """
    path: FieldPath = (field,) if isinstance(field, str) else field
    if len(tokens) > MAX_PROMPT_TOKENS:
        raise OutOfRange(
            "{field} must hold at most {high} token ids, got {value}",
            field=path,
            high=MAX_PROMPT_TOKENS,
            value=len(tokens),
        )
    checked = tuple(tokens)
    if set(map(type, checked)) - {int} or (
        checked and not (min(checked) >= 0 and max(checked) <= MAX_TOKEN_ID)
    ):
        # The slow way names the first bad one.
        return tuple(
            checked_int(token, (*path, index), low=0, high=MAX_TOKEN_ID)
            for index, token in enumerate(checked)
        )
    return checked


def checked_block_size(block_size: int, tokens: int) -> int:
    """Return the block size in tokens, if the prompt does not make too many blocks of it.

    Raises:
        WrongType: when it is not an int.
        OutOfRange: outside 1..MAX_BLOCK_TOKENS, or when there would be too many blocks.

    """
    checked_int(block_size, "block_size", low=1, high=MAX_BLOCK_TOKENS)
    if tokens // block_size > MAX_HASHED_BLOCKS:
        raise OutOfRange(
            "{field} must be at least {low} for {tokens} tokens, or there are more than {high} "
            "blocks to hash; got {value}",
            field="block_size",
            low=-(-tokens // MAX_HASHED_BLOCKS),
            tokens=tokens,
            high=MAX_HASHED_BLOCKS,
            value=block_size,
        )
    return block_size


def checked_text(value: object, field: str | FieldPath) -> str:
    """Return a short text that has one encoding in UTF-8.

    Raises:
        WrongType: when it is not a string.
        OutOfRange: when it is too long.
        Malformed: when it holds a lone surrogate.

    """
    if not isinstance(value, str):
        raise WrongType("{field} must be text, got {value}", field=field, value=shown(value))
    try:
        size_bytes = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Malformed(
            "{field} holds half of a surrogate pair at character {at}", field=field, at=error.start
        ) from None
    if size_bytes > MAX_TEXT_BYTES:
        raise OutOfRange(
            "{field} must take at most {high} bytes in UTF-8, got {value}",
            field=field,
            high=MAX_TEXT_BYTES,
            value=size_bytes,
        )
    return value


def checked_identity(identity: Mapping[str, str]) -> tuple[IdentityPart, ...]:
    """Return the identity's parts in the order of their names.

    Raises:
        Missing: when one of IDENTITY_FIELDS is not there; the error names the first.
        WrongType: when a name or a value is not text.
        OutOfRange: for too many fields or too long a value.

    """
    for name in IDENTITY_FIELDS:
        if name not in identity:
            raise Missing(
                "{field} is missing: without it equal tokens need not mean equal keys and values",
                field=("identity", name),
            )
    if len(identity) > MAX_IDENTITY_FIELDS:
        raise OutOfRange(
            "{field} must have at most {high} fields, got {value}",
            field="identity",
            high=MAX_IDENTITY_FIELDS,
            value=len(identity),
        )
    for name, value in identity.items():
        checked_text(name, "identity")
        checked_text(value, ("identity", name))
    return tuple(IdentityPart(kind=name, value=identity[name]) for name in sorted(identity))


def max_hit(
    tokens: int, block_size: int, hashed_blocks: int, *, drops_last_block: bool = False
) -> tuple[int, Note]:
    """Return how many positions of a prompt a lookup may reuse at most, and why no more.

    The last position is always computed, since its output gives the logits of the next token; and
    a hit ends where a block ends (vLLM v1/core/kv_cache_manager.py, get_computed_blocks: at most
    num_tokens − 1). Of 48 tokens in blocks of 16 that is 32, of 49 it is 48. A drafter of the EAGLE
    kind needs the last block's hidden states anew and gives up one block more.
    """
    reusable_blocks = min(max(tokens - 1, 0) // block_size, hashed_blocks)
    if drops_last_block and reusable_blocks:
        return (reusable_blocks - 1) * block_size, Note(
            "hit_drops_block_for_drafter",
            "The drafter needs the hidden states of the last matched block, so a hit gives up "
            "block {block} and covers {hit} of {tokens} positions at most.",
            {
                "block": reusable_blocks - 1,
                "hit": (reusable_blocks - 1) * block_size,
                "tokens": tokens,
            },
        )
    hit = reusable_blocks * block_size
    if not reusable_blocks:
        return 0, Note(
            "hit_needs_full_block",
            "No full block of {block_size} with a hash ends before the last of {tokens} positions, "
            "and that one must be computed for its logits: nothing can be reused.",
            {"block_size": block_size, "tokens": tokens},
        )
    if hit + block_size == tokens == hashed_blocks * block_size:
        return hit, Note(
            "hit_recomputes_last_block",
            "Even with every block cached, position {last} must be computed for its logits, and a "
            "hit ends where a block ends: the whole last block of {block_size} is computed again.",
            {"last": tokens - 1, "block_size": block_size},
        )
    return hit, Note(
        "hit_ends_at_block",
        "A hit covers full blocks with a hash: {hit} of {tokens} positions at most. The other "
        "{rest} are computed, the last one for its logits in any case.",
        {"hit": hit, "tokens": tokens, "rest": tokens - hit},
    )


NOT_COUNTED = (
    Note(
        "hashes_are_not_blocks",
        "A hash says what a block was computed from. Whether such a block is in memory, how many "
        "requests hold it and how much is free is the block pool's to say.",
    ),
    Note(
        "collisions_possible",
        "Equal hashes of unequal inputs are improbable, not impossible; a hash does not replace "
        "the choice of a right identity.",
    ),
)

_TEXTBOOK_ASSUMPTIONS = (
    Note(
        "textbook_encoding",
        "SHA-256 over a deterministic CBOR array: the encoding's name, the parent's hash (empty "
        "for the first block), the block's token ids, and the identity as name and value pairs in "
        "the order of their names. It is our own, and equals no engine's.",
    ),
    Note(
        "identity_is_whole",
        "The identity names everything beside the tokens that shapes keys and values; what it does "
        "not name is taken to be equal on both sides.",
    ),
)


def textbook_hash(
    parent: bytes, tokens: Sequence[int], identity: tuple[IdentityPart, ...]
) -> bytes:
    """Return the hash of one full block: SHA-256 over our encoding of its three inputs."""
    pairs = tuple((part.kind, part.value) for part in identity)
    return hashlib.sha256(deterministic_cbor((_ENCODING, parent, tokens, pairs))).digest()


def textbook_chain(
    tokens: Sequence[int], block_size: int, identity: Mapping[str, str]
) -> HashChain:
    """Return the textbook chain of a prompt: H(parent, tokens, identity) for every full block.

    Raises:
        Missing: when the identity lacks one of IDENTITY_FIELDS, by name.
        WrongType, OutOfRange, Malformed: for bad tokens, block size or texts.

    """
    ids = checked_tokens(tokens)
    checked_block_size(block_size, len(ids))
    parts = checked_identity(identity)
    blocks: list[HashedBlock] = []
    parent = b""
    for start in range(0, len(ids) - block_size + 1, block_size):
        block = ids[start : start + block_size]
        digest = textbook_hash(parent, block, parts)
        blocks.append(
            HashedBlock(
                index=start // block_size,
                tokens=block,
                parent=parent.hex(),
                parts=parts,
                hash=digest.hex(),
            )
        )
        parent = digest
    hit, reason = max_hit(len(ids), block_size, len(blocks))
    return HashChain(
        scheme="textbook",
        settings=(("encoding", _ENCODING),),
        prompt_tokens=len(ids),
        block_size=block_size,
        seed_hash="",
        blocks=tuple(blocks),
        tail=ids[len(blocks) * block_size :],
        max_hit_tokens=hit,
        max_hit_reason=reason,
        assumptions=_TEXTBOOK_ASSUMPTIONS,
        not_counted=NOT_COUNTED,
    )

"""Two prompts side by side: which blocks match, where the chain breaks, and why."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Conflict
from app.domain.hashing import HashChain, HashedBlock, IdentityPart
from app.domain.notes import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedBlock:
    """One block of both prompts; a hash is empty where that prompt has no full block there."""

    index: int
    first_hash: str
    second_hash: str
    matches: bool
    reasons: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainComparison:
    """What the second prompt could reuse of the first one's blocks.

    `breaks_at` is the first block that does not match (None when every block of both does).
    `hit_tokens` is what a lookup of the second prompt finds with the first one's blocks cached: the
    matched blocks, but never the block that holds its last position.
    """

    block_size: int
    blocks: tuple[ComparedBlock, ...]
    matched_blocks: int
    matched_tokens: int
    breaks_at: int | None
    hit_tokens: int
    hit_reason: Note


# How a difference in a part of the identity is called; a part of another kind keeps its own name.
_PART_REASONS = {
    "adapter": ("other_adapter", "Another adapter: {first} here, {second} there."),
    "salt": ("other_salt", "Another salt: {first} here, {second} there."),
    "image": ("other_image", "Another image, or in another place: {first} here, {second} there."),
    "embeddings": ("other_embeddings", "Other prompt vectors: {first} here, {second} there."),
    "lookahead": (
        "other_lookahead",
        "Other tokens follow the block: {first} here, {second} there.",
    ),
}


def _values(parts: tuple[IdentityPart, ...], kind: str) -> str | Note:
    return ", ".join(part.value for part in parts if part.kind == kind) or Note("", "none")


def _part_reasons(first: HashedBlock, second: HashedBlock) -> list[Note]:
    kinds = dict.fromkeys(part.kind for part in (*first.parts, *second.parts))
    reasons: list[Note] = []
    for kind in kinds:
        ours, theirs = _values(first.parts, kind), _values(second.parts, kind)
        if ours != theirs:
            code, template = _PART_REASONS.get(
                kind, ("other_identity", "Another {kind}: {first} here, {second} there.")
            )
            reasons.append(Note(code, template, {"kind": kind, "first": ours, "second": theirs}))
    return reasons


def _token_reason(first: HashedBlock, second: HashedBlock, block_size: int) -> Note | None:
    for offset, (ours, theirs) in enumerate(zip(first.tokens, second.tokens, strict=True)):
        if ours != theirs:
            return Note(
                "other_token",
                "Another token at position {position}: {first} here, {second} there.",
                {
                    "position": first.index * block_size + offset,
                    "first": ours,
                    "second": theirs,
                },
            )
    return None


def _parent_reason(first: HashedBlock) -> Note:
    if first.index == 0:
        return Note(
            "other_seed",
            "The chains start from different seeds: no block of one matches a block of the other.",
        )
    return Note(
        "other_parent",
        "Another parent: block {before} differs, so the keys and values here were computed after "
        "another history, whatever the tokens.",
        {"before": first.index - 1},
    )


def _differences(first: HashedBlock, second: HashedBlock, block_size: int) -> tuple[Note, ...]:
    """Return why two full blocks at one index have different hashes; every cause is named."""
    reasons = [] if first.parent == second.parent else [_parent_reason(first)]
    token = _token_reason(first, second, block_size)
    if token is not None:
        reasons.append(token)
    return (*reasons, *_part_reasons(first, second))


def _no_hash(chain: HashChain, which: Note, index: int) -> Note:
    held = max(min(chain.prompt_tokens - index * chain.block_size, chain.block_size), 0)
    if held == chain.block_size:
        return Note(
            "awaits_lookahead",
            "The {which} prompt fills this block, but the tokens after it that its hash covers do "
            "not exist yet.",
            {"which": which},
        )
    return Note(
        "incomplete_block",
        "The {which} prompt has {held} of {block_size} tokens here; an incomplete block has no "
        "hash.",
        {"which": which, "held": held, "block_size": chain.block_size},
    )


def _block_at(chain: HashChain, index: int) -> HashedBlock | None:
    return chain.blocks[index] if index < len(chain.blocks) else None


def _compared(first: HashChain, second: HashChain, index: int) -> ComparedBlock:
    ours, theirs = _block_at(first, index), _block_at(second, index)
    if ours is not None and theirs is not None:
        matches = ours.hash == theirs.hash
        reasons = () if matches else _differences(ours, theirs, first.block_size)
    else:
        matches = False
        reasons = tuple(
            _no_hash(chain, which, index)
            for chain, which, block in (
                (first, Note("", "first"), ours),
                (second, Note("", "second"), theirs),
            )
            if block is None
        )
    return ComparedBlock(
        index=index,
        first_hash="" if ours is None else ours.hash,
        second_hash="" if theirs is None else theirs.hash,
        matches=matches,
        reasons=reasons,
    )


def compare_chains(first: HashChain, second: HashChain) -> ChainComparison:
    """Return the two chains block by block, up to the longer prompt's last position.

    Raises:
        Conflict: when they differ in scheme, settings or block size, where hashes do not compare.

    """
    if (first.scheme, first.settings) != (second.scheme, second.settings):
        raise Conflict(
            "{field} must be the same on both sides, or no hash could be equal", field="scheme"
        )
    if first.block_size != second.block_size:
        raise Conflict(
            "{field} must be the same on both sides, got {first} and {second}",
            field="block_size",
            first=first.block_size,
            second=second.block_size,
        )
    size = first.block_size
    longest = max(first.prompt_tokens, second.prompt_tokens)
    blocks = tuple(_compared(first, second, index) for index in range(-(-longest // size)))
    breaks_at = next((block.index for block in blocks if not block.matches), None)
    matched = len(blocks) if breaks_at is None else breaks_at
    hit = min(matched * size, second.max_hit_tokens)
    reason = (
        second.max_hit_reason
        if hit < matched * size or breaks_at is None
        else Note(
            "hit_ends_at_break",
            "Matching blocks found: {matched}. From position {position} on all is computed.",
            {"matched": matched, "position": matched * size},
        )
    )
    return ChainComparison(
        block_size=size,
        blocks=blocks,
        matched_blocks=matched,
        matched_tokens=matched * size,
        breaks_at=breaks_at,
        hit_tokens=hit,
        hit_reason=reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterExample:
    """Two small prompts that show one rule; the second differs from the first as the title says."""

    name: str
    title: Note
    block_size: int
    first_tokens: tuple[int, ...]
    second_tokens: tuple[int, ...]
    first_adapter: str = "none"
    second_adapter: str = "none"


COUNTER_EXAMPLES = (
    CounterExample(
        name="other_parent",
        title=Note(
            "example_other_parent",
            "The same last block under another parent is another block.",
        ),
        block_size=2,
        first_tokens=(1, 2, 3, 4),
        second_tokens=(9, 2, 3, 4),
    ),
    CounterExample(
        name="other_adapter",
        title=Note("example_other_adapter", "The same tokens under another adapter share nothing."),
        block_size=2,
        first_tokens=(1, 2, 3, 4),
        second_tokens=(1, 2, 3, 4),
        second_adapter="sql",
    ),
    CounterExample(
        name="longer_prompt",
        title=Note(
            "example_longer_prompt",
            "A longer prompt matches two full blocks; its last token fills no block.",
        ),
        block_size=2,
        first_tokens=(1, 2, 3, 4),
        second_tokens=(1, 2, 3, 4, 5),
    ),
)

"""Practice tasks about reuse: two changes after which equal tokens are not enough."""

from __future__ import annotations

from fractions import Fraction

from app.domain.exercise_choices import capacity_omissions, reuse_conditions
from app.domain.exercise_parts import block_given, drawn_tokens, in_count, tokens_given
from app.domain.notes import Note
from app.domain.practice import Draws, Exercise, Slip

_LAST_POSITION = Note(
    "last_position", "A fully matched prompt still computes its last position, for its logits."
)
_ADAPTER_IN_IDENTITY = Note(
    "adapter_in_identity", "Equal tokens under another adapter have other keys and values."
)
_PARENT_COUNTS = Note(
    "parent_counts", "Equal tokens after another history have other keys and values."
)


def adapter_changed(seed: int) -> Exercise:
    """Equal tokens under another adapter: nothing may be reused."""
    draws = Draws("adapter_changed", seed)
    block = 2 if seed == 0 else draws.pick((2, 4, 8))
    count = 5 if seed == 0 else draws.between(2 * block + 1, 4 * block)
    tokens = tuple(range(1, 6)) if seed == 0 else drawn_tokens(draws, count)
    full, hits = count // block, (count - 1) // block
    return Exercise(
        kind="adapter_changed",
        seed=seed,
        title=Note("adapter_changed", "Equal tokens, another adapter"),
        question=Note(
            "adapter_question",
            "A prompt's state is cached without an adapter. The same tokens come again: once "
            "unchanged, and once for adapter A. How much of the old state may each reuse?",
        ),
        givens=(tokens_given("tokens", Note("tokens", "tokens"), tokens), block_given(block)),
        figures=(
            in_count("full_blocks", Note("full_blocks", "full blocks that have a hash"), full),
            in_count(
                "reusable_unchanged",
                Note("reusable_unchanged", "blocks reusable without a change"),
                hits,
                Slip(value=Fraction(full), remark=_LAST_POSITION),
            ),
            in_count(
                "reusable_changed",
                Note("reusable_changed", "blocks reusable under adapter A"),
                0,
                Slip(value=Fraction(hits), remark=_ADAPTER_IN_IDENTITY),
            ),
        ),
        omissions=capacity_omissions(draws),
        conditions=reuse_conditions(draws),
        working=(
            Note(
                "full_line",
                "{count} tokens make {full} full blocks of {block}; the other {rest} have no hash",
                {"count": count, "full": full, "block": block, "rest": count - full * block},
            ),
            Note(
                "unchanged_line",
                "unchanged: {count} − 1 positions at most, since the last is computed for its "
                "logits: {hits} blocks",
                {"count": count, "hits": hits},
            ),
            Note(
                "adapter_line",
                "adapter A is part of each hash: the first block's differs, and through the "
                "parents all after it, so 0 blocks match",
            ),
            Note(
                "isolate_line",
                "the old state stays under its own hashes, apart from adapter A's, "
                "until it is evicted",
            ),
        ),
    )


def parent_changed(seed: int) -> Exercise:
    """The last block is equal, and an earlier token is not."""
    draws = Draws("parent_changed", seed)
    block = 2 if seed == 0 else draws.pick((2, 4))
    blocks = 2 if seed == 0 else draws.between(3, 5)
    first = tuple(range(1, 5)) if seed == 0 else drawn_tokens(draws, blocks * block)
    at = 0 if seed == 0 else draws.between(0, (blocks - 1) * block - 1)
    # Drawn tokens end at 99, so this one is new.
    second = (*first[:at], 9 if seed == 0 else 100, *first[at + 1 :])
    reusable = at // block
    return Exercise(
        kind="parent_changed",
        seed=seed,
        title=Note("parent_changed", "Equal last block, another parent"),
        question=Note(
            "parent_question",
            "Prompt A is cached and prompt B comes, which differs in one token. "
            "How many of A's blocks may B reuse?",
        ),
        givens=(
            tokens_given("prompt_a", Note("prompt_a", "prompt A"), first),
            tokens_given("prompt_b", Note("prompt_b", "prompt B"), second),
            block_given(block),
        ),
        figures=(
            in_count(
                "equal_blocks", Note("equal_blocks", "blocks with the same tokens"), blocks - 1
            ),
            in_count(
                "reusable_blocks",
                Note("reusable_blocks", "blocks that B may reuse"),
                reusable,
                Slip(value=Fraction(blocks - 1), remark=_PARENT_COUNTS),
            ),
            in_count(
                "recomputed_tokens",
                Note("recomputed_tokens", "positions of B to compute"),
                (blocks - reusable) * block,
                Slip(value=Fraction(block), remark=_PARENT_COUNTS),
            ),
        ),
        omissions=capacity_omissions(draws),
        conditions=reuse_conditions(draws),
        working=(
            Note(
                "changed_line",
                "token {position} differs; it lies in block {changed} of blocks 1..{blocks}",
                {"position": at + 1, "changed": reusable + 1, "blocks": blocks},
            ),
            Note(
                "chain_line",
                "a block's hash covers its parent's, so block {changed} and all after it have "
                "other hashes, equal tokens or not",
                {"changed": reusable + 1},
            ),
            Note(
                "reused_line",
                "reusable: {reusable} blocks; to compute: {blocks} × {block} − "
                "{reusable} × {block} = {tokens} positions",
                {
                    "reusable": reusable,
                    "blocks": blocks,
                    "block": block,
                    "tokens": (blocks - reusable) * block,
                },
            ),
            Note(
                "kept_apart_line",
                "A's blocks stay under A's hashes; B's get hashes of their own",
            ),
        ),
    )

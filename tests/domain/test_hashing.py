"""The textbook chain: what a block's hash covers, and what it does not."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import Malformed, Missing, OutOfRange, WrongType
from app.domain.hashing import (
    IDENTITY_FIELDS,
    MAX_PROMPT_TOKENS,
    MAX_TEXT_BYTES,
    max_hit,
    textbook_chain,
)

IDENTITY = dict.fromkeys(IDENTITY_FIELDS, "x")
TOKENS = st.lists(st.integers(0, 3), max_size=12)


def test_two_full_blocks_and_no_more() -> None:
    """Four tokens in blocks of two give two hashes; a fifth gives none, and is the tail."""
    chain = textbook_chain([1, 2, 3, 4, 5], 2, IDENTITY)
    assert len(chain.hashes) == 2
    assert chain.tail == (5,)
    assert chain.tail_tokens == 1
    assert [block.tokens for block in chain.blocks] == [(1, 2), (3, 4)]


def test_an_incomplete_block_has_no_hash() -> None:
    """One token in blocks of two, and no token at all, give no hash."""
    assert textbook_chain([1], 2, IDENTITY).hashes == ()
    assert textbook_chain([], 2, IDENTITY).hashes == ()


def test_the_encoding_is_the_documented_one() -> None:
    """A hash is SHA-256 over CBOR [name, parent, tokens, sorted identity], written out here."""
    name = b"\x78\x1a" + b"kv-ledger textbook block 1"
    pairs = b"\x86" + b"".join(
        b"\x82" + bytes((0x60 + len(field),)) + field.encode() + b"\x61x"
        for field in sorted(IDENTITY_FIELDS)
    )
    first = hashlib.sha256(b"\x84" + name + b"\x40" + b"\x82\x01\x02" + pairs).digest()
    second = hashlib.sha256(b"\x84" + name + b"\x58\x20" + first + b"\x82\x03\x04" + pairs).digest()
    assert textbook_chain([1, 2, 3, 4], 2, IDENTITY).hashes == (first.hex(), second.hex())


def test_the_same_last_block_under_another_parent_is_another_block() -> None:
    """[9,2,3,4] shares nothing with [1,2,3,4], although both end in [3,4]."""
    ours = textbook_chain([1, 2, 3, 4], 2, IDENTITY)
    theirs = textbook_chain([9, 2, 3, 4], 2, IDENTITY)
    assert not set(ours.hashes) & set(theirs.hashes)


def test_a_longer_prompt_matches_its_prefix_block_by_block() -> None:
    """[1,2,3,4,5] has both blocks of [1,2,3,4]."""
    assert (
        textbook_chain([1, 2, 3, 4, 5], 2, IDENTITY).hashes
        == textbook_chain([1, 2, 3, 4], 2, IDENTITY).hashes
    )


@pytest.mark.parametrize("field", IDENTITY_FIELDS)
def test_each_identity_field_changes_every_hash(field: str) -> None:
    """Another model, adapter, tokenizer, position, dtype or salt shares no block."""
    ours = textbook_chain([1, 2, 3, 4], 2, IDENTITY)
    theirs = textbook_chain([1, 2, 3, 4], 2, IDENTITY | {field: "y"})
    assert not set(ours.hashes) & set(theirs.hashes)


def test_more_fields_may_be_named_and_their_order_does_not_matter() -> None:
    """A field of one's own counts, and naming the fields in another order changes nothing."""
    more = IDENTITY | {"image": "cat"}
    turned = dict(reversed(more.items()))
    assert textbook_chain([1, 2], 2, more).hashes == textbook_chain([1, 2], 2, turned).hashes
    assert textbook_chain([1, 2], 2, more).hashes != textbook_chain([1, 2], 2, IDENTITY).hashes


@pytest.mark.parametrize("field", IDENTITY_FIELDS)
def test_a_missing_identity_field_is_refused_by_name(field: str) -> None:
    """The error names the field that is missing, since without it a match would be a guess."""
    identity = {name: value for name, value in IDENTITY.items() if name != field}
    with pytest.raises(Missing, match=f"identity.{field} is missing") as caught:
        textbook_chain([1, 2], 2, identity)
    assert caught.value.field == ("identity", field)


@pytest.mark.parametrize(
    ("identity", "error"),
    [
        ({"model": 1}, WrongType),
        ({"model": None}, WrongType),
        ({"model": "\ud800"}, Malformed),
        ({"model": "m" * (MAX_TEXT_BYTES + 1)}, OutOfRange),
        ({f"f{n}": "" for n in range(100)}, OutOfRange),
    ],
)
def test_a_bad_identity_is_refused(identity: dict[str, str], error: type[Exception]) -> None:
    """Values are short texts with one encoding, and there are few of them."""
    with pytest.raises(error, match="identity"):
        textbook_chain([1, 2], 2, IDENTITY | identity)


@pytest.mark.parametrize(
    ("tokens", "block_size", "error", "field"),
    [
        ([True, 2], 2, WrongType, ("tokens", 0)),
        ([1, 2.0], 2, WrongType, ("tokens", 1)),
        ([1, "2"], 2, WrongType, ("tokens", 1)),
        ([1, -1], 2, OutOfRange, ("tokens", 1)),
        ([2**32], 2, OutOfRange, ("tokens", 0)),
        ([0] * (MAX_PROMPT_TOKENS + 1), 16, OutOfRange, ("tokens",)),
        ([1], 0, OutOfRange, ("block_size",)),
        ([1], True, WrongType, ("block_size",)),
        ([1], 2**20, OutOfRange, ("block_size",)),
        ([0] * 40_000, 1, OutOfRange, ("block_size",)),
    ],
)
def test_bad_tokens_and_block_sizes_are_refused(
    tokens: list[int], block_size: int, error: type[Exception], field: tuple[str | int, ...]
) -> None:
    """Each bound has an error that names its field."""
    with pytest.raises(error) as caught:
        textbook_chain(tokens, block_size, IDENTITY)
    assert caught.value.field == field  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tokens", "block_size", "hashed", "hit", "code"),
    [
        (48, 16, 3, 32, "hit_recomputes_last_block"),
        (49, 16, 3, 48, "hit_ends_at_block"),
        (50, 16, 3, 48, "hit_ends_at_block"),
        (16, 16, 1, 0, "hit_needs_full_block"),
        (17, 16, 1, 16, "hit_ends_at_block"),
        (15, 16, 0, 0, "hit_needs_full_block"),
        (0, 16, 0, 0, "hit_needs_full_block"),
        (1, 1, 1, 0, "hit_needs_full_block"),
        (3, 1, 3, 2, "hit_recomputes_last_block"),
        # Look-ahead: of 48 tokens the third block has no hash yet, so that is not the reason.
        (48, 16, 2, 32, "hit_ends_at_block"),
        (17, 16, 0, 0, "hit_needs_full_block"),
    ],
)
def test_a_hit_stops_before_the_last_position(
    tokens: int, block_size: int, hashed: int, hit: int, code: str
) -> None:
    """The last position is computed for its logits, and a hit ends where a block ends."""
    most, reason = max_hit(tokens, block_size, hashed)
    assert (most, reason.code) == (hit, code)
    assert str(tokens if code == "hit_ends_at_block" else block_size) in reason.text


def test_a_drafter_that_needs_hidden_states_gives_up_one_block_more() -> None:
    """Of 49 tokens in blocks of 16 an EAGLE drafter leaves 32, of 17 nothing."""
    assert max_hit(49, 16, 3, drops_last_block=True)[0] == 32
    assert max_hit(49, 16, 3, drops_last_block=True)[1].code == "hit_drops_block_for_drafter"
    assert max_hit(17, 16, 1, drops_last_block=True)[0] == 0
    assert max_hit(16, 16, 1, drops_last_block=True)[1].code == "hit_needs_full_block"


def test_the_answer_says_what_it_takes_for_granted() -> None:
    """A chain carries its encoding, its assumptions and what a hash does not tell."""
    chain = textbook_chain([1, 2], 2, IDENTITY)
    assert [note.code for note in chain.assumptions] == ["textbook_encoding", "identity_is_whole"]
    assert [note.code for note in chain.not_counted] == [
        "hashes_are_not_blocks",
        "collisions_possible",
    ]
    assert chain.seed_hash == ""
    assert chain.scheme == "textbook"


@given(TOKENS, TOKENS, st.integers(1, 4))
def test_equal_hashes_mean_equal_prefixes(first: list[int], second: list[int], size: int) -> None:
    """Block j has the same hash in two prompts exactly when they agree up to its end."""
    ours = textbook_chain(first, size, IDENTITY).hashes
    theirs = textbook_chain(second, size, IDENTITY).hashes
    for index, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        end = (index + 1) * size
        assert (left == right) == (first[:end] == second[:end])
    assert len(ours) == len(first) // size


@given(TOKENS, st.integers(1, 4))
def test_the_most_a_lookup_may_reuse_is_below_the_prompt(tokens: list[int], size: int) -> None:
    """It is a whole number of hashed blocks, and never all positions."""
    chain = textbook_chain(tokens, size, IDENTITY)
    assert chain.max_hit_tokens % size == 0
    assert chain.max_hit_tokens <= len(chain.hashes) * size
    assert chain.max_hit_tokens < max(len(tokens), 1)
    assert len(chain.hashes) * size + chain.tail_tokens == len(tokens)

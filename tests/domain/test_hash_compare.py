"""Two prompts side by side: where the chain breaks, and every cause by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import Conflict
from app.domain.hash_compare import (
    COUNTER_EXAMPLES,
    ChainComparison,
    CounterExample,
    compare_chains,
)
from app.domain.hashing import IDENTITY_FIELDS, HashChain, textbook_chain
from app.domain.vllm_hashes import vllm_chain
from app.domain.vllm_prompt import (
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    VllmPrompt,
)

IDENTITY = dict.fromkeys(IDENTITY_FIELDS, "x")
BASE = VllmPrompt(tokens=(1, 2, 3, 4, 5), block_size=2)


def textbook(tokens: tuple[int, ...], size: int = 2, /, **identity: str) -> HashChain:
    """Return a textbook chain under a common identity with some fields changed."""
    return textbook_chain(tokens, size, IDENTITY | identity)


def codes(comparison: ChainComparison) -> list[list[str]]:
    """Return the codes of every block's reasons."""
    return [[reason.code for reason in block.reasons] for block in comparison.blocks]


def test_a_common_prefix_matches_and_the_break_has_its_cause() -> None:
    """Block 1 has another token; block 2 has equal tokens under another parent."""
    answer = compare_chains(textbook((1, 2, 3, 4, 5, 6)), textbook((1, 2, 3, 9, 5, 6)))
    assert [block.matches for block in answer.blocks] == [True, False, False]
    assert codes(answer) == [[], ["other_token"], ["other_parent"]]
    assert answer.blocks[1].reasons[0].params == {"position": 3, "first": 4, "second": 9}
    assert (answer.matched_blocks, answer.breaks_at, answer.hit_tokens) == (1, 1, 2)
    assert answer.hit_reason.code == "hit_ends_at_break"


def test_equal_prompts_match_but_a_hit_leaves_the_last_block() -> None:
    """All three blocks match, and 4 of 6 positions may be reused."""
    answer = compare_chains(textbook((1, 2, 3, 4, 5, 6)), textbook((1, 2, 3, 4, 5, 6)))
    assert answer.breaks_at is None
    assert (answer.matched_tokens, answer.hit_tokens) == (6, 4)
    assert answer.hit_reason.code == "hit_recomputes_last_block"


def test_a_longer_prompt_ends_in_a_block_without_a_hash() -> None:
    """Two blocks match; the third is incomplete in the second prompt and absent in the first."""
    answer = compare_chains(textbook((1, 2, 3, 4)), textbook((1, 2, 3, 4, 5)))
    assert codes(answer) == [[], [], ["incomplete_block", "incomplete_block"]]
    assert [reason.params["held"] for reason in answer.blocks[2].reasons] == [0, 1]
    assert answer.hit_tokens == 4


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("adapter", "other_adapter"),
        ("salt", "other_salt"),
        ("model", "other_identity"),
        ("tokenizer", "other_identity"),
    ],
)
def test_each_identity_field_has_its_reason(field: str, code: str) -> None:
    """Every block says what differs beside its parent, and with which values."""
    answer = compare_chains(textbook((1, 2, 3, 4)), textbook((1, 2, 3, 4), **{field: "y"}))
    assert codes(answer) == [[code], ["other_parent", code]]
    assert "x here, y there" in answer.blocks[0].reasons[0].text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"lora": LoraAdapter(name="sql", path="/sql")}, ["other_adapter"]),
        ({"cache_salt": "t"}, ["other_salt"]),
        (
            {"multimodal": [MultimodalItem(identifier="cat", offset=0, length=1)]},
            ["other_image"],
        ),
        ({"hash_seed": "42"}, ["other_seed"]),
        ({"tokens": (7, 2, 3, 4, 5)}, ["other_token"]),
        (
            {
                "tokens": (5,),
                "embeddings": PromptEmbeddings(data=b"abcd", bytes_per_position=1),
            },
            ["other_token", "other_embeddings"],
        ),
        ({"lookahead_tokens": 1}, ["other_lookahead"]),
    ],
)
def test_each_extra_of_the_engine_has_its_reason(
    change: dict[str, object], expected: list[str]
) -> None:
    """Adapter, salt, image, seed, token, vectors and look-ahead are each named at block 0."""
    answer = compare_chains(vllm_chain(BASE), vllm_chain(replace(BASE, **change)))  # type: ignore[arg-type]
    assert codes(answer)[0] == expected


def test_a_salt_reaches_later_blocks_through_their_parents() -> None:
    """The engine hashes the salt into block 0 only; block 1 differs by its parent alone."""
    answer = compare_chains(vllm_chain(BASE), vllm_chain(replace(BASE, cache_salt="t")))
    assert codes(answer)[:2] == [["other_salt"], ["other_parent"]]


def test_a_full_block_may_still_wait_for_its_lookahead() -> None:
    """With look-ahead, the last full block has no hash though nothing is missing in it."""
    chain = vllm_chain(replace(BASE, tokens=(1, 2, 3, 4), lookahead_tokens=1))
    assert codes(compare_chains(chain, chain)) == [[], ["awaits_lookahead", "awaits_lookahead"]]


def test_empty_prompts_have_nothing_to_compare() -> None:
    """No block, no break, no hit."""
    answer = compare_chains(textbook(()), textbook(()))
    assert (answer.blocks, answer.breaks_at, answer.hit_tokens) == ((), None, 0)


def test_chains_of_different_kinds_do_not_compare() -> None:
    """Another scheme, algorithm or block size is refused: no hash could be equal by design."""
    with pytest.raises(Conflict, match="scheme"):
        compare_chains(textbook((1, 2)), vllm_chain(BASE))
    with pytest.raises(Conflict, match="scheme"):
        compare_chains(vllm_chain(BASE), vllm_chain(replace(BASE, algorithm="sha256_cbor")))
    with pytest.raises(Conflict, match="block_size"):
        compare_chains(textbook((1, 2)), textbook((1, 2), 1))


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=lambda example: example.name)
def test_the_counter_examples_show_what_they_say(example: CounterExample) -> None:
    """Other parent and other adapter share nothing; the longer prompt matches two blocks."""
    answer = compare_chains(
        textbook(example.first_tokens, example.block_size, adapter=example.first_adapter),
        textbook(example.second_tokens, example.block_size, adapter=example.second_adapter),
    )
    assert answer.matched_blocks == (2 if example.name == "longer_prompt" else 0)
    seen = {reason.code for block in answer.blocks for reason in block.reasons}
    assert (
        seen
        == {
            "other_parent": {"other_token", "other_parent"},
            "other_adapter": {"other_adapter", "other_parent"},
            "longer_prompt": {"incomplete_block"},
        }[example.name]
    )


@given(
    st.lists(st.integers(0, 2), max_size=10),
    st.lists(st.integers(0, 2), max_size=10),
    st.integers(1, 3),
)
def test_every_block_matches_or_says_why(first: list[int], second: list[int], size: int) -> None:
    """A block has reasons exactly when it does not match, and once broken it stays broken."""
    answer = compare_chains(textbook(tuple(first), size), textbook(tuple(second), size))
    flags = [block.matches for block in answer.blocks]
    assert flags == sorted(flags, reverse=True)
    for block in answer.blocks:
        assert bool(block.reasons) != block.matches
        assert all(reason.text for reason in block.reasons)
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    assert answer.matched_blocks == common // size
    assert answer.hit_tokens == min(common // size, max(len(second) - 1, 0) // size) * size

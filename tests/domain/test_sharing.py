"""What is physical when sequences share prefixes: hand-worked values and a count one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as counting

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.dtypes import dtype_named
from app.domain.errors import DomainError, OutOfRange, Unknown, WrongType
from app.domain.formats import KvFormats
from app.domain.prefix_tree import (
    MAX_LEAVES,
    MAX_SEQUENCES,
    MAX_TREE_TOKENS,
    Branch,
    PrefixGroup,
    PrefixTree,
    samples_of,
    tree_of_groups,
    tree_of_sequences,
)
from app.domain.sharing import POLICIES, Sharing, count_blocks, sharing
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    SlidingWindow,
    State,
    StateTensor,
)
from app.domain.units import MIB

FP16 = KvFormats.same(dtype_named("fp16"))
UNIFORM = ModelState.uniform(layers=32, kv_heads=8, head_dim=128)
ONE_BYTE_EACH = FullAttention(kv_heads=1, k_dim=1, v_dim=0)


def two_branches(prefix: int, *own: int, policy: str | None = None, size: int = 16) -> Sharing:
    """Return the sharing of one group in the textbook model."""
    tree = tree_of_groups([PrefixGroup(prefix_tokens=prefix, branches=own)])
    return sharing(tree, size, UNIFORM, FP16, policy=policy)


def of_layer(state: State, tree: PrefixTree, size: int, policy: str | None = None) -> Sharing:
    """Return the sharing of a model of one layer that keeps `state`."""
    model = ModelState.of_layers([Layer(states=(state,))])
    return sharing(tree, size, model, FP16, policy=policy)


def test_two_requests_share_32_tokens() -> None:
    """6 table entries, 4 unique blocks, 8 MiB against 12, 34 effective positions."""
    answer = two_branches(32, 1, 1)
    assert (answer.logical_blocks, answer.unique_blocks, answer.saved_blocks) == (6, 4, 2)
    assert (answer.paged_bytes, answer.logical_bytes) == (8 * MIB, 12 * MIB)
    assert answer.saved_bytes == 4 * MIB
    assert (answer.effective_tokens, answer.effective_bytes) == (34, 34 * 131_072)
    assert (answer.logical_tokens, answer.unshared_effective_bytes) == (66, 66 * 131_072)
    assert answer.tables is not None
    assert answer.tables.rows == ((0, 1, 2), (0, 1, 3))
    assert answer.tables.ref_counts == {0: 2, 1: 2, 2: 1, 3: 1}
    assert answer.tables.filled == {0: 16, 1: 16, 2: 1, 3: 1}
    assert answer.tables.blocks_by_holders == {1: 2, 2: 2}
    assert (answer.stored_tokens, answer.tail_waste_tokens) == (34, 30)


def test_the_working_has_the_requests_numbers() -> None:
    """Each figure says its product; a model of several kinds says its sum."""
    workings = two_branches(32, 1, 1).workings
    assert workings["paged_bytes"].numbers == (
        "131072 B/token × 16 tokens × 4 unique blocks = 8388608 B"
    )
    assert workings["logical_bytes"].numbers == (
        "131072 B/token × 16 tokens × 6 table entries = 12582912 B"
    )
    assert workings["effective_bytes"].numbers == "131072 B/token × 34 positions = 4456448 B"
    window = SlidingWindow(kv_heads=1, k_dim=1, v_dim=0, window=3)
    numbers = of_layer(window, tree_of_groups([]), 4).workings["paged_bytes"].numbers
    assert numbers == "0 B sliding_window = 0 B"


def test_three_lists_of_token_ids() -> None:
    """In blocks of 2, another first token shares nothing, and a longer list both blocks."""
    tree = tree_of_sequences([[1, 2, 3, 4], [9, 2, 3, 4], [1, 2, 3, 4, 5]])
    answer = sharing(tree, 2, UNIFORM, FP16)
    assert (answer.logical_blocks, answer.unique_blocks) == (7, 5)
    assert answer.tables is not None
    assert answer.tables.rows == ((0, 1), (2, 3), (0, 1, 4))
    assert answer.effective_tokens == 9
    assert answer.policy == "full_blocks"
    assert "sharing_found_by_hash" in [note.code for note in answer.assumptions]


@pytest.mark.parametrize(
    ("prefix", "own", "policy", "unique", "copies", "stored"),
    [
        # A prefix of 20 fills block 0 and 4 positions of block 1, where the branches diverge.
        (20, (1, 1), "copy_on_write", 3, 1, 26),
        (20, (1, 1), "full_blocks", 3, 0, 26),
        (20, (1, 1, 1), "copy_on_write", 4, 2, 31),
        # Forks that have written nothing still share the last block; engines compute it each.
        (20, (0, 0), "copy_on_write", 2, 0, 20),
        (20, (0, 0), "full_blocks", 3, 0, 24),
        (20, (0, 5), "copy_on_write", 3, 1, 29),
        # At a block's edge nothing is copied.
        (32, (1, 1), "copy_on_write", 4, 0, 34),
        (32, (0, 0), "full_blocks", 2, 0, 32),
        (0, (5, 5), "copy_on_write", 2, 0, 10),
        (0, (0, 0), "copy_on_write", 0, 0, 0),
    ],
)
def test_where_branches_diverge_inside_a_block(
    prefix: int, own: tuple[int, ...], policy: str, unique: int, copies: int, stored: int
) -> None:
    """All but one branch copy a shared block that they write; engines share full blocks only."""
    answer = two_branches(prefix, *own, policy=policy)
    assert (answer.unique_blocks, answer.copy_on_write_blocks) == (unique, copies)
    assert answer.stored_tokens == stored
    assert answer.duplicate_tokens == stored - answer.effective_tokens
    assert answer.effective_tokens == prefix + sum(own)


def test_nested_groups_multiply() -> None:
    """512 for all, 40 users of 200, 3 branches of 60 each: 120 sequences of 772 tokens."""
    user = PrefixGroup(prefix_tokens=200, branches=(60, 60, 60), count=40)
    answer = sharing(tree_of_groups([PrefixGroup(prefix_tokens=512, branches=[user])]), 16, UNIFORM,
                     FP16)  # fmt: skip
    assert answer.sequences == 120
    assert answer.logical_tokens == 120 * 772
    assert answer.effective_tokens == 512 + 40 * 200 + 120 * 60
    # 32 blocks for all; 12 full ones a user (712 // 16 = 44); 4 more and a tail a branch (772).
    assert answer.unique_blocks == 32 + 40 * 12 + 120 * 5
    assert answer.logical_blocks == 120 * 49
    # 712 tokens end 8 into block 44: of three branches there, two copy it.
    assert answer.copy_on_write_blocks == 40 * 2
    assert answer.tables is not None
    assert len(answer.tables.rows) == 120


def test_samples_of_one_prompt_are_a_group() -> None:
    """Three samples of 10 tokens in blocks of 4 that wrote one token each: 2 shared, 3 own."""
    tree = tree_of_groups(samples_of(10, 3, 1))
    answer = sharing(tree, 4, UNIFORM, FP16, policy="full_blocks")
    assert (answer.logical_blocks, answer.unique_blocks) == (9, 5)
    assert answer.duplicate_tokens == 4


def test_a_window_drops_what_every_holder_has_passed() -> None:
    """Of 40 tokens in common, a window of 9 keeps 8; the shorter sequence keeps them longest."""
    window = SlidingWindow(kv_heads=1, k_dim=1, v_dim=0, window=9)
    tree = tree_of_groups([PrefixGroup(prefix_tokens=40, branches=(1, 12))])
    answer = of_layer(window, tree, 4)
    # The first keeps 33..40, blocks 8 to 10; the second 44..51, blocks 11 and 12: nothing shared.
    (group,) = answer.groups
    assert (group.logical_blocks, group.unique_blocks) == (5, 5)
    assert group.effective_bytes == 2 * (8 + 8)
    # Its tokens are another matter: 40 in common, 13 of their own.
    assert answer.effective_tokens == 53
    closer = of_layer(window, tree_of_groups([PrefixGroup(prefix_tokens=40, branches=(1, 2))]), 4)
    assert (closer.groups[0].logical_blocks, closer.groups[0].unique_blocks) == (6, 4)
    assert closer.groups[0].effective_bytes == 2 * (7 + 1 + 2)


def test_a_window_of_one_and_a_finished_chunk_hold_nothing() -> None:
    """A layer that sees only the current position keeps no block, shared or not."""
    tree = tree_of_groups([PrefixGroup(prefix_tokens=6, branches=(2, 2))])
    narrow = of_layer(SlidingWindow(kv_heads=1, k_dim=1, v_dim=0, window=1), tree, 4)
    done = of_layer(ChunkedAttention(kv_heads=1, k_dim=1, v_dim=0, chunk=8), tree, 4)
    for answer in (narrow, done):
        assert (answer.logical_bytes, answer.paged_bytes, answer.effective_bytes) == (0, 0, 0)
        assert answer.unique_blocks == 4 - 1


def test_a_recurrent_state_is_one_a_sequence() -> None:
    """Two forks keep two states of 24 bytes, an empty sequence none, and nothing is saved."""
    state = Recurrent(tensors=(StateTensor(name="ssm", shape=(2, 6), dtype=dtype_named("fp16")),))
    tree = tree_of_groups([PrefixGroup(prefix_tokens=8, branches=(0, 3))])
    answer = of_layer(state, tree, 4)
    assert (answer.logical_bytes, answer.paged_bytes, answer.effective_bytes) == (48, 48, 48)
    assert answer.saved_bytes == 0
    assert "sharing_recurrent" in [note.code for note in answer.assumptions]
    assert of_layer(state, tree_of_sequences([[]]), 4).paged_bytes == 0


def test_encoder_positions_are_each_sequences_own() -> None:
    """Cross-attention of 10 encoder positions takes 3 blocks of 4 for each of two sequences."""
    state = CrossAttention(kv_heads=1, k_dim=1, v_dim=0, encoder_tokens=10)
    answer = of_layer(state, tree_of_groups([PrefixGroup(prefix_tokens=8, branches=(1, 1))]), 4)
    assert (answer.groups[0].unique_blocks, answer.paged_bytes) == (6, 48)
    assert answer.effective_bytes == 40


def test_compressed_entries_are_shared_when_all_their_tokens_are() -> None:
    """One entry for 4 tokens: of 10 tokens in common 2 entries are, the third has own tokens."""
    state = LatentAttention(latent_dim=1, rope_dim=0, tokens_per_entry=4)
    answer = of_layer(state, tree_of_groups([PrefixGroup(prefix_tokens=10, branches=(6, 6))]), 2)
    assert answer.effective_bytes == 2 * (2 + 2 + 2)
    assert (answer.groups[0].logical_blocks, answer.groups[0].unique_blocks) == (4, 3)
    assert "sharing_entries" in [note.code for note in answer.assumptions]
    # Forks without a whole entry of their own still share the block of the last one.
    early = tree_of_groups([PrefixGroup(prefix_tokens=13, branches=(1, 2))])
    assert of_layer(state, early, 2).groups[0].unique_blocks == 2
    assert of_layer(state, early, 2, "full_blocks").groups[0].unique_blocks == 3


def test_kinds_of_layers_add_up() -> None:
    """A mixture's bytes are the sum of its kinds', each with its number of layers."""
    window = SlidingWindow(kv_heads=2, k_dim=4, v_dim=4, window=5)
    model = ModelState.of_layers(
        [Layer(states=(ONE_BYTE_EACH,)), Layer(states=(window,)), Layer(states=(window,))]
    )
    answer = sharing(tree_of_groups(samples_of(20, 2, 3)), 4, model, FP16)
    assert [(group.kind, group.layers) for group in answer.groups] == [
        ("full_attention", 1),
        ("sliding_window", 2),
    ]
    assert answer.paged_bytes == sum(group.paged_bytes for group in answer.groups)
    assert "+" in answer.workings["paged_bytes"].numbers
    assert "sharing_windows" in [note.code for note in answer.assumptions]


def test_large_groups_are_counted_without_being_listed() -> None:
    """A million users of 100,000 tokens: exact counts at once, and no table."""
    user = PrefixGroup(prefix_tokens=100, branches=(7,), count=1_000_000)
    tree = tree_of_groups([PrefixGroup(prefix_tokens=100_000, branches=[user])])
    answer = of_layer(ONE_BYTE_EACH, tree, 16)
    assert answer.tables is None
    assert "sharing_not_listed" in [note.code for note in answer.assumptions]
    assert answer.unique_blocks == 6_250 + 7_000_000
    assert answer.effective_tokens == 100_000 + 107_000_000


def spelled_out(groups: Sequence[PrefixGroup]) -> list[list[int]]:
    """Return every sequence of the groups as token ids, each own token a new one."""
    fresh = counting()

    def walk(branch: Branch, before: list[int]) -> list[list[int]]:
        if not isinstance(branch, PrefixGroup):
            return [[*before, *(next(fresh) for _ in range(branch))]]
        found: list[list[int]] = []
        for _ in range(branch.count):
            here = [*before, *(next(fresh) for _ in range(branch.prefix_tokens))]
            for child in branch.branches:
                found += walk(child, here)
        return found

    return [row for group in groups for row in walk(group, [])]


def counted_one_by_one(
    rows: list[list[int]], size: int, kept: dict[int, int], *, shares_tails: bool
) -> tuple[int, int, int, int]:
    """Return (logical, unique blocks, positions, distinct positions) by naming every one."""
    blocks: list[object] = []
    positions: list[tuple[int, ...]] = []
    for number, row in enumerate(rows):
        length, held = len(row), kept[len(row)]
        positions += [tuple(row[: at + 1]) for at in range(length - held, length)]
        first = (length - held) // size if held else -(-length // size)
        for index in range(first, -(-length // size)):
            end = min((index + 1) * size, length)
            own = end % size and not shares_tails
            blocks.append((number, index) if own else tuple(row[:end]))
    return len(blocks), len(set(blocks)), len(positions), len(set(positions))


def groups_over(branches: st.SearchStrategy[Branch]) -> st.SearchStrategy[Branch]:
    """Return groups whose branches are drawn from `branches`."""
    return st.builds(
        PrefixGroup,
        prefix_tokens=st.integers(0, 9),
        count=st.integers(1, 3),
        branches=st.lists(branches, min_size=1, max_size=3),
    )


OWN_TOKENS: st.SearchStrategy[Branch] = st.integers(0, 7)
GROUPS = st.lists(groups_over(st.recursive(OWN_TOKENS, groups_over, max_leaves=6)), max_size=2)
STATES = st.one_of(
    st.just(ONE_BYTE_EACH),
    st.builds(
        SlidingWindow,
        kv_heads=st.just(1),
        k_dim=st.just(1),
        v_dim=st.just(0),
        window=st.integers(1, 12),
    ),
    st.builds(
        ChunkedAttention,
        kv_heads=st.just(1),
        k_dim=st.just(1),
        v_dim=st.just(0),
        chunk=st.integers(1, 9),
    ),
)


@given(GROUPS, st.integers(1, 5), STATES, st.booleans())
def test_the_closed_form_equals_counting_one_by_one(
    groups: list[PrefixGroup],
    size: int,
    state: State,
    shares_tails: bool,  # noqa: FBT001 - drawn
) -> None:
    """Blocks and positions of any groups, windows and chunks are those that one finds by hand."""
    rows = spelled_out(groups)
    kept = {len(row): state.kept_tokens(len(row)) for row in rows}
    expected = counted_one_by_one(rows, size, kept, shares_tails=shares_tails)
    for tree in (tree_of_groups(groups), tree_of_sequences(rows)):
        found = count_blocks(tree, size, shares_tails=shares_tails, kept_tokens=state.kept_tokens)
        assert expected == (
            found.logical_blocks,
            found.unique_blocks,
            found.logical_positions,
            found.distinct_positions,
        )
        assert tree.sequences == len(rows)


TOKEN_LISTS = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=6)


@given(TOKEN_LISTS, st.integers(1, 4), st.sampled_from(POLICIES))
def test_counts_and_tables_of_token_lists_agree(
    rows: list[list[int]], size: int, policy: str
) -> None:
    """Reference counts add up to table entries, unique ≤ logical, effective ≤ stored ≤ given."""
    answer = sharing(tree_of_sequences(rows), size, UNIFORM, FP16, policy=policy)
    assert answer.tables is not None
    assert [len(table) for table in answer.tables.rows] == [-(-len(row) // size) for row in rows]
    assert sum(answer.tables.ref_counts.values()) == answer.logical_blocks
    assert len(answer.tables.ref_counts) == answer.unique_blocks <= answer.logical_blocks
    assert sum(answer.tables.filled.values()) == answer.stored_tokens
    assert answer.effective_tokens <= answer.stored_tokens <= answer.logical_tokens
    assert answer.effective_bytes <= answer.paged_bytes <= answer.logical_bytes
    assert answer.copy_on_write_blocks >= 0
    for left, first in zip(rows, answer.tables.rows, strict=True):
        for right, second in zip(rows, answer.tables.rows, strict=True):
            for index, (one, other) in enumerate(zip(first, second, strict=False)):
                end = (index + 1) * size
                if one == other and left is not right:
                    assert left[:end] == right[:end]


@given(TOKEN_LISTS, st.integers(1, 4))
def test_engines_never_hold_fewer_blocks_than_the_textbook(
    rows: list[list[int]], size: int
) -> None:
    """Sharing full blocks only saves at most what sharing every block saves."""
    tree = tree_of_sequences(rows)
    full = sharing(tree, size, UNIFORM, FP16, policy="full_blocks")
    forks = sharing(tree, size, UNIFORM, FP16, policy="copy_on_write")
    assert forks.unique_blocks <= full.unique_blocks
    assert forks.effective_tokens == full.effective_tokens


def nested(depth: int) -> PrefixGroup:
    """Return groups inside groups."""
    group = PrefixGroup(prefix_tokens=1, branches=(1,))
    for _ in range(depth):
        group = PrefixGroup(prefix_tokens=1, branches=(group,))
    return group


@pytest.mark.parametrize(
    ("groups", "error", "field"),
    [
        ([PrefixGroup(prefix_tokens=-1, branches=(1,))], OutOfRange, "groups.0.prefix_tokens"),
        ([PrefixGroup(prefix_tokens=True, branches=(1,))], WrongType, "groups.0.prefix_tokens"),
        ([PrefixGroup(prefix_tokens=1, branches=())], OutOfRange, "groups.0.branches"),
        ([PrefixGroup(prefix_tokens=1, branches=(-1,))], OutOfRange, "groups.0.branches.0"),
        ([PrefixGroup(prefix_tokens=1, branches=(1, True))], WrongType, "groups.0.branches.1"),
        ([PrefixGroup(prefix_tokens=1, branches=(1,), count=0)], OutOfRange, "groups.0.count"),
        ([PrefixGroup(prefix_tokens=10**9, branches=(1,))], OutOfRange, "groups.0.branches.0"),
        ([nested(40)], OutOfRange, "groups"),
        (
            [PrefixGroup(prefix_tokens=1, branches=(nested(1),), count=10_000_001)],
            OutOfRange,
            "groups.0.count",
        ),
        (
            [PrefixGroup(prefix_tokens=0, branches=(1, 1), count=10_000_000)],
            OutOfRange,
            "groups",
        ),
        ([PrefixGroup(prefix_tokens=1, branches=(0,) * 10_000)] * 2, OutOfRange, "groups"),
    ],
)
def test_bad_groups_are_refused(
    groups: list[PrefixGroup], error: type[DomainError], field: str
) -> None:
    """Each bound names the place in the nested groups."""
    with pytest.raises(error) as caught:
        tree_of_groups(groups)
    assert ".".join(map(str, caught.value.field)) == field


@pytest.mark.parametrize(
    ("sequences", "error", "field"),
    [
        ([[1], [2, -1]], OutOfRange, ("sequences", 1, 1)),
        ([[1.0]], WrongType, ("sequences", 0, 0)),
        ([[]] * (MAX_SEQUENCES + 1), OutOfRange, ("sequences",)),
        ([[1] * 250_000] * 5, OutOfRange, ("sequences", 4)),
        ([[1] * 300_000], OutOfRange, ("sequences", 0)),
    ],
)
def test_bad_sequences_are_refused(
    sequences: list[list[int]], error: type[DomainError], field: tuple[str | int, ...]
) -> None:
    """Token ids are checked one by one, and their number is bounded."""
    with pytest.raises(error) as caught:
        tree_of_sequences(sequences)
    assert caught.value.field == field


def test_bad_settings_are_refused() -> None:
    """Block size, policy, number of samples and total are each bounded."""
    tree = tree_of_sequences([[1, 2]])
    with pytest.raises(OutOfRange, match="block_size"):
        sharing(tree, 0, UNIFORM, FP16)
    with pytest.raises(Unknown, match="policy"):
        sharing(tree, 2, UNIFORM, FP16, policy="all")
    with pytest.raises(OutOfRange, match="samples"):
        samples_of(1, 0, 1)
    many = tree_of_groups([PrefixGroup(prefix_tokens=10**8, branches=(1,), count=10**6)])
    with pytest.raises(OutOfRange, match="8 PiB"):
        sharing(many, 16, UNIFORM, FP16)


def test_a_prefix_and_its_branch_are_bounded_together() -> None:
    """The refusal speaks of both, not of a sum that nobody typed."""
    long = PrefixGroup(prefix_tokens=MAX_TREE_TOKENS, branches=(1,))
    with pytest.raises(OutOfRange, match="the prefix and its branch together are longer") as found:
        tree_of_groups([long])
    assert found.value.field == ("groups", 0, "branches", 0)
    inner = PrefixGroup(prefix_tokens=1, branches=(1,), count=MAX_LEAVES)
    with pytest.raises(OutOfRange, match="with all that branches before it"):
        tree_of_groups([PrefixGroup(prefix_tokens=1, branches=(inner,), count=2)])

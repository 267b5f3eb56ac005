"""Memory as lines, and the inverse questions: what fits, fits; one more does not."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.capacity import (
    MAX_CONCURRENCY,
    Basis,
    Budget,
    Line,
    deciding,
    fits,
    largest_concurrency,
    longest_context,
)
from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, DomainError, OutOfRange
from app.domain.fit import Load, fit, given_line
from app.domain.formats import KvFormats
from app.domain.ledgers import ledgers
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.rank_demands import rank_demands
from app.domain.rank_shares import Degrees
from app.domain.state import (
    MAX_TOKENS,
    ChunkedAttention,
    LatentAttention,
    Layer,
    LayerRun,
    ModelState,
    Recurrent,
    StateTensor,
)
from tests.domain.strategies import block_sizes, formats, growing_states, models

BF16 = KvFormats.same(DTYPES["bf16"])
GIB = 2**30
ONE = Degrees()
LATENT = LatentAttention(latent_dim=512, rope_dim=64)


def line(name: str, low: int, high: int | None = None, basis: Basis = Basis.ASSUMED) -> Line:
    """Return a line without a sentence."""
    return Line(name=name, low_bytes=low, high_bytes=low if high is None else high, basis=basis,
                note=Note("", ""))  # fmt: skip


def budget(memory: int, *lines: Line, weights: tuple[int, ...] = (0,), share: str = "1") -> Budget:
    """Return a budget of one kind of device."""
    return Budget(memory=line("memory", memory), utilisation=Fraction(share), weights=weights,
                  lines=lines)  # fmt: skip


def uniform(layers: int, heads: int) -> ModelState:
    """Return equal layers 128 wide."""
    return ModelState.uniform(layers=layers, kv_heads=heads, head_dim=128)


def deepseek() -> ModelState:
    """Return 61 layers of a latent of 512 + 64."""
    return ModelState(runs=(LayerRun(layer=Layer(states=(LATENT,)), count=61),))


def test_only_the_room_may_be_below_zero() -> None:
    """An engine prints the room that it lacks so; of nothing else is there less than none."""
    note = Note("given", "As given.")
    lacking = Line(name="state", low_bytes=-5, high_bytes=-5, basis=Basis.MEASURED, note=note)
    assert lacking.high_bytes == -5
    for name, low in (("weights", -1), ("state", -(2**53) - 1)):
        with pytest.raises(OutOfRange):
            Line(name=name, low_bytes=low, high_bytes=0, basis=Basis.MEASURED, note=note)


def test_a_budget_subtracts_every_line() -> None:
    """Assumed lines leave a range; the sure end counts each at its high end."""
    rooms = budget(1000, line("a", 10, 30), line("b", 5), weights=(500, 600), share="0.9").rooms()
    assert [(room.least, room.most) for room in rooms] == [(365, 385), (265, 285)]


def test_a_share_is_rounded_up() -> None:
    """A share of memory is rounded up to a whole byte, exactly."""
    assert budget(101, share="0.9").usable(101) == 91
    assert budget(10**15 + 1, share="0.92").usable(10**15 + 1) == 920_000_000_000_001


def test_a_given_room_takes_the_place_of_all_lines() -> None:
    """A log's own figure for the state is the room, whatever the lines say."""
    rooms = Budget(memory=line("memory", 1), utilisation=Fraction(1), weights=(9, 9),
                   lines=(line("a", 5),), state=given_line("state", 77)).rooms()  # fmt: skip
    assert [(room.least, room.most) for room in rooms] == [(77, 77)] * 2


@pytest.mark.parametrize("share", ["0", "1.5", "-1"])
def test_a_share_is_checked(share: str) -> None:
    """A utilisation of nothing or of more than everything is refused."""
    with pytest.raises(OutOfRange, match="utilisation"):
        budget(1, share=share)


def test_a_line_is_checked() -> None:
    """A line from high to low, or below nothing, is refused."""
    with pytest.raises(Conflict, match="empty"):
        line("a", 2, 1)
    with pytest.raises(DomainError):
        line("a", -1)
    assert line("a", 1, 2).is_range
    assert not line("a", 1).is_range


@pytest.mark.parametrize(
    ("model", "degrees", "block", "room", "tokens"),
    [
        # One of eight ranks of 126 layers: 64,512 B a token.
        (uniform(126, 8), Degrees(tensor=8), 16, 5_121_748_500, 79_392),
        # 62 layers of eight heads, not divided by data parallelism: 253,952 B a token.
        (uniform(62, 8), Degrees(data=8), 16, 52_248_277_155, 205_728),
        (uniform(62, 8), Degrees(data=8), 16, 59_753_889_792, 235_296),
        # A latent copied on every tensor rank, and the same with positions shared out.
        (deepseek(), Degrees(tensor=8), 64, 50_251_117_363, 715_072),
        (deepseek(), Degrees(tensor=8, decode_context=8), 64, 50_254_036_992, 5_721_088),
        # 48 layers of eight heads over two ranks: 98,304 B a token on each.
        (uniform(48, 8), Degrees(tensor=2), 16, 8_015_314_944, 81_536),
    ],
)
def test_longest_contexts_that_servers_printed(
    model: ModelState, degrees: Degrees, block: int, room: int, tokens: int
) -> None:
    """The longest context in a log's room is the number of tokens that the log printed.

    Rooms are within the two decimals of GiB that each log gives.
    """
    demands = rank_demands(model, BF16, degrees, block)
    assert longest_context(demands, [room] * len(demands), 1) == tokens


def test_the_smallest_rank_decides() -> None:
    """Of stages of 16 and 32 layers, the second has room for half as many requests."""
    degrees = Degrees(pipeline=2, layers_per_stage=(16, 32))
    demands = rank_demands(uniform(48, 4), BF16, degrees, 16)
    assert [demand(262_144) for demand in demands] == [8 * GIB, 16 * GIB]
    assert largest_concurrency(demands, [33 * GIB] * 2, 262_144) == 2
    assert deciding(demands, [33 * GIB] * 2, 262_144) == 1
    assert deciding(demands, [GIB, 33 * GIB], 262_144) == 0


def test_chunks_peak_before_a_boundary() -> None:
    """A request of any length passes through a full chunk, so that is what it is given."""
    model = ModelState.of_layers(
        [Layer(states=(ChunkedAttention(kv_heads=1, k_dim=1, v_dim=1, chunk=100),))]
    )
    (demand,) = rank_demands(model, BF16, ONE, 1)
    assert [demand(tokens) for tokens in (0, 50, 99, 100, 250)] == [0, 200, 396, 396, 396]


def test_nothing_that_grows_has_no_longest_context() -> None:
    """A recurrent model in enough room takes any length; in too little none."""
    tensor = StateTensor(name="s", shape=(100,), dtype=DTYPES["fp32"])
    model = ModelState.of_layers([Layer(states=(Recurrent(tensors=(tensor,)),))])
    demands = rank_demands(model, BF16, ONE, 16)
    assert longest_context(demands, [400], 1) == MAX_TOKENS
    assert longest_context(demands, [399], 1) == 0
    assert largest_concurrency(demands, [1200], 5) == 3


def test_a_model_that_keeps_nothing() -> None:
    """Requests that take nothing are bounded only by the bound itself; no room is still none."""
    demands = rank_demands(ModelState.of_layers([Layer(states=())]), BF16, ONE, 16)
    assert largest_concurrency(demands, [0], 10) == MAX_CONCURRENCY
    assert largest_concurrency(demands, [-1], 10) == 0
    assert longest_context(demands, [-1], 10) == 0
    assert deciding(demands, [0], 10) == 0


def test_many_runs_are_not_remembered() -> None:
    """A mixture of hundreds of runs is answered like any other."""
    layers = [
        Layer(states=(LatentAttention(latent_dim=1 + index % 2, rope_dim=1),))
        for index in range(400)
    ]
    (demand,) = rank_demands(ModelState.of_layers(layers), BF16, ONE, 1)
    assert demand(1) == 200 * (2 + 3) * 2


@given(models(growing_states()), formats(), block_sizes, st.integers(1, 20_000),
       st.integers(0, 10**9))  # fmt: skip
def test_what_fits_fits_and_one_more_request_does_not(
    model: ModelState, kept: KvFormats, block: int, tokens: int, room: int
) -> None:
    """The largest concurrency fits, and one more request does not."""
    demands = rank_demands(model, kept, ONE, block)
    most = largest_concurrency(demands, [room], tokens)
    assert fits(demands, [room], tokens, most)
    assert most == MAX_CONCURRENCY or not fits(demands, [room], tokens, most + 1)


@given(models(), formats(), block_sizes, st.integers(1, 50), st.integers(0, 10**9))
def test_what_fits_fits_and_one_more_token_does_not(
    model: ModelState, kept: KvFormats, block: int, concurrency: int, room: int
) -> None:
    """The longest context fits, and one more token does not."""
    demands = rank_demands(model, kept, ONE, block)
    tokens = longest_context(demands, [room], concurrency)
    assert fits(demands, [room], tokens, concurrency)
    assert tokens == MAX_TOKENS or not fits(demands, [room], tokens + 1, concurrency)


@given(st.integers(1, 64), st.integers(1, 8), block_sizes, st.integers(1, 50),
       st.integers(0, 10**10))  # fmt: skip
def test_one_more_block_does_not_fit(
    layers: int, heads: int, block: int, concurrency: int, room: int
) -> None:
    """With every request at the longest context, one more block for each is too much."""
    demands = rank_demands(uniform(layers, heads), BF16, ONE, block)
    tokens = longest_context(demands, [room], concurrency)
    assert tokens % block == 0
    one_block = demands[0](1)
    assert concurrency * demands[0](tokens) <= room < concurrency * (demands[0](tokens) + one_block)


@given(models(growing_states()), formats(), block_sizes, st.integers(1, 20_000))
def test_a_demand_is_the_paged_ledger_of_one_request(
    model: ModelState, kept: KvFormats, block: int, tokens: int
) -> None:
    """On one device a request's peak is its paged bytes."""
    (demand,) = rank_demands(model, kept, ONE, block)
    assert (
        demand(tokens) == ledgers(model, kept, RequestLengths.of_list([tokens]), block).paged_bytes
    )


@given(models(), formats(), block_sizes, st.integers(0, 5000), st.integers(0, 5000))
def test_a_demand_never_falls(
    model: ModelState, kept: KvFormats, block: int, first: int, more: int
) -> None:
    """More tokens never take less."""
    (demand,) = rank_demands(model, kept, ONE, block)
    assert demand(first + more) >= demand(first)


LOAD = Load(tokens=1024, concurrency=4)
DEMANDS = rank_demands(uniform(32, 8), BF16, ONE, 16)
REQUEST = 128 * 2**20


def test_a_load_that_fits() -> None:
    """Four requests of 128 MiB fit into 1 GiB, and eight would."""
    answer = fit(budget(GIB), DEMANDS, LOAD)
    assert (answer.fits, answer.max_concurrency, answer.max_context) == (True, 8, 2048)
    assert answer.request_bytes == REQUEST
    assert answer.needed_bytes == 4 * REQUEST
    assert answer.deciding_line == "state"
    assert "8 such requests would fit" in answer.verdict.text


def test_a_load_that_an_assumption_decides() -> None:
    """Where the room is only perhaps enough, the widest assumed line is named."""
    lines = (line("activations", 0, 5 * REQUEST), line("graphs", 0, REQUEST))
    answer = fit(budget(GIB, *lines), DEMANDS, LOAD)
    assert (answer.fits, answer.max_concurrency, answer.max_concurrency_at_most) == (None, 2, 8)
    assert (answer.max_context, answer.max_context_at_most) == (512, 2048)
    assert answer.deciding_line == "activations"
    assert "measure it" in answer.verdict.text


def test_weights_that_are_too_large() -> None:
    """Weights above what may be used are said to decide alone."""
    answer = fit(budget(GIB, weights=(GIB + 1,)), DEMANDS, LOAD)
    assert (answer.fits, answer.max_concurrency, answer.max_context) == (False, 0, 0)
    assert answer.deciding_line == "weights"
    assert "weights alone" in answer.verdict.text


@pytest.mark.parametrize(
    ("weights", "lines", "name"),
    [
        (GIB - REQUEST, (), "weights"),
        (0, (line("reserve", GIB - REQUEST),), "reserve"),
        (GIB - 3 * REQUEST, (line("a", 1),), "weights"),
        (1, (line("reserve", 5 * REQUEST // 2), line("b", 5 * REQUEST // 2)), "state"),
    ],
)
def test_a_load_that_does_not_fit(weights: int, lines: tuple[Line, ...], name: str) -> None:
    """Where it does not fit, the largest line is named and what lacks is said."""
    answer = fit(budget(GIB, *lines, weights=(weights,)), DEMANDS, LOAD)
    assert answer.fits is False
    assert answer.deciding_line == name
    assert "too few" in answer.verdict.text


def test_a_given_room_without_weights() -> None:
    """With the room given, weights are not among the lines that decide."""
    given_room = Budget(memory=line("memory", 1), utilisation=Fraction(1), weights=(GIB,),
                        lines=(), state=given_line("state", REQUEST))  # fmt: skip
    answer = fit(given_room, DEMANDS, LOAD)
    assert (answer.fits, answer.deciding_line, answer.max_concurrency) == (False, "state", 1)


def test_an_engine_may_hand_out_less() -> None:
    """A room of which an engine hands out half holds half as many."""
    answer = fit(budget(GIB), DEMANDS, LOAD, [lambda room: room // 2])
    assert answer.max_concurrency == 4


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"concurrency": 0}, {"tokens": 10**10}])
def test_a_load_is_checked(wrong: dict[str, int]) -> None:
    """A load of nothing is refused."""
    with pytest.raises(OutOfRange):
        Load(**{"tokens": 1, "concurrency": 1, **wrong})


chunks = st.builds(ChunkedAttention, kv_heads=st.integers(1, 4), k_dim=st.integers(1, 64),
                   v_dim=st.integers(1, 64), chunk=st.integers(1, 3000))  # fmt: skip


@given(models(chunks | growing_states()), formats(), block_sizes,
       st.lists(st.integers(1, 20_000), min_size=2, max_size=8), st.integers(0, 10**9))  # fmt: skip
def test_longer_contexts_never_let_more_requests_in(
    model: ModelState, kept: KvFormats, block: int, lengths: list[int], room: int
) -> None:
    """With chunks as without: the more tokens, the more bytes, and the fewer requests fit."""
    demands = rank_demands(model, kept, ONE, block)
    ordered = sorted(lengths)
    taken = [sum(demand(tokens) for demand in demands) for tokens in ordered]
    fitting = [largest_concurrency(demands, [room], tokens) for tokens in ordered]
    assert taken == sorted(taken)
    assert fitting == sorted(fitting, reverse=True)

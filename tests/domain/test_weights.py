"""Weights as lines: sums, formats, and what each rank of a split model holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import Conflict, OutOfRange
from app.domain.weight_formats import BlockScaled, Plain
from app.domain.weight_lines import Component, Cut, Kind, Part, Place, WeightBlock, WeightLine
from app.domain.weights import ModelWeights
from tests.domain.weight_sums import by_component, by_part, layer_bytes, layer_parameters

HEADS, KV_HEADS, DIM, WIDTH, INNER, EXPERTS, ROWS = 8, 2, 16, 128, 256, 8, 100


def line(name: str, component: Component, *shape: int, **more: object) -> WeightLine:
    """Return a line named as a module's weight."""
    return WeightLine(name=f"{name}.weight", component=component, shape=shape, **more)  # type: ignore[arg-type]


ATTENTION = (
    line("q_proj", Component.ATTENTION, HEADS * DIM, WIDTH, cut=Cut.EVEN, units=HEADS),
    line("k_proj", Component.ATTENTION, KV_HEADS * DIM, WIDTH, cut=Cut.COPIED, units=KV_HEADS),
    line("o_proj", Component.ATTENTION, WIDTH, HEADS * DIM, cut=Cut.EVEN, units=HEADS, axis=1),
    line("norm", Component.NORM, WIDTH, kind=Kind.VECTOR),
)
EXPERT = line("experts.*.up_proj", Component.EXPERTS, INNER, WIDTH, copies=EXPERTS, active=2,
              by_expert=True, cut=Cut.EVEN, units=INNER)  # fmt: skip
ROUTER = line("gate", Component.ROUTER, EXPERTS, WIDTH, kind=Kind.GATE)
BUFFER = line("bias", Component.ROUTER, EXPERTS, kind=Kind.VECTOR, is_buffer=True,
              format=Plain(dtype="F32"))  # fmt: skip
TABLE = line("embed", Component.EMBEDDING, ROWS, WIDTH, kind=Kind.TABLE, cut=Cut.VOCABULARY)
HEAD = line("head", Component.OUTPUT, ROWS, WIDTH, cut=Cut.VOCABULARY)
VISION = line("patch", Component.MLP, WIDTH, WIDTH)


def model(*, tied: bool = False, layers: int = 4) -> ModelWeights:
    """Return a small model: dense first layer, experts in the others, a tower and a draft."""
    blocks = (
        WeightBlock(part=Part.TEXT, place=Place.FIRST, lines=(TABLE,)),
        WeightBlock(part=Part.TEXT, place=Place.LAYERS, lines=ATTENTION, layers=(0,),
                    prefix="model.layers.{layer}"),
        WeightBlock(part=Part.TEXT, place=Place.LAYERS,
                    lines=(*ATTENTION, EXPERT, ROUTER, BUFFER), layers=tuple(range(1, layers)),
                    prefix="model.layers.{layer}"),
        WeightBlock(part=Part.TEXT, place=Place.LAST, lines=() if tied else (HEAD,)),
        WeightBlock(part=Part.VISION, place=Place.LAYERS, lines=(VISION,), layers=(0, 1)),
        WeightBlock(part=Part.MULTI_TOKEN, place=Place.LAYERS, lines=ATTENTION, layers=(layers,)),
    )  # fmt: skip
    return ModelWeights(blocks=blocks, num_layers=layers, basis="test", tied=tied)


# One layer's attention: 128 x 128, 32 x 128, 128 x 128 and a norm of 128.
LAYER = 16_384 + 4096 + 16_384 + 128
EXPERTS_ALL = EXPERTS * INNER * WIDTH
ROUTER_ALL = EXPERTS * WIDTH


def test_totals_by_component_and_part() -> None:
    """Lines add up by component and by part; the draft is in no total unless asked for."""
    weights = model()
    text = 2 * ROWS * WIDTH + 4 * LAYER + 3 * (EXPERTS_ALL + ROUTER_ALL)
    vision = 2 * WIDTH * WIDTH
    assert weights.parameters() == text + vision
    assert weights.parameters([Part.TEXT]) == text
    assert weights.parameters(list(Part)) == text + vision + LAYER
    assert by_part(weights) == {
        "text": text,
        "vision": vision,
        "multi_token": LAYER,
    }
    assert by_component(weights, [Part.TEXT]) == {
        "embedding": ROWS * WIDTH,
        "attention": 4 * (LAYER - 128),
        "norm": 4 * 128,
        "experts": 3 * EXPERTS_ALL,
        "router": 3 * ROUTER_ALL,
        "output": ROWS * WIDTH,
    }


def test_buffers_are_stored_and_no_parameters() -> None:
    """A buffer counts in bytes, not in parameters."""
    assert BUFFER.parameters == BUFFER.active_parameters == 0
    assert BUFFER.size_bytes == 4 * EXPERTS
    stored = {tensor.dtype: tensor.elements for tensor in model().stored()}
    assert stored == {"BF16": model().parameters(), "F32": 3 * EXPERTS}
    assert model().size_bytes() == 2 * model().parameters() + 3 * 4 * EXPERTS


def test_active_parameters_leave_idle_experts_out() -> None:
    """Of 8 experts a token uses 2."""
    idle = 3 * (EXPERTS - 2) * INNER * WIDTH
    assert model().active_parameters() == model().parameters() - idle


def test_layers_differ_and_add_up() -> None:
    """Layer sums are of the decoder's own layers."""
    weights = model()
    assert layer_parameters(weights, 0) == LAYER
    assert layer_parameters(weights, 3) == LAYER + EXPERTS_ALL + ROUTER_ALL
    assert layer_bytes(weights, 0) == 2 * LAYER
    assert layer_bytes(weights, 1) == 2 * layer_parameters(weights, 1) + 4 * EXPERTS


@pytest.mark.parametrize(
    ("held", "ranks", "shape"),
    [
        (ATTENTION[0], 4, (32, 128)),  # two of eight query heads
        (ATTENTION[1], 2, (16, 128)),  # one KV head each
        (ATTENTION[1], 8, (16, 128)),  # one each, four times over
        (ATTENTION[2], 4, (128, 32)),  # cut along its inputs
        (ATTENTION[3], 8, (128,)),  # whole
        (EXPERT, 4, (64, 128)),  # every expert, a quarter of its columns
        (TABLE, 1, (100, 128)),
        (TABLE, 2, (64, 128)),  # 100 rows, padded to 128
        (TABLE, 3, (43, 128)),  # the fullest of three
    ],
)
def test_what_a_tensor_rank_holds(held: WeightLine, ranks: int, shape: tuple[int, ...]) -> None:
    """Units are dealt out evenly, KV heads copied, tables padded to 64 rows, norms kept whole."""
    assert held.on_rank(ranks).shape == shape
    assert held.on_rank(ranks).copies == held.copies


@pytest.mark.parametrize(("held", "ranks"), [(ATTENTION[0], 3), (ATTENTION[1], 3), (EXPERT, 7)])
def test_units_that_do_not_divide_are_refused(held: WeightLine, ranks: int) -> None:
    """Seven ranks over 8 heads, or three over 2 KV heads, cannot be dealt out."""
    with pytest.raises(Conflict, match="does not divide"):
        held.on_rank(ranks)


def test_expert_ranks_deal_out_whole_experts() -> None:
    """Eight experts over 4 expert ranks are 2 each, uncut; over 3 the fullest holds 3."""
    assert EXPERT.on_rank(4, 4).copies == 2
    assert EXPERT.on_rank(4, 4).shape == (INNER, WIDTH)
    assert EXPERT.on_rank(4, 3).copies == 3
    assert ATTENTION[0].on_rank(4, 4).shape == (32, 128)


def test_pipeline_stages_hold_their_layers_and_their_ends() -> None:
    """The first stage has the table and the tower, the last the output and the draft."""
    weights = model()
    first = weights.rank_bytes(first_layer=0, last_layer=1)
    last = weights.rank_bytes(first_layer=2, last_layer=3)
    assert first + last == weights.rank_bytes() == weights.size_bytes()
    assert last == 2 * (2 * (LAYER + EXPERTS_ALL + ROUTER_ALL) + ROWS * WIDTH) + 2 * 4 * EXPERTS
    drafts = list(Part)
    assert weights.rank_bytes(first_layer=2, last_layer=3, parts=drafts) == last + 2 * LAYER
    assert weights.rank_bytes(first_layer=0, last_layer=1, parts=drafts) == first


def test_a_tied_table_is_held_by_both_ends() -> None:
    """With the output on another stage than the table, a tied table is there twice."""
    weights = model(tied=True)
    assert weights.rank_bytes() == weights.size_bytes()
    parts = [weights.rank_bytes(first_layer=layer, last_layer=layer) for layer in range(4)]
    assert sum(parts) == weights.size_bytes() + 2 * ROWS * WIDTH
    assert parts[3] - parts[2] == 2 * ROWS * WIDTH


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_layer": 1, "last_layer": 0},
        {"last_layer": 4},
        {"tensor_ranks": 0},
        {"expert_ranks": 10**9},
    ],
)
def test_stages_and_ranks_that_do_not_exist_are_refused(wrong: dict[str, int]) -> None:
    """Layers and ranks outside the model are refused."""
    with pytest.raises(OutOfRange):
        model().rank_bytes(**wrong)  # type: ignore[arg-type]


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 8))
def test_ranks_together_hold_at_least_the_model(tensor_ranks: int, expert_ranks: int) -> None:
    """Ranks hold the whole model between them, and no rank more than all of it."""
    weights = model()
    held = weights.rank_bytes(tensor_ranks=tensor_ranks, expert_ranks=expert_ranks)
    table = 2 * 2 * 28 * WIDTH  # rows of padding in both tables
    assert held <= weights.size_bytes() + table
    assert held * max(tensor_ranks, 1) * max(expert_ranks, 1) >= weights.size_bytes()


def test_formats_by_layer_split_a_block() -> None:
    """Layers stored differently come apart; the parameters stay the same."""
    tiles = BlockScaled()
    weights = model().with_formats(
        lambda _block, layer, held: tiles if layer == 2 and held is EXPERT else held.format
    )
    layers = [block.layers for block in weights.blocks if block.part is Part.TEXT and block.layers]
    assert layers == [(0,), (1, 3), (2,)]
    assert weights.parameters() == model().parameters()
    saved = layer_bytes(model(), 2) - layer_bytes(weights, 2)
    assert saved == EXPERTS_ALL - EXPERTS * 2 * 4  # a byte an element, two F32 tiles an expert


def test_what_a_quantiser_takes_by_default() -> None:
    """Linear layers of the decoder are quantised; the rest is stored as told, buffers as before."""
    weights = model().quantised(BlockScaled(), Plain(dtype="F16"))
    stored = {tensor.dtype: tensor.elements for tensor in weights.stored([Part.TEXT])}
    matrices = 4 * (LAYER - 128) + 3 * EXPERTS_ALL
    rest = 2 * ROWS * WIDTH + 4 * 128 + 3 * ROUTER_ALL
    tiles = 4 * 3 + 3 * EXPERTS * 2
    assert stored == {"F8_E4M3": matrices, "F16": rest, "F32": tiles + 3 * EXPERTS}

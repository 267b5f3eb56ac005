"""From lists of weights to the work of a pass: what one token uses, and who asks."""

from __future__ import annotations

from app.domain.counted_weights import asking_heads, counted_matrices
from app.domain.dtypes import DTYPES
from app.domain.formats import KvFormats
from app.domain.state import ModelState
from app.domain.weight_lines import Component, Cut, Kind, Part, Place, WeightBlock, WeightLine
from app.domain.weights import ModelWeights
from app.domain.work_plan import plan_work


def line(name: str, component: Component, *shape: int, **more: object) -> WeightLine:
    """Return one line of weights."""
    return WeightLine(name=name, component=component, shape=shape, **more)  # type: ignore[arg-type]


def attention(heads: int) -> tuple[WeightLine, ...]:
    """Return queries, grouped keys and output of heads of 4 on a width of 8."""
    return (
        line("q", Component.ATTENTION, 4 * heads, 8, cut=Cut.EVEN, units=heads),
        line("k", Component.ATTENTION, 4, 8, cut=Cut.COPIED, units=1),
        line("o", Component.ATTENTION, 8, 4 * heads, cut=Cut.EVEN, units=heads, axis=1),
        line("norm", Component.NORM, 8, kind=Kind.VECTOR),
    )


TABLE = WeightBlock(
    part=Part.TEXT,
    place=Place.FIRST,
    lines=(line("embed", Component.EMBEDDING, 64, 8, kind=Kind.TABLE, cut=Cut.VOCABULARY),),
)
OUTPUT = WeightBlock(
    part=Part.TEXT, place=Place.LAST, lines=(line("lm_head", Component.OUTPUT, 64, 8),)
)
VISION = WeightBlock(
    part=Part.VISION, place=Place.FIRST, lines=(line("patch", Component.OTHER, 100, 100),)
)


def model(*layers: tuple[WeightLine, ...], tied: bool = False) -> ModelWeights:
    """Return weights of these layers between a table and an output."""
    blocks = [
        WeightBlock(part=Part.TEXT, place=Place.LAYERS, lines=lines, layers=(index,))
        for index, lines in enumerate(layers)
    ]
    ends = (TABLE, *blocks, VISION) if tied else (TABLE, *blocks, OUTPUT, VISION)
    return ModelWeights(blocks=ends, num_layers=len(layers), basis="test", tied=tied)


def test_matrices_of_the_decoder_are_what_a_token_passes() -> None:
    """Two layers of 2 heads: 2 x (64 + 32 + 64) weights, 512 for the logits, 2 bytes each."""
    counted = counted_matrices(model(attention(2), attention(2)))
    assert counted.token_weights == 320
    assert counted.logits_weights == 512
    assert counted.read_bytes == 2 * (320 + 512)


def test_a_tied_table_is_read_for_the_logits() -> None:
    """Without an output of its own the token table is multiplied; else it is only looked up."""
    assert counted_matrices(model(attention(2), tied=True)).logits_weights == 512


def test_only_the_experts_of_one_token_count() -> None:
    """Of 8 experts 2 are used: a quarter of their weights and of their bytes."""
    experts = line("experts.*", Component.EXPERTS, 8, 16, copies=8, active=2)
    counted = counted_matrices(model((experts,)))
    assert asking_heads(model((experts,))).experts == 8
    assert counted.token_weights == 256
    assert counted.read_bytes == 2 * (256 + 512)


def test_convolutions_count_and_vectors_do_not() -> None:
    """A convolution multiplies each of its weights once a token; norms are elementwise."""
    kernel = line("conv", Component.RECURRENT, 16, 1, 4, kind=Kind.CONVOLUTION)
    decay = line("decay", Component.RECURRENT, 16, kind=Kind.VECTOR)
    assert counted_matrices(model((kernel, decay))).token_weights == 64


def test_query_heads_are_the_units_of_the_cuts() -> None:
    """One number where all agree or borrow, one for each layer where they differ, else none."""
    assert asking_heads(model(attention(2), attention(2))).query_heads == 2
    assert asking_heads(model(attention(2), ())).query_heads == 2
    assert asking_heads(model(attention(2), attention(6), ())).query_heads == (2, 6, 0)
    assert asking_heads(model(())).query_heads is None


def test_counted_weights_price_a_model() -> None:
    """State and weights together: 2 query heads of 4 + 4 over one KV head make 16 a pair."""
    weights = model(attention(2), attention(2))
    plan = plan_work(
        ModelState.uniform(layers=2, kv_heads=1, head_dim=4),
        KvFormats.same(DTYPES["fp16"]),
        asking_heads(weights),
        DTYPES["bf16"],
        counted=counted_matrices(weights),
    )
    assert (plan.token_macs, plan.logits_macs, plan.weights_bytes) == (320, 512, 1664)
    assert [(group.count, group.macs_per_pair) for group in plan.groups] == [(2, 16)]
    assert [note.code for note in plan.assumptions] == ["rows_read_once", "last_logits_only"]

"""Work with and without a cache: against a count by loops, and by hand for a known model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.cost import (
    MAX_COST_TOKENS,
    DecodeBound,
    Work,
    decode_bound,
    generation_cost,
    growth,
    step_cost,
)
from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, DomainError, Missing, OutOfRange, Unsupported
from app.domain.formats import KvFormats, LayerRangeFormat
from app.domain.projections import LatentProjections, ProjectionShape
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
    StateTensor,
)
from app.domain.work_plan import CountedMatrices, WorkPlan, plan_work

FP16 = KvFormats.same(DTYPES["fp16"])
BF16 = DTYPES["bf16"]
LLAMA_8B = ProjectionShape(
    hidden_size=4096, query_heads=32, intermediate_size=14336, vocab_size=128_256
)


def plan_of(
    *states: State, shape: ProjectionShape, formats: KvFormats = FP16, layers: int = 1
) -> WorkPlan:
    """Return the plan of a model whose layers all keep these states."""
    layer = Layer(states=states)
    return plan_work(ModelState.of_layers([layer] * layers), formats, shape, BF16)


def llama_8b() -> WorkPlan:
    """Return the plan of 32 layers with 32 query heads over 8 KV heads of 128."""
    state = FullAttention(kv_heads=8, k_dim=128, v_dim=128)
    return plan_of(state, shape=LLAMA_8B, layers=32)


class Counter:
    """Counts a forward pass one product at a time, as nested loops would make them."""

    def __init__(self) -> None:
        self.projections = self.attention = self.logits = 0

    def matrix(self, rows: int, columns: int) -> int:
        """Multiply one vector by a matrix."""
        return sum(1 for _ in range(rows) for _ in range(columns))

    def run(self, positions: list[int], sees: Callable[[int, int], bool], *, last: bool) -> None:
        """Put positions through two layers: 4 query heads, 2 KV heads, 3 + 2 wide, hidden 5."""
        for t in positions:
            for _layer in range(2):
                self.projections += self.matrix(5, 4 * 3)  # queries
                self.projections += self.matrix(5, 2 * 3)  # keys
                self.projections += self.matrix(5, 2 * 2)  # values
                self.projections += self.matrix(4 * 2, 5)  # output
                self.projections += 3 * self.matrix(5, 7)  # gate, up, down
                for j in range(1, t + 1):
                    if sees(t, j):
                        self.attention += self.matrix(4, 3) + self.matrix(4, 2)
        if last:
            self.logits += self.matrix(5, 11)


SMALL = ProjectionShape(hidden_size=5, query_heads=4, intermediate_size=7, vocab_size=11)
SMALL_KINDS: dict[str, tuple[State, Callable[[int, int], bool]]] = {
    "full": (FullAttention(kv_heads=2, k_dim=3, v_dim=2), lambda _t, _j: True),
    "window": (SlidingWindow(kv_heads=2, k_dim=3, v_dim=2, window=3), lambda t, j: t - j < 3),
    "chunk": (
        ChunkedAttention(kv_heads=2, k_dim=3, v_dim=2, chunk=4),
        lambda t, j: (t - 1) // 4 == (j - 1) // 4,
    ),
}


@pytest.mark.parametrize("kind", list(SMALL_KINDS))
@given(prompt=st.integers(1, 6), output=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_totals_equal_a_count_by_loops(kind: str, prompt: int, output: int) -> None:
    """Both ways of generating cost what counting every single product finds."""
    state, sees = SMALL_KINDS[kind]
    cost = generation_cost(
        plan_of(state, shape=SMALL, layers=2), prompt_tokens=prompt, output_tokens=output
    )
    cached, anew = Counter(), Counter()
    cached.run(list(range(1, prompt + 1)), sees, last=True)
    for t in range(prompt + 1, prompt + output):
        cached.run([t], sees, last=True)
    for length in range(prompt, prompt + output):
        anew.run(list(range(1, length + 1)), sees, last=True)
    for work, counter in ((cost.with_cache, cached), (cost.without_cache, anew)):
        assert work.projection_macs == counter.projections
        assert work.attention_macs == counter.attention
        assert work.logits_macs == counter.logits
        assert work.macs == counter.projections + counter.attention + counter.logits


@pytest.mark.parametrize("kind", list(SMALL_KINDS))
@given(prompt=st.integers(1, 9), output=st.integers(1, 9))
def test_a_run_is_the_sum_of_its_passes(kind: str, prompt: int, output: int) -> None:
    """A run is a pass over the prompt and then steps; without a cache it is one pass a prefix."""
    plan = plan_of(SMALL_KINDS[kind][0], shape=SMALL)
    cost = generation_cost(plan, prompt_tokens=prompt, output_tokens=output)
    lengths = range(prompt, prompt + output)
    passes = [step_cost(plan, prompt).without_cache]
    passes += [step_cost(plan, length).with_cache for length in lengths[1:]]
    anew = [step_cost(plan, length).without_cache for length in lengths]
    assert cost.with_cache.macs == sum(work.macs for work in passes)
    assert cost.with_cache.read_bytes == sum(work.read_bytes for work in passes)
    assert cost.without_cache.macs == sum(work.macs for work in anew)
    assert cost.without_cache.read_bytes == sum(work.read_bytes for work in anew)
    assert cost.passes == output


def test_one_step_of_a_known_model() -> None:
    """Llama 3.1 8B at 4096: 6.98e9 weights a token, 1.07e9 products of attention, 512 MiB of KV."""
    step = step_cost(llama_8b(), 4096)
    assert step.with_cache == Work(
        projection_macs=6_979_321_856,
        attention_macs=1_073_741_824,
        logits_macs=525_336_576,
        weights_read_bytes=15_009_316_864,
        state_read_bytes=536_870_912,
    )
    assert step.without_cache.projection_macs == 4096 * 6_979_321_856
    assert step.without_cache.attention_macs == 32 * 32 * 256 * (4096 * 4097 // 2)
    assert step.without_cache.logits_macs == 525_336_576
    assert step.without_cache.read_bytes == step.with_cache.read_bytes


def test_a_million_tokens_are_counted_at_once() -> None:
    """A generation of 10^6 tokens is a closed form: with the cache 1.3e17 products of attention."""
    cost = generation_cost(llama_8b(), prompt_tokens=1, output_tokens=10**6)
    assert cost.with_cache.attention_macs == 262_144 * 500_000_500_000
    assert cost.without_cache.attention_macs == 262_144 * 166_667_166_667_000_000
    assert cost.with_cache.projection_macs == 6_979_321_856 * 10**6
    assert cost.without_cache.projection_macs == 6_979_321_856 * 500_000_500_000


def test_growth_has_the_taught_orders() -> None:
    """Doubling: attention 2 and 4 times a step, 4 and 8 times a run; projections 1, 2, 2, 4."""
    factors = growth(llama_8b(), 10**5)
    assert factors.step_attention_with == 2
    assert factors.step_attention_without == pytest.approx(4, rel=1e-4)
    assert factors.step_projections_with == 1
    assert factors.step_projections_without == 2
    assert factors.run_attention_with == pytest.approx(4, rel=1e-4)
    assert factors.run_attention_without == pytest.approx(8, rel=1e-4)
    assert factors.run_projections_with == 2
    assert factors.run_projections_without == pytest.approx(4, rel=1e-4)


def test_growth_of_a_window_is_flat() -> None:
    """Past its window a step reads as much at twice the length; without sizes projections are 0."""
    state = SlidingWindow(kv_heads=2, k_dim=8, v_dim=8, window=16)
    factors = growth(plan_of(state, shape=ProjectionShape()), 1000)
    assert factors.step_attention_with == 1
    assert factors.step_projections_with == 0
    assert factors.step_attention_without == pytest.approx(2, rel=0.02)


def test_one_output_token_needs_the_prompt_pass_alone() -> None:
    """The last token is never put through, so one token out is one pass, cache or not."""
    cost = generation_cost(llama_8b(), prompt_tokens=100, output_tokens=1)
    assert cost.with_cache == cost.without_cache
    assert cost.first_step == cost.last_step
    assert cost.last_step.length_tokens == 100


def test_latent_layers_read_one_row_for_all_heads() -> None:
    """A DeepSeek-V3 layer reads 1152 bytes a row and multiplies 128 × (2 × 512 + 64) a pair."""
    shape = ProjectionShape(
        hidden_size=7168,
        query_heads=128,
        intermediate_size=0,
        latent=LatentProjections(nope_dim=128, v_dim=128, query_rank=1536),
    )
    step = step_cost(plan_of(LatentAttention(latent_dim=512, rope_dim=64), shape=shape), 10)
    assert step.with_cache.attention_macs == 139_264 * 10
    assert step.with_cache.state_read_bytes == 1152 * 10
    # q_a, q_b, kv_a, kv_b and o of the published layer: 187,105,280 weights without its norms.
    assert step.with_cache.projection_macs == 187_105_280


def test_latent_layers_may_project_queries_directly() -> None:
    """Without a query rank the query matrix is hidden × heads × (nope + rope): DeepSeek-V2-Lite."""
    shape = ProjectionShape(
        hidden_size=2048,
        query_heads=16,
        latent=LatentProjections(nope_dim=128, v_dim=128),
    )
    plan = plan_of(LatentAttention(latent_dim=512, rope_dim=64), shape=shape)
    assert plan.token_macs == 2048 * 3072 + 2048 * 576 + 512 * 16 * 256 + 2048 * 2048


def test_a_second_latent_state_adds_its_compression_only() -> None:
    """Raw and compressed entries of a layer are read by one set of queries; both rows are read."""
    shape = ProjectionShape(
        hidden_size=64, query_heads=4, latent=LatentProjections(nope_dim=16, v_dim=16)
    )
    raw = LatentAttention(latent_dim=32, rope_dim=8, window=4)
    packed = LatentAttention(latent_dim=32, rope_dim=8, tokens_per_entry=4)
    one, both = plan_of(raw, shape=shape), plan_of(raw, packed, shape=shape)
    assert both.token_macs - one.token_macs == 64 * 40
    assert step_cost(both, 16).with_cache.attention_macs == 4 * 72 * (4 + 4)


def test_index_keys_alone_are_read_but_not_attended_over() -> None:
    """A state of index keys adds its row's bytes, no products and no query matrices."""
    shape = ProjectionShape(
        hidden_size=64, query_heads=4, latent=LatentProjections(nope_dim=16, v_dim=16)
    )
    index = LatentAttention(latent_dim=0, rope_dim=0, index_dim=16)
    rows = LatentAttention(latent_dim=32, rope_dim=8)
    alone, beside = plan_of(rows, shape=shape), plan_of(index, rows, shape=shape)
    assert beside.token_macs == alone.token_macs
    assert step_cost(beside, 3).with_cache.attention_macs == 3 * 4 * 72
    assert step_cost(beside, 3).with_cache.state_read_bytes == 3 * (2 * 40 + 2 * 16)


def test_shared_layers_have_queries_but_no_keys() -> None:
    """A layer that reads another's cache reads its rows and saves its key and value matrices."""
    own = Layer(states=(FullAttention(kv_heads=2, k_dim=4, v_dim=4),))
    model = ModelState.of_layers(
        [own, Layer(states=(Shared(with_layer=0),)), Layer(states=(Shared(with_layer=1),))]
    )
    plan = plan_work(model, FP16, ProjectionShape(hidden_size=8, query_heads=4), BF16)
    assert plan.token_macs == 8 * (4 + 2) * 8 + 2 * 8 * 4 * 8
    step = step_cost(plan, 5).with_cache
    assert step.attention_macs == 3 * 5 * 4 * 8
    assert step.state_read_bytes == 3 * 5 * 2 * 8 * 2


def test_sharing_in_a_circle_is_refused() -> None:
    """Two layers that read each other have no rows to read."""
    model = ModelState.of_layers(
        [Layer(states=(Shared(with_layer=1),)), Layer(states=(Shared(with_layer=0),))]
    )
    with pytest.raises(Conflict, match="circle") as caught:
        plan_work(model, FP16, ProjectionShape(), BF16)
    assert caught.value.field == ("layers", 0, "with_layer")


def test_cross_attention_projects_the_encoder_once_with_a_cache() -> None:
    """Keys and values of 10 encoder rows are made once with a cache and in every pass without."""
    state = CrossAttention(kv_heads=2, k_dim=4, v_dim=4, encoder_tokens=10)
    plan = plan_of(state, shape=ProjectionShape(hidden_size=8, query_heads=2))
    cost = generation_cost(plan, prompt_tokens=1, output_tokens=3)
    query_and_output, key_and_value = 8 * 2 * 8, 8 * 2 * 8
    assert cost.with_cache.projection_macs == 3 * query_and_output + 10 * key_and_value
    assert cost.without_cache.projection_macs == 6 * query_and_output + 3 * 10 * key_and_value
    assert cost.with_cache.attention_macs == 3 * 10 * 2 * 8
    assert cost.without_cache.attention_macs == 6 * 10 * 2 * 8
    assert cost.with_cache.weights_read_bytes == 2 * (3 * query_and_output + key_and_value)
    assert cost.with_cache.state_read_bytes == 3 * 10 * 2 * 8 * 2
    assert cost.workings["projections_with_cache"].numbers.endswith("= 1664")
    assert cost.workings["projections_without_cache"].numbers.endswith("= 4608")


def test_recurrent_state_is_read_by_every_continuing_pass() -> None:
    """A constant state is read once a step with the cache and never when all is computed anew."""
    tensor = StateTensor(name="ssm", shape=(4, 16), dtype=DTYPES["fp32"])
    plan = plan_of(Recurrent(tensors=(tensor,)), shape=ProjectionShape(hidden_size=8))
    cost = generation_cost(plan, prompt_tokens=5, output_tokens=4)
    assert cost.with_cache.state_read_bytes == 3 * 256
    assert cost.without_cache.state_read_bytes == 0
    assert cost.workings["attention_with_cache"].numbers == "0 = 0"


def test_layers_may_keep_different_formats() -> None:
    """A first layer kept in fp32 doubles its own rows only."""
    fp32 = KvFormat(key=DTYPES["fp32"], value=DTYPES["fp32"])
    formats = KvFormats(
        base=KvFormat(key=BF16, value=BF16),
        ranges=(LayerRangeFormat(first=0, last=0, format=fp32),),
    )
    state = FullAttention(kv_heads=1, k_dim=4, v_dim=4)
    plan = plan_of(state, shape=ProjectionShape(), formats=formats, layers=3)
    assert step_cost(plan, 1).with_cache.state_read_bytes == 32 + 16 + 16


def test_sizes_may_differ_by_layer() -> None:
    """Dense first layers and expert layers are priced each by its own width and router."""
    state = FullAttention(kv_heads=1, k_dim=4, v_dim=4)
    shape = ProjectionShape(
        hidden_size=8,
        query_heads=(1, 2),
        intermediate_size=(10, 6),
        experts=(0, 4),
        mlp_matrices=2,
    )
    plan = plan_of(state, shape=shape, layers=2)
    assert plan.token_macs == 8 * 2 * 8 + 8 * 2 * 10 + 8 * 3 * 8 + 8 * (2 * 6 + 4)


def test_counted_matrices_replace_the_shape_s() -> None:
    """A model's own list of weights prices projections, logits and reads; attention stays."""
    tensor = StateTensor(name="ssm", shape=(4,), dtype=DTYPES["fp32"])
    layer = Layer(
        states=(
            FullAttention(kv_heads=2, k_dim=4, v_dim=4),
            CrossAttention(kv_heads=2, k_dim=4, v_dim=4, encoder_tokens=3),
            Recurrent(tensors=(tensor,)),
        )
    )
    counted = CountedMatrices(token_weights=1000, logits_weights=70, read_bytes=555)
    shape = ProjectionShape(hidden_size=8, query_heads=2)
    plan = plan_work(ModelState.of_layers([layer]), FP16, shape, BF16, counted=counted)
    # The encoder's keys and values, 8 x 2 x 8 weights, pass its own three positions.
    assert (plan.token_macs, plan.encoder_macs) == (1000 - 128, 3 * 128)
    assert (plan.logits_macs, plan.weights_bytes) == (70, 555)
    assert step_cost(plan, 5).with_cache.attention_macs == 2 * 8 * (5 + 3)
    assert [note.code for note in plan.not_counted] == [
        "elementwise",
        "embedding",
        "writes",
        "recurrent_updates",
        "encoder",
    ]
    plain = plan_work(
        ModelState.uniform(layers=1, kv_heads=1, head_dim=4), FP16, shape, BF16, counted=counted
    )
    assert plain.token_macs == 1000
    assert len(plain.not_counted) == 3


def test_counted_matrices_are_bounded() -> None:
    """A number of weights below zero is refused by name."""
    with pytest.raises(OutOfRange) as caught:
        CountedMatrices(token_weights=1, logits_weights=-1, read_bytes=1)
    assert caught.value.field == ("logits_weights",)


def test_decode_bound_of_a_known_model() -> None:
    """At 3.35 TB/s one Llama 3.1 8B sequence of 4096 cannot pass 215.5 tokens a second."""
    bound = decode_bound(
        llama_8b(), batch=1, length_tokens=4096, bandwidth_bytes_per_s=3_350_000_000_000
    )
    assert bound.read_bytes == 15_009_316_864 + 536_870_912
    assert bound.tokens_per_s_bound == pytest.approx(215.487, abs=0.001)
    assert bound.seconds_per_step == pytest.approx(0.0046407, abs=1e-7)
    assert bound.flops_per_byte == pytest.approx(1.1036, abs=1e-4)


def test_a_batch_reads_weights_once_and_every_state() -> None:
    """64 sequences of 4096 read 32 GiB of KV beside 15 GB of weights that someone counted."""
    bound = decode_bound(
        llama_8b(),
        batch=64,
        length_tokens=4096,
        bandwidth_bytes_per_s=10**12,
        weights_bytes=16_060_522_496,
    )
    assert bound.state_read_bytes == 34_359_738_368
    assert bound.weights_read_bytes == 16_060_522_496
    assert bound.macs == 64 * 8_578_400_256


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_more_sequences_never_lower_the_bound(batch: int, length: int) -> None:
    """A larger batch shares the weights: the batch's bound rises, each sequence's share falls."""

    def bound(size: int) -> DecodeBound:
        return decode_bound(
            llama_8b(), batch=size, length_tokens=length, bandwidth_bytes_per_s=10**12
        )

    one, more = bound(batch), bound(batch + 1)
    assert more.tokens_per_s_bound > one.tokens_per_s_bound
    assert more.tokens_per_s_bound / (batch + 1) < one.tokens_per_s_bound / batch


def test_what_is_assumed_and_left_out_is_said() -> None:
    """Each gap in what a source says is named with the answer, and none that is not there."""
    full = FullAttention(kv_heads=2, k_dim=4, v_dim=4)
    bare = plan_of(full, shape=ProjectionShape())
    assert [note.code for note in bare.assumptions] == [
        "rows_read_once",
        "last_logits_only",
        "no_grouping",
    ]
    assert [note.code for note in bare.not_counted][-1] == "projections"
    known = llama_8b()
    assert [note.code for note in known.assumptions] == ["rows_read_once", "last_logits_only"]
    assert [note.code for note in known.not_counted] == ["elementwise", "embedding", "writes"]
    tensor = StateTensor(name="ssm", shape=(4,), dtype=DTYPES["fp32"])
    mixed = plan_of(
        FullAttention(kv_heads=2, k_dim=4, v_dim=4, index_dim=2),
        CrossAttention(kv_heads=2, k_dim=4, v_dim=4, encoder_tokens=3),
        LatentAttention(latent_dim=4, rope_dim=2),
        Recurrent(tensors=(tensor,)),
        shape=ProjectionShape(hidden_size=8, query_heads=2, experts=4),
    )
    assert [note.code for note in mixed.assumptions][2:] == [
        "latent_absorbed",
        "sparse_read_whole",
        "encoder_as_wide",
        "one_tokens_experts",
    ]
    assert [note.code for note in mixed.not_counted][3:] == [
        "mlp",
        "logits",
        "latent_projections",
        "recurrent",
        "encoder",
    ]


def test_workings_show_the_request_s_numbers() -> None:
    """Each total opens to an expression with this request's numbers and its result."""
    plan = plan_of(FullAttention(kv_heads=2, k_dim=3, v_dim=2), shape=SMALL, layers=2)
    cost = generation_cost(plan, prompt_tokens=2, output_tokens=3)
    shown = {name: working.numbers for name, working in cost.workings.items()}
    assert shown == {
        "projections_with_cache": "510 × 4 = 2040",
        "projections_without_cache": "510 × 9 = 4590",
        "attention_with_cache": "40 × 10 pairs = 400",
        "attention_without_cache": "40 × 19 pairs = 760",
    }


@pytest.mark.parametrize(
    ("shape", "state", "error", "field"),
    [
        (ProjectionShape(), LatentAttention(latent_dim=4, rope_dim=2), Missing, ("query_heads",)),
        (
            ProjectionShape(query_heads=3),
            FullAttention(kv_heads=2, k_dim=4, v_dim=4),
            Conflict,
            ("query_heads",),
        ),
        (
            ProjectionShape(query_heads=0),
            FullAttention(kv_heads=2, k_dim=4, v_dim=4),
            Conflict,
            ("query_heads",),
        ),
        (
            ProjectionShape(experts=(1, 2)),
            FullAttention(kv_heads=2, k_dim=4, v_dim=4),
            Conflict,
            ("experts",),
        ),
    ],
)
def test_shapes_that_do_not_fit_the_model_are_refused(
    shape: ProjectionShape, state: State, error: type[DomainError], field: tuple[str, ...]
) -> None:
    """Sizes that contradict the layers are an error that names the size."""
    with pytest.raises(error) as caught:
        plan_of(state, shape=shape)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ({"hidden_size": 0}, ("hidden_size",)),
        ({"vocab_size": 0}, ("vocab_size",)),
        ({"mlp_matrices": 4}, ("mlp_matrices",)),
        ({"query_heads": -1}, ("query_heads",)),
        ({"intermediate_size": (4, -1)}, ("intermediate_size", 1)),
        ({"experts": (0,) * 10_001}, ("experts",)),
    ],
)
def test_sizes_outside_their_bounds_are_refused(
    sizes: dict[str, Any], field: tuple[str | int, ...]
) -> None:
    """A size is checked when the shape is made."""
    with pytest.raises(OutOfRange) as caught:
        ProjectionShape(**sizes)
    assert caught.value.field == field


def test_weights_must_fill_whole_blocks() -> None:
    """Five by five weights do not divide into blocks of 32."""
    model = ModelState.uniform(layers=1, kv_heads=1, head_dim=5)
    with pytest.raises(Unsupported) as caught:
        plan_work(model, FP16, ProjectionShape(hidden_size=5), DTYPES["q4_0"])
    assert caught.value.field == ("weight_format",)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda plan: step_cost(plan, 0), "length_tokens"),
        (lambda plan: generation_cost(plan, prompt_tokens=0, output_tokens=1), "prompt_tokens"),
        (
            lambda plan: generation_cost(plan, prompt_tokens=1, output_tokens=MAX_COST_TOKENS + 1),
            "output_tokens",
        ),
        (lambda plan: growth(plan, MAX_COST_TOKENS), "length_tokens"),
        (
            lambda plan: decode_bound(plan, batch=0, length_tokens=1, bandwidth_bytes_per_s=1),
            "batch",
        ),
        (
            lambda plan: decode_bound(plan, batch=1, length_tokens=1, bandwidth_bytes_per_s=0),
            "bandwidth_bytes_per_s",
        ),
        (
            lambda plan: decode_bound(
                plan, batch=1, length_tokens=1, bandwidth_bytes_per_s=1, weights_bytes=0
            ),
            "weights_bytes",
        ),
    ],
)
def test_lengths_and_rates_are_bounded(call: Callable[[WorkPlan], object], field: str) -> None:
    """Lengths, batches and rates outside their bounds are refused by name."""
    with pytest.raises(OutOfRange) as caught:
        call(llama_8b())
    assert caught.value.field == (field,)


def test_no_bound_without_weights() -> None:
    """A bound that leaves the weights out would mislead, so it is not given."""
    plan = plan_of(FullAttention(kv_heads=2, k_dim=4, v_dim=4), shape=ProjectionShape())
    with pytest.raises(Missing) as caught:
        decode_bound(plan, batch=1, length_tokens=1, bandwidth_bytes_per_s=1)
    assert caught.value.field == ("weights_bytes",)

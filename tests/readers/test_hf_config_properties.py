"""Properties of readings, and real configs with something changed in them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import DomainError
from app.domain.state import ChunkedAttention, FullAttention, SlidingWindow
from app.readers.hf_config import read_config
from tests.readers.hf_states import BASE, kept_bytes, measured

LENGTHS = st.integers(min_value=0, max_value=10**6)


@cache
def real_configs() -> list[dict[str, Any]]:
    """Return the configs of all measured cases."""
    small = measured("transformers_caches")["configs"]
    cases = measured("transformers_released")["cases"]
    assert isinstance(small, list)
    assert isinstance(cases, list)
    found = [*small, *(case["config"] for case in cases)]
    assert len(found) > 500
    return found


@given(
    heads=st.integers(min_value=1, max_value=64),
    groups=st.integers(min_value=1, max_value=8),
    width=st.integers(min_value=1, max_value=256),
    layers=st.integers(min_value=1, max_value=100),
    tokens=LENGTHS,
)
def test_shared_heads_never_cost_more_and_layers_add_up(
    heads: int, groups: int, width: int, layers: int, tokens: int
) -> None:
    """GQA keeps at most what MHA keeps, by the factor of sharing; layers of one kind add up."""
    config = {**BASE, "model_type": "llama", "num_attention_heads": heads * groups,
              "head_dim": width, "num_hidden_layers": layers}  # fmt: skip
    every = kept_bytes(read_config({**config, "num_key_value_heads": heads * groups}), tokens)
    shared = kept_bytes(read_config({**config, "num_key_value_heads": heads}), tokens)
    assert shared * groups == every
    one = {**config, "num_key_value_heads": heads, "num_hidden_layers": 1}
    assert shared == layers * kept_bytes(read_config(one), tokens)


@given(window=st.integers(min_value=1, max_value=10**5), tokens=LENGTHS)
def test_a_window_never_costs_more_than_all_positions(window: int, tokens: int) -> None:
    """With a window a layer keeps at most what it keeps without, and the same while it is short."""
    config = {**BASE, "model_type": "mistral", "num_hidden_layers": 2, "num_key_value_heads": 8}
    bounded = kept_bytes(read_config({**config, "sliding_window": window}), tokens)
    whole = kept_bytes(read_config({**config, "sliding_window": None}), tokens)
    assert bounded <= whole
    assert (bounded == whole) == (tokens < window)


@given(data=st.data(), tokens=LENGTHS, more=LENGTHS)
@settings(max_examples=200)
def test_more_tokens_never_cost_less(data: st.DataObject, tokens: int, more: int) -> None:
    """For each real config, a longer sequence keeps at least as much, chunks set aside."""
    config = data.draw(st.sampled_from(real_configs()))
    try:
        reading = read_config(config, encoder_tokens=7)
    except DomainError:
        return
    chunks = any(
        isinstance(state, ChunkedAttention)
        for layer in reading.state.layers
        for state in layer.states
    )
    if not chunks:
        assert kept_bytes(reading, tokens) <= kept_bytes(reading, tokens + more)


def test_readings_of_real_configs_are_repeatable_and_leave_them_alone() -> None:
    """Reading a config twice gives the same, and changes nothing in it."""
    for config in real_configs()[::7]:
        before = copy.deepcopy(config)
        try:
            first = read_config(config, encoder_tokens=3)
        except DomainError:
            first = None
        assert config == before
        if first is not None:
            assert read_config(config, encoder_tokens=3) == first


def test_sliding_and_full_layers_of_real_configs_agree_on_heads() -> None:
    """In a plain windowed model all layers have the same heads and widths."""
    seen = 0
    for config in real_configs():
        if config.get("model_type") not in ("gemma2", "gemma3_text", "gpt_oss", "cohere2", "olmo3"):
            continue
        shapes = {
            (state.kv_heads, state.k_dim, state.v_dim)
            for layer in read_config(config).state.layers
            for state in layer.states
            if isinstance(state, (FullAttention, SlidingWindow))
        }
        assert len(shapes) == 1
        seen += 1
    assert seen > 10


def _nested(depth: int) -> dict[str, object]:
    inner: dict[str, object] = {}
    for _ in range(depth):
        inner = {"text_config": inner, "model_type": "llava"}
    return inner


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-2, max_value=200),
    st.sampled_from([10**6, 10**9, 2**63, 10**40, 10**5000, -(10**12)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=12),
    st.sampled_from(["llama", "gemma3_text", "deepseek_v3", "full", "LLLG", "\ud800", "∞"]),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=4)), max_size=8),
    st.sampled_from([1, 5, 48, 12_000]).map(lambda count: ["sliding_attention"] * count),
    st.sampled_from([1, 5, 48, 12_000]).map(lambda count: [1] * count),
    st.sampled_from([3, 5000]).map(_nested),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    st.just({"0": {"head_dim": "x"}, "²": 1}),
    st.just([[["global", "local"], 10**9]]),
)


def _changed(draw: st.DrawFn, config: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    found = dict(config)
    other = draw(st.sampled_from(real_configs()))
    names = sorted(set(found) | set(other))
    for name in draw(st.lists(st.sampled_from(names), max_size=4, unique=True)):
        what = draw(st.integers(min_value=0, max_value=3))
        value = found.get(name)
        if what == 0:
            found.pop(name, None)
        elif what == 1 and name in other:
            found[name] = other[name]
        elif isinstance(value, dict) and depth == 0:
            found[name] = _changed(draw, value, 1)
        else:
            found[name] = draw(ODD)
    part = found.get("text_config")
    if depth == 0 and isinstance(part, dict) and draw(st.booleans()):
        found["text_config"] = _changed(draw, part, 1)
    return found


@st.composite
def changed_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a real config with some fields removed, replaced, or taken from another."""
    return _changed(draw, draw(st.sampled_from(real_configs())))


@given(config=changed_configs(), encoder_tokens=st.sampled_from([None, 0, 11]))
@settings(max_examples=500)
def test_a_changed_config_is_read_or_refused(
    config: dict[str, Any], encoder_tokens: int | None
) -> None:
    """Whatever is wrong in a config, it is refused by a field; a reading is finite and whole."""
    refused: DomainError | None = None
    try:
        reading = read_config(config, encoder_tokens=encoder_tokens)
    except DomainError as error:
        refused = error
    if refused is not None:
        assert refused.field
        assert str(refused)
        return
    assert 1 <= reading.state.num_layers <= 10_000
    assert kept_bytes(reading, 1000) >= 0
    assert all(note.text for note in (*reading.assumptions, *reading.notes))

"""Hypothesis strategies for domain values."""

from __future__ import annotations

from hypothesis import strategies as st

from app.domain.dtypes import DTYPES
from app.domain.formats import KvFormats
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

PLAIN_FORMATS = ("fp32", "fp16", "bf16", "fp8", "int8")
heads = st.integers(1, 16)
dims = st.integers(1, 256)
small_lengths = st.lists(st.integers(0, 5000), max_size=12)
block_sizes = st.integers(1, 300)


def formats() -> st.SearchStrategy[KvFormats]:
    """Draw formats that divide any row."""
    names = st.sampled_from(PLAIN_FORMATS)
    return st.builds(lambda k, v: KvFormats.same(DTYPES[k], DTYPES[v]), names, names)


def full() -> st.SearchStrategy[FullAttention]:
    """Draw full attention."""
    return st.builds(FullAttention, kv_heads=heads, k_dim=dims, v_dim=dims)


def growing_states() -> st.SearchStrategy[State]:
    """Draw states that never shrink with length: all but chunked attention."""
    return st.one_of(
        full(),
        st.builds(
            SlidingWindow, kv_heads=heads, k_dim=dims, v_dim=dims, window=st.integers(1, 3000)
        ),
        st.builds(
            LatentAttention,
            latent_dim=dims,
            rope_dim=dims,
            index_dim=st.integers(0, 64),
            tokens_per_entry=st.sampled_from([1, 4, 128]),
        ),
        st.builds(
            lambda size: Recurrent(
                tensors=(StateTensor(name="state", shape=(size,), dtype=DTYPES["fp32"]),)
            ),
            st.integers(1, 10_000),
        ),
        st.builds(
            CrossAttention,
            kv_heads=heads,
            k_dim=dims,
            v_dim=dims,
            encoder_tokens=st.integers(0, 2000),
        ),
    )


def states() -> st.SearchStrategy[State]:
    """Draw any state that holds something."""
    chunked = st.builds(
        ChunkedAttention, kv_heads=heads, k_dim=dims, v_dim=dims, chunk=st.integers(1, 3000)
    )
    return st.one_of(growing_states(), chunked)


def models(kind: st.SearchStrategy[State] | None = None) -> st.SearchStrategy[ModelState]:
    """Draw a model of a few layers, some of which keep two states."""
    layer = st.builds(
        lambda drawn: Layer(states=tuple(drawn)),
        st.lists(states() if kind is None else kind, min_size=1, max_size=2),
    )
    return st.lists(layer, min_size=1, max_size=6).map(ModelState.of_layers)

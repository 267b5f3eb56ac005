"""Drawn shapes and numbers for the attention lab's tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from app.demo.backends import Bools
from app.demo.masks import causal
from app.demo.quantise import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Grouped attention of several new positions after a cache, as `Backend.attend` takes it."""

    queries: Floats
    keys: Floats
    values: Floats
    past: int
    window: int | None

    @property
    def visible(self) -> Bools:
        """Return the triangular mask, narrowed to the window."""
        return causal(self.past, self.queries.shape[2], self.window)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw heads, widths, lengths, a window and the spread of the numbers."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    width, value_width = draw(st.integers(1, 33)), draw(st.integers(1, 33))
    past, new = draw(st.integers(0, 40)), draw(st.integers(1, 6))
    window = draw(st.none() | st.integers(1, 50))
    spread = np.float32(draw(st.sampled_from([0.01, 1.0, 5.0])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def normal(heads: int, rows: int, size: int) -> Floats:
        drawn = rng.standard_normal((1, heads, rows, size), dtype=np.float32)
        return np.asarray(drawn * spread, dtype=np.float32)

    return Case(
        queries=normal(kv_heads * group, new, width),
        keys=normal(kv_heads, past + new, width),
        values=normal(kv_heads, past + new, value_width),
        past=past,
        window=window,
    )

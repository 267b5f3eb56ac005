"""Which layers keep only a window, by every spelling that configs use.

`layer_types` decides where the file has it. Otherwise the type's own rule does: a period, the
layers from `max_window_layers` on, a string such as "LLLG"; and for a type with none, an integer
`sliding_window` makes every layer slide (Transformers 5.24 cache_utils.py, DynamicCache; the same
in vLLM 0.33.0 config/model.py).
"""

from __future__ import annotations

from app.domain.errors import Missing
from app.domain.state import MAX_TOKENS, ChunkedAttention, Layer, SlidingWindow
from app.readers.hf_config.attention import HeadShape, grouped
from app.readers.hf_config.fields import Fields


def window_size(fields: Fields) -> int | None:
    """Return the window of sliding layers, or None when there is none."""
    return fields.integer_or_none("sliding_window", high=MAX_TOKENS)


def grouped_layers(fields: Fields) -> list[Layer]:
    """Return the layers of a plain decoder."""
    count = fields.layers()
    shape = grouped(fields)
    window = window_size(fields)
    if window is None:
        layer = Layer(states=(shape.full(),))
    else:
        layer = Layer(states=(sliding(shape, window),))
    return [layer] * count


def sliding(shape: HeadShape, window: int) -> SlidingWindow:
    """Return the state that keeps what a window sees."""
    return SlidingWindow(
        kv_heads=shape.kv_heads, k_dim=shape.k_dim, v_dim=shape.v_dim, window=window
    )

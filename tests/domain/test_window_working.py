"""The working of a window is an expression that gives its result."""

from __future__ import annotations

import pytest

from app.domain.dtypes import dtype_named
from app.domain.formats import KvFormats
from app.domain.per_token import shape_of
from app.domain.state import LatentAttention, Layer, ModelState


@pytest.mark.parametrize(
    ("index", "expression", "result"),
    [
        ("int8", "(1 layer × (512 latent + 64 rope) × 2 B + 1 layer × 128 index × 1 B) × 4", 5120),
        ("bf16", "1 layer × (512 latent + 64 rope + 128 index) × 2 B × 4", 5632),
    ],
)
def test_a_sum_is_in_brackets_before_its_factor(index: str, expression: str, result: int) -> None:
    """Index keys in a format of their own are a term of their own; both are held four times."""
    state = LatentAttention(
        latent_dim=512, rope_dim=64, index_dim=128, index_format=dtype_named(index), window=5
    )
    model = ModelState.of_layers([Layer(states=(state,))])
    shape = shape_of(model, KvFormats.same(dtype_named("bf16")))
    assert shape.workings["window_bytes_per_sequence"].numbers == (
        f"{expression} positions = {result} B"
    )

"""Assumed lines are ranges, and measured runs lie inside them."""

from __future__ import annotations

import pytest

from app.domain.assumed_lines import (
    Widths,
    activations,
    communication,
    framework,
    graphs,
)
from app.domain.capacity import Basis
from app.domain.errors import OutOfRange

GIB = 2**30


@pytest.mark.parametrize(
    ("widths", "tokens", "tensor", "measured_gib"),
    [
        # Qwen2.5 0.5B, 32,768 tokens; Llama 3.2 3B, 2048; a 14B model over two ranks, 2048;
        # Llama 3.1 8B, 29,000 tokens: 17.98 GiB at the peak less 14.99 GiB of weights.
        (Widths(hidden=896, mlp=4864, attention=1152, vocabulary=151_936), 32_768, 1, 1.61),
        (Widths(hidden=3072, mlp=8192, attention=5120, vocabulary=128_256), 2048, 1, 0.90),
        (Widths(hidden=5120, mlp=13_824, attention=7168, vocabulary=152_064), 2048, 2, 0.19),
        (Widths(hidden=4096, mlp=14_336, attention=6144, vocabulary=128_256), 29_000, 1, 2.99),
    ],
)
def test_measured_activations_lie_inside(
    widths: Widths, tokens: int, tensor: int, measured_gib: float
) -> None:
    """Peaks that servers printed lie inside the range."""
    line = activations(widths, tokens, 256, tensor)
    assert line.basis is Basis.ASSUMED
    assert line.low_bytes <= measured_gib * GIB <= line.high_bytes


def test_activations_grow_with_the_batch() -> None:
    """Four times the tokens take more at both ends; the sampler's part does not grow."""
    widths = Widths(hidden=4096, mlp=14_336, attention=6144, vocabulary=128_256)
    small, large = activations(widths, 2048, 256, 1), activations(widths, 8192, 256, 1)
    assert small.low_bytes * 4 == large.low_bytes
    assert small.high_bytes < large.high_bytes < 4 * small.high_bytes


def test_routed_experts_count() -> None:
    """Eight experts of 2048 make a token's inner rows as wide as 16,384."""
    plain = Widths(hidden=7168, mlp=2048, attention=1, vocabulary=1)
    routed = Widths(hidden=7168, mlp=2048, attention=1, vocabulary=1, experts=8, expert=2048)
    assert activations(plain, 1000, 1, 1).high_bytes < activations(routed, 1000, 1, 1).high_bytes


def test_an_unknown_width_is_a_wide_range() -> None:
    """Without widths the range is said to be taken for nothing better."""
    line = activations(None, 8192, 256, 1)
    assert (line.low_bytes, line.high_bytes) == (0, 4 * GIB)
    assert line.note.code == "activations_unknown"


def test_the_other_lines() -> None:
    """Framework, graphs and communication are ranges; one rank communicates with nobody."""
    assert all(line.is_range for line in (framework(), graphs(), communication(8)))
    assert communication(1).high_bytes == 0


def test_bounds() -> None:
    """Nothing absurd is estimated."""
    with pytest.raises(OutOfRange):
        activations(None, 0, 256, 1)
    with pytest.raises(OutOfRange):
        activations(None, 1, 0, 1)
    with pytest.raises(OutOfRange):
        Widths(hidden=-1, mlp=1, attention=1, vocabulary=1)

"""How far a computation in binary32 may lie from the exact one: the bound the lab promises.

Written for attention over rows that are kept exactly alike, so that only rounding and the order
of sums differ. With u = 2^−24, and a dot product of n terms off by at most n·u·Σ|a·b| in whatever
order it is summed (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1):

    a score is off by          e = (d + 8)·u·max Σ|q·k| / √d
    a weight relatively by     2·e + (T + 8)·u
    an output element by       (2·e + (2·T + 16)·u)·Σ a·|v|

The same bound holds for every format: a format changes which rows are kept, not how they are
computed with.
"""

from __future__ import annotations

import math

import numpy as np

from app.demo.backends import Bools
from app.demo.quantise import Floats

UNIT = 2.0**-24


def agreement_bound(queries: Floats, keys: Floats, values: Floats, visible: Bools) -> float:
    """Return how far a binary32 output element may lie from the exact one, at most.

    Shapes are those of `Backend.attend`. Two backends may lie twice as far from each other.
    """
    batch, heads, new, width = queries.shape
    kv_heads, total = keys.shape[1], keys.shape[2]
    shape = (batch, kv_heads, heads // kv_heads * new, width)
    grouped = queries.astype(np.float64).reshape(shape)
    turned = keys.astype(np.float64).swapaxes(-1, -2)
    mask = np.broadcast_to(visible[:, None], (batch, heads, new, total))
    magnitudes = (np.abs(grouped) @ np.abs(turned)).reshape(mask.shape) / math.sqrt(width)
    score_error = (width + 8) * UNIT * np.where(mask, magnitudes, 0).max(axis=-1)
    scores = np.where(mask, (grouped @ turned).reshape(mask.shape) / math.sqrt(width), -np.inf)
    peak = np.maximum(scores.max(axis=-1, keepdims=True), np.finfo(np.float64).min)
    powers = np.exp(scores - peak)
    weights = powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300)
    mixed = weights.reshape(*shape[:3], total) @ np.abs(values.astype(np.float64))
    largest = mixed.reshape(batch, heads, new, -1).max(axis=-1)
    return float(((2 * score_error + (2 * total + 16) * UNIT) * largest).max())

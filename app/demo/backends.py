"""Where the lab computes: NumPy always, torch where it is installed, on the device asked for.

Both keep keys and values in the lab's formats and compute in binary32, so that they differ only
in the order of their sums. Nothing falls back in silence: a device that is asked for and absent
is an error, and every answer names its backend and device.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from app.demo import quantise
from app.demo.quantise import Encoded, Floats
from app.domain.errors import Unknown, Unsupported, shown

Bools = NDArray[np.bool_]
# An array of the backend: numpy.ndarray or torch.Tensor.
Array = Any

DEVICES = ("auto", "numpy", "cpu", "cuda", "mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendAttention:
    """Outputs [B, Hq, N, d_v]; weights and scores [B, Hq, N, T], scores −∞ where masked."""

    outputs: Array
    weights: Array
    scores: Array


class Backend(Protocol):
    """What the lab needs of an array library."""

    name: str
    device: str

    def put(self, values: Floats) -> Array:
        """Return the values as an array of the backend, on its device."""

    def get(self, array: Array) -> Floats:
        """Return an array of the backend as NumPy's."""

    def index(self, positions: list[int]) -> Array:
        """Return positions as an array that can index."""

    def encode(self, vectors: Array, dtype: str) -> Encoded:
        """Return vectors as the cache keeps them."""

    def decode(self, encoded: Encoded) -> Array:
        """Return what a cache keeps as binary32."""

    def linear(self, rows: Array, weights: Array) -> Array:
        """Return rows × weights."""

    def normalise(self, rows: Array) -> Array:
        """Return rows divided by their root mean square."""

    def rectify(self, rows: Array) -> Array:
        """Return rows with what is negative set to zero."""

    def attend(
        self, queries: Array, keys: Array, values: Array, visible: Bools
    ) -> BackendAttention:
        """Attend with queries [B, Hq, N, d] over keys [B, Hkv, T, d] and values [B, Hkv, T, d_v].

        Query head h reads KV head h // (Hq / Hkv). `visible` is [B or 1, N, T]; a query that sees
        nothing (padding) has zero weights and a zero output.
        """

    def wait(self) -> None:
        """Return when all work given to the device is done."""


class NumpyBackend:
    """The lab on NumPy; formats that NumPy lacks are emulated bit by bit."""

    name = "numpy"
    device = "cpu"

    def put(self, values: Floats) -> Array:
        """Return the values themselves, as binary32."""
        return np.asarray(values, dtype=np.float32)

    def get(self, array: Array) -> Floats:
        """Return the array itself."""
        return np.asarray(array, dtype=np.float32)

    def index(self, positions: list[int]) -> Array:
        """Return an integer array."""
        return np.asarray(positions, dtype=np.intp)

    def encode(self, vectors: Array, dtype: str) -> Encoded:
        """Return vectors as the cache keeps them."""
        return quantise.encode(vectors, dtype)

    def decode(self, encoded: Encoded) -> Array:
        """Return what a cache keeps as binary32."""
        return quantise.decode(encoded)

    def linear(self, rows: Array, weights: Array) -> Array:
        """Return rows × weights."""
        return rows @ weights

    def normalise(self, rows: Array) -> Array:
        """Return rows divided by their root mean square."""
        return rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + np.float32(1e-6))

    def rectify(self, rows: Array) -> Array:
        """Return rows with what is negative set to zero."""
        return np.maximum(rows, np.float32(0))

    def attend(
        self, queries: Array, keys: Array, values: Array, visible: Bools
    ) -> BackendAttention:
        """Attend as the protocol says, over contiguous copies so that layout cannot matter."""
        batch, heads, new, width = queries.shape
        kv_heads, total = keys.shape[1], keys.shape[2]
        grouped = queries.reshape(batch, kv_heads, heads // kv_heads * new, width)
        keys, values = np.ascontiguousarray(keys), np.ascontiguousarray(values)
        scores = grouped @ keys.swapaxes(-1, -2) / np.float32(math.sqrt(width))
        scores = scores.reshape(batch, heads, new, total)
        scores = np.where(visible[:, None], scores, np.float32(-np.inf))
        peak = scores.max(axis=-1, keepdims=True)
        powers = np.exp(scores - np.where(np.isfinite(peak), peak, np.float32(0)))
        sums = powers.sum(axis=-1, keepdims=True)
        weights = powers / np.where(sums > 0, sums, np.float32(1))
        mixed = weights.reshape(batch, kv_heads, heads // kv_heads * new, total) @ values
        outputs = mixed.reshape(batch, heads, new, values.shape[-1])
        return BackendAttention(outputs=outputs, weights=weights, scores=scores)

    def wait(self) -> None:
        """Return at once: NumPy has no queue."""


def is_torch_installed() -> bool:
    """Return whether torch can be imported, without importing it."""
    return importlib.util.find_spec("torch") is not None


def choose_backend(device: object = None) -> Backend:
    """Return the backend of a device by name; None and `auto` take the best there is.

    The best is CUDA, then MPS, then torch on the CPU, then NumPy. `cpu` is torch's where torch is
    installed and NumPy's otherwise; `numpy` is NumPy whatever is installed.

    Raises:
        Unknown: for a name that is no device.
        Unsupported: for a device that this machine lacks.

    """
    name = "auto" if device is None else device
    if not isinstance(name, str) or name not in DEVICES:
        raise Unknown(
            "{field} {value} is not known; known are {known}",
            field="device",
            value=shown(device),
            known=", ".join(DEVICES),
        )
    if name == "numpy":
        return NumpyBackend()
    if not is_torch_installed():
        if name in {"auto", "cpu"}:
            return NumpyBackend()
        raise Unsupported(
            "{field} {value} needs torch, which is not installed here", field="device", value=name
        )
    from app.demo.torch_backend import open_torch  # noqa: PLC0415 - imports torch, only when asked

    return open_torch(name)

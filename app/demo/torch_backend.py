"""The lab on torch. Importing this module does not import torch; opening a device does."""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any

import numpy as np

from app.demo.backends import Array, Backend, BackendAttention, Bools
from app.demo.quantise import FP8_LARGEST, INTEGER_LARGEST, Encoded, Floats
from app.domain.errors import Unsupported

# The module itself, which is not there to be named when torch is not installed.
Torch = Any


@cache
def load_torch() -> Torch:
    """Return torch, limited to one thread: the arrays are small, and others need the cores."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    return torch


def open_torch(name: str) -> Backend:
    """Return torch on the device of that name; `auto` takes CUDA, then MPS, then the CPU.

    Raises:
        Unsupported: when this machine or this build of torch lacks the device.

    """
    torch = load_torch()
    present = {
        "cuda": bool(torch.cuda.is_available()),
        "mps": bool(torch.backends.mps.is_available()),
        "cpu": True,
    }
    if name == "auto":
        name = next(device for device, is_present in present.items() if is_present)
    if not present[name]:
        raise Unsupported(
            "{field} {value} is not available on this machine", field="device", value=name
        )
    return TorchBackend(name)


class TorchBackend:
    """The lab on one torch device, in binary32 with torch's own storage formats."""

    name = "torch"

    def __init__(self, device: str) -> None:
        self._torch = load_torch()
        self.device = device

    def put(self, values: Floats) -> Array:
        """Return a copy of the values on the device."""
        contiguous = np.ascontiguousarray(values, dtype=np.float32)
        return self._torch.from_numpy(contiguous.copy()).to(self.device)

    def get(self, array: Array) -> Floats:
        """Return a copy of the array on the host."""
        return np.asarray(array.detach().cpu().numpy(), dtype=np.float32)

    def index(self, positions: list[int]) -> Array:
        """Return an integer tensor."""
        return self._torch.tensor(positions, dtype=self._torch.int64, device=self.device)

    def encode(self, vectors: Array, dtype: str) -> Encoded:
        """Return vectors as the cache keeps them; fp8 codes lie in bytes, which can be indexed."""
        torch, scales = self._torch, None
        if dtype == "fp32":
            codes = vectors.clone()
        elif dtype == "fp16":
            codes = vectors.to(torch.float16)
        elif dtype == "bf16":
            codes = vectors.to(torch.bfloat16)
        elif dtype == "fp8":
            clamped = vectors.clamp(-FP8_LARGEST, FP8_LARGEST)
            codes = self._fp8(clamped).view(torch.uint8)
        else:
            largest = INTEGER_LARGEST[dtype]
            scales = vectors.abs().amax(dim=-1, keepdim=True) / largest
            scales = torch.where(scales > 0, scales, torch.ones_like(scales))
            codes = (vectors / scales).round().clamp(-largest, largest).to(torch.int8)
            codes = self._pack(codes) if dtype == "int4" else codes
        return Encoded(codes=codes, scales=scales, dtype=dtype, width=vectors.shape[-1])

    def decode(self, encoded: Encoded) -> Array:
        """Return what a cache keeps as binary32."""
        torch, codes = self._torch, encoded.codes
        if encoded.dtype == "fp8":
            return codes.view(torch.float8_e4m3fn).to(torch.float32)
        if encoded.dtype == "int4":
            codes = self._unpack(codes, encoded.width)
        values = codes.to(torch.float32)
        return values if encoded.scales is None else values * encoded.scales

    def linear(self, rows: Array, weights: Array) -> Array:
        """Return rows × weights."""
        return rows @ weights

    def normalise(self, rows: Array) -> Array:
        """Return rows divided by their root mean square."""
        return rows / ((rows * rows).mean(dim=-1, keepdim=True) + 1e-6).sqrt()

    def rectify(self, rows: Array) -> Array:
        """Return rows with what is negative set to zero."""
        return rows.clamp(min=0)

    def attend(
        self, queries: Array, keys: Array, values: Array, visible: Bools
    ) -> BackendAttention:
        """Attend as the protocol says, in the same steps as NumPy's."""
        torch = self._torch
        batch, heads, new, width = queries.shape
        kv_heads, total = keys.shape[1], keys.shape[2]
        grouped = queries.reshape(batch, kv_heads, heads // kv_heads * new, width)
        keys, values = keys.contiguous(), values.contiguous()
        scores = grouped @ keys.transpose(-1, -2) / math.sqrt(width)
        scores = scores.reshape(batch, heads, new, total)
        mask = torch.from_numpy(np.ascontiguousarray(visible)).to(self.device)
        scores = scores.masked_fill(~mask[:, None], -math.inf)
        peak = scores.amax(dim=-1, keepdim=True)
        powers = (scores - torch.where(peak.isfinite(), peak, torch.zeros_like(peak))).exp()
        sums = powers.sum(dim=-1, keepdim=True)
        weights = powers / torch.where(sums > 0, sums, torch.ones_like(sums))
        mixed = weights.reshape(batch, kv_heads, heads // kv_heads * new, total) @ values
        outputs = mixed.reshape(batch, heads, new, values.shape[-1])
        return BackendAttention(outputs=outputs, weights=weights, scores=scores)

    def wait(self) -> None:
        """Return when the device has done all it was given."""
        if self.device == "cuda":
            self._torch.cuda.synchronize()
        elif self.device == "mps":
            self._torch.mps.synchronize()

    def _fp8(self, values: Array) -> Array:
        if self.device == "mps":
            raise Unsupported("{field} fp8 is not available on mps", field="dtype")
        return values.to(self._torch.float8_e4m3fn)

    def _pack(self, integers: Array) -> Array:
        torch = self._torch
        if integers.shape[-1] % 2:
            integers = torch.cat([integers, torch.zeros_like(integers[..., :1])], dim=-1)
        nibbles = (integers & 0x0F).to(torch.uint8)
        return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)

    def _unpack(self, packed: Array, width: int) -> Array:
        torch = self._torch
        pairs = torch.stack([packed & 0x0F, packed >> 4], dim=-1).to(torch.int8)
        flat = pairs.reshape(*packed.shape[:-1], -1)[..., :width]
        return torch.where(flat > INTEGER_LARGEST["int4"], flat - 16, flat)

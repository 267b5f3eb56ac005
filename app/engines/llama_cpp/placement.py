"""Which device holds a layer, and how large the buffers become there.

A layer's cache lives with the layer. Source: `load_tensors` in src/llama-model.cpp (with the
engine's own 32-bit floats), `ggml_backend_cuda_buffer_type_get_alloc_size` in ggml-cuda.cu.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from app.domain.errors import Conflict
from app.domain.notes import Note
from app.engines.float32 import float32
from app.engines.llama_cpp.caches import Cache
from app.engines.llama_cpp.cells import padded
from app.engines.llama_cpp.recurrent import RecurrentMemory
from app.engines.llama_cpp.settings import CacheType, Settings
from app.engines.llama_cpp.versions import Era

HOST = "CPU"
# ggml-cuda pads quantised rows to this many elements so that kernels may read past their end.
_CUDA_ROW_ELEMENTS = 512
_CUDA_ALIGNMENT_BYTES = 128
_CUDA_NAMES = ("CUDA", "ROCm", "MUSA")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBytes:
    """What one device holds of one cache: the bytes of its rows, and of the buffer for them."""

    device: str
    cache: str
    layers: int
    bytes: int
    buffer_bytes: int


def layer_devices(
    layers: int, trunk: int, settings: Settings, era: Era
) -> tuple[tuple[str, ...] | None, tuple[Note, ...]]:
    """Return each layer's device, or None when that is not known, and why.

    Without a split the engine divides by each device's free memory at load time.

    Raises:
        Conflict: for more shares than devices.

    """
    if not settings.offload:
        return (HOST,) * layers, ()
    if settings.gpu_layers is None:
        return None, ()
    if settings.split_mode == "tensor":
        return None, (
            Note("tensor_split_mode", "split_mode tensor cuts every layer: each device's buffer"
                 " line shows its own share only"),
        )  # fmt: skip
    devices = _devices(settings)
    split = settings.split + (0.0,) * (len(devices) - len(settings.split))
    if settings.split_mode in {"row", "none"}:
        split = tuple(float(i == settings.main_gpu) for i in range(len(devices)))
    if len(devices) > 1 and not any(split):
        return None, (
            Note("split_by_free_memory", "without tensor_split the layers are divided by each"
                 " device's free memory at load time, which is not known here"),
        )  # fmt: skip
    counted = layers + 1 if era.counts_output_layer else trunk
    start = max(counted - settings.gpu_layers, 0)
    active = min(settings.gpu_layers, layers + 1)
    bounds = _bounds(split)
    names = []
    for layer in range(layers):
        position = layer - start
        if position < 0 or position >= active:
            names.append(HOST)
            continue
        share = float32(position / active)
        names.append(devices[min(bisect_right(bounds, share), len(devices) - 1)])
    return tuple(names), ()


def _devices(settings: Settings) -> tuple[str, ...]:
    count = max(len(settings.split), settings.main_gpu + 1, 1)
    devices = settings.devices or tuple(f"CUDA{index}" for index in range(count))
    if len(settings.split) > len(devices) or settings.main_gpu >= len(devices):
        raise Conflict("{field} names more devices than the {count} there are",
                       field="tensor_split", count=len(devices))  # fmt: skip
    return devices


def _bounds(split: tuple[float, ...]) -> list[float]:
    """Return the running shares of the devices, each step rounded to 32 bits as the engine does."""
    if not any(split):
        return [1.0]
    sums = list(accumulate((float32(share) for share in split), lambda a, b: float32(a + b)))
    return [float32(value / sums[-1]) for value in sums]


def _tensor_buffer(kind: CacheType, row: int, size_bytes: int, *, cuda: bool) -> int:
    """Return what a tensor takes in its buffer."""
    if not cuda:
        return size_bytes
    rest = row % _CUDA_ROW_ELEMENTS
    if kind.dtype.block_elements > 1 and rest:
        size_bytes += kind.dtype.bytes_for(_CUDA_ROW_ELEMENTS - rest)
    return padded(size_bytes, _CUDA_ALIGNMENT_BYTES)


def cache_by_device(cache: Cache, devices: tuple[str, ...]) -> tuple[DeviceBytes, ...]:
    """Return what each device holds of a cache, in the order of the devices' names."""
    shares: dict[str, list[int]] = {}
    positions = cache.cells * cache.streams
    for index, layer in enumerate(cache.layers):
        device = devices[layer]
        cuda = device.startswith(_CUDA_NAMES)
        own = shares.setdefault(device, [0, 0, 0])
        own[0] += 1
        row = cache.key_rows[index]
        size = cache.key_type.dtype.bytes_for(row) * positions
        tensor_row = cache.key_tensor_rows[index] if cache.key_tensor_rows else row
        own[1] += size
        own[2] += _tensor_buffer(cache.key_type, tensor_row, size, cuda=cuda)
        if cache.value_rows:
            row = cache.value_rows[index]
            size = cache.value_type.dtype.bytes_for(row) * positions
            own[1] += size
            # The fork's values have no row of heads: they are one long row.
            tensor_row = 0 if cache.key_tensor_rows else row
            own[2] += _tensor_buffer(cache.value_type, tensor_row, size, cuda=cuda)
    return tuple(
        DeviceBytes(
            device=device,
            cache=cache.name,
            layers=count,
            bytes=size,
            buffer_bytes=buffer,
        )
        for device, (count, size, buffer) in sorted(shares.items())
    )


def states_by_device(memory: RecurrentMemory, devices: tuple[str, ...]) -> tuple[DeviceBytes, ...]:
    """Return what each device holds of the recurrent states."""
    shares: dict[str, list[int]] = {}
    for part in memory.parts:
        for layer in part.layers:
            own = shares.setdefault(devices[layer], [0, 0])
            own[0] += part is memory.parts[0]
            own[1] += part.size_bytes // len(part.layers)
    return tuple(
        DeviceBytes(
            device=device,
            cache="recurrent",
            layers=count,
            bytes=size,
            buffer_bytes=size,
        )
        for device, (count, size) in sorted(shares.items())
    )

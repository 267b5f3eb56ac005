"""Read headers of 20 MB, and weights from configs: CPU seconds and peak memory, with their bounds.

The bounds are those promised for an upload: a header of 20 MB within 1 s of CPU and 100 MB, the
bytes of the header themselves included.
"""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable

from app.readers.gguf import read_gguf
from app.readers.safetensors import read_safetensors
from app.readers.weights import read_weights

LIMIT_SECONDS = 1.0
LIMIT_BYTES = 100 * 10**6
LIMIT_READ_SECONDS = 0.002
ROUNDS = 20


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf_header() -> bytes:
    """Return a header of 20 MB: half a million tokens, merges and scores, a thousand tensors."""
    count = 470_000
    tokens = b"".join(_string(b"token%d" % number) for number in range(count))
    merges = b"".join(_string(b"tok en%d" % number) for number in range(count))
    keys = (
        _string(b"general.architecture") + struct.pack("<I", 8) + _string(b"llama"),
        _string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, count) + tokens,
        _string(b"tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, count) + merges,
        _string(b"tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, count) + bytes(4 * count),
    )
    size = 4096 * 4096 // 256 * 144
    tensors = (
        _string(b"blk.%d.attn_q.weight" % number)
        + struct.pack("<IQQIQ", 2, 4096, 4096, 12, number * size)
        for number in range(1000)
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, 1000, len(keys))
    return head + b"".join(keys) + b"".join(tensors)


def safetensors_header() -> bytes:
    """Return a header of 20 MB: 145,000 tensors, each expert of a large model apart."""
    header: dict[str, object] = {}
    size = 2 * 14_336 * 32
    for number in range(145_000):
        layer, expert = divmod(number, 400)
        name = f"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight_scale_inv"
        header[name] = {"dtype": "BF16", "shape": [14_336, 32],
                        "data_offsets": [number * size, (number + 1) * size]}  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text


def measured(name: str, data: bytes, read: Callable[[bytes], object]) -> None:
    """Print CPU seconds and peak bytes of one reading, and hold them to the bounds."""
    started = time.process_time()
    read(data)
    seconds = time.process_time() - started
    tracemalloc.start()
    read(data)
    peak = tracemalloc.get_traced_memory()[1] + len(data)
    tracemalloc.stop()
    print(f"{name}: {len(data) / 1e6:.1f} MB read in {seconds:.2f} s, peak {peak / 1e6:.0f} MB")
    if seconds > LIMIT_SECONDS or peak > LIMIT_BYTES:
        raise SystemExit(f"{name} is over {LIMIT_SECONDS} s or {LIMIT_BYTES} bytes")


CONFIGS: dict[str, dict[str, object]] = {
    "dense": {"model_type": "llama", "num_hidden_layers": 126, "hidden_size": 16_384},
    "latent experts": {"model_type": "deepseek_v3"},
    "hybrid experts": {"model_type": "qwen3_5_moe_text", "num_hidden_layers": 60},
}


def _seconds(config: dict[str, object]) -> float:
    """Return the CPU seconds of one reading and its sum."""
    started = time.process_time()
    read_weights(config).size_bytes()
    return time.process_time() - started


def main() -> None:
    """Run all."""
    measured("gguf", gguf_header(), read_gguf)
    measured("safetensors", safetensors_header(), read_safetensors)
    for name, config in CONFIGS.items():
        seconds = min(_seconds(config) for _ in range(ROUNDS))
        print(f"weights of a {name} config: {seconds * 1e3:.2f} ms")
        if seconds > LIMIT_READ_SECONDS:
            raise SystemExit(f"weights of a {name} config take over {LIMIT_READ_SECONDS} s")


if __name__ == "__main__":
    main()

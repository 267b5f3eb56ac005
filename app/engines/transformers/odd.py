"""Cache layers that no other class shares: DeepSeek-V4, UnlimitedOCR, XLNet, Reformer, RWKV, xLSTM.

Each follows its own file of Transformers 5.24 (models/<type>/modeling_<type>.py) and is measured:
tests/data/transformers_caches.json.gz.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Unsupported
from app.engines.transformers.cache import ELEMENT_BYTES, HeldTensor, KeyValue, Run, held

_MOST_BUCKETS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWindow:
    """One head whose keys and values are the same tensor, cut to a window (DeepSeek-V4)."""

    width: int
    window: int

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the keys, and the values that alias them."""
        pair = KeyValue(kv_heads=1, k_dim=self.width, v_dim=self.width, window=self.window)
        keys, values = pair.held(run)
        alias = HeldTensor(
            name=values.name,
            role=values.role,
            shape=values.shape,
            dtype=values.dtype,
            storage_bytes=values.storage_bytes,
            alias_of="keys",
        )
        return keys, alias

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the one copy that concatenation makes."""
        pair = KeyValue(kv_heads=1, k_dim=self.width, v_dim=0, window=self.window)
        return pair.growth_peak_bytes(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """Entries compressed from `rate` tokens each, and the buffers of the open window.

    `overlap` doubles the projected width, and keeps the last closed window's first half, its gate
    in float32 (compressed sparse attention). Every tensor is named for what uses the entries.
    """

    name: str
    width: int
    rate: int
    overlap: bool

    def groups(self, run: Run) -> tuple[tuple[HeldTensor, ...], ...]:
        """Return each kind of tensor apart, so that two compressors of a layer can interleave."""
        tokens, batch = run.tokens, run.batch
        projected = self.width * (2 if self.overlap else 1)
        open_tokens = tokens % self.rate
        # A buffer is a view of the pass that filled it: after a prefill that closed windows and
        # left some tokens over, all of the prompt stays allocated; an empty view holds nothing.
        stored = tokens if run.decode_steps == 0 and open_tokens else open_tokens
        buffers = tuple(
            (
                held(
                    f"{kind}[{self.name}]",
                    "compressor_buffer",
                    (batch, open_tokens, projected),
                    run.dtype,
                    stored=(batch, stored, projected),
                ),
            )
            for kind in ("buffer_kv", "buffer_gate")
        )
        entries = tokens // self.rate
        shape = (batch, entries, self.width)
        compressed = (held(f"compressed_kv[{self.name}]", "compressed_kv", shape, run.dtype),)
        if not self.overlap or entries == 0:
            return (*buffers, compressed, (), ())
        shape = (batch, self.rate, self.width)
        kv = held(f"overlap_kv[{self.name}]", "compressor_overlap", shape, run.dtype)
        gate = held(f"overlap_gate[{self.name}]", "compressor_overlap", shape, "float32")
        return (*buffers, compressed, (kv,), (gate,))

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the longer copy of the entries that a closing window makes."""
        entries = (run.tokens + 1) // self.rate
        return run.batch * entries * self.width * ELEMENT_BYTES[run.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressors:
    """The compressors of one layer; the layer holds each kind of tensor for all of them in turn."""

    each: tuple[Compressor, ...]

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return all tensors."""
        groups = [compressor.groups(run) for compressor in self.each]
        return tuple(
            tensor for kind in zip(*groups, strict=True) for group in kind for tensor in group
        )

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the largest copy."""
        return max(compressor.growth_peak_bytes(run) for compressor in self.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceWindow:
    """The whole prompt for ever, and a window of decoded positions (UnlimitedOCR).

    The decoded part is an ordinary sliding layer. A static cache allocates the window beside as
    much of the prompt as fits.
    """

    kv_heads: int
    width: int
    window: int

    def positions(self, run: Run) -> tuple[int, int, int]:
        """Return the decoded positions, what they are a view of, and those of the prompt."""
        if run.static_tokens is not None:
            window = min(self.window, run.static_tokens)
            return window, window, min(run.prompt_tokens, run.static_tokens - window)
        steps = run.decode_steps
        if self.window == 1:
            return steps, steps, run.prompt_tokens
        return min(steps, self.window - 1), min(steps, self.window), run.prompt_tokens

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the decoded positions' keys and values, then the prompt's."""
        decoded, stored, prompt = self.positions(run)
        found = []
        for name, role in (("keys", "key"), ("values", "value")):
            if decoded:
                shape = (run.batch, self.kv_heads, decoded, self.width)
                view = (run.batch, self.kv_heads, stored, self.width)
                found.append(held(name, role, shape, run.dtype, stored=view))
            else:
                found.append(held(name, role, (0,), run.dtype))
        shape = (run.batch, self.kv_heads, prompt, self.width)
        found += [
            held(f"prefill_{name}", role, shape, run.dtype)
            for name, role in (("keys", "key"), ("values", "value"))
        ]
        return tuple(found)

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the copies that concatenation makes of the decoded part, and for attention."""
        if run.static_tokens is not None:
            return 0
        decoded, _, prompt = self.positions(run)
        row = 2 * run.batch * self.kv_heads * self.width * ELEMENT_BYTES[run.dtype]
        return row * (2 * (decoded + 1) + prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStates:
    """One hidden state a position instead of keys and values, positions first (XLNet).

    `longest` bounds the positions that are kept, None for no bound.
    """

    name: str
    role: str
    width: int
    longest: int | None = None
    extra_tokens: int = 0

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the hidden states."""
        length = run.tokens + self.extra_tokens
        length = length if self.longest is None else min(length, self.longest)
        return (held(self.name, self.role, (length, run.batch, self.width), run.dtype),)

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the longer copy that concatenation makes."""
        return (run.tokens + 1) * run.batch * self.width * ELEMENT_BYTES[run.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReformerStates:
    """Reformer's cache: the hidden states of each layer, and hash buckets of its LSH layers.

    Layers that hash nothing append an empty tensor at every pass. An LSH layer hashes all positions
    once as many as a chunk are there; the buckets join an empty float tensor, so become float32.
    """

    lsh: tuple[bool, ...]
    heads: int
    hashes: int
    chunk: int
    width: int

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return buckets, then hidden states.

        Raises:
            Unsupported: for a prompt longer than a chunk, which is hashed chunk by chunk.

        """
        if run.prompt_tokens > self.chunk:
            raise Unsupported(
                "{field} is longer than an LSH chunk of {chunk}; what Reformer then caches is not "
                "modelled",
                field="prompt_tokens",
                chunk=self.chunk,
            )
        layers = len(self.lsh)
        if layers * (1 + run.decode_steps) > _MOST_BUCKETS:
            raise Unsupported(
                "{field}: Reformer appends an empty tensor a layer and pass; at most {high} are "
                "listed",
                field="decode_steps",
                high=_MOST_BUCKETS,
            )
        # Passes in which an LSH layer finds a cache and at least a chunk of positions.
        hashed = min(max(run.tokens - self.chunk + 1, 0), run.decode_steps)
        passes = 1 + run.decode_steps
        empties = layers * (passes - hashed) + (layers - sum(self.lsh)) * hashed
        shape = (run.batch, self.heads, self.hashes, run.tokens)
        found = []
        for index in range(empties):
            full = bool(hashed) and index < layers and self.lsh[index]
            name = f"buckets_cache[{index}]"
            found.append(held(name, "buckets_cache", shape if full else (0,), "float32"))
        states = (run.batch, run.tokens, self.width)
        return (
            *found,
            *(held(f"states_cache[{i}]", "states_cache", states, run.dtype) for i in range(layers)),
        )

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the longer copy of one layer's hidden states."""
        return (run.tokens + 1) * run.batch * self.width * ELEMENT_BYTES[run.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """States of all layers in one tensor, the layers last: [batch, width, layers] (RWKV)."""

    name: str
    role: str
    width: int
    layers: int
    dtype: str | None = None

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the tensor."""
        shape = (run.batch, self.width, self.layers)
        return (held(self.name, self.role, shape, self.dtype or run.dtype),)

    def growth_peak_bytes(self, run: Run) -> int:  # noqa: ARG002 - the same question to every part
        """Return 0: updated in place."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A position counter kept as a tensor: one 64-bit integer for the whole batch (xLSTM)."""

    name: str

    def held(self, run: Run) -> tuple[HeldTensor, ...]:  # noqa: ARG002 - as every part
        """Return the counter."""
        return (held(self.name, self.name, (1,), "int64"),)

    def growth_peak_bytes(self, run: Run) -> int:  # noqa: ARG002 - the same question to every part
        """Return 0."""
        return 0

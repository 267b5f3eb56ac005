"""The pools that SGLang really allocates, row by row.

Source: mem_cache/memory_pool.py of the releases named in `settings`; measured by running the
classes: tests/data/engine_runs.json. Every pool has one page more than its tokens, for writes that
nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engines.sglang.settings import FORMATS, ElementFormat

# One index key: 128 bytes of fp8 and one fp32 scale for each 128 of them.
INDEX_BLOCK = 128
INDEX_SCALE_BYTES = 4
# From here on keys and values of one shape are halves of one tensor of whole pages.
_JOINED_SINCE = (0, 5, 23)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One pool on one rank: `parts` are the bytes of its tensors, summed over layers, by name."""

    name: str
    layers: int
    tokens: int
    rows: int
    row_bytes: int
    parts: tuple[tuple[str, int], ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the pool."""
        return sum(size for _, size in self.parts)

    def part(self, name: str) -> int:
        """Return the bytes of one kind of tensor, 0 if the pool has none."""
        return dict(self.parts).get(name, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a pool stands: its name, its layers, its tokens, and the page it is cut into."""

    name: str
    layers: int
    tokens: int
    page: int

    @property
    def rows(self) -> int:
        """Return its rows: the tokens and the spare page."""
        return self.tokens + self.page


def latent_row_bytes(kind: str, latent: int, rope: int, *, sparse: bool, raw: bool) -> int:
    """Return the bytes of one token's compressed vector.

    A sparse model in fp8 keeps its latent with one fp32 scale for each 128 elements and its rope
    part in 16 bits (656 bytes for 512 + 64); the raw layouts keep one byte an element.
    """
    elements = FORMATS[kind]
    if sparse and kind.startswith("fp8") and not raw:
        return latent + latent // INDEX_BLOCK * INDEX_SCALE_BYTES + 2 * rope
    return elements.row_bytes(latent + rope)


def index_row_bytes(width: int) -> int:
    """Return the bytes of one token's index key with its scales (132 for 128)."""
    return width + width // INDEX_BLOCK * INDEX_SCALE_BYTES


def mha_pool(
    place: Place, *, heads: int, k_dim: int, v_dim: int, kind: str, version: tuple[int, ...]
) -> Pool:
    """Return the pool of keys and values by head."""
    elements = FORMATS[kind]
    layers, rows = place.layers, place.rows
    if version[:3] >= _JOINED_SINCE and k_dim == v_dim:
        rows = -(-rows // place.page) * place.page
    key, value = heads * k_dim, heads * v_dim
    parts = [
        ("K", layers * rows * elements.row_bytes(key)),
        ("V", layers * rows * elements.row_bytes(value)),
    ]
    if elements.scale_elements:
        parts += [
            ("K scales", layers * rows * elements.scale_bytes(key)),
            ("V scales", layers * rows * elements.scale_bytes(value)),
        ]
    return Pool(
        name=place.name,
        layers=layers,
        tokens=place.tokens,
        rows=rows,
        row_bytes=mha_row_bytes(elements, heads, k_dim, v_dim),
        parts=tuple(parts),
    )


def mha_row_bytes(elements: ElementFormat, heads: int, k_dim: int, v_dim: int) -> int:
    """Return the bytes of one token in one layer, its scales included."""
    return sum(
        elements.row_bytes(heads * width) + elements.scale_bytes(heads * width)
        for width in (k_dim, v_dim)
    )


def latent_pool(
    place: Place, *, latent: int, rope: int, kind: str, index_width: int = 0,
    index_layers: int = 0, raw: bool = False,
) -> Pool:  # fmt: skip
    """Return the pool of compressed vectors, with index keys where a model has them.

    Index keys lie in whole pages, counted with one token more than the rows.
    """
    elements = FORMATS[kind]
    layers, rows = place.layers, place.rows
    row = latent_row_bytes(kind, latent, rope, sparse=index_width > 0, raw=raw)
    parts = [("KV", layers * rows * row)]
    scale = 0
    if elements.scale_elements:
        scale = elements.scale_bytes(latent + rope)
        parts.append(("KV scales", layers * rows * scale))
    if index_width:
        tokens = (rows + 1) // place.page * place.page
        parts.append(("index", index_layers * tokens * index_row_bytes(index_width)))
    return Pool(
        name=place.name,
        layers=layers,
        tokens=place.tokens,
        rows=rows,
        row_bytes=row + scale,
        parts=tuple(parts),
    )


def state_pool(
    *, layers: int, slots: int, tail_elements: int, state_elements: int, state_kind: str,
    tail_kind: str = "bfloat16",
) -> Pool:  # fmt: skip
    """Return the pool of recurrent states: one slot more than there are, for the same reason."""
    tail = FORMATS[tail_kind].row_bytes(tail_elements)
    state = FORMATS[state_kind].row_bytes(state_elements)
    rows = slots + 1
    return Pool(
        name="mamba",
        layers=layers,
        tokens=slots,
        rows=rows,
        row_bytes=tail + state,
        parts=(("conv", layers * rows * tail), ("ssm", layers * rows * state)),
    )

"""The states of recurrent layers and of DeepSeek-V4's compressors: fp32 rows, whatever the context.

Source: src/llama-memory-recurrent.cpp and `llama_dsv4_comp_state` in src/llama-kv-cache-dsv4.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Unsupported
from app.engines.llama_cpp.settings import Settings
from app.engines.llama_cpp.versions import Era
from app.readers.gguf_families import Memory
from app.readers.gguf_geometry import CSA_RATIO, HCA_RATIO, CacheGeometry

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """One kind of state: `row_elements` fp32 numbers in each of `layers`, for every row."""

    name: str
    layers: tuple[int, ...]
    row_elements: int
    rows: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of this part."""
        return self.row_elements * _FP32_BYTES * self.rows * len(self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentMemory:
    """All states of constant size. `rows` is sequences × (1 + roll-back states)."""

    parts: tuple[StatePart, ...]
    rows: int
    sequences: int
    rollback_states: int
    printed_layers: int
    is_compressor: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all states."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def sequence_bytes(self) -> int:
        """Return the bytes of one sequence, its roll-back states included."""
        return self.size_bytes // self.sequences

    @property
    def rollback_bytes(self) -> int:
        """Return what the roll-back states take of it."""
        return self.size_bytes // self.rows * (self.rows - self.sequences)


def recurrent_of(geometry: CacheGeometry, settings: Settings, era: Era) -> RecurrentMemory | None:
    """Return the states of a context, or None for a model that keeps none.

    Roll-back states are kept only by architectures that can use them; for others the engine takes
    none, whatever was asked for. A drafting context keeps no states.

    Raises:
        Unsupported: for a hybrid in a version before hybrids.

    """
    if settings.drafts:
        return None
    states = settings.rollback_states if geometry.rolls_back else 0
    rows = settings.sequences * (1 + states)
    if geometry.memory is Memory.DSV4:
        parts = _compressors(geometry, rows)
    elif any(geometry.recurrent):
        if geometry.memory is Memory.HYBRID and not era.hybrids:
            raise Unsupported(
                "{field}: llama.cpp of {day} has no hybrid models (they came in July 2025)",
                field="version",
                day=era.day.isoformat(),
            )
        layers = tuple(layer for layer in range(geometry.trunk_layers) if geometry.recurrent[layer])
        parts = (
            StatePart(name="R", layers=layers, row_elements=geometry.state_row_r, rows=rows),
            StatePart(name="S", layers=layers, row_elements=geometry.state_row_s, rows=rows),
        )
    else:
        return None
    return RecurrentMemory(
        parts=parts,
        rows=rows,
        sequences=settings.sequences,
        rollback_states=states,
        printed_layers=geometry.layers,
        is_compressor=geometry.memory is Memory.DSV4,
    )


def _compressors(geometry: CacheGeometry, rows: int) -> tuple[StatePart, ...]:
    """Return the open groups of DeepSeek-V4: keys and scores of the tokens not yet compressed.

    The overlapping compressor (ratio 4) keeps two groups of rows of double width.
    """
    trunk = range(geometry.trunk_layers)
    csa = tuple(layer for layer in trunk if geometry.compress_ratios[layer] == CSA_RATIO)
    hca = tuple(layer for layer in trunk if geometry.compress_ratios[layer] == HCA_RATIO)
    width = geometry.k_dims[0]
    overlap = 2 * (2 * CSA_RATIO) * 2
    return (
        StatePart(name="CSA", layers=csa, row_elements=overlap * width, rows=rows),
        StatePart(name="HCA", layers=hca, row_elements=2 * HCA_RATIO * width, rows=rows),
        StatePart(name="indexer", layers=csa, row_elements=overlap * geometry.index_dim,
                  rows=rows),
    )  # fmt: skip

"""The answer: one frozen value that the page, the JSON and the command line print."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.domain.notes import Note
from app.engines.llama_cpp.caches import Cache
from app.engines.llama_cpp.placement import DeviceBytes
from app.engines.llama_cpp.recurrent import RecurrentMemory
from app.engines.request_cost import Overhead, RequestCost


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """One cache as allocated; `cells` are per stream, bytes are for all streams."""

    name: str
    layers: int
    cells: int
    streams: int
    k_type: str
    v_type: str | None
    k_bytes: int
    v_bytes: int
    bytes: int
    bytes_per_cell: int
    tokens_per_cell: int = 1
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentPlan:
    """The states of constant size, by part; `printed_layers` counts all layers, as the engine."""

    layers: int
    printed_layers: int
    rows: int
    parts: dict[str, int]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppPlan:
    """What is allocated and printed for one context.

    `largest_n_ctx` is the largest context that `available_bytes` holds (None when they were not
    given, or hold a context of any length). `devices` is empty where the split over devices is not
    known.
    """

    runner: str
    version: str
    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    kv_unified: bool
    n_batch: int
    n_ubatch: int
    caches: tuple[CachePlan, ...]
    recurrent: RecurrentPlan | None
    total_bytes: int
    printed: tuple[str, ...]
    needed_bytes: int | None
    overheads: tuple[Overhead, ...]
    request: RequestCost
    formula: tuple[str, ...]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]
    devices: tuple[DeviceBytes, ...] = field(default=())
    available_bytes: int | None = None
    largest_n_ctx: int | None = None

    @property
    def fits(self) -> bool | None:
        """Return whether it fits the memory given, or None when none was."""
        if self.available_bytes is None:
            return None
        return self.total_bytes <= self.available_bytes

    @property
    def bytes_by_device(self) -> dict[str, int]:
        """Return each device's bytes over all caches."""
        sums: dict[str, int] = {}
        for share in self.devices:
            sums[share.device] = sums.get(share.device, 0) + share.bytes
        return sums


def _rows_text(cache: Cache) -> str:
    """Return the rows of one position: per layer where all are alike, else their sum."""
    keys, values = set(cache.key_rows), set(cache.value_rows)
    key_bytes = cache.key_type.dtype.bytes_text
    value_bytes = cache.value_type.dtype.bytes_text
    if len(keys) <= 1 and len(values) <= 1:
        row = f"{max(keys, default=0)} × {key_bytes}"
        if values:
            row += f" + {max(values)} × {value_bytes}"
        return f"{len(cache.layers)} layers × ({row})"
    text = f"{sum(cache.key_rows)} × {key_bytes} + {sum(cache.value_rows)} × {value_bytes}"
    return f"({text}, the rows of {len(cache.layers)} layers)"


def cache_formula(
    caches: tuple[Cache, ...], memory: RecurrentMemory | None, total_bytes: int
) -> tuple[str, ...]:
    """Return one line of working for each cache, for the states, and the sum."""
    lines = []
    for cache in caches:
        streams = f" × {cache.streams} streams" if cache.streams > 1 else ""
        lines.append(
            f"{cache.name}: {_rows_text(cache)} × {cache.cells} cells{streams}"
            f" = {cache.size_bytes} B"
        )
    if memory is not None:
        lines += [
            f"{part.name} states: {len(part.layers)} layers × {part.row_elements} × 4 B"
            f" × {part.rows} rows = {part.size_bytes} B"
            for part in memory.parts
        ]
    if len(lines) != 1:
        lines.append(f"total = {total_bytes} B")
    return tuple(lines)

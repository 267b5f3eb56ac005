"""Which caches a context creates, which layers are in each, and how wide their rows are.

Source: `create_memory` in src/llama-model.cpp and the constructors of src/llama-kv-cache*.cpp.
Every layer of a cache has one tensor of keys and, unless the cache is of keys alone, one of values,
each of row × cells × streams elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.errors import Unsupported
from app.engines.llama_cpp.cells import Context, flash_is_off, padded, window_cells
from app.engines.llama_cpp.settings import F16, CacheType, Settings
from app.engines.llama_cpp.versions import Era, Indexers, LatentRows, WindowCells
from app.readers.gguf_families import Memory
from app.readers.gguf_geometry import CSA_RATIO, HCA_RATIO, CacheGeometry

_GLM_DSA = "glm-dsa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache: the rows of each of its layers, and its cells in each stream.

    `layers` are the model's layer numbers; `key_rows` and `value_rows` elements of one position
    (`value_rows` is empty in a cache of keys alone). `tokens_per_cell` is more than 1 where one
    cell stands for so many tokens. `window` is set where only the last tokens stay.
    `key_tensor_rows` are the rows of the key tensors where they are not whole positions.
    """

    name: str
    layers: tuple[int, ...]
    cells: int
    streams: int
    key_type: CacheType
    value_type: CacheType
    key_rows: tuple[int, ...]
    value_rows: tuple[int, ...]
    window: int | None = None
    tokens_per_cell: int = 1
    key_tensor_rows: tuple[int, ...] = ()

    @property
    def key_bytes_per_cell(self) -> int:
        """Return the bytes of one cell's keys in all layers of the cache."""
        return _rows_bytes(self.key_type, self.key_rows, "cache_type_k")

    @property
    def value_bytes_per_cell(self) -> int:
        """Return the bytes of one cell's values in all layers of the cache."""
        return _rows_bytes(self.value_type, self.value_rows, "cache_type_v")

    @property
    def key_bytes(self) -> int:
        """Return the bytes of all keys."""
        return self.key_bytes_per_cell * self.cells * self.streams

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""
        return self.value_bytes_per_cell * self.cells * self.streams

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole cache."""
        return self.key_bytes + self.value_bytes


def _rows_bytes(kind: CacheType, rows: tuple[int, ...], field: str) -> int:
    """Return the bytes of these rows; most layers have the same."""
    return sum(
        kind.dtype.bytes_for(row, field=field) * count for row, count in Counter(rows).items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """All that the caches of one context have in common."""

    geometry: CacheGeometry
    settings: Settings
    era: Era
    context: Context

    @property
    def widest_value(self) -> int:
        """Return the widest value row of any layer, which every layer gets without flash attention.

        A transposed cache addresses values by column, so all layers share one row length.
        """
        geometry = self.geometry
        return max(geometry.value_row(layer) for layer in range(geometry.layers))

    @property
    def widens(self) -> bool:
        return self.era.widens_values and flash_is_off(self.settings, self.era)

    def cache(self, name: str, layers: Sequence[int], *, cells: int | None = None,
              keys_alone: bool = False, window: int | None = None,
              f16: bool = False) -> Cache:  # fmt: skip
        """Return a cache of the model's own rows over these layers."""
        geometry = self.geometry
        value_rows: tuple[int, ...] = ()
        if not keys_alone:
            value_rows = tuple(geometry.value_row(layer) for layer in layers)
            if self.widens:
                value_rows = (self.widest_value,) * len(value_rows)
        return Cache(
            name=name,
            layers=tuple(layers),
            cells=self.context.cells if cells is None else cells,
            streams=self.context.streams,
            key_type=F16 if f16 else self.settings.key_type,
            value_type=F16 if f16 else self.settings.value_type,
            key_rows=tuple(geometry.key_row(layer) for layer in layers),
            value_rows=value_rows,
            window=window,
        )

    def index_cache(self, name: str, layers: Sequence[int], *, values: bool) -> Cache:
        """Return the cache of index keys: one head of its own width, the model's value width."""
        geometry = self.geometry
        widest = max(geometry.v_dims)
        value_rows = tuple(widest if self.widens else geometry.v_dims[layer] for layer in layers)
        return Cache(
            name=name,
            layers=tuple(layers),
            cells=self.context.cells,
            streams=self.context.streams,
            key_type=self.settings.key_type,
            value_type=self.settings.value_type,
            key_rows=(geometry.index_dim,) * len(layers),
            value_rows=value_rows if values else (),
        )


def caches_of(
    geometry: CacheGeometry, settings: Settings, era: Era, context: Context
) -> tuple[Cache, ...]:
    """Return the attention caches of a context, in the order in which the engine creates them.

    Raises:
        Unsupported: for a model that this version cannot load, or a row that its type cannot hold.

    """
    build = _Build(geometry=geometry, settings=settings, era=era, context=context)
    if geometry.latent and geometry.memory is not Memory.DSV4:
        _check_latent(geometry, era)
    layers = _context_layers(geometry, drafts=settings.drafts)
    if not layers:
        return ()
    if geometry.memory is Memory.DSV4 and not settings.drafts:
        return _dsv4(build, layers)
    keys_alone = geometry.latent and (
        era.latent_rows is LatentRows.KEY_ONLY and geometry.memory is not Memory.DSV4
    )
    caches = _plain_or_windowed(build, layers, keys_alone=keys_alone)
    if settings.drafts:
        return caches
    if geometry.memory is Memory.DSA and (owners := _index_layers(geometry, era)):
        index = build.index_cache("indexer", owners, values=not keys_alone)
        return (caches[0], index, *caches[1:])
    if geometry.memory is Memory.MSA:
        owners = [layer for layer in layers if geometry.index_layers[layer]]
        return (
            *caches,
            build.index_cache("indexer", owners, values=geometry.index_values),
        )
    return caches


def _check_latent(geometry: CacheGeometry, era: Era) -> None:
    if era.latent_rows is LatentRows.REFUSED:
        raise Unsupported(
            "{field}: llama.cpp of {day} cannot load {architecture} with compressed attention keys"
            " (it can since 2025-04-15)",
            field="version",
            day=era.day.isoformat(),
            architecture=geometry.architecture,
        )


def _context_layers(geometry: CacheGeometry, *, drafts: bool) -> list[int]:
    """Return the layers with attention that own a cache in the main or in the drafting context."""
    trunk = geometry.trunk_layers
    numbers = range(trunk, geometry.layers) if drafts else range(trunk)
    if drafts and not numbers:
        raise Unsupported(
            "{field} mtp needs drafting layers, and this model has none",
            field="context_type",
        )
    return [
        layer
        for layer in numbers
        if geometry.owned[layer] and (drafts or geometry.attention[layer])
    ]


def _index_layers(geometry: CacheGeometry, era: Era) -> list[int]:
    """Return the layers that get an index cache in this version."""
    owners = [layer for layer in range(geometry.trunk_layers) if geometry.index_layers[layer]]
    if geometry.architecture != _GLM_DSA or not owners:
        return owners
    if era.indexers is Indexers.NONE:
        return []
    if era.indexers is Indexers.EVERY_LAYER:
        return list(range(geometry.trunk_layers))
    return owners


def _plain_or_windowed(
    build: _Build, layers: Sequence[int], *, keys_alone: bool
) -> tuple[Cache, ...]:
    """Return one cache of full length, and a short one for the windowed layers if there are any."""
    geometry, era = build.geometry, build.era
    if not geometry.window or era.window_cells is WindowCells.FULL_LENGTH:
        return (build.cache("kv", layers, keys_alone=keys_alone),)
    full = [layer for layer in layers if not geometry.windowed[layer]]
    short = [layer for layer in layers if geometry.windowed[layer]]
    cells = window_cells(
        build.settings,
        era,
        build.context,
        geometry.window,
        shared_stream=build.context.unified,
    )
    f16 = era.windows_stay_f16
    return (
        build.cache("non-SWA", full, keys_alone=keys_alone),
        build.cache("SWA", short, cells=cells, keys_alone=keys_alone, window=geometry.window,
                    f16=f16),
    )  # fmt: skip


def _dsv4(build: _Build, layers: Sequence[int]) -> tuple[Cache, ...]:
    """Return the caches of DeepSeek-V4: raw windows, two compressed caches, index keys.

    All are of keys alone, and each sequence has a stream of its own even in a unified context
    (src/llama-kv-cache-dsv4.cpp). The growing part of the raw cache has no layers.
    """
    geometry, settings, era = build.geometry, build.settings, build.era
    context = build.context
    streams = context.sequences

    def own(name: str, numbers: Sequence[int], cells: int, row: int | None, tokens: int,
            window: int | None = None) -> Cache:  # fmt: skip
        rows = tuple(geometry.key_row(layer) if row is None else row for layer in numbers)
        return Cache(
            name=name, layers=tuple(numbers), cells=cells, streams=streams,
            key_type=settings.key_type, value_type=settings.value_type, key_rows=rows,
            value_rows=(), tokens_per_cell=tokens, window=window,
        )  # fmt: skip

    cells = window_cells(settings, era, context, geometry.window, shared_stream=False)
    csa = [layer for layer in layers if geometry.compress_ratios[layer] == CSA_RATIO]
    hca = [layer for layer in layers if geometry.compress_ratios[layer] == HCA_RATIO]
    csa_cells = padded(-(-context.cells // CSA_RATIO), 256)
    hca_cells = padded(-(-context.cells // HCA_RATIO), 256)
    return (
        own("raw non-SWA", (), context.cells, None, 1),
        own("raw SWA", layers, cells, None, 1, geometry.window),
        own("CSA", csa, csa_cells, None, CSA_RATIO),
        own("HCA", hca, hca_cells, None, HCA_RATIO),
        own("indexer", csa, csa_cells, geometry.index_dim, CSA_RATIO),
    )

"""ik_llama.cpp, the fork: one shared cache, three ways to cache compressed attention (`-mla`).

Measured: the size lines of tests/data/engine_logs.json. The fork never shortens windowed layers and
has neither streams nor a padding after the division. With `-mla 1` and no flash attention it keeps
the latent twice: as it is (`c^KV`) and transposed (`kv^T`); `-mla 2`, `-mla 3` and flash attention
need it once; `-mla 0` caches every head.
"""

from __future__ import annotations

from datetime import date

from app.domain.errors import Missing, Unsupported
from app.engines.llama_cpp.caches import Cache
from app.engines.llama_cpp.cells import Context, flash_is_off
from app.engines.llama_cpp.settings import Settings
from app.engines.llama_cpp.versions import Era, era_of
from app.readers.gguf_families import Memory
from app.readers.gguf_geometry import CacheGeometry

# The fork left the main line in June 2024 and kept its padding.
FORK_ERA: Era = era_of(date(2024, 6, 1))


def fork_caches(geometry: CacheGeometry, settings: Settings, context: Context) -> tuple[Cache, ...]:
    """Return the one cache of the fork.

    Raises:
        Missing: without `mla` for a model of compressed attention.
        Unsupported: for memories of the fork that were not measured.

    """
    if geometry.memory is not Memory.ATTENTION:
        raise Unsupported(
            "{field} ik_llama.cpp: its memory for {architecture} was not measured",
            field="runner",
            architecture=geometry.architecture,
        )
    layers = tuple(layer for layer in range(geometry.trunk_layers) if geometry.owned[layer])
    latent = geometry.latent_dim > 0 and (geometry.latent or settings.mla is not None)
    if latent and settings.mla is None:
        raise Missing(
            "{field} is needed: the fork caches this model in one of three ways",
            field="mla",
        )
    if latent and settings.mla:
        return (_latent(geometry, settings, context, layers),)
    if geometry.latent:
        raise Unsupported(
            "{field} 0 caches heads, which a file made for compressed attention does not list",
            field="mla",
        )
    return (
        Cache(
            name="kv",
            layers=layers,
            cells=context.cells,
            streams=1,
            key_type=settings.key_type,
            value_type=settings.value_type,
            key_rows=tuple(geometry.key_row(layer) for layer in layers),
            value_rows=tuple(geometry.value_row(layer) for layer in layers),
            # One row a head: this is what the CUDA buffer pads (see `placement`).
            key_tensor_rows=tuple(geometry.k_dims[layer] for layer in layers),
        ),
    )


def _latent(
    geometry: CacheGeometry,
    settings: Settings,
    context: Context,
    layers: tuple[int, ...],
) -> Cache:
    row = geometry.latent_dim + geometry.rope_dim
    twice = settings.mla == 1 and flash_is_off(settings, FORK_ERA)
    return Cache(
        name="c^KV",
        layers=layers,
        cells=context.cells,
        streams=1,
        key_type=settings.key_type,
        value_type=settings.value_type,
        key_rows=(row,) * len(layers),
        value_rows=(geometry.latent_dim,) * len(layers) if twice else (),
    )

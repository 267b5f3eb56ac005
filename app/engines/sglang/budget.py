"""From memory to tokens: what is left for the pools, and how many tokens of each kind it holds.

Source: `profile_max_num_token` in model_runner.py (to 0.5.6), model_runner_kv_cache_mixin.py
(0.5.7 to 0.5.14), kv_cache_configurator.py and pool_configurator.py (from 0.5.15). The engine
computes in GiB as 64-bit floats, so this does too.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Missing, OutOfRange
from app.engines.sglang.model import Heads, RankModel
from app.engines.sglang.pools import index_row_bytes, latent_row_bytes, mha_row_bytes
from app.engines.sglang.settings import FORMATS, Settings

_GIB = 2**30
# Values of their own width count since this release; before, every head counted twice its keys.
_OWN_VALUE_WIDTH_SINCE = (0, 5, 7)
# PR #11309 put the index keys of sparse models into the budget and the log.
INDEX_COUNTED_SINCE = (0, 5, 4)
_OWNED_INDEX_SINCE = (0, 5, 23)
_DRAFT_COUNTED_SINCE = (0, 5, 10)
_WINDOW_POOL_SINCE = (0, 4, 9)
_WINDOW_CELLS_SINCE = (0, 5, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of one rank's pools; `windowed` is None without a pool of its own for windows."""

    full: int
    windowed: int | None
    state_slots: int | None
    cell_bytes: int
    budget_bytes: int | None


def index_layers_of(model: RankModel, settings: Settings) -> int:
    """Return the layers with index keys: those that own an indexer, before 0.5.23 all of them."""
    latent = model.latent
    if latent is None or not latent.index_dim:
        return 0
    return latent.index_layers if settings.version[:3] >= _OWNED_INDEX_SINCE else latent.layers


def own_windows(model: RankModel, settings: Settings) -> Heads | None:
    """Return the windowed layers that get a pool of their own, None where they get none."""
    if settings.one_pool:
        return None
    if model.chunked and settings.version[:3] < _WINDOW_CELLS_SINCE:
        return model.windowed if settings.chunk_ratio is not None else None
    return model.windowed if settings.version[:3] >= _WINDOW_POOL_SINCE else None


def _heads_bytes(heads: Heads, kind: str, settings: Settings) -> int:
    """Return the bytes that the budget takes for one token in one of these layers."""
    own_width = settings.version[:3] >= _OWN_VALUE_WIDTH_SINCE
    v_dim = heads.v_dim if own_width else heads.k_dim
    return mha_row_bytes(
        FORMATS[kind], heads.rank_heads(settings.attention_ranks), heads.k_dim, v_dim
    )


def cell_bytes(model: RankModel, kind: str, settings: Settings) -> int:
    """Return the bytes of one token in all layers of the rank, as the budget counts them."""
    total = 0
    for heads in (model.full, model.windowed):
        if heads is not None:
            total += heads.layers * _heads_bytes(heads, kind, settings)
    latent = model.latent
    if latent is not None:
        row = latent_row_bytes(
            kind, latent.latent_dim, latent.rope_dim, sparse=latent.index_dim > 0,
            raw=settings.raw_latent,
        )  # fmt: skip
        scales = FORMATS[kind].scale_bytes(latent.latent_dim + latent.rope_dim)
        total += latent.layers * (row + scales)
        if settings.version[:3] >= INDEX_COUNTED_SINCE:
            total += index_layers_of(model, settings) * index_row_bytes(latent.index_dim)
    return total + _draft_bytes(model, kind, settings)


def _draft_bytes(model: RankModel, kind: str, settings: Settings) -> int:
    """Return the bytes of one token in the draft's layers, where the budget counts them."""
    heads = model.full or model.windowed
    if settings.version[:3] < _DRAFT_COUNTED_SINCE or heads is None:
        return 0
    return settings.draft_layers * _heads_bytes(heads, kind, settings)


def rest_gib(settings: Settings, available_bytes: int | None) -> float | None:
    """Return what is left for the pools in GiB: given, or by the share of what was free before.

    The share is of the memory free before the weights were loaded, not of the card.

    Raises:
        Missing: when the memory free before and after is given without a share.
        OutOfRange: when nothing is left.

    """
    if settings.free_before_gib is None or settings.free_after_gib is None:
        return None if available_bytes is None else available_bytes / _GIB
    if settings.static_fraction is None:
        raise Missing(
            "{field} is needed: this release derives its default from batch sizes and the card",
            field="mem_fraction_static",
        )
    rest = settings.free_after_gib - settings.free_before_gib * (1 - settings.static_fraction)
    if rest <= 0:
        raise OutOfRange(
            "{field} leaves nothing for the pools: {after} GiB after the load, of which {kept} GiB"
            " must stay free",
            field="mem_fraction_static",
            after=settings.free_after_gib,
            kept=round(settings.free_before_gib * (1 - settings.static_fraction), 2),
        )
    return rest


def tokens_of(
    model: RankModel, kind: str, settings: Settings, rest: float | None, *, page: int,
    state_bytes: int, context_tokens: int | None,
) -> Tokens:  # fmt: skip
    """Return the tokens that one rank's memory holds.

    Raises:
        Missing: when neither memory nor a number of tokens is given.

    """
    cell = cell_bytes(model, kind, settings)
    slots = settings.state_slots
    budget = None if rest is None else int(rest * _GIB)
    if model.states is not None:
        if slots is None and rest is not None:
            share = rest * settings.state_ratio / (1 + settings.state_ratio)
            slots = int((share * _GIB) // state_bytes)
        if slots is None:
            raise Missing("{field} is needed: no memory is given to derive it from",
                          field="max_mamba_cache_size")  # fmt: skip
        if rest is not None:
            rest = max(rest - slots * state_bytes / _GIB, 0.0)
    if rest is None and settings.most_tokens is None:
        raise Missing("{field} is needed: no memory is given to derive it from",
                      field="max_total_tokens")  # fmt: skip
    if cell == 0:
        return Tokens(full=settings.most_tokens or 0, windowed=None, state_slots=slots,
                      cell_bytes=0, budget_bytes=budget)  # fmt: skip
    most = settings.most_tokens
    windows = own_windows(model, settings)
    if windows is not None and settings.version[:3] >= _WINDOW_CELLS_SINCE:
        full, windowed = _by_cells(model, windows, kind, settings, rest, page)
    else:
        fitting = most if rest is None else int(rest * _GIB) // cell
        full = min(fitting or 0, most or fitting or 0) // page * page
        windowed = None
        if windows is not None:
            full, windowed = _by_ratio(model, windows, settings, full, page, context_tokens)
    return Tokens(full=full, windowed=windowed, state_slots=slots, cell_bytes=cell,
                  budget_bytes=budget)  # fmt: skip


def _by_cells(
    model: RankModel, windowed: Heads, kind: str, settings: Settings, rest: float | None, page: int
) -> tuple[int, int]:
    """Return full and windowed tokens by the bytes of a token in each kind (from 0.5.15)."""
    short = windowed.layers * _heads_bytes(windowed, kind, settings)
    ratio = settings.window_ratio if model.full is not None else 1.0
    long = 0
    if model.full is not None:
        long = model.full.layers * _heads_bytes(model.full, kind, settings)
    cell = long + ratio * short + _draft_bytes(model, kind, settings)
    fitting = settings.most_tokens or 0
    if rest is not None:
        fitting = int(rest * _GIB // cell)
        fitting = min(fitting, settings.most_tokens or fitting)
    full = fitting // page * page
    return full, int(full * ratio) // page * page


def _by_ratio(
    model: RankModel, windowed: Heads, settings: Settings, tokens: int, page: int,
    context_tokens: int | None,
) -> tuple[int, int]:  # fmt: skip
    """Return full and windowed tokens divided out of a count that took every layer for full."""
    if model.chunked and settings.chunk_ratio is not None:
        if context_tokens is None:
            raise Missing("{field} is needed to divide the tokens of chunked layers",
                          field="context_length")  # fmt: skip
        chunk = windowed.window or context_tokens
        share = (1 - settings.chunk_ratio) + settings.chunk_ratio * chunk / context_tokens
        short = 4 * tokens * share // (3 * share + 1)
        long = 4 * tokens - 12 * tokens * share // (3 * share + 1)
        return int(long // page * page), int(short // page * page)
    full_layers = model.full.layers if model.full is not None else 0
    layers = full_layers + windowed.layers
    full = int(tokens * layers / (settings.window_ratio * windowed.layers + full_layers))
    return full, int(full * settings.window_ratio)

"""The plan of an SGLang server: tokens, pools, what is printed, what goes beyond the need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Missing
from app.domain.notes import Note
from app.domain.state import ModelState
from app.engines.head_split import check_heads, language_model_of
from app.engines.request_cost import GrowingPart, Overhead, RequestCost
from app.engines.sglang.budget import (
    INDEX_COUNTED_SINCE,
    Tokens,
    index_layers_of,
    own_windows,
    rest_gib,
    tokens_of,
)
from app.engines.sglang.model import Heads, RankModel, stages_of
from app.engines.sglang.pools import Place, Pool, latent_pool, mha_pool, state_pool
from app.engines.sglang.settings import FORMATS, Settings, format_named, read_settings

MAX_AVAILABLE_BYTES = 2**53
_GIB = 2**30
_DSA_PAGE_TOKENS = 64
_TOKENS_PRINTED_SINCE = (0, 4, 4)
_DTYPE_PRINTED_SINCE = (0, 5, 15)
_NOT_COUNTED = (
    Note("weights", "the model's weights"),
    Note("req_to_token", "the table of token slots: requests × context × 4 B"),
    Note("activations", "activations, CUDA graphs and communication buffers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One pool of one rank: rows (its tokens and the spare page), and bytes by tensor kind."""

    name: str
    layers: int
    tokens: int
    rows: int
    row_bytes: int
    parts: dict[str, int]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangPlan:
    """What the smallest rank holds. `context_tokens` is None when no context is known."""

    version: str
    tokens: int
    window_tokens: int | None
    state_slots: int | None
    page_size: int
    cell_bytes: int
    budget_bytes: int | None
    pools: tuple[PoolPlan, ...]
    pool_bytes: int
    context_tokens: int | None
    printed: tuple[str, ...]
    overheads: tuple[Overhead, ...]
    request: RequestCost
    formula: tuple[str, ...]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...] = _NOT_COUNTED

    @property
    def max_concurrency(self) -> str | None:
        """Return how many requests of the full context fit, to two decimals."""
        if not self.context_tokens:
            return None
        return f"{self.tokens / self.context_tokens:.2f}"


def plan(
    kv: Mapping[str, object] | None,
    state: ModelState | None,
    config: Mapping[str, object] | None,
    settings: Mapping[str, object],
    available_bytes: int | None = None,
) -> SglangPlan:
    """Return what SGLang allocates on its smallest rank.

    `available_bytes` is the memory left to the pools (after weights and what must stay free). Of
    `config` the context length, the dtype and the query heads are taken; `kv` is not looked at.

    Raises:
        Missing, WrongType, OutOfRange, Unknown, Conflict, Unsupported: naming the setting.

    """
    del kv
    checked = read_settings(settings)
    if available_bytes is not None:
        checked_int(available_bytes, "available_bytes", low=0, high=MAX_AVAILABLE_BYTES)
    if state is None:
        raise Missing("{field} is needed: the layers of the model", field="model")
    check_heads(config, state, checked.attention_ranks, field="tp_size")
    notes: list[Note] = []
    kind = _kv_kind(checked, config, notes)
    context = checked.context_tokens or _context(config)
    rest = rest_gib(checked, available_bytes)
    stages = stages_of(state, checked.pipeline_ranks, checked.attention_ranks)
    page = checked.page_tokens or _default_page(stages)
    found = [
        (
            tokens_of(
                model, kind, checked, rest, page=page, state_bytes=_slot_bytes(model, checked),
                context_tokens=context,
            ),
            model,
        )
        for model in stages
    ]  # fmt: skip
    tokens, model = min(found, key=lambda pair: pair[0].full)
    pools = _pools(model, kind, checked, tokens, page)
    notes += _assumptions(model, checked, rest)
    return SglangPlan(
        version=checked.version_text,
        tokens=tokens.full,
        window_tokens=tokens.windowed,
        state_slots=tokens.state_slots,
        page_size=page,
        cell_bytes=tokens.cell_bytes,
        budget_bytes=tokens.budget_bytes,
        pools=tuple(_pool_plan(pool) for pool in pools),
        pool_bytes=sum(pool.size_bytes for pool in pools),
        context_tokens=context,
        printed=tuple(_lines(pools, kind, checked, tokens)),
        overheads=_overheads(model, checked, pools, page),
        request=_request(model, checked, pools, page),
        formula=_formula(pools),
        assumptions=tuple(notes),
    )


def _context(config: Mapping[str, object] | None) -> int | None:
    for part in (config, language_model_of(config or {})):
        if part is not None:
            value = part.get("max_position_embeddings")
            if type(value) is int and value > 0:
                return value
    return None


def _kv_kind(settings: Settings, config: Mapping[str, object] | None, notes: list[Note]) -> str:
    """Return the format of the pools: as set, or the model's own."""
    if settings.kv_format is not None:
        return settings.kv_format
    if settings.model_format is not None:
        return settings.model_format
    for part in (config, language_model_of(config or {})):
        if part is not None:
            name = part.get("dtype") or part.get("torch_dtype")
            if isinstance(name, str):
                return format_named(name, "dtype")
    notes.append(Note("dtype_default", "bfloat16, as the config names no dtype"))
    return "bfloat16"


def _default_page(stages: list[RankModel]) -> int:
    """Return the page that the engine takes: 64 for sparse latent models, else one token."""
    sparse = any(model.latent is not None and model.latent.index_dim for model in stages)
    return _DSA_PAGE_TOKENS if sparse else 1


def _slot_bytes(model: RankModel, settings: Settings) -> int:
    if model.states is None:
        return 0
    states = model.states
    tail = FORMATS["bfloat16"].row_bytes(states.tail_elements)
    whole = FORMATS[settings.state_format].row_bytes(states.state_elements)
    return states.layers * (tail + whole)


def _pools(
    model: RankModel, kind: str, settings: Settings, tokens: Tokens, page: int
) -> list[Pool]:
    """Return the pools in the order of their lines: windows first, states before attention."""
    pools = []
    if model.states is not None:
        pools.append(
            state_pool(
                layers=model.states.layers,
                slots=tokens.state_slots or 0,
                tail_elements=model.states.tail_elements,
                state_elements=model.states.state_elements,
                state_kind=settings.state_format,
            )
        )

    def heads_pool(name: str, heads: Heads, count: int, layers: int) -> Pool:
        return mha_pool(
            Place(name=name, layers=layers, tokens=count, page=page),
            heads=heads.rank_heads(settings.attention_ranks),
            k_dim=heads.k_dim,
            v_dim=heads.v_dim,
            kind=kind,
            version=settings.version,
        )

    windowed, full = model.windowed, model.full
    if windowed is not None and tokens.windowed is None and _alike(full, windowed):
        layers = windowed.layers + (0 if full is None else full.layers)
        pools.append(heads_pool("full", windowed, tokens.full, layers))
        windowed = full = None
    if windowed is not None:
        count = tokens.full if tokens.windowed is None else tokens.windowed
        pools.append(heads_pool("window", windowed, count, windowed.layers))
    if full is not None:
        pools.append(heads_pool("full", full, tokens.full, full.layers))
    if model.latent is not None:
        pools.append(
            latent_pool(
                Place(name="latent", layers=model.latent.layers, tokens=tokens.full, page=page),
                latent=model.latent.latent_dim,
                rope=model.latent.rope_dim,
                kind=kind,
                index_width=model.latent.index_dim,
                index_layers=index_layers_of(model, settings),
                raw=settings.raw_latent,
            )
        )
    draft = model.full or model.windowed
    if settings.draft_layers and draft is not None:
        pools.append(heads_pool("draft", draft, tokens.full, settings.draft_layers))
    return pools


def _alike(full: Heads | None, windowed: Heads) -> bool:
    """Return whether windowed layers can lie in the pool of the full ones."""
    shape = (windowed.kv_heads, windowed.k_dim, windowed.v_dim)
    return full is None or (full.kv_heads, full.k_dim, full.v_dim) == shape


def _pool_plan(pool: Pool) -> PoolPlan:
    return PoolPlan(
        name=pool.name,
        layers=pool.layers,
        tokens=pool.tokens,
        rows=pool.rows,
        row_bytes=pool.row_bytes,
        parts=dict(pool.parts),
        bytes=pool.size_bytes,
    )


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f}"


def _lines(pools: list[Pool], kind: str, settings: Settings, tokens: Tokens) -> list[str]:
    """Return the lines as this release prints them; "GB" there is GiB."""
    lines = []
    if tokens.windowed is not None:
        word = "Sliding" if settings.version[:3] < _DTYPE_PRINTED_SINCE else "sliding"
        lines.append(
            f"Use {word} window memory pool. full_layer_tokens={tokens.full},"
            f" swa_layer_tokens={tokens.windowed}"
        )
    for pool in pools:
        if pool.name == "mamba":
            lines.append(
                f"Mamba Cache is allocated. max_mamba_cache_size: {pool.tokens},"
                f" conv_state size: {_gb(pool.part('conv'))}GB,"
                f" ssm_state size: {_gb(pool.part('ssm'))}GB"
            )
            continue
        head = "KV Cache is allocated."
        if settings.version[:3] >= _DTYPE_PRINTED_SINCE:
            head += f" dtype: {FORMATS[kind].printed},"
        if settings.version[:3] >= _TOKENS_PRINTED_SINCE:
            head += f" #tokens: {pool.tokens},"
        if pool.name == "latent":
            size = pool.size_bytes
            if settings.version[:3] < INDEX_COUNTED_SINCE:
                size -= pool.part("index")
            lines.append(f"{head} KV size: {_gb(size)} GB")
            continue
        key = pool.part("K") + pool.part("K scales")
        value = pool.part("V") + pool.part("V scales")
        lines.append(f"{head} K size: {_gb(key)} GB, V size: {_gb(value)} GB")
    return lines


def _overheads(
    model: RankModel, settings: Settings, pools: list[Pool], page: int
) -> tuple[Overhead, ...]:
    """Return what the pools spend beyond tokens × rows of the model, on this rank."""
    spare = copies = index = 0
    for pool in pools:
        spare += pool.size_bytes - pool.tokens * _token_bytes(pool, page)
        index += pool.part("index")
        copies += _copied(model, settings, pool)
    parts = (
        Overhead(code="spare_page", bytes=spare,
                 text=f"one page of {page} more than the tokens, and one spare state slot"),
        Overhead(code="copied_heads", bytes=copies,
                 text="heads that other tensor ranks hold too: fewer heads than ranks, or one"
                      " latent that every rank keeps whole"),
        Overhead(code="index_keys", bytes=index,
                 text="index keys of the sparse attention, with their scales"),
    )  # fmt: skip
    return tuple(part for part in parts if part.bytes)


def _token_bytes(pool: Pool, page: int) -> int:
    """Return the bytes of one token (or slot) in all layers of a pool, its index keys included."""
    size = pool.row_bytes * pool.layers
    if pool.part("index"):
        size += pool.part("index") // ((pool.rows + 1) // page * page)
    return size


def _copied(model: RankModel, settings: Settings, pool: Pool) -> int:
    """Return the bytes of a pool that a perfect division among the tensor ranks would not need."""
    ranks = settings.attention_ranks
    if pool.name == "latent":
        return pool.size_bytes - pool.size_bytes // ranks
    heads = {"window": model.windowed, "mamba": None}.get(pool.name, model.full or model.windowed)
    if heads is None or heads.kv_heads >= ranks:
        return 0
    return pool.size_bytes - pool.size_bytes * heads.kv_heads // ranks


def _request(model: RankModel, settings: Settings, pools: list[Pool], page: int) -> RequestCost:
    """Return what one request takes of the pools: whole pages, a state slot, a window at most."""
    fixed = _slot_bytes(model, settings)
    windows = own_windows(model, settings)
    parts = []
    for pool in pools:
        if pool.name == "mamba":
            continue
        most = None
        if pool.name == "window" and windows is not None and windows.window is not None:
            most = -(-windows.window // page) * page
        parts.append(
            GrowingPart(
                name=pool.name,
                bytes_per_entry=_token_bytes(pool, page),
                unit_entries=page,
                most_entries=most,
            )
        )
    return RequestCost(fixed_bytes=fixed, parts=tuple(parts))


def _assumptions(model: RankModel, settings: Settings, rest: float | None) -> list[Note]:
    notes = []
    if rest is not None and settings.free_before_gib is None:
        notes.append(Note("budget_given", "the memory given is taken as what the pools may use;"
                          " mem_fraction_static does not enter"))  # fmt: skip
    if own_windows(model, settings) is not None:
        notes.append(
            Note(
                "window_pool",
                "windowed layers get a pool of their own, {ratio} as many tokens as the full ones",
                {"ratio": settings.window_ratio},
            )
        )
    if settings.draft_layers:
        notes.append(Note("draft_shape", "the draft's layers are taken to be as wide as the"
                          " model's attention layers"))  # fmt: skip
    return notes


def _formula(pools: list[Pool]) -> tuple[str, ...]:
    lines = []
    for pool in pools:
        unit = "slots" if pool.name == "mamba" else "rows"
        text = f"{pool.layers} layers × {pool.rows} {unit} × {pool.row_bytes} B"
        if pool.part("index"):
            text += f" + {pool.part('index')} B of index keys"
        lines.append(f"{pool.name}: {text} = {pool.size_bytes} B")
    if len(pools) != 1:
        lines.append(f"total = {sum(pool.size_bytes for pool in pools)} B")
    return tuple(lines)

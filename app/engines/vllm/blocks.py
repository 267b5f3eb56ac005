"""Tokens to a block: what backends ask for, and how hybrids grow it until a state fits a page.

vLLM 0.33.0 platforms/interface.py `update_block_size_for_backend`, the backends' supported sizes
and platforms/cuda.py's order of backends; until 0.17 platforms/cuda.py forced sizes for latents.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from app.domain.errors import OutOfRange, Unsupported
from app.domain.notes import Note
from app.domain.state import FullAttention, LatentAttention, Recurrent, SlidingWindow, State
from app.engines.vllm import deepseek_v4
from app.engines.vllm.families import FP8_ON_BLACKWELL, PLAIN_LATENT
from app.engines.vllm.heads import kv_heads_per_rank
from app.engines.vllm.kv_formats import PACKED_LATENT_BYTES, format_named
from app.engines.vllm.model_view import ModelView
from app.engines.vllm.recurrent import block_grid, mamba_spec
from app.engines.vllm.settings import (
    ASSUMED_CAPABILITY,
    BLACKWELL,
    BLACKWELL_RTX,
    HOPPER,
    VllmSettings,
)
from app.engines.vllm.specs import FullSpec, MlaSpec, ceil_div, round_up

DEFAULT_BLOCK_SIZE = 16
_WIDE_HEAD = 512
_NATIVE_FP8 = 89
_FLASHINFER_BLOCKS = (64, 32, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGrowth:
    """Why a hybrid's block is as long as it is: one page of attention must hold the largest state.

    `multiple` tokens are the step; `token_bytes` is a token in one attention layer on this rank.
    """

    multiple: int
    state_bytes: int
    token_bytes: int
    block_size: int

    @property
    def formula(self) -> str:
        """The expression with its numbers in it."""
        step = f"{self.multiple} × {self.token_bytes} B"
        grown = self.multiple * ceil_div(self.state_bytes, self.multiple * self.token_bytes)
        tail = "" if grown == self.block_size else f", rounded up to {self.block_size}"
        return f"{self.multiple} × ⌈{self.state_bytes} B / ({step})⌉ = {grown} tokens{tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChoice:
    """The block sizes of one model, and the page that its states are padded to.

    `format_name` is the cache format after the backends had their say; `skips_boundaries` that the
    first and last layers stay in the model's own type.
    """

    block_size: int
    window_block_size: int
    state_block_size: int
    state_page_bytes: int | None
    mamba_mode: str
    growth: BlockGrowth | None = None
    format_name: str
    skips_boundaries: bool = False
    extra_retained_tokens: int = 0
    assumptions: tuple[Note, ...] = ()


def choose_blocks(
    view: ModelView,
    settings: VllmSettings,
    format_name: str,
    dtype: str,
    max_model_len: int,
    *,
    compressed: bool,
) -> BlockChoice:
    """Return the block sizes that vLLM settles on.

    Raises:
        Unsupported: where no backend of that device takes such layers in such a format.
        OutOfRange: for a block set by hand that no kernel of theirs takes.

    """
    states = [state for layer in view.state.layers for state in layer.states]
    backend = _backend(view, settings, states, format_name, compressed=compressed)
    block_size = settings.block_size or backend.preferred
    has_attention = any(not isinstance(state, Recurrent) for state in states)
    if has_attention and (block_size % backend.step or (compressed and block_size != backend.step)):
        raise OutOfRange(
            "{field} must be {step}{more}, as the kernels of these layers ask, got {value}",
            field="block_size",
            step=backend.step,
            more="" if compressed else Note("", " or a multiple of it"),
            value=block_size,
        )
    mode = _mamba_mode(settings, states)
    recurrent = [state for state in states if isinstance(state, Recurrent)]
    skips = backend.format_name.startswith("turboquant_") and not recurrent
    page: int | None = None
    growth: BlockGrowth | None = None
    if recurrent and has_attention and view.is_causal:
        sizes = _States(view=view, settings=settings, states=states, dtype=dtype, mode=mode)
        growth = _grown(sizes, backend, block_size)
        block_size, page = growth.block_size, growth.block_size * growth.token_bytes
    elif skips:
        block_size = _covering_plain(view, settings, states, dtype, block_size, backend)
    return BlockChoice(
        block_size=block_size,
        window_block_size=_window_block(settings, block_size),
        state_block_size=max_model_len if mode == "none" else block_size,
        state_page_bytes=page,
        mamba_mode=mode,
        growth=growth,
        format_name=backend.format_name,
        skips_boundaries=skips,
        extra_retained_tokens=_extra_retained(view, settings),
        assumptions=_assumptions(settings, recurrent, states),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backend:
    """What a model's attention backends ask for: a preferred block and the kernel's smallest.

    A block set by hand must be a multiple of `step`, which is 1 where no layer attends; other
    backends of the same device take over where the preferred one has no such block.
    """

    preferred: int
    smallest: int
    format_name: str
    step: int = DEFAULT_BLOCK_SIZE


def _backend(
    view: ModelView,
    settings: VllmSettings,
    states: list[State],
    format_name: str,
    *,
    compressed: bool,
) -> _Backend:
    if compressed:
        size = deepseek_v4.BLOCK_SIZE
        return _Backend(preferred=size, smallest=64, format_name="fp8_ds_mla", step=size)
    latents = [state for state in states if isinstance(state, LatentAttention)]
    if latents and view.model_type not in PLAIN_LATENT:
        if any(latent.index_dim for latent in latents):
            return _sparse_latent(view, settings, format_name)
        return _dense_latent(settings, format_name)
    if any(isinstance(state, FullAttention) and state.index_dim for state in states):
        return _Backend(preferred=128, smallest=128, format_name=format_name, step=128)
    wide = max((state.k_dim for state in states if isinstance(state, FullAttention)), default=0)
    is_fp8 = format_name in ("fp8", "fp8_e4m3")
    has_kernel = settings.device_major == HOPPER and settings.release.since(0, 33)
    if is_fp8 and wide == _WIDE_HEAD and has_kernel:
        # FlashAttention 4's fp8 kernel on Hopper reads pages of 64 tokens at this width.
        return _Backend(preferred=64, smallest=64, format_name=format_name)
    return _Backend(preferred=DEFAULT_BLOCK_SIZE, smallest=16, format_name=format_name)


def _dense_latent(settings: VllmSettings, format_name: str) -> _Backend:
    major, quantised = settings.device_major, format_name.startswith("fp8")
    if format_name in PACKED_LATENT_BYTES:
        raise Unsupported(
            "{field}: {value} needs sparse attention, which this model lacks",
            field="kv_cache_dtype",
            value=format_name,
        )
    if quantised and (settings.capability or ASSUMED_CAPABILITY) < _NATIVE_FP8:
        raise Unsupported(
            "{field}: no backend keeps latents in {value} below compute capability 8.9",
            field="kv_cache_dtype",
            value=format_name,
        )
    if not settings.release.since(0, 18):
        on_blackwell = 128 if settings.release.since(0, 10) else 16
        size = {HOPPER: 64, BLACKWELL: on_blackwell}.get(major, 16)
        if not settings.release.since(0, 8):
            size = 16
        return _Backend(preferred=size, smallest=size, format_name=format_name)
    size = {HOPPER: 64 if quantised else 16, BLACKWELL: 32}.get(major, 16)
    return _Backend(preferred=size, smallest=size, format_name=format_name)


def _sparse_latent(view: ModelView, settings: VllmSettings, format_name: str) -> _Backend:
    major = settings.device_major
    if major < HOPPER:
        raise Unsupported(
            "{field}: no backend has sparse latent attention below compute capability 9.0",
            field="device_capability",
        )
    fp8_by_default = view.model_type in FP8_ON_BLACKWELL and settings.release.since(0, 32)
    if major == BLACKWELL and format_name == "auto" and fp8_by_default:
        format_name = "fp8_e4m3"
    # FlashMLA's sparse kernels, Hopper's choice for fp8, keep it as fp8_ds_mla.
    if major == HOPPER and format_name == "fp8":
        format_name = "fp8_ds_mla"
    if major == BLACKWELL_RTX and format_name in ("auto", "fp8", "fp8_e4m3"):
        format_name = "fp8_ds_mla"
    return _Backend(preferred=64, smallest=64, format_name=format_name, step=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _States:
    """The states of a model, and what decides their bytes."""

    view: ModelView
    settings: VllmSettings
    states: list[State]
    dtype: str
    mode: str


def _grown(sizes: _States, backend: _Backend, block_size: int) -> BlockGrowth:
    """Return the block for which an attention page holds the largest state.

    The block is the least multiple of the kernel's block (128 for latents, and of what checkpoints
    ask) that does; the state is then padded to the page.
    """
    view, settings, states = sizes.view, sizes.settings, sizes.states
    per_token = _bytes_of_token(view, settings, states, backend.format_name, sizes.dtype)
    largest = max(
        mamba_spec(state, view, settings, block_size=1, mode=sizes.mode).page_bytes
        for state in states
        if isinstance(state, Recurrent)
    )
    multiple = max(backend.smallest, block_size)
    if any(isinstance(state, LatentAttention) for state in states):
        # Until the hybrid alignment moved to the platform, latents were aligned to 64.
        multiple = max(multiple, 128 if settings.release.since(0, 18) else 64)
    multiple = lcm(multiple, block_grid(view, settings, sizes.mode))
    grown = multiple * ceil_div(largest, multiple * per_token)
    return BlockGrowth(
        multiple=multiple,
        state_bytes=largest,
        token_bytes=per_token,
        block_size=max(block_size, round_up(grown, backend.smallest)),
    )


def _bytes_of_token(
    view: ModelView, settings: VllmSettings, states: list[State], format_name: str, dtype: str
) -> int:
    """Return what one token takes in one attention layer, as vLLM's alignment counts it."""
    chosen = format_named(format_name, dtype)
    for state in states:
        if isinstance(state, LatentAttention):
            spec = MlaSpec(block_size=1, k_dim=state.latent_dim + state.rope_dim, dtype=dtype)
            return chosen.pack(spec).page_bytes
        if isinstance(state, FullAttention | SlidingWindow):
            heads = kv_heads_per_rank(state.kv_heads, settings.tensor_parallel)
            # The model's one head size stands for keys and values.
            full = FullSpec(
                block_size=1, kv_heads=heads, k_dim=state.k_dim, v_dim=state.k_dim, dtype=dtype
            )
            return chosen.pack(full).page_bytes
    raise Unsupported(
        "{field}: no attention layer of {type} sets a page for its states",
        field="model",
        type=view.model_type or Note("", "this model"),
    )


def _covering_plain(
    view: ModelView,
    settings: VllmSettings,
    states: list[State],
    dtype: str,
    block_size: int,
    backend: _Backend,
) -> int:
    """Return the block whose packed page covers a plain layer's smallest page.

    vLLM counts a packed value here as one byte, whatever its preset.
    """
    plain = _bytes_of_token(view, settings, states, "auto", dtype)
    packed = _bytes_of_token(view, settings, states, "fp8", dtype)
    multiple = max(backend.smallest, block_size)
    grown = multiple * ceil_div(plain * backend.smallest, multiple * packed)
    return max(block_size, grown)


def _window_block(settings: VllmSettings, block_size: int) -> int:
    """Return the block of sliding layers: the largest that the kernel takes within the others'.

    FlashInfer, first choice on Blackwell, takes 16, 32 and 64 alone; other kernels any multiple.
    """
    if not settings.release.since(0, 31) or settings.device_major != BLACKWELL:
        return block_size
    return next((size for size in _FLASHINFER_BLOCKS if size <= block_size), block_size)


def _mamba_mode(settings: VllmSettings, states: list[State]) -> str:
    """Return the mode of state caches: aligned for prefix caching, else one running state."""
    if not any(isinstance(state, Recurrent) for state in states):
        return "none"
    hybrid = any(not isinstance(state, Recurrent) for state in states)
    caching = settings.prefix_caching
    if caching is None:
        caching = hybrid and settings.release.since(0, 28)
    if not caching or not settings.release.has_mamba_modes:
        return "none"
    return settings.mamba_cache_mode if settings.mamba_cache_mode not in (None, "none") else "align"


def _extra_retained(view: ModelView, settings: VllmSettings) -> int:
    """Return what several prediction modules keep behind a window: each reads one token further."""
    if not settings.release.since(0, 28) or settings.speculative_method == "ngram":
        return 0
    modules = view.integer("num_nextn_predict_layers") or 0
    if min(modules, settings.speculative_tokens) <= 1:
        return 0
    return settings.speculative_tokens - 1


def _assumptions(
    settings: VllmSettings, recurrent: list[Recurrent], states: list[State]
) -> tuple[Note, ...]:
    notes = []
    sensitive = recurrent or any(isinstance(state, LatentAttention) for state in states)
    if settings.capability is None and sensitive and settings.block_size is None:
        notes.append(
            Note(
                "device_capability",
                "the device is taken to be of compute capability 9.0 (Hopper), which decides the"
                " backend and with it the block size",
            )
        )
    if recurrent and settings.prefix_caching is None:
        notes.append(
            Note(
                "prefix_caching",
                "prefix caching is taken as this release sets it for such models",
            )
        )
    return tuple(notes)

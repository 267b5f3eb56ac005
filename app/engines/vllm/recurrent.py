"""From a recurrent layer's need to vLLM's state spec: element types, tensor ranks, checkpoints.

vLLM 0.33.0 model_executor/layers/mamba/mamba_utils.py.
"""

from __future__ import annotations

from app.domain.errors import Conflict
from app.domain.state import Recurrent, StateTensor
from app.engines.vllm.families import STATE_KINDS, STATED, StateKind
from app.engines.vllm.model_view import ModelView
from app.engines.vllm.settings import HOPPER, VllmSettings
from app.engines.vllm.specs import MambaSpec

_TORCH_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_BYTES_TO_NAME = {4: "float32", 2: "bfloat16", 1: "uint8", 8: "float64"}
_KDA_WIDTH = 128


def state_kind(view: ModelView) -> StateKind:
    """Return the family of the model's recurrent layers, or that of states given by hand."""
    return STATE_KINDS.get(view.model_type, STATED)


def mamba_spec(
    state: Recurrent, view: ModelView, settings: VllmSettings, *, block_size: int, mode: str
) -> MambaSpec:
    """Return the spec of one recurrent layer on one rank, before it is padded to a page."""
    kind = state_kind(view)
    ranks = settings.tensor_parallel
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    for tensor in state.tensors:
        is_conv = "conv" in tensor.name
        dtypes.append(_dtype(tensor, kind, view, settings, is_conv=is_conv))
        if is_conv:
            extra = settings.speculative_tokens if kind.name not in ("mamba1", "short_conv") else 0
            shapes.append(_conv_shape(tensor, state, kind, ranks, extra))
        else:
            shapes.append(_split(tensor, ranks))
    alignment = checkpoint_alignment(view, settings, mode)
    always = kind.checkpoints == "always" and settings.release.since(0, 29)
    return MambaSpec(
        block_size=block_size,
        shapes=tuple(shapes),
        dtypes=tuple(dtypes),
        mamba_type=kind.name,
        cache_mode=mode,
        speculative_blocks=settings.speculative_tokens,
        checkpoint_blocks=int(always or alignment is not None),
        checkpoint_alignment=alignment,
    )


def checkpoint_alignment(view: ModelView, settings: VllmSettings, mode: str) -> int | None:
    """Return the tokens to which a prefill's inner checkpoint is aligned, or None without one.

    Mamba 2 stops anywhere; gated delta layers on Hopper at multiples of 64 (FlashInfer's prefill,
    vLLM 0.33.0 v1/attention/backends/gdn_attn.py); KDA at 16 where its fused prefill runs.
    """
    if mode != "align" or not settings.release.since(0, 29):
        return None
    kind = state_kind(view)
    major = settings.device_major
    if kind.checkpoints == "always":
        return 1
    if kind.checkpoints == "gdn" and major == HOPPER:
        return 64
    if kind.checkpoints == "kda" and major >= HOPPER and _has_bounded_gate(view):
        return 16
    return None


def block_grid(view: ModelView, settings: VllmSettings, mode: str) -> int:
    """Return the multiple that the block size must keep for checkpoints (0.33; KDA asks none)."""
    if state_kind(view).name == "kda" or not settings.release.since(0, 33):
        return 1
    return checkpoint_alignment(view, settings, mode) or 1


def _has_bounded_gate(view: ModelView) -> bool:
    linear = view.text.get("linear_attn_config")
    return (
        isinstance(linear, dict)
        and linear.get("gate_lower_bound") is not None
        and linear.get("head_dim") == _KDA_WIDTH
    )


def _dtype(
    tensor: StateTensor, kind: StateKind, view: ModelView, settings: VllmSettings, *, is_conv: bool
) -> str:
    """Return the element type: convolutions in the model's, states in the family's or a flag's."""
    model = view.dtype(settings)
    conv = model if settings.mamba_cache_dtype == "auto" else settings.mamba_cache_dtype
    if kind.state_dtype == "stated":
        name = _TORCH_NAMES.get(tensor.dtype.name)
        return name or _BYTES_TO_NAME.get(tensor.dtype.block_bytes, "float32")
    if is_conv:
        return conv
    if settings.mamba_ssm_cache_dtype != "auto":
        return settings.mamba_ssm_cache_dtype
    if kind.dtype_field is not None:
        named = view.word(kind.dtype_field)
        if named is not None and named != "auto":
            return named.removeprefix("torch.")
    return conv if kind.state_dtype == "model" else kind.state_dtype


def _split(tensor: StateTensor, ranks: int) -> tuple[int, ...]:
    axis = tensor.split_axis
    if axis is None or ranks == 1:
        return tensor.shape
    if tensor.shape[axis] % ranks:
        raise Conflict(
            "{field}: a recurrent state of {size} heads or channels does not divide over {ranks}"
            " tensor ranks",
            field="tensor_parallel_size",
            size=tensor.shape[axis],
            ranks=ranks,
        )
    return tuple(
        size // ranks if index == axis else size for index, size in enumerate(tensor.shape)
    )


def _conv_shape(
    tensor: StateTensor, state: Recurrent, kind: StateKind, ranks: int, extra_columns: int
) -> tuple[int, ...]:
    """Return the convolution's tail on one rank: k - 1 columns, one more a speculative token.

    Mamba 2's groups go with their heads: where they do not divide by the ranks, each rank gets its
    own copy (groups + ranks - groups of them).
    """
    channels_axis = tensor.split_axis if tensor.split_axis is not None else 0
    channels = tensor.shape[channels_axis]
    columns = tensor.elements // channels if channels else 0
    if kind.grouped_conv:
        channels = _with_copied_groups(channels, state, ranks)
    if channels % ranks:
        raise Conflict(
            "{field}: {size} channels of a convolution do not divide over {ranks} tensor ranks",
            field="tensor_parallel_size",
            size=channels,
            ranks=ranks,
        )
    return (columns + extra_columns, channels // ranks)


def _with_copied_groups(channels: int, state: Recurrent, ranks: int) -> int:
    running = next((tensor for tensor in state.tensors if "conv" not in tensor.name), None)
    match running.shape if running is not None else ():
        case (heads, width, size):
            pass
        case _:
            return channels
    shared = channels - heads * width
    groups = shared // (2 * size)
    if groups <= 0 or groups % ranks == 0:
        return channels
    return channels + 2 * size * (ranks - groups)

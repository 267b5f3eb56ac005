"""DeepSeek-V4: a window of raw latents in every layer, compressed latents beside it in most.

vLLM 0.33.0 models/deepseek_v4: each layer keeps a sliding window; a layer of compression ratio 4 or
128 keeps one entry for so many tokens, and the raw states that its compressor still needs; ratio 4
also has an index with a compressor of its own. Blocks of 256 tokens, pages rounded to 576 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from app.domain.errors import Missing, OutOfRange, Unsupported, shown
from app.engines.vllm.model_view import ModelView
from app.engines.vllm.settings import VllmSettings
from app.engines.vllm.specs import LayerSpec, MlaSpec, SlidingMlaSpec

SpecT = TypeVar("SpecT", MlaSpec, SlidingMlaSpec)

MODEL_TYPES = frozenset({"deepseek_v4"})
BLOCK_SIZE = 256
_WINDOW_BLOCK = 64
_ENTRY_BYTES = 584  # 448 fp8 values, 64 rotary values in bf16, 8 bytes of scales
_ALIGNMENT = 576
_INDEXED_RATIO = 4
_INDEX_SCALE_GROUP = 128
_INDEX_SCALE_BYTES = 4
# Block of the compressor's raw states by ratio, chosen so that its page matches the entries' page.
_COMPRESSOR_BLOCK = {4: 4, 128: 8}


def is_compressed(view: ModelView) -> bool:
    """Say whether this is such a model."""
    return view.model_type in MODEL_TYPES


def layers_of_compressed(
    view: ModelView, settings: VllmSettings
) -> Iterator[tuple[int, str, LayerSpec]]:
    """Yield each cache of each layer with the layer's index and a name.

    Raises:
        Missing, OutOfRange: for a config that does not give the ratios, or others than 4 and 128.
        Unsupported: for other cache formats, and for releases that pack such groups otherwise.

    """
    if not settings.release.packs_block_outermost:
        raise Unsupported(
            "{field}: how vLLM {release} packs DeepSeek-V4's pages is not described here",
            field="version",
            release=settings.release.name,
        )
    if settings.kv_cache_dtype not in ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"):
        raise Unsupported(
            "{field}: DeepSeek-V4's cache is described in fp8_ds_mla alone, not in {value}",
            field="kv_cache_dtype",
            value=settings.kv_cache_dtype,
        )
    head_dim = _needed(view, "head_dim")
    index_dim = _needed(view, "index_head_dim")
    window = _needed(view, "sliding_window")
    for layer, ratio in enumerate(_ratios(view)):
        name = f"layers.{layer}"
        yield (
            layer,
            f"{name}.window",
            _entries(
                SlidingMlaSpec(
                    block_size=_WINDOW_BLOCK, k_dim=head_dim, dtype="uint8", window=window
                )
            ),
        )
        if ratio <= 1:
            continue
        if ratio == _INDEXED_RATIO:
            scaled = index_dim + index_dim // _INDEX_SCALE_GROUP * _INDEX_SCALE_BYTES
            yield layer, f"{name}.index", MlaSpec(
                block_size=BLOCK_SIZE, k_dim=scaled, dtype="uint8", alignment=_ALIGNMENT,
                tokens_per_state=Fraction(ratio), kernel_block_limit=BLOCK_SIZE, max_tp_shards=1,
                distinct_ranks=1,
            )  # fmt: skip
            yield layer, f"{name}.index.compressor", _compressor(index_dim, ratio)
        compressed = MlaSpec(
            block_size=BLOCK_SIZE, k_dim=head_dim, dtype="uint8",
            tokens_per_state=Fraction(ratio), kernel_block_limit=BLOCK_SIZE,
        )  # fmt: skip
        yield layer, f"{name}.attn", _entries(compressed)
        yield layer, f"{name}.compressor", _compressor(head_dim, ratio)


def _entries(spec: SpecT) -> SpecT:
    """Return the spec with an entry's packed bytes and the kernels' page alignment."""
    return replace(
        spec,
        state_bytes=_ENTRY_BYTES,
        alignment=_ALIGNMENT,
        quant_mode="FP8_PER_TENSOR",
        cache_dtype="fp8_ds_mla",
        max_tp_shards=1,
        distinct_ranks=1,
    )


def _compressor(dim: int, ratio: int) -> SlidingMlaSpec:
    """Return the fp32 keys and scores of the tokens not yet compressed; ratio 4 overlaps by two."""
    overlap = 2 if ratio == _INDEXED_RATIO else 1
    return SlidingMlaSpec(
        block_size=_COMPRESSOR_BLOCK[ratio],
        k_dim=2 * overlap * dim,
        dtype="float32",
        window=overlap * ratio,
        alignment=_ALIGNMENT,
        max_tp_shards=1,
        distinct_ranks=1,
    )


def _ratios(view: ModelView) -> list[int]:
    """Return the decoder layers' ratios, from a list of them or from the types of layer."""
    layers = view.state.num_layers
    given = view.text.get("compress_ratios")
    if given is None:
        rates, types = view.text.get("compress_rates"), view.text.get("layer_types")
        if not isinstance(rates, dict) or not isinstance(types, list):
            raise Missing("{field} is missing", field="compress_ratios")
        given = [rates.get(kind, 0) for kind in types]
    if not isinstance(given, list) or len(given) < layers:
        raise Missing(
            "{field} must name a ratio for each of {layers} layers",
            field="compress_ratios",
            layers=layers,
        )
    for index, ratio in enumerate(given[:layers]):
        if ratio not in (0, 1, 4, 128):
            raise OutOfRange(
                "{field} must be 0, 1, 4 or 128, got {value}",
                field=("compress_ratios", index),
                value=shown(ratio),
            )
    return given[:layers]


def _needed(view: ModelView, name: str) -> int:
    value = view.integer(name)
    if value is None:
        raise Missing("{field} is missing", field=name)
    return value

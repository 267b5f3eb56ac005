"""From what a model's layers need to the specs that vLLM makes of them, on one tensor rank.

Every rule that follows the model asks its state; vLLM's own ways are rows of data in families.py
and formats in kv_formats.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from app.domain.errors import Conflict, Missing, Unsupported
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    Recurrent,
    SlidingWindow,
    State,
)
from app.engines.vllm.blocks import BlockChoice, choose_blocks
from app.engines.vllm.deepseek_v4 import is_compressed, layers_of_compressed
from app.engines.vllm.families import (
    BLOCK_INDEX_TYPES,
    LAYOUT_UNKNOWN,
    MTP_FIELDS,
    NOT_IN_VLLM,
    ONE_WINDOW_FOR_ALL,
    PLAIN_LATENT,
    STATE_KINDS,
    WINDOW_PLUS_ONE,
)
from app.engines.vllm.heads import (
    check_query_heads,
    checked_partition,
    kv_heads_per_rank,
    layers_per_stage,
    stage_of_layer,
)
from app.engines.vllm.kv_formats import KvFormatChoice, format_named, format_of_checkpoint
from app.engines.vllm.model_view import ModelView
from app.engines.vllm.recurrent import mamba_spec
from app.engines.vllm.settings import VllmSettings
from app.engines.vllm.specs import (
    ChunkedSpec,
    CrossSpec,
    FullSpec,
    LayerSpec,
    MlaSpec,
    SlidingMlaSpec,
    SlidingSpec,
)
from app.engines.vllm.types import Layers

# An index key of 128 fp8 values carries a 4-byte scale for each 128 of them.
_INDEX_SCALE_GROUP = 128
_INDEX_SCALE_BYTES = 4
_BOUNDARY_LAYERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpecs:
    """The layers of every pipeline stage as vLLM will cache them, and what led there.

    `stages` names the first and last decoder layer of each stage.
    """

    workers: tuple[Layers, ...]
    stages: tuple[tuple[int, int], ...]
    blocks: BlockChoice
    format: KvFormatChoice
    dtype: str
    block_outermost: bool
    assumptions: tuple[Note, ...]


@dataclass(slots=True, kw_only=True)
class _Builder:
    """One pass over the layers of a model."""

    view: ModelView
    settings: VllmSettings
    format: KvFormatChoice
    dtype: str
    blocks: BlockChoice
    full_window: bool
    assumptions: list[Note] = field(default_factory=list)

    def specs(self, index: int, layer: Layer, *, is_draft: bool = False) -> Iterator[
        tuple[str, LayerSpec]
    ]:
        """Yield the caches of one decoder layer, each with its name."""
        chosen = self._format_of(index, layer, is_draft)
        for place, state in enumerate(layer.states):
            for part, spec in self._of_state(state, chosen):
                suffix = part if len(layer.states) == 1 else f"{part}.{place}"
                name = f"{'draft' if is_draft else 'layers'}.{index}.{suffix}"
                yield name, replace(spec, is_draft=is_draft)

    def _format_of(self, index: int, layer: Layer, is_draft: bool) -> KvFormatChoice:
        """TurboQuant keeps the first and last two layers of a dense model in the model's type."""
        plain = format_named("auto", self.dtype)
        if is_draft or not self.format.is_turboquant or not self.blocks.skips_boundaries:
            return self.format
        last = self.view.state.num_layers - _BOUNDARY_LAYERS
        return plain if index < _BOUNDARY_LAYERS or index >= last else self.format

    def _of_state(
        self, state: State, chosen: KvFormatChoice
    ) -> Iterator[tuple[str, LayerSpec]]:
        if isinstance(state, Recurrent):
            yield "state", self._recurrent(state)
        elif isinstance(state, LatentAttention):
            yield from self._latent(state, chosen)
        elif isinstance(state, FullAttention):
            yield from self._full(state, chosen)
        elif isinstance(state, SlidingWindow):
            yield from self._sliding(state, chosen)
        elif isinstance(state, ChunkedAttention):
            if self.view.is_causal:
                shape = self._heads(state)
                yield "attn", chosen.pack(ChunkedSpec(**shape, chunk=state.chunk))
        elif isinstance(state, CrossAttention):
            yield "cross", chosen.pack(CrossSpec(**self._heads(state)))

    def _heads(
        self, state: FullAttention | SlidingWindow | ChunkedAttention | CrossAttention
    ) -> dict[str, object]:
        ranks = self.settings.tensor_parallel
        return {
            "block_size": self.blocks.block_size,
            "kv_heads": kv_heads_per_rank(state.kv_heads, ranks),
            "k_dim": state.k_dim,
            "v_dim": state.v_dim,
            "dtype": self.dtype,
            "max_tp_shards": min(state.kv_heads, ranks) if state.kv_heads < ranks else None,
        }

    def _full(
        self, state: FullAttention, chosen: KvFormatChoice
    ) -> Iterator[tuple[str, LayerSpec]]:
        if not self.view.is_causal:
            return
        if state.index_dim:
            if self.view.model_type not in BLOCK_INDEX_TYPES:
                raise Unsupported(
                    "{field}: no rule says how vLLM keeps the index of {type}",
                    field="model",
                    type=self.view.model_type or "this model",
                )
            yield "index", MlaSpec(
                block_size=self.blocks.block_size, k_dim=state.index_dim, dtype="bfloat16",
                cache_role="indexer",
            )  # fmt: skip
        yield "attn", chosen.pack(FullSpec(**self._heads(state)))

    def _sliding(
        self, state: SlidingWindow, chosen: KvFormatChoice
    ) -> Iterator[tuple[str, LayerSpec]]:
        if not self.view.is_causal:
            return
        if self.full_window:
            yield "attn", chosen.pack(FullSpec(**self._heads(state)))
            return
        wider = self.view.model_type in WINDOW_PLUS_ONE
        shape = self._heads(state) | {"block_size": self.blocks.window_block_size}
        retained = self.blocks.extra_retained_tokens
        yield "attn", chosen.pack(
            SlidingSpec(**shape, window=state.window + wider, extra_retained_tokens=retained)
        )

    def _latent(
        self, state: LatentAttention, chosen: KvFormatChoice
    ) -> Iterator[tuple[str, LayerSpec]]:
        if self.view.model_type in PLAIN_LATENT:
            yield "attn", chosen.pack(self._expanded())
            return
        if state.tokens_per_entry != 1:
            raise Unsupported(
                "{field}: no rule says how vLLM keeps compressed latents of {type}",
                field="model",
                type=self.view.model_type or "this model",
            )
        shape: dict[str, object] = {
            "block_size": self.blocks.block_size,
            "k_dim": state.latent_dim + state.rope_dim,
            "dtype": self.dtype,
            "max_tp_shards": 1,
        }
        if state.latent_dim + state.rope_dim:
            if state.window is not None:
                yield "attn", chosen.pack(SlidingMlaSpec(**shape, window=state.window))
            else:
                yield "attn", chosen.pack(MlaSpec(**shape, is_index_leader=state.index_dim > 0))
        if state.index_dim:
            scale = state.index_dim // _INDEX_SCALE_GROUP * _INDEX_SCALE_BYTES
            yield "index", MlaSpec(
                block_size=self.blocks.block_size, k_dim=state.index_dim + scale, dtype="uint8",
                max_tp_shards=1, cache_role="indexer",
            )  # fmt: skip

    def _expanded(self) -> FullSpec:
        """Return plain heads for a latent that vLLM's implementation expands before it caches."""
        heads = self.view.query_heads
        nope, rope = self.view.integer("qk_nope_head_dim"), self.view.integer("qk_rope_head_dim")
        if heads is None or nope is None or rope is None:
            raise Missing(
                "{field} is missing: vLLM keeps this latent as plain heads of that width",
                field="qk_nope_head_dim",
            )
        return FullSpec(
            block_size=self.blocks.block_size,
            kv_heads=kv_heads_per_rank(heads, self.settings.tensor_parallel),
            k_dim=nope + rope,
            v_dim=nope + rope,
            dtype=self.dtype,
        )

    def _recurrent(self, state: Recurrent) -> LayerSpec:
        spec = mamba_spec(
            state, self.view, self.settings,
            block_size=self.blocks.state_block_size, mode=self.blocks.mamba_mode,
        )  # fmt: skip
        return replace(spec, page_bytes_padded=self.blocks.state_page_bytes)


def specs_of_model(view: ModelView, settings: VllmSettings, max_model_len: int) -> ModelSpecs:
    """Return every stage's layers as vLLM 0.33.0 (or the release asked for) would cache them.

    Raises:
        Unsupported: for a model that vLLM lacks, or whose layout no rule here describes.
        Conflict: for ranks that its heads, states or layers do not divide over.

    """
    _refuse_unknown(view, settings)
    if view.query_heads is not None:
        check_query_heads(view.query_heads, settings.tensor_parallel)
    notes: list[Note] = []
    dtype = view.dtype(settings)
    name = settings.kv_cache_dtype
    if name == "auto" and view.config:
        name = format_of_checkpoint(view.config)
    compressed = is_compressed(view)
    blocks = choose_blocks(view, settings, name, dtype, max_model_len, compressed=compressed)
    chosen = format_named(blocks.format_name, dtype)
    counts = _stage_counts(view, settings)
    workers: list[dict[str, LayerSpec]] = [{} for _ in counts]
    if compressed:
        for index, name_, spec in layers_of_compressed(view, settings):
            workers[stage_of_layer(counts, index)][name_] = spec
    else:
        builder = _Builder(
            view=view, settings=settings, format=chosen, dtype=dtype, blocks=blocks,
            full_window=_windows_are_full(view), assumptions=notes,
        )  # fmt: skip
        for index, layer in enumerate(view.state.layers):
            workers[stage_of_layer(counts, index)].update(builder.specs(index, layer))
        for index, layer in enumerate(_draft_layers(view, settings, notes)):
            workers[-1].update(builder.specs(index, layer, is_draft=True))
    _check_context_parallel(view, settings)
    return ModelSpecs(
        workers=tuple(workers),
        stages=_stage_ranges(counts),
        blocks=blocks,
        format=chosen,
        dtype=dtype,
        block_outermost=compressed,
        assumptions=tuple(notes) + blocks.assumptions,
    )


def _refuse_unknown(view: ModelView, settings: VllmSettings) -> None:
    model_type = view.model_type
    if model_type in NOT_IN_VLLM:
        raise Unsupported(
            "{field}: vLLM {release} has no {type} ({why})",
            field="model",
            release=settings.release.name,
            type=model_type,
            why=NOT_IN_VLLM[model_type],
        )
    has_states = "recurrent" in view.state.kinds and not is_compressed(view)
    if model_type in LAYOUT_UNKNOWN or (
        has_states and model_type and model_type not in STATE_KINDS
    ):
        raise Unsupported(
            "{field}: no rule here describes how vLLM lays out the caches of {type}",
            field="model",
            type=model_type,
        )


def _windows_are_full(view: ModelView) -> bool:
    """Say whether vLLM keeps windows in full: types that know one window for the whole model."""
    if view.model_type not in ONE_WINDOW_FOR_ALL:
        return False
    return any(isinstance(s, FullAttention) for layer in view.state.layers for s in layer.states)


def _stage_counts(view: ModelView, settings: VllmSettings) -> tuple[int, ...]:
    layers, stages = view.state.num_layers, settings.pipeline_parallel
    if settings.layers_per_stage is not None:
        return checked_partition(settings.layers_per_stage, layers, stages)
    return layers_per_stage(layers, stages, settings.release)


def _stage_ranges(counts: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    ranges, first = [], 0
    for count in counts:
        ranges.append((first, first + count - 1))
        first += count
    return tuple(ranges)


def _draft_layers(view: ModelView, settings: VllmSettings, notes: list[Note]) -> list[Layer]:
    """Return the layers of multi-token prediction, where speculation uses them.

    Each is taken to keep what the model's last layer with positions keeps.
    """
    if not settings.speculative_tokens:
        return []
    count = view.integer(*MTP_FIELDS) or 0
    method = settings.speculative_method or ("mtp" if count else "ngram")
    if settings.speculative_method is None:
        notes.append(
            Note(
                "speculative_method",
                "speculation is taken to be {method}; a separate draft model would add its layers",
                {"method": method},
            )
        )
    if method == "ngram":
        return []
    if not count:
        raise Missing(
            "{field}: the config names no layers of multi-token prediction",
            field="speculative_method",
        )
    growing = [
        layer
        for layer in view.state.layers
        if any(not isinstance(state, Recurrent) for state in layer.states)
    ]
    return growing[-1:] * count


def _check_context_parallel(view: ModelView, settings: VllmSettings) -> None:
    """Heads may only be shared out over context ranks that would otherwise hold copies."""
    shards = settings.context_parallel
    if shards == 1:
        return
    for layer in view.state.layers:
        for state in layer.states:
            if isinstance(state, SlidingWindow | ChunkedAttention | CrossAttention):
                raise Unsupported(
                    "{field}: vLLM does not divide the positions of {kind} layers over ranks",
                    field="decode_context_parallel_size",
                    kind=state.kind,
                )
            if isinstance(state, FullAttention):
                copies = Fraction(settings.tensor_parallel, state.kv_heads)
                if shards > copies:
                    raise Conflict(
                        "{field} must be at most the copies of each key-value head ({ranks} ranks"
                        " over {heads} heads), got {value}",
                        field="decode_context_parallel_size",
                        ranks=settings.tensor_parallel,
                        heads=state.kv_heads,
                        value=shards,
                    )

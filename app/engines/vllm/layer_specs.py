"""One layer's need to the caches that vLLM keeps for it, on one tensor rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.errors import Missing, Unsupported
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
from app.engines.vllm.blocks import BlockChoice
from app.engines.vllm.families import (
    BLOCK_INDEX_TYPES,
    PLAIN_LATENT,
    WINDOW_FIELDS,
    WINDOW_PLUS_ONE,
)
from app.engines.vllm.heads import kv_heads_per_rank
from app.engines.vllm.kv_formats import KvFormatChoice, format_named
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

# An index key of 128 fp8 values carries a 4-byte scale for each 128 of them.
_INDEX_SCALE_GROUP = 128
_INDEX_SCALE_BYTES = 4
_BOUNDARY_LAYERS = 2


@dataclass(slots=True, kw_only=True)
class LayerBuilder:
    """One pass over the layers of a model; what it had to assume gathers in `assumptions`."""

    view: ModelView
    settings: VllmSettings
    format: KvFormatChoice
    dtype: str
    blocks: BlockChoice
    full_window: bool
    assumptions: list[Note] = field(default_factory=list)
    _made: dict[tuple[int, KvFormatChoice, bool], list[tuple[str, LayerSpec]]] = field(
        default_factory=dict
    )

    def specs(
        self, index: int, layer: Layer, *, is_draft: bool = False
    ) -> Iterator[tuple[str, LayerSpec]]:
        """Yield the caches of one decoder layer, each with its name.

        Layers of a run are one object, and get the same specs.
        """
        chosen = self.format if is_draft else self._format_of(index)
        key = (id(layer), chosen, is_draft)
        if key not in self._made:
            self._made[key] = [
                (suffix, replace(spec, is_draft=is_draft))
                for suffix, spec in self._of_layer(layer, chosen)
            ]
        head = "draft" if is_draft else "layers"
        for suffix, spec in self._made[key]:
            yield f"{head}.{index}.{suffix}", spec

    def _of_layer(self, layer: Layer, chosen: KvFormatChoice) -> Iterator[tuple[str, LayerSpec]]:
        for place, state in enumerate(layer.states):
            for part, spec in self._of_state(state, chosen):
                yield part if len(layer.states) == 1 else f"{part}.{place}", spec

    def _format_of(self, index: int) -> KvFormatChoice:
        """TurboQuant keeps the first and last two layers of a dense model in the model's type."""
        if not self.format.is_turboquant or not self.blocks.skips_boundaries:
            return self.format
        plain = format_named("auto", self.dtype)
        last = self.view.state.num_layers - _BOUNDARY_LAYERS
        return plain if index < _BOUNDARY_LAYERS or index >= last else self.format

    def _of_state(self, state: State, chosen: KvFormatChoice) -> Iterator[tuple[str, LayerSpec]]:
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
                spec = (
                    FullSpec(**shape)
                    if self.full_window
                    else ChunkedSpec(**shape, chunk=state.chunk)
                )
                yield "attn", chosen.pack(spec)
        elif isinstance(state, CrossAttention):
            yield "cross", chosen.pack(CrossSpec(**self._heads(state)))

    def _heads(
        self, state: FullAttention | SlidingWindow | ChunkedAttention | CrossAttention
    ) -> dict[str, Any]:
        ranks = self.settings.tensor_parallel
        return {
            "block_size": self.blocks.block_size,
            "kv_heads": kv_heads_per_rank(state.kv_heads, ranks),
            "k_dim": state.k_dim,
            "v_dim": state.v_dim,
            "dtype": self.dtype,
            "distinct_ranks": min(state.kv_heads, ranks),
        }

    def _full(
        self, state: FullAttention, chosen: KvFormatChoice
    ) -> Iterator[tuple[str, LayerSpec]]:
        if not self.view.is_causal:
            return
        if state.index_dim:
            self._check_index()
            yield "index", MlaSpec(
                block_size=self.blocks.block_size, k_dim=state.index_dim, dtype="bfloat16",
                cache_role="indexer",
            )  # fmt: skip
        yield "attn", chosen.pack(FullSpec(**self._heads(state)))

    def _check_index(self) -> None:
        """Refuse an index that no rule describes; one of a model without a type is assumed."""
        if self.view.model_type and self.view.model_type not in BLOCK_INDEX_TYPES:
            raise Unsupported(
                "{field}: no rule says how vLLM keeps the index of {type}",
                field="model",
                type=self.view.model_type,
            )
        if not self.view.model_type and all(note.code != "index" for note in self.assumptions):
            self.assumptions.append(
                Note("index", "index keys are taken to lie in 16-bit pages of their own")
            )

    def _sliding(
        self, state: SlidingWindow, chosen: KvFormatChoice
    ) -> Iterator[tuple[str, LayerSpec]]:
        if not self.view.is_causal:
            return
        if self.full_window:
            yield "attn", chosen.pack(FullSpec(**self._heads(state)))
            return
        shape = self._heads(state) | {"block_size": self.blocks.window_block_size}
        retained = self.blocks.extra_retained_tokens
        yield (
            "attn",
            chosen.pack(
                SlidingSpec(**shape, window=self._window(state), extra_retained_tokens=retained)
            ),
        )

    def _window(self, state: SlidingWindow) -> int:
        """Return the window as vLLM's implementation of that type reads it."""
        model_type = self.view.model_type
        if model_type in WINDOW_FIELDS:
            return self.view.integer(WINDOW_FIELDS[model_type]) or state.window
        return state.window + (model_type in WINDOW_PLUS_ONE)

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
                type=self.view.model_type or Note("", "this model"),
            )
        shape: dict[str, Any] = {
            "block_size": self.blocks.block_size,
            "k_dim": state.latent_dim + state.rope_dim,
            "dtype": self.dtype,
            "max_tp_shards": 1,
            "distinct_ranks": 1,
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
                max_tp_shards=1, distinct_ranks=1, cache_role="indexer",
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
            distinct_ranks=min(heads, self.settings.tensor_parallel),
        )

    def _recurrent(self, state: Recurrent) -> LayerSpec:
        spec = mamba_spec(
            state, self.view, self.settings,
            block_size=self.blocks.state_block_size, mode=self.blocks.mamba_mode,
        )  # fmt: skip
        return replace(spec, page_bytes_padded=self.blocks.state_page_bytes)

"""From what a model's layers need to the specs that vLLM makes of them, on one tensor rank.

Every rule that follows the model asks its state; vLLM's own ways are rows of data in families.py
and formats in kv_formats.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from app.domain.errors import Conflict, Missing, Unsupported
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Layer,
    Recurrent,
    SlidingWindow,
)
from app.engines.vllm.blocks import BlockChoice, choose_blocks
from app.engines.vllm.deepseek_v4 import is_compressed, layers_of_compressed
from app.engines.vllm.families import (
    ATTENTION_FIRST,
    LAST_RELEASE,
    LAYOUT_UNKNOWN,
    MTP_FIELDS,
    NOT_IN_VLLM,
    ONE_WINDOW_FOR_ALL,
    STATE_KINDS,
)
from app.engines.vllm.heads import (
    check_query_heads,
    checked_partition,
    layers_per_stage,
    stages_of_layers,
)
from app.engines.vllm.kv_formats import KvFormatChoice, format_named, format_of_checkpoint
from app.engines.vllm.layer_specs import LayerBuilder
from app.engines.vllm.model_view import ModelView
from app.engines.vllm.settings import VllmSettings
from app.engines.vllm.specs import LayerSpec, MambaSpec
from app.engines.vllm.types import Layers


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


def specs_of_model(view: ModelView, settings: VllmSettings, max_model_len: int) -> ModelSpecs:
    """Return every stage's layers as vLLM 0.33.0 (or the release asked for) would cache them.

    Raises:
        Unsupported: for a model that vLLM lacks, or whose layout no rule here describes.
        Conflict: for ranks that its heads, states or layers do not divide over.

    """
    notes = _notes_of_support(view, settings)
    if view.query_heads is not None:
        check_query_heads(view.query_heads, settings.tensor_parallel)
    dtype = view.dtype(settings)
    name = settings.kv_cache_dtype
    if name == "auto" and view.config:
        name = format_of_checkpoint(view.config)
    compressed = is_compressed(view)
    blocks = choose_blocks(view, settings, name, dtype, max_model_len, compressed=compressed)
    chosen = format_named(blocks.format_name, dtype)
    counts = _stage_counts(view, settings)
    stages = stages_of_layers(counts)
    workers: list[dict[str, LayerSpec]] = [{} for _ in counts]
    if compressed:
        for index, name_, spec in layers_of_compressed(view, settings):
            workers[stages[index]][name_] = spec
    else:
        builder = LayerBuilder(
            view=view, settings=settings, format=chosen, dtype=dtype, blocks=blocks,
            full_window=settings.release.is_v0_engine or _windows_are_full(view),
            assumptions=notes,
        )  # fmt: skip
        for index, layer in enumerate(view.state.layers):
            workers[stages[index]].update(builder.specs(index, layer))
        for index, layer in enumerate(_draft_layers(view, settings, notes)):
            workers[-1].update(builder.specs(index, layer, is_draft=True))
    _check_context_parallel(view, settings)
    return ModelSpecs(
        workers=tuple(_in_vllm_order(view, layers) for layers in workers),
        stages=_stage_ranges(counts),
        blocks=blocks,
        format=chosen,
        dtype=dtype,
        block_outermost=compressed,
        assumptions=tuple(notes) + blocks.assumptions,
    )


def _in_vllm_order(view: ModelView, layers: Layers) -> Layers:
    """Return the layers in the order in which vLLM builds them, which orders the groups."""
    if view.model_type not in ATTENTION_FIRST:
        return layers
    return dict(sorted(layers.items(), key=lambda item: isinstance(item[1], MambaSpec)))


def _notes_of_support(view: ModelView, settings: VllmSettings) -> list[Note]:
    """Refuse a model that vLLM lacks or that no rule describes; note one that it has given up.

    Transformers' implementation stands in for many that it has given up, though not for recurrent
    layers.
    """
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
    last = LAST_RELEASE.get(view.architecture)
    if last is None or settings.release.numbers[:3] <= last:
        return []
    facts: dict[str, object] = {"architecture": view.architecture, "last": ".".join(map(str, last))}
    if has_states:
        raise Unsupported(
            "{field}: {last} was the last vLLM release with {architecture}", field="model", **facts
        )
    return [
        Note(
            "architecture",
            "{last} was the last vLLM release with a {architecture} of its own; a later one serves"
            " it through Transformers or not at all",
            facts,
        )
    ]


def _windows_are_full(view: ModelView) -> bool:
    """Say whether groups keep windows in full: types that know one window for the whole model.

    The first engine had no windows in its pool at all: a block holds every layer's 16 tokens, and
    its check compares the longest request with all blocks (vLLM 0.7.3 worker/worker.py).
    """
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


def with_speculation(view: ModelView, settings: VllmSettings, notes: list[Note]) -> VllmSettings:
    """Return the settings with the speculative tokens that a method takes where none are named.

    As many as there are layers of multi-token prediction; other methods must be told (vLLM 0.33.0
    config/speculative.py).

    Raises:
        Missing: for a method that must be told, or one that the model has no layers for.

    """
    method = settings.speculative_method
    if method is None or settings.speculative_tokens:
        return settings
    if method == "ngram":
        raise Missing("{field} is missing: {method} has no number of its own",
                      field="num_speculative_tokens", method=method)  # fmt: skip
    count = view.integer(*MTP_FIELDS)
    if count is None:
        raise _no_prediction_layers()
    notes.append(
        Note(
            "num_speculative_tokens",
            "speculative tokens: {tokens}, one for each layer of multi-token prediction",
            {"tokens": count},
        )
    )
    return replace(settings, speculative_tokens=count)


def _no_prediction_layers() -> Missing:
    return Missing("{field}: the config names no layers of multi-token prediction",
                   field="speculative_method")  # fmt: skip


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
        raise _no_prediction_layers()
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

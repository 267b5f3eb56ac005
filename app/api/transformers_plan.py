"""`POST /engines/transformers/plan`: each tensor that a run of Transformers leaves in its cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from app.api import schemas as s
from app.api.answers import Answer, Explained, NoteAnswer, notes_answer
from app.api.model_input import PlainModel
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.domain.errors import DomainError, Unsupported
from app.domain.notes import Note
from app.domain.units import bytes_text
from app.domain.working import Working

if TYPE_CHECKING:
    from app.engines.transformers import PlannedLayer, TransformersPlan

router = APIRouter(tags=["engines"], responses=REFUSED, route_class=JsonRoute)
MAX_SETTINGS = 40


class TransformersPlanRequest(s.Strict):
    """A model and a run: `decode_steps` are forward passes after the prefill.

    `generate(max_new_tokens=n)` makes n − 1 of them.
    """

    model: s.ModelInput
    settings: Annotated[dict[str, Any], Field(max_length=MAX_SETTINGS)] = Field(
        default_factory=dict,
        description="Of cache, batch, prompt_tokens, decode_steps, encoder_tokens, max_cache_len, "
        "dtype, version, generate, backend, nbits, axis_key, axis_value, q_group_size, "
        "residual_length.",
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"id": "meta-llama/Llama-3.1-8B"},
                    "settings": {"cache": "dynamic", "batch": 4, "prompt_tokens": 4096,
                                 "decode_steps": 127, "dtype": "bfloat16"},
                }
            ]
        }
    )  # fmt: skip


class TensorAnswer(Answer):
    """One tensor; one that aliases another takes no bytes of its own."""

    name: str
    role: str
    shape: list[int]
    dtype: str
    bytes: int = Field(description="Of its elements.")
    storage_bytes: int = Field(description="What stays allocated for it; more where it is a view.")
    alias_of: str | None


class PlannedLayerAnswer(Answer):
    """One layer of the cache, in the order of its list."""

    index: int
    kind: str
    bytes: int
    storage_bytes: int
    tensors: list[TensorAnswer]


class LayerOverheadAnswer(Answer):
    """A layer that keeps more, or less, than the model needs."""

    index: int
    needed_bytes: int
    kept_bytes: int
    reasons: list[NoteAnswer]


class OverheadAnswer(Answer):
    """What the model needs for the same run, and the layers that differ; null where not known."""

    needed_bytes: int | None
    kept_bytes: int
    overhead_bytes: int | None
    layers: list[LayerOverheadAnswer]
    unknown: NoteAnswer | None


class TransformersPlanAnswer(Explained):
    """What the cache holds after the run, tensor by tensor."""

    version: str
    cache: str
    batch: int
    prompt_tokens: int
    decode_steps: int
    dtype: str
    encoder_tokens: int | None
    max_cache_len: int | None
    cache_bytes: int
    cache_bytes_text: str
    storage_bytes: int = Field(description="What stays allocated for the cache's tensors.")
    prefill_bytes: int = Field(description="After the prompt alone.")
    prefill_storage_bytes: int
    growth_peak_bytes: int = Field(
        description="What one more token takes for a moment: a copy made by concatenation."
    )
    overhead: OverheadAnswer
    layers: list[PlannedLayerAnswer]


def answer_transformers_plan(request: TransformersPlanRequest) -> TransformersPlanAnswer:
    """Return the plan of a request.

    Raises:
        DomainError: naming the field, as seen from the request's body.

    """
    from app.engines.transformers import plan

    config, assumed = _config_of(request.model)
    settings = dict(request.settings)
    said = getattr(request.model, "encoder_tokens", None)
    if said is not None:
        settings.setdefault("encoder_tokens", said)
    try:
        answer = plan(config, settings)
    except DomainError as error:
        raise _placed(error, settings, config) from None
    return transformers_answer(answer, assumed)


def _config_of(model: PlainModel) -> tuple[Mapping[str, Any], tuple[Note, ...]]:
    """Return the config that names the class, and what was assumed to have one.

    The class decides what is cached, so layers by hand and a GGUF header are not enough.
    """
    if isinstance(model, s.CatalogueModel | s.ConfigModel) and model.draft_layers:
        raise Unsupported(
            "{field}: Transformers loads no layers of multi-token prediction",
            field=("model", "draft_layers"),
        )
    if isinstance(model, s.CatalogueModel):
        from app.catalog.models import entry

        try:
            return entry(model.id)["config"], ()
        except DomainError as error:
            raise error.under("model") from None
    if isinstance(model, s.HubModel):
        from app.api.hub_models import fetched
        from app.settings import settings

        try:
            return fetched(model, settings()).config, ()
        except DomainError as error:
            raise error.under("model") from None
    if isinstance(model, s.ConfigModel):
        return model.config, ()
    if isinstance(model, s.UniformModel):
        return _as_llama(model)
    raise Unsupported(
        "{field}: the class in a config.json decides what Transformers caches; give a config or an "
        "id",
        field=("model", "gguf" if isinstance(model, s.GgufModel) else "layer_states"),
    )


def _as_llama(model: s.UniformModel) -> tuple[Mapping[str, Any], tuple[Note, ...]]:
    if model.v_head_dim not in (None, model.head_dim):
        raise Unsupported(
            "{field}: no plain class keeps values of another width; give a config",
            field=("model", "v_head_dim"),
        )
    config = {
        "model_type": "llama",
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.kv_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_size": model.kv_heads * model.head_dim,
    }
    note = Note("as_llama", "The numbers are taken for a model of the Llama class.")
    return config, (note,)


def _placed(
    error: DomainError, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> DomainError:
    """Return a refusal with its field seen from the request's body."""
    from app.engines.transformers.settings import KNOWN

    first = error.field[0] if error.field else ""
    is_setting = first in settings or (first in KNOWN and first not in config)
    return error.under("settings") if is_setting else error.under("model", "config")


def transformers_answer(
    answer: TransformersPlan, assumed: tuple[Note, ...]
) -> TransformersPlanAnswer:
    """Return a plan as JSON shows it."""
    run = answer.run
    return TransformersPlanAnswer(
        version=answer.version,
        cache=answer.cache,
        batch=run.batch,
        prompt_tokens=run.prompt_tokens,
        decode_steps=run.decode_steps,
        dtype=run.dtype,
        encoder_tokens=run.encoder_tokens,
        max_cache_len=run.static_tokens,
        cache_bytes=answer.cache_bytes,
        cache_bytes_text=bytes_text(answer.cache_bytes),
        storage_bytes=answer.storage_bytes,
        prefill_bytes=answer.prefill_bytes,
        prefill_storage_bytes=answer.prefill_storage_bytes,
        growth_peak_bytes=answer.growth_peak_bytes,
        overhead=_overhead(answer),
        layers=[_layer(layer) for layer in answer.layers],
        formula=answer.formula,
        workings={"cache_bytes": working_of(answer)},
        assumptions=notes_answer((*assumed, *answer.assumptions)),
        not_counted=notes_answer(answer.not_counted),
    )


def working_of(answer: TransformersPlan) -> Working:
    """Return how the total came about."""
    return Working(
        symbols="Σ over the cache's layers of their tensors' elements × bytes of an element",
        numbers=answer.formula,
        result=answer.cache_bytes,
        unit="B",
        source="Transformers 5.24 cache_utils.py, and each model's own class",
    )


def _layer(layer: PlannedLayer) -> PlannedLayerAnswer:
    return PlannedLayerAnswer(
        index=layer.index,
        kind=layer.kind,
        bytes=layer.bytes,
        storage_bytes=layer.storage_bytes,
        tensors=[
            TensorAnswer(
                name=tensor.name,
                role=tensor.role,
                shape=list(tensor.shape),
                dtype=tensor.dtype,
                bytes=tensor.bytes,
                storage_bytes=tensor.storage_bytes,
                alias_of=tensor.alias_of,
            )
            for tensor in layer.tensors
        ],
    )


def _overhead(answer: TransformersPlan) -> OverheadAnswer:
    found = answer.overhead
    needed = found.needed_bytes
    return OverheadAnswer(
        needed_bytes=needed,
        kept_bytes=found.kept_bytes,
        overhead_bytes=None if needed is None else found.kept_bytes - needed,
        layers=[
            LayerOverheadAnswer(
                index=layer.index,
                needed_bytes=layer.needed_bytes,
                kept_bytes=layer.kept_bytes,
                reasons=notes_answer(layer.reasons),
            )
            for layer in found.layers
        ],
        unknown=None if found.unknown is None else notes_answer((found.unknown,))[0],
    )


# Read in a thread: a plan of many unlike layers takes some milliseconds.
@router.post("/engines/transformers/plan", summary="What a run of Transformers leaves in its cache")
def post_plan(request: TransformersPlanRequest) -> TransformersPlanAnswer:
    """Return each tensor's name, shape, format and bytes, and what the model itself would need."""
    return answer_transformers_plan(request)

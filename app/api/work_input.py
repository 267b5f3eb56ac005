"""From a request's model to the prices of its work: which matrices it multiplies, who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from app.api import schemas as s
from app.api.compute import ModelAndFormats, model_and_formats
from app.api.cost_schemas import CostRequest, ShapeInput
from app.domain.counted_weights import asking_heads, counted_matrices
from app.domain.dtypes import DTYPES, DType, dtype_named
from app.domain.errors import DomainError, Unknown, Unsupported
from app.domain.notes import Note
from app.domain.projections import ProjectionShape
from app.domain.weight_formats import weight_format_named
from app.domain.work_plan import CountedMatrices, WorkPlan, plan_work
from app.readers.projection_sizes import gguf_sizes, projection_sizes

if TYPE_CHECKING:
    from app.domain.weights import ModelWeights

_DEFAULT_FORMAT = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A request's model priced, and what was assumed to price it."""

    given: ModelAndFormats
    plan: WorkPlan
    assumed: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Sizes around the caches, and the matrices where the model's own list has them."""

    shape: ProjectionShape
    counted: CountedMatrices | None
    weight_format: DType
    assumed: tuple[Note, ...]


def read_work(request: CostRequest) -> Work:
    """Return a request's model as prices of its work.

    Raises:
        DomainError: naming the field, as seen from the request's body.

    """
    if getattr(request.model, "draft_layers", False):
        raise Unsupported("{field}: the work of multi-token-prediction layers is not counted",
                          field=("model", "draft_layers"))  # fmt: skip
    given = model_and_formats(request)
    stored = None if request.weights is None else request.weights.format
    sizes = _sizes(request, stored)
    try:
        plan = plan_work(
            given.reading.state,
            given.formats,
            sizes.shape,
            sizes.weight_format,
            counted=sizes.counted,
        )
    except DomainError as error:
        raise _placed(error) from None
    assumed = (*given.reading.assumptions, *given.assumed, *sizes.assumed, *plan.assumptions)
    return Work(given=given, plan=plan, assumed=assumed)


def _placed(error: DomainError) -> DomainError:
    """Return a refusal of the plan at the field of the request that it is about."""
    name = error.field[0]
    if name == "weight_format":
        error.field = ("weights", "format")
        return error.under()
    return error.under("model" if name == "layers" else "shape")


def _sizes(request: CostRequest, stored: str | None) -> _Sizes:
    model = request.model
    if request.shape is not None:
        return _named(_shape(request.shape), stored)
    if isinstance(model, s.GgufModel):
        return _named(gguf_sizes(model.gguf), stored)
    if isinstance(model, s.CatalogueModel):
        return _of_catalogue(model.id, stored)
    if isinstance(model, s.HubModel):
        from app.api.hub_models import fetched
        from app.settings import settings

        return _of_config(fetched(model, settings()).config, stored)
    if isinstance(model, s.ConfigModel):
        return _of_config(model.config, stored)
    return _named(ProjectionShape(), stored)


def _shape(given: ShapeInput) -> ProjectionShape:
    return ProjectionShape(
        hidden_size=given.hidden_size,
        query_heads=given.query_heads,
        intermediate_size=given.intermediate_size,
        vocab_size=given.vocab_size,
        mlp_matrices=given.mlp_matrices,
    )


def _named(shape: ProjectionShape, stored: str | None, *assumed: Note) -> _Sizes:
    """Return sizes that say the shapes of matrices, all stored in one plain format."""
    dtype = dtype_named(stored or _DEFAULT_FORMAT, field=("weights", "format"))
    notes = assumed
    if stored is None and shape.hidden_size is not None:
        notes = (*assumed, Note("weights_16_bit", "Weights are taken to be stored in 16 bits."))
    return _Sizes(shape=shape, counted=None, weight_format=dtype, assumed=notes)


@lru_cache(maxsize=64)
def _of_catalogue(model_id: str, stored: str | None) -> _Sizes:
    from app.catalog.models import entry

    return _of_config(entry(model_id)["config"], stored)


def _of_config(config: Mapping[str, Any], stored: str | None) -> _Sizes:
    from app.readers.weights import read_weights

    try:
        weights = read_weights(config)
    except DomainError as error:
        note = Note(
            "sizes_named",
            "The weights of this model cannot be listed ({why}): the sizes that its file names "
            "are used.",
            {"why": error.note},
        )
        return _named(projection_sizes(config), stored, note)
    return _Sizes(
        shape=asking_heads(weights),
        counted=counted_matrices(_as_stored(weights, stored)),
        weight_format=DTYPES.get(stored or _DEFAULT_FORMAT, DTYPES[_DEFAULT_FORMAT]),
        assumed=weights.notes,
    )


def _as_stored(weights: ModelWeights, stored: str | None) -> ModelWeights:
    if stored is None:
        return weights
    try:
        return weights.quantised(weight_format_named(stored))
    except (Unknown, Unsupported) as error:
        error.field = ("weights", "format")
        raise error.under() from None

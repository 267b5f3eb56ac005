"""From a request's `model` to what the engines' plans take: the raw config beside its reading."""

from __future__ import annotations

from app.api import schemas as s
from app.api.model_input import PlainModel, read_model
from app.domain.errors import DomainError
from app.engines.model import EngineModel
from app.readers.reading import ModelReading


def engine_model(model: PlainModel) -> EngineModel:
    """Return a model with its raw config or header beside what its layers keep.

    A GGUF header that the reader refuses is passed on to llama.cpp's own rules, which read it
    themselves and name the key that is at fault.

    Raises:
        DomainError: naming the field, as seen from the request's body.

    """
    if isinstance(model, s.GgufModel):
        try:
            reading = read_model(model)
        except DomainError:
            return EngineModel(gguf=model.gguf)
        return _with(reading, EngineModel(gguf=model.gguf))
    reading = read_model(model)
    if isinstance(model, s.ConfigModel):
        return _with(reading, EngineModel(config=model.config))
    if isinstance(model, s.CatalogueModel):
        from app.catalog.models import entry

        loaded = entry(model.id)
        return _with(reading, EngineModel(name=loaded["id"], config=loaded["config"]))
    return _with(reading, EngineModel())


def _with(reading: ModelReading, raw: EngineModel) -> EngineModel:
    return EngineModel(
        name=raw.name or reading.name,
        config=raw.config,
        gguf=raw.gguf,
        state=reading.state,
        max_context_tokens=reading.max_context_tokens,
        assumptions=reading.assumptions,
    )

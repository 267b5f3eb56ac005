"""From a request's `model` to what the engines' plans take: the raw config beside its reading."""

from __future__ import annotations

from dataclasses import replace

from app.api import schemas as s
from app.api.model_input import PlainModel, read_model
from app.domain.errors import DomainError
from app.domain.notes import Note
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
    if isinstance(model, s.CatalogueModel):
        return _of_catalogue(model)
    reading = read_model(model)
    if isinstance(model, s.ConfigModel):
        return _with(reading, EngineModel(config=model.config))
    return _with(reading, EngineModel())


def _of_catalogue(model: s.CatalogueModel) -> EngineModel:
    """Return a model of the catalogue, or the one that its name leads to, which is then noted."""
    from app.catalog.models import entry

    try:
        reading = read_model(model)
    except DomainError:
        found = None if model.draft_layers else model_by_name(model.id, model.encoder_tokens)
        if found is None:
            raise
        alike, notes = found
        return replace(alike, assumptions=(*notes, *alike.assumptions))
    loaded = entry(model.id)
    return _with(reading, EngineModel(name=loaded["id"], config=loaded["config"]))


def model_by_name(
    name: str, encoder_tokens: int | None
) -> tuple[EngineModel, tuple[Note, ...]] | None:
    """Return the model of a name in any spelling, and whose layers it is taken to have.

    None where the name leads to no model, or to several that keep unlike things.
    """
    from app.catalog.alike import named_model

    found = named_model(name, encoder_tokens=encoder_tokens)
    if found is None:
        return None
    model = _with(found.reading, EngineModel(name=found.id, config=found.config))
    if found.exact:
        return model, ()
    note = Note("model_by_name", "{name} is taken to have the layers of {id}",
                {"name": name, "id": found.id})  # fmt: skip
    return model, (note,)


def _with(reading: ModelReading, raw: EngineModel) -> EngineModel:
    return EngineModel(
        name=raw.name or reading.name,
        config=raw.config,
        gguf=raw.gguf,
        state=reading.state,
        max_context_tokens=reading.max_context_tokens,
        assumptions=reading.assumptions,
    )

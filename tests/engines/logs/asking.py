"""A log asked about a model of the catalogue, and the answer's figures by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.catalog.alike import named_model
from app.engines.logs import Explained, LogFigure, Wish, explain, open_log
from app.engines.model import EngineModel


def model_named(name: str) -> EngineModel:
    """Return a model of the catalogue."""
    found = named_model(name)
    assert found is not None, name
    return EngineModel(
        name=found.id,
        config=found.config,
        state=found.reading.state,
        max_context_tokens=found.reading.max_context_tokens,
    )


def ask(log: str, model: str | EngineModel | None = None, **settings: object) -> Explained:
    """Return a log explained; `want_context` and `want_concurrency` are wishes, all else is set."""
    wish = Wish(
        context_tokens=settings.pop("want_context", None),  # type: ignore[arg-type]
        concurrency=settings.pop("want_concurrency", None),  # type: ignore[arg-type]
    )
    engine = settings.pop("engine", None)
    assert engine is None or isinstance(engine, str)
    found = model_named(model) if isinstance(model, str) else model
    return explain(open_log(log, engine), found, settings, wish)


def ask_each(
    log: str, first: str, known_model: Callable[[Sequence[str]], EngineModel | None]
) -> Explained:
    """Return a log explained whose starts may name models of their own."""
    return explain(open_log(log), model_named(first), {}, None, known_model)


def figure_of(found: Explained, name: str) -> LogFigure:
    """Return the first figure of a name."""
    own = [item for item in found.figures if item.name == name]
    assert own, f"no {name} among {[item.name for item in found.figures]}"
    return own[0]


def verdicts(found: Explained) -> dict[str, bool | None]:
    """Return every figure's verdict by its name; of several, the last."""
    return {item.name: item.agrees for item in found.figures}


def reasons(found: Explained, name: str) -> set[str]:
    """Return the codes of a figure's reasons."""
    return {note.code for note in figure_of(found, name).reasons}


def remarks(found: Explained) -> set[str]:
    """Return the codes of the remarks."""
    return {note.code for note in found.remarks}


def advice(found: Explained) -> dict[str, str]:
    """Return the effects of the changes by their codes; of several, the first."""
    codes: dict[str, str] = {}
    for item in found.advice:
        codes.setdefault(item.change.code, item.effect.text)
    return codes

"""`/engines/explain`: a pasted log, the model that it names or that is given, and the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from app.api import schemas as s
from app.api.answers import Answer, NoteAnswer, notes_answer
from app.api.engines_schemas import ExplainRequest
from app.domain.errors import DomainError, WrongType, shown
from app.domain.notes import Note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.engines.logs import Advice, Explained, LogFigure, OpenedLog
    from app.engines.model import EngineModel

NOT_COUNTED = (
    Note("weights", "the model's weights, which are loaded before the cache is sized"),
    Note("activations", "activations and workspaces that the profile run measures"),
    Note("graphs_and_buffers", "captured graphs, compute and communication buffers"),
)


class FigureAnswer(Answer):
    """One printed figure against ours."""

    name: str
    line: str
    line_number: int
    rank: str | None
    printed: str
    computed: str | None
    interval: tuple[int | float, int | float] | None = Field(
        description="What the printed decimals leave open, in `unit`."
    )
    unit: str
    difference: str
    agrees: bool | None = Field(description="null where the log does not hold enough to check it.")
    reason: str
    reason_codes: list[str]


class AdviceAnswer(Answer):
    """A change, and what it would do, computed."""

    change: str
    effect: str
    code: str


class ExplainAnswer(Answer):
    """A log explained: what was read, what we compute for each figure, why, and what to change."""

    engine: str | None
    version_guess: str | None
    version_used: str | None
    model: str | None
    figures: list[FigureAnswer]
    advice: list[AdviceAnswer]
    remarks: list[NoteAnswer]
    settings: dict[str, Any]
    inferred: dict[str, Any] = Field(description="Settings that only the figures' agreement shows.")
    missing: list[NoteAnswer] = Field(description="What to add for more to be checked.")
    model_candidates: list[str] = Field(
        description="Catalogue models whose token takes what the figures imply, if all layers were"
        " alike."
    )
    disagrees: bool
    formula: str
    formulas: list[str]
    assumptions: list[NoteAnswer]
    not_counted: list[NoteAnswer]
    lines_passed_over: int = Field(description="Lines of a known form beyond the number looked at.")


def compute_explain(request: ExplainRequest) -> Explained:
    """Return a log explained; raises a DomainError that names the field.

    Nothing of the log is kept or written: it lives as long as this call.
    """
    from app.engines.logs import Wish, open_log
    from app.engines.logs import explain as explain_log
    from app.engines.setting_values import own_names

    opened = open_log(request.log, request.engine)
    model, notes = _model(request, opened)
    wish = Wish(context_tokens=request.want_context_tokens, concurrency=request.want_concurrency)
    settings = request.settings
    version = settings.get("version")
    if version is not None and not isinstance(version, str):
        raise WrongType("{field} must be a string, got {value}", field=("settings", "version"),
                        value=shown(version))  # fmt: skip
    try:
        settings = own_names(settings, _aliases(opened.engine))
        # A model that was given is that of every start; else each is of the one that it names.
        own_model = None if request.model is not None else _named
        found = explain_log(opened, model, settings, wish, own_model)
    except DomainError as error:
        if error.field and (error.field[0] in settings or error.code == "conflict"):
            raise error.under("settings") from None
        raise
    return _with_notes(found, notes)


def _aliases(engine: str | None) -> dict[str, str]:
    """Return the short names of an engine's settings."""
    from app.engines.known import ENGINES

    return {name: own for known in ENGINES if known.name == engine for name, own in known.aliases}


def _with_notes(found: Explained, notes: tuple[Note, ...]) -> Explained:
    """Return the answer with what was taken for the model, or why the one named is not known."""
    if found.model_name is not None or not notes:
        return replace(found, assumptions=(*notes, *found.assumptions))
    rest = (note for note in found.missing if note.code != "no_model")
    figures = tuple(
        replace(item, reasons=tuple(notes[0] if r.code == "no_model" else r for r in item.reasons))
        for item in found.figures
    )
    return replace(found, missing=(*notes, *rest), figures=figures)


def _model(
    request: ExplainRequest, opened: OpenedLog
) -> tuple[EngineModel | None, tuple[Note, ...]]:
    """Return the request's model, else the one that the log names; None where neither is known."""
    from app.api.engine_models import engine_model, model_by_name
    from app.engines.logs import named_models, unknown_model

    if isinstance(request.model, s.CatalogueModel):
        found = model_by_name(request.model.id, request.model.encoder_tokens)
        return found if found is not None else (None, (unknown_model(request.model.id),))
    if request.model is not None:
        return engine_model(request.model), ()
    names = named_models(opened)
    for name in names:
        found = model_by_name(name, None)
        if found is not None:
            return found
    return None, tuple(unknown_model(name) for name in names[:1])


def _named(names: Sequence[str]) -> EngineModel | None:
    """Return the first of these that the catalogue has, with what was taken for it."""
    from app.api.engine_models import model_by_name

    for name in names:
        found, notes = model_by_name(name, None) or (None, ())
        if found is not None:
            return replace(found, assumptions=(*notes, *found.assumptions))
    return None


def answer_explain(request: ExplainRequest) -> ExplainAnswer:
    """Return the answer of `/engines/explain`."""
    return explain_answer(compute_explain(request))


def explain_answer(found: Explained) -> ExplainAnswer:
    """Return a log explained as JSON shows it."""
    return ExplainAnswer(
        engine=found.engine,
        version_guess=found.version_guess,
        version_used=found.version_used,
        model=found.model_name,
        figures=[_figure(item) for item in found.figures],
        advice=[_advice(item) for item in found.advice],
        remarks=notes_answer(found.remarks),
        settings=_plain(found.settings),
        inferred=_plain(found.inferred),
        missing=notes_answer(found.missing),
        model_candidates=model_candidates(found),
        disagrees=found.disagrees,
        formula=found.formulas[-1] if found.formulas else "",
        formulas=list(found.formulas),
        assumptions=notes_answer(found.assumptions),
        not_counted=notes_answer(NOT_COUNTED),
        lines_passed_over=found.lines_passed_over,
    )


def model_candidates(found: Explained) -> list[str]:
    """Return models of the catalogue that the figures could be of, where none is known."""
    implied = found.implied_bytes_per_token
    if found.model_name is not None or implied is None:
        return []
    from app.catalog.alike import alike_in_bytes

    return alike_in_bytes(float(implied[0]), float(implied[1]))


def _plain(settings: dict[str, object]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | int | float | str | list) else str(value)
        for name, value in settings.items()
    }


def _figure(item: LogFigure) -> FigureAnswer:
    return FigureAnswer(
        name=item.name,
        line=item.line,
        line_number=item.line_number,
        rank=item.rank,
        printed=item.printed,
        computed=item.computed,
        interval=item.interval,
        unit=item.unit,
        difference=item.difference,
        agrees=item.agrees,
        reason=". ".join(_sentence(note) for note in item.reasons),
        reason_codes=[note.code for note in item.reasons],
    )


def _sentence(note: Note) -> str:
    """Return a note with a capital in front, unless a name stands there."""
    text = note.text
    return text if note.template.startswith("{") else text[:1].upper() + text[1:]


def _advice(item: Advice) -> AdviceAnswer:
    return AdviceAnswer(change=item.change.text, effect=item.effect.text, code=item.change.code)

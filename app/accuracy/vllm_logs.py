"""Public start-up logs of vLLM, explained from their own lines alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from app.accuracy.case import AccuracyCase, Evidence, Figure, Outcome, Question, Suite, outcome_of
from app.accuracy.data import load
from app.catalog.alike import named_model
from app.domain.errors import DomainError
from app.engines.logs import Explained, LogFigure, Wish, explain, open_log
from app.engines.model import EngineModel
from app.web.marks import mark

Row = Mapping[str, Any]
_STATED = "stated in source"
_INFERRED = (
    "the source does not name the model; it was inferred from the figures, so that their agreement "
    "proves nothing by itself"
)
_UNCHECKED = "nothing in these lines can be checked: "
_NO_WISH = Wish(context_tokens=None, concurrency=None)


def ask(row: Row) -> AccuracyCase:
    """Return one log: the figures that can be checked, each against ours."""
    figures: list[Figure] = []
    reason, version = "", str(row.get("vllm_version", ""))
    try:
        found = explain(open_log("\n".join(row["log_lines"]), None), _model(row), {}, _NO_WISH)
        figures = [_figure(item) for item in found.figures if item.agrees is not None]
        reason = _reason(row, found)
    except DomainError as error:
        reason = str(error)
    outcome = outcome_of(figures, best=Outcome.PRINTED, reason=reason)
    if outcome is Outcome.PRINTED and row["model_identified"] != _STATED:
        outcome = Outcome.EXPLAINED
    return AccuracyCase(
        suite=SUITE.name,
        id=row["id"],
        engine="vllm",
        version=version,
        family="",
        model=row["model_name"],
        settings=" ".join(str(row[name]) for name in ("gpu_count", "gpu") if name in row),
        figures=tuple(figures),
        outcome=outcome,
        reason=reason,
        source_url=row.get("source_url"),
    )


def _model(row: Row) -> EngineModel | None:
    """Return the catalogue's model of that name, or one whose name says that it is the same."""
    found = named_model(row["model_name"].partition(" ")[0], encoder_tokens=None)
    if found is None:
        return None
    return EngineModel(
        name=found.id,
        config=found.config,
        state=found.reading.state,
        max_context_tokens=found.reading.max_context_tokens,
    )


def _figure(item: LogFigure) -> Figure:
    return Figure(
        name=item.name.replace("_", " "),
        measured=item.printed,
        computed=item.computed,
        is_within=bool(item.agrees),
    )


def _reason(row: Row, found: Explained) -> str:
    differing = [item for item in found.figures if item.agrees is False]
    if differing:
        return "; ".join(note.text for item in differing for note in item.reasons)
    if all(item.agrees is None for item in found.figures):
        notes = [*found.missing, *(note for item in found.figures for note in item.reasons)]
        return _UNCHECKED + ("; ".join(note.text for note in notes[:3]) or "no figure is printed")
    return "" if row["model_identified"] == _STATED else _INFERRED


def _questions() -> list[Question]:
    return [partial(ask, row) for row in load(SUITE.file)]


SUITE = Suite(
    name="vllm_logs",
    engine="vllm",
    title=mark("Public logs of vLLM"),
    what=mark("Lines that users posted, of many releases; what they leave open is inferred."),
    evidence=Evidence.LOG,
    file="vllm_logs",
    questions=_questions,
)

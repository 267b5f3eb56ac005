"""Parameters of real model classes, built without weights, against those counted from a config."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from app.accuracy.case import AccuracyCase, Evidence, Figure, Question, Suite, outcome_of
from app.accuracy.data import load
from app.domain.errors import DomainError
from app.domain.weight_lines import Part
from app.readers.weights import read_weights
from app.web.marks import mark

_BUILT_WITH = "5.24.0"


def ask(row: Mapping[str, Any], config: Mapping[str, Any], suite: str) -> AccuracyCase:
    """Return one class; a ...ForCausalLM is the decoder alone."""
    parts = (Part.TEXT,) if row["class"].endswith("ForCausalLM") else None
    computed, reason = None, ""
    try:
        computed = read_weights(config).parameters(parts)
    except DomainError as error:
        reason = str(error)
    figures = (Figure(name="parameters", measured=row["parameters"], computed=computed),)
    return AccuracyCase(
        suite=suite,
        id=row["hf_id"],
        engine="transformers",
        version=_BUILT_WITH,
        family=str(config.get("model_type", "")),
        model=row["class"],
        settings="",
        figures=figures,
        outcome=outcome_of(figures),
        reason=reason,
    )


def _questions(file: str) -> list[Question]:
    configs = load("weight_configs")
    return [partial(ask, row, configs[row["hf_id"]], file) for row in load(file)]


SUITE = Suite(
    name="param_counts",
    engine="transformers",
    title=mark("Parameters of real classes"),
    what=mark("Classes built without weights from public configs; their parameters counted."),
    evidence=Evidence.RUN,
    file="param_counts",
    questions=partial(_questions, "param_counts"),
)
BUILT = Suite(
    name="weights_built",
    engine="transformers",
    title=mark("Parameters of further classes"),
    what=mark("More checkpoints, and small made-up models of each family."),
    evidence=Evidence.RUN,
    file="weights_built",
    questions=partial(_questions, "weights_built"),
)

"""What `/explain` shows of a log: its lines with their figures, the verdicts, what to change."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from app.api.explain import ExplainAnswer, explain_answer
from app.engines.known import ENGINES
from app.engines.logs import Explained, LogFigure
from app.pages import page_parts
from app.pages.render import OWN_ADDRESS
from app.web.marks import mark

# A longer answer is for the API: two copies of it would make the page heavy.
MOST_COPIED_FIGURES = 200
MOST_FIGURES_SHOWN = 400
ENGINE_TITLES: Mapping[str, str] = {
    **{engine.name: engine.title for engine in ENGINES if engine.name != "transformers"},
    "ollama": "Ollama",
}
FIGURES: Mapping[str, str] = {
    "activation_peak": mark("activation peak"),
    "attention_block_size": mark("attention block"),
    "available_memory": mark("memory for the cache"),
    "blocks": mark("blocks"),
    "blocks_per_sequence": mark("blocks a sequence"),
    "budget": mark("budget"),
    "device_share": mark("share of the device"),
    "buffer": mark("buffer of a device"),
    "cells": mark("cells"),
    "context_ranks": mark("context ranks"),
    "conv_states": mark("convolution states"),
    "cpu_blocks": mark("CPU blocks"),
    "cuda_graphs": mark("captured graphs"),
    "device_cache": mark("cache of a device"),
    "draft_k_pool": mark("pool of the draft's keys"),
    "estimated_cache": mark("estimated cache"),
    "estimated_length": mark("estimated length"),
    "failed_allocation": mark("failed allocation"),
    "gpu_blocks": mark("GPU blocks"),
    "k_pool": mark("pool of keys"),
    "kv_block_size": mark("block of the cache"),
    "kv_bytes": mark("bytes of the cache"),
    "kv_cache": mark("cache"),
    "kv_cache_tokens": mark("tokens held"),
    "kv_pool": mark("pool"),
    "kv_self_size": mark("cache in all"),
    "max_concurrency": mark("requests at once"),
    "max_total_num_tokens": mark("tokens held"),
    "needed_memory": mark("memory needed"),
    "padding_layers": mark("padding layers"),
    "recurrent_states": mark("recurrent states"),
    "ssm_states": mark("recurrent states"),
    "state_blocks": mark("state blocks"),
    "state_page_padding": mark("padding of state pages"),
    "stored_tokens": mark("tokens that can be stored"),
    "v_pool": mark("pool of values"),
    "weights": mark("weights"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureView:
    """One figure of a line; `verdict` is `agrees`, `disagrees` or `unchecked`."""

    figure: LogFigure
    name: str
    interval: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineView:
    """One line of the log with the figures on it."""

    number: int
    text: str
    rank: str | None
    figures: tuple[FigureView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainView:
    """An answer, as the page shows it."""

    found: Explained
    title: str
    lines: tuple[LineView, ...]
    more_figures: int
    agree: int
    disagree: int
    unchecked: int
    settings: tuple[tuple[str, str, bool], ...]
    candidates: tuple[str, ...]
    chosen: str
    as_json: str
    as_csv: str
    curl: str
    command: str


def explain_view(
    found: Explained, body: Mapping[str, Any], fields: Mapping[str, str], chosen: str
) -> ExplainView:
    """Return a log explained as the page shows it."""
    answer = explain_answer(found)
    verdicts = [_verdict(item) for item in found.figures]
    copied = len(found.figures) <= MOST_COPIED_FIGURES
    return ExplainView(
        found=found,
        title=ENGINE_TITLES.get(found.engine or "", ""),
        lines=_lines(found.figures[:MOST_FIGURES_SHOWN]),
        more_figures=max(0, len(found.figures) - MOST_FIGURES_SHOWN),
        agree=verdicts.count("agrees"),
        disagree=verdicts.count("disagrees"),
        unchecked=verdicts.count("unchecked"),
        settings=tuple(
            (name, str(value), name in found.inferred) for name, value in found.settings.items()
        ),
        candidates=tuple(answer.model_candidates),
        chosen=chosen,
        as_json=answer.model_dump_json(indent=1) if copied else "",
        as_csv=_csv(answer) if copied else "",
        curl=_curl(body),
        command=_command(body, fields),
    )


def _verdict(item: LogFigure) -> str:
    if item.agrees is None:
        return "unchecked"
    return "agrees" if item.agrees else "disagrees"


def _lines(figures: Iterable[LogFigure]) -> tuple[LineView, ...]:
    rows = []
    for (number, text, rank), own in groupby(
        figures, lambda it: (it.line_number, it.line, it.rank)
    ):
        views = tuple(
            FigureView(
                figure=item,
                name=FIGURES.get(item.name, item.name),
                interval=_interval(item),
                verdict=_verdict(item),
            )
            for item in own
        )
        rows.append(LineView(number=number, text=text, rank=rank, figures=views))
    return tuple(rows)


def _interval(item: LogFigure) -> str:
    if item.interval is None or item.interval[0] == item.interval[1]:
        return ""
    # Grouped as the log and the engines' own figures are, which stand in the same cell.
    return " … ".join(f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in item.interval)


def _csv(answer: ExplainAnswer) -> str:
    columns = ("line_number", "rank", "name", "printed", "computed", "difference", "agrees",
               "reason")  # fmt: skip
    rows = ([getattr(item, name) for name in columns] for item in answer.figures)
    return page_parts.csv_text(columns, rows)


def _curl(body: Mapping[str, Any]) -> str:
    """Return a command that sends a file; the log itself may be megabytes."""
    rest = {name: value for name, value in body.items() if name != "log"}
    text = json.dumps(rest, ensure_ascii=False)
    return (
        f"jq -Rs --argjson rest {shlex.quote(text)} '{{log: .}} + $rest' start.log | "
        f"curl -s {OWN_ADDRESS}/api/v1/engines/explain -H 'content-type: application/json' -d @-"
    )


def _command(body: Mapping[str, Any], fields: Mapping[str, str]) -> str:
    model = body.get("model", {})
    return page_parts.command(
        "explain",
        "start.log",
        model=model.get("id"),
        config="config.json" if model and "id" not in model else None,
        settings=" ".join(fields["settings"].split()),
        engine=body.get("engine"),
        want_context=body.get("want_context_tokens"),
        want_concurrency=body.get("want_concurrency"),
    )

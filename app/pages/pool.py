"""`/pool`: a block pool event by event. The address holds the events and the step on show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError

from app.api import block_pool_schemas as s
from app.api.block_pool import compute_pool, event_body, pool_answer
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.pool_events import PoolEvent, PoolSimulation, PoolStep
from app.pages import figures
from app.pages import page_parts as parts
from app.pages.model_form import integer
from app.pages.problems import Problems, problems_of
from app.pages.render import render, sentence, wants_fragment
from app.readers.event_lines import event_line, parse_events
from app.web.language import language_of, translations

if TYPE_CHECKING:
    from app.domain.pool_scenarios import PoolScenario
    from app.pages.pool_steps import StepView

router = APIRouter(include_in_schema=False)

EVENTS_SHOWN = 200
_SETTINGS = {"policy": "engine", "when_full": "", "caching": "on", "window": "", "version": ""}
_FORM_FIELDS = ("events", "num_blocks", "block_size", "step", "offset", *_SETTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of the list: what it did and why."""

    number: int
    line: str
    step: PoolStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """An answer, as the page shows it."""

    simulation: PoolSimulation
    rows: list[EventRow]
    offset: int
    next_offset: int | None
    previous_offset: int | None
    chart: figures.Figure
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPage:
    """Everything that the template of `/pool` may name."""

    scenario: str
    title: Note | None
    events: str
    num_blocks: str
    block_size: str
    settings: dict[str, str]
    problems: Problems
    view: PoolView | None
    shown: StepView | None
    scenarios: tuple[PoolScenario, ...]
    policies: tuple[str, ...]
    newest: str
    state_names: Mapping[str, str]
    cell_names: Mapping[str, str]
    change_names: Mapping[str, str]
    base: str
    query: str


def _lines(scenario: PoolScenario) -> str:
    return "\n".join(map(event_line, scenario.events))


def _fields(query: Mapping[str, str]) -> PoolPage:
    """Return the page before any answer: what its fields hold."""
    from app.domain.pool_scenarios import SCENARIOS
    from app.domain.pool_simulation import NEWEST_VERSION, POLICIES
    from app.pages.pool_steps import CELL_NAMES, CHANGE_NAMES, STATE_NAMES

    asked = query.get("scenario", "")
    story = next((item for item in SCENARIOS if item.name == asked), SCENARIOS[0])
    settings = {name: query.get(name, usual).strip() for name, usual in _SETTINGS.items()}
    page = PoolPage(
        scenario="",
        title=None,
        events=query.get("events", _lines(story)).replace("\r\n", "\n"),
        num_blocks=query.get("num_blocks", str(story.num_blocks)).strip(),
        block_size=query.get("block_size", str(story.block_size)).strip(),
        settings=settings,
        problems={},
        view=None,
        shown=None,
        scenarios=SCENARIOS,
        policies=POLICIES,
        newest=NEWEST_VERSION,
        state_names=STATE_NAMES,
        cell_names=CELL_NAMES,
        change_names=CHANGE_NAMES,
        base="",
        query="",
    )
    told = next((item for item in SCENARIOS if _lines(item) == page.events.strip()), None)
    if told is not None:
        page = replace(page, scenario=told.name, title=told.title)
    base = urlencode(_kept(page, told))
    return replace(page, base=base, query=base)


def _kept(page: PoolPage, told: PoolScenario | None) -> list[tuple[str, str]]:
    """Return the shortest query that gives the same pool; a known story goes by its name."""
    if told is None:
        kept = [
            ("events", page.events.strip()),
            ("num_blocks", page.num_blocks),
            ("block_size", page.block_size),
        ]
    else:
        kept = [("scenario", told.name)]
        if page.num_blocks != str(told.num_blocks):
            kept.append(("num_blocks", page.num_blocks))
        if page.block_size != str(told.block_size):
            kept.append(("block_size", page.block_size))
    kept += [(name, text) for name, text in page.settings.items() if text != _SETTINGS[name]]
    return kept


def pool_page(query: Mapping[str, str], language: str) -> PoolPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    from app.pages.pool_steps import step_view

    page = _fields(query)
    try:
        lines = parse_events(page.events)
    except DomainError as error:
        return replace(page, problems=problems_of(error, _FORM_FIELDS, "events"))
    events = [event for _, event in lines]
    try:
        body = _body(page, events)
        simulation = compute_pool(s.BlockPoolRequest.model_validate(body))
        number = integer("step", query.get("step") or "1")
        number = max(0, min(number, len(simulation.steps)))
        offset = max(integer("offset", query.get("offset") or "0"), 0)
    except (DomainError, ValidationError) as error:
        return replace(page, problems=_problems(error, [number for number, _ in lines]))
    return replace(
        page,
        view=_view(page, simulation, events, offset, language),
        shown=step_view(simulation, events, number),
        # The first event is on show where the address says nothing.
        query=page.base if number == 1 else f"{page.base}&step={number}",
    )


def _problems(error: DomainError | ValidationError, lines: list[int]) -> Problems:
    """Return what is wrong; of an event, with the line on which it stands."""
    found = problems_of(error, _FORM_FIELDS, "events")
    path = error.field if isinstance(error, DomainError) else error.errors()[0]["loc"]
    at = path[1] if len(path) > 1 and path[0] == "events" else None
    if "events" not in found or not isinstance(at, int):
        return found
    note = found["events"]
    params = {**note.params, "field": ".".join(map(str, path[2:])) or "events"}
    problem = Note(note.code, note.template, params)
    said = Note(note.code, "Line {line}: {problem}", {"line": lines[at], "problem": problem})
    return {**found, "events": said}


def _body(page: PoolPage, events: list[PoolEvent]) -> dict[str, Any]:
    """Return the API's body for what the fields hold.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    from app.domain.pool_simulation import POLICIES, WHEN_FULL

    settings = page.settings
    body: dict[str, Any] = {
        "num_blocks": integer("num_blocks", page.num_blocks),
        "block_size": integer("block_size", page.block_size),
        "events": [event_body(event) for event in events],
        "policy": settings["policy"] if settings["policy"] in POLICIES else "engine",
    }
    if settings["when_full"] in WHEN_FULL:
        body["when_full"] = settings["when_full"]
    if settings["caching"] == "off":
        body["caching"] = False
    if settings["window"]:
        body["window"] = integer("window", settings["window"])
    if settings["version"]:
        body["version"] = settings["version"]
    return body


def _view(
    page: PoolPage,
    simulation: PoolSimulation,
    events: list[PoolEvent],
    offset: int,
    language: str,
) -> PoolView:
    after = offset + EVENTS_SHOWN
    return PoolView(
        simulation=simulation,
        rows=_event_rows(simulation, events)[offset:after],
        offset=offset,
        next_offset=after if after < len(events) else None,
        previous_offset=max(0, offset - EVENTS_SHOWN) if offset else None,
        chart=_chart(simulation, language),
        curl=parts.curl("block-pool", _body(page, events)),
        command=_command(page),
    )


def _event_rows(simulation: PoolSimulation, events: list[PoolEvent]) -> list[EventRow]:
    return [
        EventRow(number=step.index + 1, line=event_line(event), step=step)
        for step, event in zip(simulation.steps, events, strict=True)
    ]


def _chart(simulation: PoolSimulation, language: str) -> figures.Figure:
    say = translations(language).gettext
    numbers = [step.index + 1 for step in simulation.steps]
    used = [step.used_blocks for step in simulation.steps]
    cached = [step.cached_free_blocks for step in simulation.steps]
    entries = [step.used_blocks + step.saved_blocks for step in simulation.steps]
    return figures.lines(
        [
            (say("Table entries"), "fixed", numbers, entries),
            (say("Blocks held"), "effective", numbers, used),
            (say("Free, still cached"), "window", numbers, cached),
        ],
        x_title=say("Event"),
        y_title=say("Blocks"),
    )


def _command(page: PoolPage) -> str:
    settings = page.settings
    source: dict[str, object] = (
        {"scenario": page.scenario} if page.scenario else {"events": page.events.strip()}
    )
    return parts.command(
        "pool",
        **source,
        num_blocks=page.num_blocks,
        block_size=page.block_size,
        policy=settings["policy"],
        when_full=settings["when_full"],
        no_caching=settings["caching"] == "off",
        window=settings["window"],
        version=settings["version"],
    )


@router.api_route("/pool", methods=["GET", "POST"], response_class=HTMLResponse)
def show(request: Request, query: parts.Asked) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    page = pool_page(query, language_of(request))
    return parts.answer_page(request, "pool.html", page, "/pool")


@router.get("/pool/step", response_model=None)
def show_step(request: Request) -> Response:
    """Answer one step of the pool, for the slider; to others, the page that shows it."""
    page = pool_page(request.query_params, language_of(request))
    if not wants_fragment(request):
        return RedirectResponse(f"/pool?{page.query}", status_code=303)
    if page.shown is None:
        return parts.answer_page(request, "pool.html", page, "/pool")
    headers = {"HX-Replace-Url": f"/pool?{page.query}"}
    return render(request, "pool.html", page, fragment="step", headers=headers)


def _checked(query: Mapping[str, str]) -> tuple[PoolSimulation, list[PoolEvent]]:
    page = _fields(query)
    events = [event for _, event in parse_events(page.events)]
    return compute_pool(s.BlockPoolRequest.model_validate(_body(page, events))), events


@router.get("/export/pool.json", response_model=None)
def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        simulation, _ = _checked(request.query_params)
    except (DomainError, ValidationError) as error:
        return parts.refused(problems_of(error, _FORM_FIELDS, "events"))
    return parts.json_download("pool.json", pool_answer(simulation))


@router.get("/export/pool.csv", response_model=None)
def export_csv(request: Request) -> Response:
    """Answer the events as CSV: what each did and why."""
    try:
        simulation, events = _checked(request.query_params)
    except (DomainError, ValidationError) as error:
        return parts.refused(problems_of(error, _FORM_FIELDS, "events"))
    language = language_of(request)
    numbers = ("hit_tokens", "admitted_tokens", "computed_tokens", "used_blocks", "free_blocks")
    lists = ("hits", "allocated", "evictions", "freed", "preempted")
    return parts.csv_download(
        "pool.csv",
        ["event", "line", "accepted", *numbers, *lists, "copies", "reasons"],
        (
            (
                row.number,
                row.line,
                row.step.accepted,
                *(getattr(row.step, name) for name in numbers),
                *(" ".join(map(str, getattr(row.step, name))) for name in lists),
                " ".join(f"{source}>{target}" for source, target in row.step.copies),
                " ".join(sentence(note, language) for note in row.step.notes),
            )
            for row in _event_rows(simulation, events)
        ),
    )

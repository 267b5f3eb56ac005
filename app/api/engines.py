"""`/engines`: what is known, each engine's own plan, all side by side, and a log explained."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from app.api.answers import Answer
from app.api.engine_plans import AnyPlanAnswer, answer_engine_plan
from app.api.engines_compared import SideBySideAnswer, answer_side_by_side
from app.api.engines_schemas import (
    EnginePlanRequest,
    ExplainRequest,
    PlannedEngine,
    SideBySideRequest,
)
from app.api.explain import ExplainAnswer, answer_explain
from app.api.problems import REFUSED
from app.api.routing import JsonRoute

router = APIRouter(tags=["engines"], responses=REFUSED, route_class=JsonRoute)


class EngineAnswer(Answer):
    """One engine: `versions` are all that are known, or the ends of the range that is."""

    name: str
    title: str
    newest: str
    versions: list[str]
    version_form: str
    settings: list[str]
    aliases: dict[str, str]
    available_bytes: str
    source_url: str


class EngineList(Answer):
    """All engines that are planned."""

    engines: list[EngineAnswer]


def engine_list() -> EngineList:
    """Return what is known of every engine."""
    from app.engines.known import ENGINES

    return EngineList(
        engines=[
            EngineAnswer(
                name=engine.name,
                title=engine.title,
                newest=engine.newest,
                versions=list(engine.versions),
                version_form=engine.version_form,
                settings=list(engine.settings),
                aliases=dict(engine.aliases),
                available_bytes=engine.memory,
                source_url=engine.source_url,
            )
            for engine in ENGINES
        ]
    )


@router.get("/engines", summary="Engines, versions and settings that are known")
async def list_engines() -> EngineList:
    """Return every engine with its versions, its settings' names and what its bytes mean."""
    return engine_list()


# Planning a model of many unlike layers takes some tens of milliseconds: not on the event loop.
@router.post("/engines/{engine}/plan", summary="What an engine allocates and prints")
def plan(engine: Annotated[PlannedEngine, Path()], request: EnginePlanRequest) -> AnyPlanAnswer:
    """Return an engine's own view of a model: groups or pools, blocks, tokens, its log lines."""
    return answer_engine_plan(engine, request)


@router.post("/engines/side-by-side", summary="One model and one budget through all engines")
def compare(request: SideBySideRequest) -> SideBySideAnswer:
    """Return what the budget holds in each engine, and what one request takes there."""
    return answer_side_by_side(request)


@router.post("/engines/explain", summary="A start-up log, figure by figure")
def explain(request: ExplainRequest) -> ExplainAnswer:
    """Return what a log's figures come to, whether they agree, why, and what to change."""
    return answer_explain(request)

"""`/per-token` and `/ledgers`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from app.api import schemas as s
from app.api.answers import LedgersAnswer, PerTokenAnswer
from app.api.compute import answer_ledgers, answer_per_token, is_heavy
from app.api.problems import REFUSED
from app.api.routing import JsonRoute

router = APIRouter(tags=["ledgers"], responses=REFUSED, route_class=JsonRoute)


@router.post("/per-token", summary="Slope, windows and fixed part of one sequence")
async def per_token(request: s.PerTokenRequest) -> PerTokenAnswer:
    """Return what one more token costs, and what a sequence costs whatever its length."""
    return answer_per_token(request)


@router.post("/ledgers", summary="The three ledgers of a set of requests")
async def ledgers(request: s.LedgersRequest) -> LedgersAnswer:
    """Return effective, padded and paged bytes side by side."""
    if is_heavy(request):
        return await run_in_threadpool(answer_ledgers, request)
    return answer_ledgers(request)

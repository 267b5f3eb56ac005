"""Is the process alive, and can it answer?"""

from __future__ import annotations

from fastapi import APIRouter

from app.api.answers import Answer
from app.catalog import models

router = APIRouter(tags=["operation"])


class Health(Answer):
    """A one-word state."""

    status: str


class Readiness(Answer):
    """A one-word state, and what was loaded to be able to answer."""

    status: str
    models: int


@router.get("/healthz", summary="Alive")
async def healthz() -> Health:
    """Return at once while the event loop turns."""
    return Health(status="ok")


@router.get("/readyz", summary="Able to answer")
async def readyz() -> Readiness:
    """Return once the catalogue can be read."""
    return Readiness(status="ok", models=len(models.index()))

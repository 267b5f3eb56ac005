"""Shared fixtures: profiles of the property tests, closed sockets, one application."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from starlette.testclient import TestClient

settings.register_profile("default", max_examples=60, deadline=None, derandomize=True)
settings.register_profile(
    "fuzz", max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    """Return a client of the application, in this process."""
    from app.main import create_app  # noqa: PLC0415 - tests of the domain do without it

    with TestClient(create_app(), raise_server_exceptions=False) as started:
        yield started

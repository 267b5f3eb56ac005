"""Imports point one way, and start-up stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("fastapi", "jinja2", "numpy", "torch", "plotly", "pydantic", "starlette")


def modules_after(statement: str, root: Path) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after a statement."""
    code = f"import sys; {statement}; print(' '.join({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    return set(done.stdout.split())


def test_the_domain_brings_no_framework(root: Path) -> None:
    """Importing every module of the domain brings the standard library and nothing else."""
    names = sorted(path.stem for path in (root / "app" / "domain").glob("*.py"))
    assert "ledgers" in names
    imports = ", ".join(f"app.domain.{name}" for name in names if name != "__init__")
    assert not modules_after(f"import {imports}", root) & set(HEAVY)


@pytest.mark.parametrize("heavy", ["torch", "plotly", "numpy", "babel", "huggingface_hub"])
def test_the_application_starts_without_heavy_modules(heavy: str, root: Path) -> None:
    """Creating the application does not import what only some requests need."""
    assert heavy not in modules_after("from app.main import create_app; create_app()", root)

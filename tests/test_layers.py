"""Imports point one way, and start-up stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("fastapi", "jinja2", "numpy", "torch", "plotly", "pydantic", "starlette")


def modules_after(statement: str, root: Path) -> set[str]:
    """Return the full names of the modules that a fresh interpreter holds after a statement."""
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def started(root: Path) -> set[str]:
    """What a fresh interpreter holds after the application was created in it."""
    return modules_after("from app.main import create_app; create_app()", root)


def test_the_domain_brings_no_framework(root: Path) -> None:
    """Importing every module of the domain brings the standard library and nothing else."""
    names = sorted(path.stem for path in (root / "app" / "domain").glob("*.py"))
    assert "ledgers" in names
    imports = ", ".join(f"app.domain.{name}" for name in names if name != "__init__")
    brought = modules_after(f"import {imports}", root)
    assert not {name.partition(".")[0] for name in brought} & set(HEAVY)


@pytest.mark.parametrize(
    "heavy",
    [
        "torch",
        "plotly",
        "numpy",
        "babel",
        "huggingface_hub",
        "app.accuracy",
        "app.demo.jobs",
        "app.demo.lab",
        "app.demo.measure",
        "app.engines",
        "app.hub",
        "app.readers.gguf",
        "app.readers.hf_config",
        "app.readers.weights",
    ],
)
def test_the_application_starts_without_heavy_modules(
    heavy: str, started: set[str], root: Path
) -> None:
    """Creating the application does not import what only some requests need."""
    ours = root.joinpath(*heavy.split("."))
    assert not heavy.startswith("app.") or ours.is_dir() or ours.with_suffix(".py").is_file()
    assert "app.main" in started
    assert not {name for name in started if f"{name}.".startswith(f"{heavy}.")}


def test_importing_the_application_leaves_the_collector_alone(root: Path) -> None:
    """Only a process that serves changes how Python collects garbage; an import does not."""
    code = (
        "import gc; before = gc.get_threshold(); import app.main; app.main.create_app(); "
        "print(gc.isenabled(), gc.get_freeze_count(), gc.get_threshold() == before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.split() == ["True", "0", "True"]

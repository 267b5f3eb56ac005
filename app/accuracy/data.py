"""The measured files: beside this module where the program is installed, else among the tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

INSTALLED = Path(__file__).parent / "data"
AMONG_TESTS = Path(__file__).resolve().parents[2] / "tests" / "data"


def load(name: str) -> Any:
    """Return the content of a measured file, packed or not.

    Raises:
        FileNotFoundError: when it is in neither place.

    """
    for folder in (INSTALLED, AMONG_TESTS):
        plain, packed = folder / f"{name}.json", folder / f"{name}.json.gz"
        if plain.exists():
            return json.loads(plain.read_text(encoding="utf-8"))
        if packed.exists():
            with gzip.open(packed, "rt", encoding="utf-8") as file:
                return json.load(file)
    raise FileNotFoundError(name)

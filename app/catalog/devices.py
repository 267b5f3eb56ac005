"""The bundled accelerators, each figure with where it was read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.domain.errors import Unknown, shown

DEVICES = Path(__file__).parent / "data" / "devices.json"


@lru_cache(maxsize=1)
def devices() -> Mapping[str, Mapping[str, Any]]:
    """Return all devices by id."""
    return {row["id"]: row for row in json.loads(DEVICES.read_text(encoding="utf-8"))}


def device(device_id: str) -> Mapping[str, Any]:
    """Return one device.

    Raises:
        Unknown: for an id that the catalogue lacks.

    """
    found = devices().get(device_id)
    if found is None:
        raise Unknown(
            "{field} {value} is not among the {count} known devices",
            field="device",
            value=shown(device_id),
            count=len(devices()),
        )
    return found

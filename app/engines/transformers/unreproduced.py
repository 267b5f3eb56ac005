"""Measured cases that the plan does not reproduce, each with its reason; none is dropped unsaid."""

from __future__ import annotations

UNREPRODUCED: dict[str, str] = {}

"""Families to be registered here."""

from __future__ import annotations

from app.readers.hf_config.family import Family

FAMILIES: tuple[Family, ...] = ()

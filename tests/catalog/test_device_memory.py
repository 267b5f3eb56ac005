"""A device's memory: the driver's figure where known, else a range around what is sold."""

from __future__ import annotations

import pytest

from app.catalog.device_memory import memory_line
from app.catalog.devices import device, devices
from app.domain.capacity import Basis
from app.domain.errors import Unknown

GIB = 2**30


def test_a_reported_figure() -> None:
    """A driver's figure is measured, and is the figure of the catalogue."""
    line = memory_line(device("t4"))
    assert line.basis is Basis.MEASURED
    assert (line.low_bytes, line.high_bytes) == (15_633_680_957, 15_655_155_793)


def test_a_sold_figure_is_a_range() -> None:
    """Without one, the range is what the same vendor's devices report of what is sold."""
    line = memory_line(device("rtx-3090-ti"))
    assert line.basis is Basis.ASSUMED
    assert line.low_bytes < line.high_bytes <= 24 * GIB
    assert "24 GB" in line.note.text


def test_a_card_of_two_devices_counts_one() -> None:
    """A card that the driver shows as two devices gives the memory of one."""
    assert memory_line(device("mi250x")).high_bytes <= 64 * GIB


@pytest.mark.parametrize("device_id", sorted(devices()))
def test_every_device_has_memory(device_id: str) -> None:
    """Every device of the catalogue has a range above nothing."""
    line = memory_line(device(device_id))
    assert 0 < line.low_bytes <= line.high_bytes


def test_an_unknown_device() -> None:
    """A device that does not exist is refused by name."""
    with pytest.raises(Unknown, match="'abacus'"):
        device("abacus")

"""`/devices`: the bundled accelerators, each figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.api.answers import Answer
from app.api.problems import REFUSED

router = APIRouter(tags=["catalogue"], responses={422: REFUSED[422]})


class DeviceAnswer(Answer):
    """One device: its memory as reported where known, else as sold, and its sources."""

    id: str
    name: str
    vendor: str
    kind: str
    memory_sold: float
    memory_sold_unit: str
    memory_low_bytes: int
    memory_high_bytes: int
    memory_basis: str
    memory_note: str
    devices_per_unit: int
    bandwidth_gb_s: float | None
    interconnect: str | None
    sources: list[str]


class DeviceList(Answer):
    """The bundled devices."""

    total: int
    devices: list[DeviceAnswer]


def device_answer(row: Mapping[str, Any]) -> DeviceAnswer:
    """Return one device as JSON shows it."""
    from app.catalog.device_memory import memory_line

    line = memory_line(row)
    return DeviceAnswer(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        kind=row["kind"],
        memory_sold=row["memory_gib_marketed"],
        memory_sold_unit=row["memory_marketed_unit"],
        memory_low_bytes=line.low_bytes,
        memory_high_bytes=line.high_bytes,
        memory_basis=line.basis.value,
        memory_note=line.note.text,
        devices_per_unit=row["driver_devices_per_unit"],
        bandwidth_gb_s=row["bandwidth_gb_s"],
        interconnect=row["interconnect"],
        sources=[source["ref"] for source in row["source"]],
    )


def list_devices(q: str = "") -> DeviceList:
    """Return the devices whose id or name contains every word."""
    from app.catalog.devices import devices

    words = q.casefold().split()
    rows = [
        row
        for row in devices().values()
        if all(word in f"{row['id']} {row['name']} {row['vendor']}".casefold() for word in words)
    ]
    return DeviceList(total=len(rows), devices=[device_answer(row) for row in rows])


@router.get("/devices", summary="The bundled devices, with sources")
def devices_call(
    q: Annotated[str, Query(max_length=200, description="Words of the id or name.")] = "",
) -> DeviceList:
    """Return devices with their memory as reported where known, else as sold."""
    return list_devices(q)

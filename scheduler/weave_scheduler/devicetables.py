"""Tables of what stays on each device and what moves, from the plan's JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weave_scheduler.tables import Table
from weave_scheduler.units import format_bytes, format_duration

__all__ = ["device_tables"]

Row = Mapping[str, Any]


def device_tables(devices: Sequence[Row]) -> list[Table]:
    """Devices; what each job has there; the switches of a cycle. A device that is alike to the one
    before it (another GPU of the same node) is not repeated."""
    shown = [
        (at, one) for at, one in enumerate(devices) if at == 0 or not _alike(one, devices[at - 1])
    ]
    named = [(_name(devices, at), one) for at, one in shown]
    return [_devices(named), _tenants(named), _switches(named)]


def _alike(one: Row, other: Row) -> bool:
    return {**one, "device": ""} == {**other, "device": ""} and bool(one.get("switches"))


def _name(devices: Sequence[Row], at: int) -> str:
    last = at
    while last + 1 < len(devices) and _alike(devices[last + 1], devices[at]):
        last += 1
    first = str(devices[at]["device"])
    return first if last == at else f"{first} to {devices[last]['device']}"


def _devices(named: Sequence[tuple[str, Row]]) -> Table:
    rows = []
    for name, one in named:
        if "mistake" in one:
            rows.append([name, format_bytes(one["capacity"]), "", "", one["mistake"], "", ""])
            continue
        needed = sum(t["keep"] + t["clean"] + t["discard"] for t in one["tenants"])
        rows.append(
            [
                name,
                format_bytes(one["capacity"]),
                format_bytes(one["usable"]),
                format_bytes(needed),
                one["plan"] if one["bytes_per_cycle"] else f"{one['plan']}: nothing is copied",
                format_bytes(one["bytes_per_cycle"]),
                format_duration(one["foreground_s"]),
            ]
        )
    heads = ["device", "memory", "for jobs", "of all jobs", "plan", "copied per cycle", "waits"]
    return Table("Devices", heads, rows)


def _tenants(named: Sequence[tuple[str, Row]]) -> Table:
    rows = []
    for name, one in named:
        for tenant in one.get("tenants", ()):
            total = tenant["keep"] + tenant["clean"] + tenant["discard"]
            sizes = [tenant["keep"], tenant["clean"], tenant["discard"]]
            sizes += [total - tenant["may_leave"], tenant["may_leave"]]
            rows.append([name, tenant["name"], *map(_shown, sizes)])
    heads = ["device", "job", "keep", "reload", "discard", "always stays", "may leave"]
    return Table("What stays and what moves", heads, rows)


def _switches(named: Sequence[tuple[str, Row]]) -> Table:
    rows = [
        [
            name,
            switch["out"],
            switch["in"],
            *(_shown(switch[f"{when}_{way}"]) for when in ("foreground", "background")
              for way in ("out", "in")),
            format_duration(switch["modelled_s"]),
        ]
        for name, one in named
        for switch in one.get("switches", ())
    ]  # fmt: skip
    heads = ["device", "from", "to", "out while it waits", "in while it waits"]
    heads += ["out before", "in before", "waits"]
    return Table("Switches of a cycle (before: copied behind the phase that runs)", heads, rows)


def _shown(size: int) -> str:
    return format_bytes(size) if size else ""

"""``weave doctor`` for people: the record of :mod:`weave_rt.doctor` as tables. Pure."""

from __future__ import annotations

from typing import Any

from weave_scheduler.tables import Table
from weave_scheduler.units import format_bytes

__all__ = ["doctor_tables", "has_problem"]


def doctor_tables(record: dict[str, Any]) -> list[Table]:
    """Versions, devices, and a line per matter with its verdict and what to do."""
    gpus = [
        [f"cuda:{gpu['ordinal']}", f"{gpu['name']}, {format_bytes(gpu['total_bytes'])}"]
        for gpu in record["cuda"].get("devices") or []
        if "name" in gpu and "total_bytes" in gpu
    ]
    versions = [[*pair] for pair in record["versions"].items()]
    return [
        Table("Versions", ["what", "version"], versions, prose=True),
        Table("GPUs", ["what", "value"], gpus, prose=True),
        *(
            Table(f"Device {one['spec']}", ["what", "value"], _lines(one), prose=True)
            for one in record["devices"]
        ),
        _checks(record["checks"]),
    ]


def has_problem(record: dict[str, Any]) -> bool:
    """Whether something will fail on this machine."""
    return any(check["verdict"] == "problem" for check in record["checks"])


def _checks(found: list[dict[str, str]]) -> Table:
    rows = [[one["name"], one["verdict"], one["value"], one["advice"]] for one in found]
    columns = ["what", "verdict", "value", "what to do"]
    if not any(row[3] for row in rows):
        return Table("Checks", columns[:3], [row[:3] for row in rows], prose=True)
    return Table("Checks", columns, rows, prose=True)


def _lines(values: dict[str, Any]) -> list[list[str]]:
    lines = []
    for key, value in values.items():
        # Attributes are judged among the checks; an emulated device has no driver.
        if key == "attributes" or (key == "driver" and not value):
            continue
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, int) and key.endswith("_bytes"):
            shown = format_bytes(value)
        else:
            shown = str(value)
        lines.append([key.removesuffix("_bytes"), shown])
    return lines

"""Tables of benchmark records for people, from `weave_rt.benchmarks.report` and `compare`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weave_rt.benchmarks.report import factors, is_emulated, is_overlay, rows
from weave_scheduler.tables import Table, overlay_live_table, overlay_table
from weave_scheduler.units import format_bytes, format_duration

__all__ = ["comparison_tables", "record_tables"]

Row = Mapping[str, Any]
Column = tuple[str, str, Callable[[Any], str]]


def record_tables(record: dict[str, Any], name: str = "") -> list[Table]:
    """Cases and factors of one record; `name` goes into the titles."""
    note = "ratios only: the device is emulated" if is_emulated(record) else ""
    title = " ".join(part for part in ("Cases", f"of {name}" if name else "") if part)
    if is_overlay(record):  # its times are those of planning, and the device's are bytes
        return [overlay_table(record, title), overlay_live_table(record)]
    cases = _table(
        f"{title} ({note})" if note else title,
        rows(record),
        [
            ("case", "name", str),
            ("of", "of", str),
            ("arm", "arm", str),
            ("n", "n", str),
            ("bytes out", "bytes_out", format_bytes),
            ("bytes in", "bytes_in", format_bytes),
            ("median", "p50_s", format_duration),
            ("95 %", "p95_s", format_duration),
            ("against plain", "against_plain", _ratio),
            ("95 % against plain", "p95_against_plain", _ratio),
            ("efficiency", "efficiency", _ratio),
            # Python runs on the host, also beside an emulated device
            ("Python", "python_s", format_duration),
            ("scan", "scan_s", format_duration),
            ("more than one tensor", "difference_s", format_duration),
        ],
    )
    found = factors(record)
    arms = list(dict.fromkeys(arm for row in found for arm in row["factors"]))
    flat = [{"name": row["name"], "of": row["of"], **row["factors"]} for row in found]
    columns: list[Column] = [("case", "name", str), ("of", "of", str)]
    columns += [(arm, arm, _ratio) for arm in arms]
    return [cases, _table("Times of weave that others take", flat, columns)]


def comparison_tables(comparison: Row) -> list[Table]:
    """Conditions that differ, and the change of each case."""
    differ = [
        {"key": one["key"], **{side: str(one[side]) for side in ("old", "new") if side in one}}
        for one in comparison["conditions_differ"]
    ]
    changes = [
        {**row, "interval": f"{row['low']:.3f} to {row['high']:.3f}"} for row in comparison["rows"]
    ]
    return [
        _table(
            "Conditions that differ",
            differ,
            [("condition", "key", str), ("old", "old", str), ("new", "new", str)],
        ),
        _table(
            "Change, new over old (95 % bootstrap interval)",
            changes,
            [
                ("case", "name", str),
                ("of", "of", str),
                ("arm", "arm", str),
                ("what", "basis", str),
                ("change", "change", lambda value: f"{value:.3f}"),
                ("interval", "interval", str),
                ("verdict", "verdict", str),
            ],
        ),
    ]


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _table(title: str, entries: Sequence[Row], columns: Sequence[Column]) -> Table:
    used = [
        column for column in columns if any(entry.get(column[1], "") != "" for entry in entries)
    ]
    return Table(
        title,
        [heading for heading, _, _ in used],
        [
            [shown(entry[key]) if key in entry else "" for _, key, shown in used]
            for entry in entries
        ],
    )

"""Tables of a simulation, from its JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weave_scheduler.simrecord import COMPARED
from weave_scheduler.tables import Table
from weave_scheduler.units import format_duration, format_money

__all__ = ["MOST_JOBS", "simulation_tables"]

Row = Mapping[str, Any]
Text = Callable[[float], str]

#: Jobs that a table shows, per policy.
MOST_JOBS = 40

_HEADS = {
    "makespan_s": "makespan",
    "turnaround_s": "turnaround",
    "waited_s": "waited",
    "slowdown_realised": "slowdown",
    "cost": "cost",
}


def simulation_tables(record: Row) -> list[Table]:
    """Jobs and who has no place, pools, totals, and policies against the first one."""
    tables = []
    for policy in record["policies"]:
        own = [row for row in record["jobs"] if row["policy"] == policy]
        tables += [
            _jobs(policy, [row for row in own if row["state"] == "finished"][:MOST_JOBS]),
            _absent(policy, [row for row in own if row["state"] != "finished"][:MOST_JOBS]),
        ]
    tables += [_pools(record["pools"]), _totals(record["totals"])]
    if "comparison" in record:
        tables.append(_comparison(record["comparison"]))
    return tables


def _jobs(policy: str, rows: Sequence[Row]) -> Table:
    columns: list[tuple[str, str, Text]] = [
        ("arrival", "arrival_s", format_duration),
        ("waited", "waited_s", format_duration),
        ("finished", "finished_s", format_duration),
        ("iterations", "iterations", _count),
        ("iteration", "iteration_s", format_duration),
        ("against worst", "slowdown_planned", _ratio),
        ("against own", "slowdown_realised", _ratio),
        ("SLO", "slo", _ratio),
        ("planned", "slo_met_planned", _yes),
        ("realised", "slo_met_realised", _yes),
        ("cost", "cost", format_money),
        ("alone", "cost_solo", format_money),
    ]
    return _table(f"Jobs under {policy}", rows, [("job", "name", str), *columns])


def _absent(policy: str, rows: Sequence[Row]) -> Table:
    columns: list[tuple[str, str, Text]] = [("job", "name", str), ("why", "reason", str)]
    return _table(f"Never placed under {policy}", rows, columns)


def _pools(rows: Sequence[Row]) -> Table:
    columns: list[tuple[str, str, Text]] = [
        ("policy", "policy", str),
        ("pool", "name", str),
        ("nodes", "nodes", _count),
        ("phases", "phases_s", format_duration),
        ("switches", "switch_s", format_duration),
        ("idle", "idle_s", format_duration),
        ("busy", "busy_share", _percent),
    ]
    return _table("Pools (time of all nodes while groups own them)", rows, columns)


def _totals(rows: Sequence[Row]) -> Table:
    columns: list[tuple[str, str, Text]] = [
        ("policy", "policy", str),
        ("jobs", "jobs", _count),
        ("finished", "finished", _count),
        ("waiting", "waiting", _some),
        ("refused", "refused", _some),
        ("groups", "groups", _count),
        ("makespan", "makespan_s", format_duration),
        ("turnaround", "turnaround_s", format_duration),
        ("waited", "waited_s", format_duration),
        ("slowdown", "slowdown_realised", _ratio),
        ("SLO planned", "slo_met_planned_share", _percent),
        ("SLO realised", "slo_met_realised_share", _percent),
        ("cost", "cost", format_money),
        ("alone", "cost_solo", format_money),
    ]
    return _table("Totals (times and slowdown: means over jobs)", rows, columns)


def _comparison(rows: Sequence[Row]) -> Table:
    return Table(
        f"As a multiple of {rows[0]['against']}, same draws",
        ["policy", *(_HEADS[key] for key in COMPARED)],
        [[row["policy"], *(_spread(row.get(key), _ratio) for key in COMPARED)] for row in rows],
    )


def _table(title: str, rows: Sequence[Row], columns: Sequence[tuple[str, str, Text]]) -> Table:
    """Where there are several seeds a cell has the mean and half of its interval."""
    cells = [[_cell(row, key, text) for _, key, text in columns] for row in rows]
    filled = [at for at in range(len(columns)) if any(row[at] for row in cells)]
    heads = [columns[at][0] for at in filled]
    return Table(title, heads, [[row[at] for at in filled] for row in cells])


def _cell(row: Row, key: str, text: Text) -> str:
    many = row.get("over_seeds", {})
    if f"{key}_share" in many:  # a yes or no that became a share
        return _percent(many[f"{key}_share"]["mean"])
    if key in many:
        return _spread(many[key], text)
    return "" if key not in row else text(row[key])


def _spread(value: Row | None, text: Text) -> str:
    if value is None:
        return ""
    half = (value["high"] - value["low"]) / 2 if "high" in value else 0.0
    return text(value["mean"]) + (f" ± {text(half)}" if half > 1e-9 * abs(value["mean"]) else "")


def _count(value: float) -> str:
    return f"{value:.4g}" if value != int(value) else str(int(value))


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def _some(value: float) -> str:
    return _count(value) if value else ""


def _percent(share: float) -> str:
    """Rounded down: 100 % is all of them."""
    return f"{math.floor(1000 * share + 1e-9) / 10:g} %"


def _yes(value: float) -> str:
    return "yes" if value else "no"

"""Tables for people, from the JSON that scripts read: what is absent there is blank here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weave_rt.benchmarks.report import moved_as_planned
from weave_scheduler.units import format_bytes, format_duration, format_money

__all__ = [
    "Table",
    "bench_table",
    "drift_table",
    "excess_table",
    "job_table",
    "moved",
    "overlay_live_table",
    "overlay_table",
    "pool_table",
    "profile_table",
    "switch_table",
    "total_table",
]

Row = Mapping[str, Any]
Column = tuple[str, str, Callable[[Any], str]]


@dataclass(frozen=True, slots=True)
class Table:
    """Headed rows of text; a column that is blank in every row is left out, and so is a table of
    names alone. ``prose``: words in all columns, no numbers to compare."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    prose: bool = False


def job_table(summary: Row) -> Table:
    return _table(
        "Jobs (times by the device clock)",
        summary["jobs"],
        [
            ("job", "name", str),
            ("kind", "kind", str),
            ("iterations", "iterations", str),
            ("time", "wall_s", format_duration),
            ("alone", "solo_s", format_duration),
            ("slowdown", "slowdown", _ratio),
            ("waited", "waited_s", format_duration),
            ("reward first", "reward_first", _small),
            ("reward last", "reward_last", _small),
            ("std. error", "reward_se", _small),
            ("same as alone", "identical_to_solo", _yes),
            ("SLO planned", "slo_met_planned", _yes),
            ("SLO realised", "slo_met_realised", _yes),
            ("cost", "cost", format_money),
            ("weights", "weights_digest", lambda digest: str(digest)[:12]),
            ("failed", "error", lambda _: "yes"),
        ],
    )


def pool_table(summary: Row) -> Table:
    return _table(
        "Pools (times by the device clock)",
        summary["pools"],
        [
            ("pool", "name", str),
            ("phases", "phases_s", format_duration),
            ("switches", "switch_s", format_duration),
            ("idle", "idle_s", format_duration),
            ("busy", "busy_share", _percent),
            ("busy alone", "busy_share_solo", _percent),
        ],
    )


def profile_table(record: Row) -> Table:
    """One row for each phase of each job."""
    rows = [
        {"job": job["name"], "phase": phase, **found}
        for job in record["jobs"]
        for phase, found in job["phases"].items()
    ]
    return _table(
        "Phases alone",
        rows,
        [
            ("job", "job", str),
            ("phase", "phase", str),
            ("mean", "mean_s", format_duration),
            ("at the limit", "limit_s", format_duration),
            ("measured", "n", str),
        ],
    )


def total_table(summary: Row) -> Table:
    return _table(
        "Totals (times by the device clock)",
        [summary["totals"]],
        [
            ("together", "wall_s", format_duration),
            ("one after the other", "solo_wall_s", format_duration),
            ("gain", "gain", _ratio),
            ("bytes out", "bytes_out", format_bytes),
            ("bytes in", "bytes_in", format_bytes),
            ("bytes to files", "bytes_spilled", format_bytes),
            ("cost", "cost", format_money),
            ("cost alone", "cost_solo", format_money),
        ],
    )


def drift_table(summary: Row) -> Table:
    """The phases that left their plan."""
    return _table(
        "Drift (a phase that left its plan)",
        summary.get("drift", []),
        [
            ("job", "job", str),
            ("phase", "phase", str),
            ("after iteration", "iteration", str),
            ("planned mean", "planned_mean_s", format_duration),
            ("measured mean", "measured_mean_s", format_duration),
            ("above the max", "above_max", str),
            ("submitted again", "resubmitted", _yes),
            ("waited", "waited_s", format_duration),
            ("reason", "reason", str),
        ],
    )


def excess_table(summary: Row) -> Table:
    """The phases that took more outside regions than recorded."""
    return _table(
        "Memory outside regions (more than recorded)",
        summary.get("unmanaged", []),
        [
            ("job", "job", str),
            ("phase", "phase", str),
            ("iteration", "iteration", str),
            ("device", "node", str),
            ("recorded", "recorded_running", format_bytes),
            ("measured", "measured_running", format_bytes),
            ("asleep", "measured_sleeping", format_bytes),
            ("left for blocks", "usable_bytes", format_bytes),
        ],
    )


def moved(switch: Row) -> bool:
    """Whether a switch had anything to do; a job that enters a free device again has not."""
    return any(switch.get(key) for key in ("out", "bytes_out", "bytes_in", "blocks_remapped"))


def switch_table(switches: Sequence[Row], of: int) -> Table:
    title = "Switches" if of <= len(switches) else f"Switches (the first {len(switches)} of {of})"
    return _table(
        title,
        switches,
        [
            ("at", "at_s", format_duration),
            ("devices", "devices", ", ".join),
            ("out", "out", _names),
            ("in", "in", _names),
            ("bytes out", "bytes_out", format_bytes),
            ("bytes in", "bytes_in", format_bytes),
            ("time", "seconds", format_duration),
            ("drain", "drain_s", format_duration),
            ("map", "map_s", format_duration),
            ("limit", "limit_s", format_duration),
            ("efficiency", "efficiency", _ratio),
        ],
    )


def bench_table(record: Row) -> Table:
    """Of a weave-bench record; times of a GPU, and of an emulated device only ratios."""
    plain = {
        (case["name"], str(case.get("params"))): case["p50_s"]
        for case in record["cases"]
        if case["arm"] == "plain"
    }
    rows = []
    for case in record["cases"]:
        against = plain.get((case["name"], str(case.get("params"))))
        rows.append({**case, "ratio": case["p50_s"] / against} if against else case)
    times: list[Column] = [
        ("median", "p50_s", format_duration),
        ("95 %", "p95_s", format_duration),
        ("99 %", "p99_s", format_duration),
        ("99 % of CPU", "cpu_p99_s", format_duration),
        ("the paper", "paper_s", format_duration),
        ("limit", "limit_s", format_duration),
    ]
    emulated = record["conditions"].get("device") == "emulated"
    counts_jobs = "jobs" in record["cases"][0].get("params", {})
    return _table(
        "Cases (ratios only: the device is emulated)" if emulated else "Cases",
        rows,
        [
            ("case", "name", str),
            ("arm", "arm", str),
            *([("of", "params", _jobs_of)] if counts_jobs else []),
            ("n", "n", str),
            ("bytes out", "bytes_out", format_bytes),
            ("bytes in", "bytes_in", format_bytes),
            *([] if emulated else times),
            ("time against plain copies", "ratio", _ratio),
            ("efficiency", "efficiency", _ratio),
        ],
    )


def overlay_table(record: Row, title: str = "Cases") -> Table:
    """Of ``weave bench overlay``: times of planning, and how good the plans are."""
    rows = []
    for case in record["cases"]:
        if "planned_out" in case:
            continue
        params, row = case["params"], dict(case)
        row["of"] = f"{params['tenants']} tenants" if case["name"] == "planning" else ""
        if "equal" in case:
            row["found"] = f"{case['equal']} of {params['instances']} optimal"
        if "switches" in case:
            share = case["largest_share_of_window"]
            row["found"] = f"{case['switches']} switches, at most {share:.2f} of the window"
        rows.append(row)
    return _table(
        f"{title} (times of this host)",
        rows,
        [
            ("case", "name", str),
            ("arm", "arm", str),
            ("of", "of", str),
            ("n", "n", str),
            ("median", "p50_s", format_duration),
            ("95 %", "p95_s", format_duration),
            ("median of CPU", "cpu_p50_s", format_duration),
            ("found", "found", str),
        ],
    )


def overlay_live_table(record: Row) -> Table:
    """Of ``weave bench overlay``: bytes per switch on the scaled device, beside the plan."""
    return _table(
        "Live, bytes per switch (medians; behind a phase: means)",
        [
            {**case, "as_planned": moved_as_planned(case)}
            for case in record["cases"]
            if "planned_out" in case
        ],
        [
            ("GB of the jobs", "name", str),
            ("asked", "arm", str),
            ("plan", "plan", str),
            ("n", "n", str),
            ("out", "bytes_out", format_bytes),
            ("planned", "planned_out", format_bytes),
            ("in", "bytes_in", format_bytes),
            ("planned", "planned_in", format_bytes),
            ("in, behind a phase", "bytes_background_in", format_bytes),
            ("planned", "planned_background_in", format_bytes),
            ("moved as planned", "as_planned", _yes),
        ],
    )


def _table(title: str, rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    used = [column for column in columns if any(column[1] in row for row in rows)]
    if not [key for _, key, _ in used if key != "name"]:
        return Table(title, [], [])
    return Table(
        title,
        [heading for heading, _, _ in used],
        [[shown(row[key]) if key in row else "" for _, key, shown in used] for row in rows],
    )


def _jobs_of(params: Any) -> str:
    return f"{params['jobs']} jobs"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _small(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _names(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

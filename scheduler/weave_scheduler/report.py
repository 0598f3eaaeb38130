"""report.html: one page without outside parts that draws the timeline and shows the numbers.

The timeline is inline SVG, the page follows the reader's light or dark setting. Pure: returns text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from weave_scheduler.records import SliceRecord
from weave_scheduler.summary import Runs
from weave_scheduler.tables import (
    Table,
    drift_table,
    excess_table,
    job_table,
    moved,
    pool_table,
    switch_table,
    total_table,
)
from weave_scheduler.timeline import laid_out, switch_name
from weave_scheduler.units import format_duration

__all__ = ["condition_lines", "report_page", "verdict"]

_WIDTH_MIN, _WIDTH_MAX = 1000.0, 12000.0
_LEFT = 110.0  # for the lanes' names
_LANE = 34.0
_WAIT_LANE = 16.0
_BESIDE = 5.0  # of a lane's height, at its foot: copies in the background
_COLOURS = 8  # as many as the page has classes
_SWITCHES_SHOWN = 20  # the rest of at most _SWITCHES_MAX can be unfolded
_SWITCHES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of the drawing."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A text of the drawing, with a line for the ticks of the axis."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The timeline, ready for the page; lengths are pixels."""

    width: float
    height: float
    bars: list[Bar]
    names: list[Mark]
    ticks: list[Mark]
    legend: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line on how the run went, and whether it is bad news."""

    text: str
    warns: bool


def report_page(
    runs: Runs,
    summary: Mapping[str, Any],
    complaints: Sequence[str],
    notes: Sequence[str],
    spec: str = "",
) -> str:
    """The page of a run, from its records and its summary; ``spec`` is the name of its file."""
    environment = Environment(
        loader=PackageLoader("weave_scheduler", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tables: list[Table] = [total_table(summary), job_table(summary), pool_table(summary)]
    tables += [excess_table(summary), drift_table(summary)]
    switches = [row for row in summary.get("switches", []) if moved(row)]
    names = [job.name for job in runs.spec.jobs]
    return environment.get_template("report.html.jinja").render(
        drawing=_draw(runs),
        heading=" ".join(part for part in ("Weave run", spec) if part),
        started=_date(str(summary["conditions"].get("started_at", ""))),
        names=names,
        verdict=verdict(summary),
        complaints=complaints,
        notes=notes,
        tables=[table for table in tables if table.rows],
        conditions=condition_lines(summary["conditions"]),
        switches=switch_table(switches[:_SWITCHES_MAX], of=len(switches)),
        shown=_SWITCHES_SHOWN,
        above_limit=any(row.get("efficiency", 0) > 1 for row in switches),
    )


def verdict(summary: Mapping[str, Any]) -> Verdict:
    """What a reader wants to know first."""
    jobs, totals = summary["jobs"], summary["totals"]
    failed = [str(job["name"]) for job in jobs if "error" in job]
    different = [str(job["name"]) for job in jobs if job.get("identical_to_solo") is False]
    parts = []
    if summary.get("interrupted"):
        parts.append("interrupted before the end")
    if failed:
        parts.append(f"failed: {', '.join(failed)}")
    if different:
        parts.append(f"different from the run alone: {', '.join(different)}")
    warns = bool(parts)
    if "gain" in totals:
        gain = totals["gain"]
        parts.append(f"{gain:.2f} times as fast together as one after the other")
    if jobs and all(job.get("identical_to_solo") for job in jobs):
        parts.append("every job identical to its run alone")
    if not parts:
        parts.append("all jobs ran to their end")
    return Verdict("; ".join(parts), warns)


def condition_lines(conditions: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The conditions as words and text."""
    lines = []
    for key, value in conditions.items():
        name = _CONDITION_NAMES.get(key, key.replace("_", " "))
        if isinstance(value, Mapping):
            for pool, entries in value.items():
                lines.append((f"{name}, {pool}", _text(entries)))
        else:
            lines.append((name, _text(value)))
    return lines


_CONDITION_NAMES = {"device": "kind of device", "spec": "device", "host_limited": "host too slow"}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_text(one) for one in value)
    return str(value)


def _date(started_at: str) -> str:
    """``2025-11-30 00:33 UTC`` from ISO 8601; other text stays."""
    try:
        return datetime.fromisoformat(started_at.replace("Z", "+00:00")).strftime(
            "%Y-%m-%d %H:%M UTC"
        )
    except ValueError:
        return started_at


def _draw(runs: Runs) -> Drawing:
    shown = laid_out(runs)
    styles = {job.name: f"job{i % _COLOURS}" for i, job in enumerate(runs.spec.jobs)}
    placed = [(one, start_ns) for run, start_ns in shown for one in run.slices]
    end_ns = max([start + run.end_ns for run, start in shown], default=0) or 1
    width = min(_WIDTH_MAX, max(_WIDTH_MIN, 14.0 * len(placed)))
    per_ns = (width - _LEFT - 20) / end_ns
    rows = _rows(runs)
    bars = []
    on_top = ("phase", "background", "switch")  # of others on the same lane, the last ones
    for one, start_ns in sorted(
        placed, key=lambda pair: on_top.index(pair[0].kind) if pair[0].kind in on_top else 0
    ):
        for lane in [one.job] if one.kind == "wait" or not one.devices else one.devices:
            y, height = rows[("wait" if one.kind == "wait" else "run", lane)]
            if one.kind == "background":
                y, height = y + height - _BESIDE, _BESIDE
            x = _LEFT + (start_ns + one.start_ns) * per_ns
            bar_width = max(0.4, (one.end_ns - one.start_ns) * per_ns)
            bars.append(_bar(one, styles[one.job], x, y, bar_width, height))
    names = [
        Mark(_LEFT - 8, y + height / 2 + 4, f"{lane} waits" if kind == "wait" else lane)
        for (kind, lane), (y, height) in rows.items()
    ]
    height = max((y + tall for y, tall in rows.values()), default=0.0) + 26
    ticks = [
        Mark(_LEFT + tick * 1e9 * per_ns, height - 8, format_duration(tick))
        for tick in _ticks(end_ns / 1e9, width)
    ]
    return Drawing(width, height, bars, names, ticks, list(styles.items()))


def _rows(runs: Runs) -> dict[tuple[str, str], tuple[float, float]]:
    """Top and height of every lane: devices, jobs with phases on no device, waiting jobs."""
    run_list = [run for run, _ in laid_out(runs)]
    nodes = dict.fromkeys(device.node for run in run_list for device in run.devices)
    slices = [one for run in run_list for one in run.slices]
    free = dict.fromkeys(one.job for one in slices if not one.devices and one.kind != "wait")
    waiting = dict.fromkeys(one.job for one in slices if one.kind == "wait")
    rows: dict[tuple[str, str], tuple[float, float]] = {}
    y = 6.0
    for kind, lanes, height in (
        ("run", nodes, _LANE), ("run", free, _LANE), ("wait", waiting, _WAIT_LANE)
    ):  # fmt: skip
        for lane in lanes:
            rows[(kind, lane)] = (y, height)
            y += height + 6
    return rows


def _bar(one: SliceRecord, style: str, x: float, y: float, width: float, height: float) -> Bar:
    step = "" if one.step is None else f", iteration {one.step}"
    what = f"{one.job}/{one.phase}"
    if one.kind == "switch":
        what = switch_name(one)
    elif one.kind == "background":
        what = f"{one.job} comes in"
    title = f"{one.kind}: {what}{step}, {format_duration(one.seconds)}"
    if not one.ok:
        title += ", failed"
    style = {
        "switch": "switch",
        "wait": f"{style} wait",
        "background": f"{style} beside",
    }.get(one.kind, style)
    text = f"{one.job}/{one.phase}"
    fits = one.kind == "phase" and width > 7.0 * len(text)
    short = one.kind == "phase" and not fits and width > 7.0 * len(one.phase)
    label = text if fits else one.phase if short else ""
    return Bar(round(x, 2), y, round(width, 2), height, style, title, label)


def _ticks(end_s: float, width: float) -> list[float]:
    """Round times, about one per 120 pixels."""
    rough = end_s / max(2.0, width / 120)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [index * step for index in range(int(end_s / step) + 1)]

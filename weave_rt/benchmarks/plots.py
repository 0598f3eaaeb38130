"""Plots of records: bars of medians with whiskers up to the 95 % quantile, and efficiency; of a
residency record what live jobs moved beside what was planned, and how long planning took; of a
scheduling record how long decisions took, and how that grows with the jobs beside the paper.

Needs matplotlib (extra ``plots``), imported on use; writes PNG files, opens no window.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from weave_rt.benchmarks.reading import label_of
from weave_rt.benchmarks.record import quantile
from weave_rt.benchmarks.report import is_emulated, is_overlay, is_scheduling, rows
from weave_rt.errors import UsageError

__all__ = ["draw"]


def draw(record: dict[str, Any], stem: str, folder: Path) -> list[Path]:
    """One PNG for each set of parameters in `record`, named after `stem`. Returns the files.

    A residency record (``weave bench overlay``) and a scheduling record (``weave bench sched``) are
    one figure each. Bars are times against plain copies where the record has them (an emulated
    device has nothing else worth showing), else seconds. Raises UsageError without matplotlib,
    OSError."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UsageError("plots need matplotlib; pip install 'weave-rt[plots]'") from None
    if is_overlay(record):
        return [_overlay(figures, record, stem, folder)]
    if is_scheduling(record):
        return [_scheduling(figures, record, stem, folder)]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows(record):
        if not is_emulated(record) or "against_plain" in row:
            groups.setdefault(row["of"], []).append(row)
    written = []
    for label, group in groups.items():
        figure = figures.Figure(figsize=(10, 4.5), layout="constrained")
        relative = all("against_plain" in row for row in group)
        efficient = [row for row in group if "efficiency" in row]
        axes = figure.subplots(1, 2 if efficient else 1, squeeze=False)[0]
        _bars(axes[0], group, relative)
        if efficient:
            _efficiency(axes[1], efficient)
        handles, arms = axes[0].get_legend_handles_labels()
        figure.legend(handles, arms, loc="outside lower center", ncols=len(arms), fontsize=8)
        figure.suptitle(f"{stem}{': ' + label if label else ''} ({_where(record)})", fontsize=10)
        written.append(_saved(figure, folder, f"{stem}-{label}" if label else stem))
    return written


def _saved(figure: Any, folder: Path, name: str) -> Path:
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}.png"
    figure.savefig(path, dpi=120)
    return path


def _where(record: dict[str, Any]) -> str:
    conditions = record["conditions"]
    return str(conditions.get("spec") or f"{conditions.get('cores', '?')} cores")


def _overlay(figures: Any, record: dict[str, Any], stem: str, folder: Path) -> Path:
    live = [case for case in record["cases"] if "planned_out" in case]
    figure = figures.Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots(1, 2 if live else 1, squeeze=False)[0]
    _planning(axes[-1], [case for case in record["cases"] if case["name"] == "planning"])
    if live:
        _moved(axes[0], live)
    figure.suptitle(f"{stem} ({_where(record)})", fontsize=10)
    return _saved(figure, folder, stem)


def _scheduling(figures: Any, record: dict[str, Any], stem: str, folder: Path) -> Path:
    parts = [
        (draw_part, cases)
        for name, draw_part in (("decision", _decisions), ("growth", _growth))
        if (cases := [case for case in record["cases"] if case["name"] == name])
    ]
    figure = figures.Figure(figsize=(11, 4.5), layout="constrained")
    for axis, (draw_part, cases) in zip(
        figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True
    ):
        draw_part(axis, cases)
    figure.suptitle(f"{stem} ({_where(record)})", fontsize=10)
    return _saved(figure, folder, stem)


def _decisions(axis: Any, cases: list[dict[str, Any]]) -> None:
    """Share of decisions that took at most so long; the mark is the 99 % quantile."""
    for case in cases:
        times = [1e3 * seconds for seconds in sorted(case["samples_s"])]
        share = [(place + 1) / len(times) for place in range(len(times))]
        (line,) = axis.plot(times, share, drawstyle="steps-post", label=case["arm"])
        axis.plot(1e3 * quantile(case["samples_s"], 0.99), 0.99, "o", color=line.get_color())
    axis.set_xscale("log")
    axis.set_xlabel("ms")
    axis.set_ylabel("share of decisions")
    axis.set_title(f"a decision, dot at 99 % ({label_of(cases[0]['params'])})", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _growth(axis: Any, cases: list[dict[str, Any]]) -> None:
    jobs = [case["params"]["jobs"] for case in cases]
    for label, q in (("median", 0.5), ("99 %", 0.99)):
        took = [1e3 * quantile(case["samples_s"], q) for case in cases]
        axis.plot(jobs, took, "o-", label=f"weave, {label}")
    known = [(case["params"]["jobs"], 1e3 * case["paper_s"]) for case in cases if "paper_s" in case]
    if known:
        axis.plot(*zip(*known, strict=True), "s--", color="gray", label="the paper's own table")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("resident jobs")
    axis.set_ylabel("ms")
    axis.set_title("a decision as the cluster grows", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _moved(axis: Any, cases: list[dict[str, Any]]) -> None:
    """Megabytes per switch, in for each scene: bars moved, marks planned."""
    kinds = (("at the switch", "bytes_in", "planned_in"),
             ("behind a phase", "bytes_background_in", "planned_background_in"))  # fmt: skip
    for number, (label, found, planned) in enumerate(kinds):
        places = [at + (number - 0.5) * 0.36 for at in range(len(cases))]
        axis.barh(places, [case[found] / 1e6 for case in cases], 0.34, label=label, zorder=2)
        expected = [case[planned] / 1e6 for case in cases]
        mark = {"label": "planned"} if number == 0 else {}
        axis.plot(expected, places, "|", color="black", markersize=14, zorder=3, **mark)
    names = [f"{case['name']}\n{case['plan']}" for case in cases]
    axis.set_yticks(range(len(cases)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("MB that come in per switch")
    axis.set_title("jobs of so many GB on a device of so many, scaled", fontsize=9)
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=8)


def _planning(axis: Any, cases: list[dict[str, Any]]) -> None:
    for arm in dict.fromkeys(case["arm"] for case in cases):
        own = [case for case in cases if case["arm"] == arm]
        tenants = [case["params"]["tenants"] for case in own]
        axis.plot(tenants, [1e3 * case["p50_s"] for case in own], "o-", label=arm)
    axis.set_xscale("log", base=2)
    counts = sorted({case["params"]["tenants"] for case in cases})
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_yscale("log")
    axis.set_xlabel("tenants of a device")
    axis.set_ylabel("ms")
    axis.set_title("time to plan a device, median", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _places(group: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    names = list(dict.fromkeys(row["name"] for row in group))
    return names, list(dict.fromkeys(row["arm"] for row in group))


def _bars(axis: Any, group: list[dict[str, Any]], relative: bool) -> None:
    p50, p95 = ("against_plain", "p95_against_plain") if relative else ("p50_s", "p95_s")
    names, arms = _places(group)
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        own = [row for row in group if row["arm"] == arm]
        places = [names.index(row["name"]) + (number - (len(arms) - 1) / 2) * width for row in own]
        heights = [row[p50] for row in own]
        up = [max(row[p95] - row[p50], 0.0) for row in own]
        axis.bar(places, heights, width, yerr=[[0.0] * len(up), up], capsize=2, label=arm, zorder=2)
    axis.set_xticks(range(len(names)), names)
    axis.set_yscale("log")
    if relative:  # what had nothing to move would stretch the axis without end
        axis.set_ylim(bottom=max(axis.get_ylim()[0], 0.01))
    axis.set_ylabel("time against plain copies" if relative else "seconds")
    axis.set_title("median, whisker to 95 %", fontsize=9)
    axis.grid(axis="y", alpha=0.3)


def _efficiency(axis: Any, group: list[dict[str, Any]]) -> None:
    names, arms = _places(group)
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        own = [row for row in group if row["arm"] == arm]
        places = [names.index(row["name"]) + (number - (len(arms) - 1) / 2) * width for row in own]
        axis.bar(places, [row["efficiency"] for row in own], width, label=arm, zorder=2)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(names)), names)
    axis.set_title("share of what the link allows", fontsize=9)
    axis.grid(axis="y", alpha=0.3)

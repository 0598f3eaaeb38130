"""Plots of records: bars of medians with whiskers up to the 95 % quantile, and efficiency.

Needs matplotlib (extra ``plots``), imported on use; writes PNG files, opens no window.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from weave_rt.benchmarks.report import is_emulated, rows
from weave_rt.errors import UsageError

__all__ = ["draw"]


def draw(record: dict[str, Any], stem: str, folder: Path) -> list[Path]:
    """One PNG for each set of parameters in `record`, named after `stem`. Returns the files.

    Bars are times against plain copies where the record has them (an emulated device has nothing
    else worth showing), else seconds. Raises UsageError without matplotlib, OSError."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UsageError("plots need matplotlib; pip install 'weave-rt[plots]'") from None
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
        conditions = record["conditions"]
        where = conditions.get("spec") or f"{conditions.get('cores', '?')} cores"
        figure.suptitle(f"{stem}{': ' + label if label else ''} ({where})", fontsize=10)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{stem}-{label}" if label else stem)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=120)
        written.append(path)
    return written


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
    axis.legend(fontsize=8)


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

"""What a record says: a row per case and arm, factors between arms, overhead of the engine. Pure.

On an emulated device only ratios mean anything, so rows then have no times. The yardstick of a
question (a case name with its parameters) is its ``plain`` arm, which was measured in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weave_rt.benchmarks.reading import key_of, label_of
from weave_rt.benchmarks.record import quantile

__all__ = [
    "YARDSTICK",
    "factors",
    "is_emulated",
    "is_overlay",
    "is_scheduling",
    "moved_as_planned",
    "questions",
    "rows",
]

YARDSTICK, OURS = "plain", "weave"
_DECISIONS = ("decision", "growth")  # of a cluster of so many jobs; pinned memory grows too


def is_emulated(record: dict[str, Any]) -> bool:
    return bool(record["conditions"].get("device") == "emulated")


def is_overlay(record: dict[str, Any]) -> bool:
    """Whether it is of ``weave bench overlay``: planning, and live jobs beside their plan."""
    return any(case["name"] == "planning" or "planned_out" in case for case in record["cases"])


def is_scheduling(record: dict[str, Any]) -> bool:
    """Whether it is of ``weave bench sched``: how long decisions take."""
    return any("jobs" in case["params"] for case in record["cases"] if case["name"] in _DECISIONS)


def moved_as_planned(case: Mapping[str, Any]) -> bool:
    """Whether the median switch of a live case moved what the plan says, within a block each way;
    of copies behind a phase no more than that, since they stop where nothing is left to do."""
    block: int = case["params"]["block_bytes"]
    at_switch = (abs(case[f"bytes_{way}"] - case[f"planned_{way}"]) for way in ("out", "in"))
    behind: int = case["bytes_background_in"] - case["planned_background_in"]
    return all(over <= block for over in (*at_switch, behind))


def questions(cases: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The cases by question, each a list of its arms, in order."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for case in cases:
        name, _, params = key_of(case)
        found.setdefault((name, params), []).append(case)
    return list(found.values())


def _arm(arms: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((case for case in arms if case["arm"] == name), None)


def rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One for each case and arm: name, of, arm, n; p50_s and p95_s (absent for an emulated device);
    against_plain (ratio of medians) and p95_against_plain; the case's own further figures."""
    emulated = is_emulated(record)
    result = []
    for arms in questions(record["cases"]):
        name, label = arms[0]["name"], label_of(arms[0].get("params", {}))
        yardstick = _arm(arms, YARDSTICK)
        for case in arms:
            samples = case["samples_s"]
            p50, p95 = statistics.median(samples), quantile(samples, 0.95)
            row: dict[str, Any] = {"name": name, "of": label, "arm": case["arm"], "n": len(samples)}
            if not emulated:
                row |= {"p50_s": p50, "p95_s": p95}
            if yardstick is not None:
                base = statistics.median(yardstick["samples_s"])
                if base > 0:
                    row |= {"against_plain": p50 / base, "p95_against_plain": p95 / base}
            more = (
                *("bytes_out", "bytes_in", "efficiency", "python_s", "scan_s", "difference_s"),
                *("planned_out", "planned_in", "bytes_background_in", "planned_background_in"),
                "cpu_p50_s",
            )
            row |= {key: case[key] for key in more if key in case}
            result.append(row)
    return result


def factors(record: dict[str, Any]) -> list[dict[str, Any]]:
    """How many times as long as `weave` each other arm takes: name, of, and a factor by arm. Of
    questions where `weave` moved something, or does not say."""
    result = []
    for arms in questions(record["cases"]):
        name, label = arms[0]["name"], label_of(arms[0].get("params", {}))
        ours = _arm(arms, OURS)
        if ours is None or len(arms) == 1:
            continue
        if ours.get("bytes_out") == ours.get("bytes_in") == 0:
            continue  # nothing was left to move; a factor of such a time says nothing
        base = statistics.median(ours["samples_s"])
        if base <= 0:
            continue
        others = {
            case["arm"]: statistics.median(case["samples_s"]) / base
            for case in arms
            if case is not ours
        }
        result.append({"name": name, "of": label, "factors": others})
    return result

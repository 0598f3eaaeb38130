"""Two records of the same benchmark: what became faster or slower, and how sure that is. Pure.

Times of two runs on a shared machine differ for reasons of the machine. So where both runs have
plain copies of the same bytes, measured alternately with the arm, the change is that of the arm's
time against them; elsewhere it is that of the time itself. Its interval is a percentile bootstrap
over the samples (95 %, seeded).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weave_rt.benchmarks.reading import key_of, label_of
from weave_rt.benchmarks.report import YARDSTICK
from weave_rt.errors import UsageError

__all__ = ["compare", "differing_conditions"]

RESAMPLES = 4000
CONFIDENCE = 0.95

Draws = np.ndarray[Any, np.dtype[np.float64]]
Cases = dict[tuple[str, str, str], dict[str, Any]]


def differing_conditions(old: dict[str, Any], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Conditions that are not the same, without the time: key, old, new (absent where unknown)."""
    keys = sorted((old["conditions"].keys() | new["conditions"].keys()) - {"started_at"})
    result = []
    for key in keys:
        if old["conditions"].get(key) != new["conditions"].get(key):
            sides = (("old", old["conditions"]), ("new", new["conditions"]))
            result.append({"key": key, **{side: c[key] for side, c in sides if key in c}})
    return result


def _medians(samples: list[float], draw: np.random.Generator) -> Draws:
    values = np.asarray(samples, dtype=np.float64)
    picks = draw.integers(0, values.size, size=(RESAMPLES, values.size))
    return np.asarray(np.median(values[picks], axis=1), dtype=np.float64)


class _Side:
    """One record: medians and bootstrap medians of its cases, against plain where asked."""

    def __init__(self, cases: Cases, seed: int) -> None:
        self._cases, self._draw = cases, np.random.default_rng(seed)
        self._drawn: dict[tuple[str, str, str], Draws] = {}

    def median(self, key: tuple[str, str, str]) -> float:
        return float(np.median(self._cases[key]["samples_s"]))

    def drawn(self, key: tuple[str, str, str]) -> Draws:
        if key not in self._drawn:
            self._drawn[key] = _medians(self._cases[key]["samples_s"], self._draw)
        return self._drawn[key]


def compare(
    old: dict[str, Any], new: dict[str, Any], fail_above: float | None = None
) -> dict[str, Any]:
    """What changed from `old` to `new`.

    Args:
        fail_above: a headline case has regressed when the whole interval of its change lies above
            this factor; None: nothing counts as a regression.

    Returns ``conditions_differ``, ``rows`` (name, of, arm, basis, change, low, high, verdict),
    ``only_old``, ``only_new`` (names of cases), ``regressed`` (likewise).
    Raises UsageError when no case is in both, or for a factor that is not positive."""
    if fail_above is not None and not fail_above > 0:
        raise UsageError(f"a factor of {fail_above} to fail above; allowed: more than 0")
    before: Cases = {key_of(case): case for case in old["cases"]}
    after: Cases = {key_of(case): case for case in new["cases"]}
    common = [key for key in before if key in after]
    if not common:
        raise UsageError("the records have no case in common (name, arm and parameters)")
    sides = _Side(before, 0), _Side(after, 1)
    rows = [_row(key, before, after, sides) for key in common]
    regressed = [
        _title(after[key])
        for key, row in zip(common, rows, strict=True)
        if fail_above is not None and after[key].get("headline") and row["low"] > fail_above
    ]
    return {
        "conditions_differ": differing_conditions(old, new),
        "rows": rows,
        "only_old": [_title(case) for key, case in before.items() if key not in after],
        "only_new": [_title(case) for key, case in after.items() if key not in before],
        "regressed": regressed,
    }


def _title(case: dict[str, Any]) -> str:
    label = label_of(case.get("params", {}))
    return f"{case['name']} {case['arm']}" + (f" ({label})" if label else "")


def _row(
    key: tuple[str, str, str], before: Cases, after: Cases, sides: tuple[_Side, _Side]
) -> dict[str, Any]:
    name, arm, params = key
    yardstick = (name, YARDSTICK, params)
    against = arm != YARDSTICK and yardstick in before and yardstick in after
    medians, draws = [], []
    for side in sides:
        median, drawn = side.median(key), side.drawn(key)
        if against:
            median = _over(median, side.median(yardstick))
            with np.errstate(divide="ignore", invalid="ignore"):
                drawn = drawn / side.drawn(yardstick)
        medians.append(median)
        draws.append(drawn)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = draws[1] / draws[0]
    ratios = ratios[np.isfinite(ratios)]
    row: dict[str, Any] = {
        "name": name,
        "of": label_of(after[key].get("params", {})),
        "arm": arm,
        "basis": "time against plain copies" if against else "time",
        "change": _over(medians[1], medians[0]),
    }
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail]) if ratios.size else (0.0, np.inf)
    row |= {"low": float(low), "high": float(high)}
    row["verdict"] = "slower" if low > 1 else "faster" if high < 1 else "no difference shown"
    return row


def _over(above: float, below: float) -> float:
    """A ratio of times; two times of nothing are the same."""
    if below > 0:
        return above / below
    return 1.0 if above == 0 else float("inf")

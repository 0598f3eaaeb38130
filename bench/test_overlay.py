"""The cases of ``weave bench overlay`` under pytest: plans are optimal and live jobs follow them.

No times are asserted: whether background copies are done before a phase ends is left to the record.
"""

from __future__ import annotations

from typing import Any

import pytest

from weave_rt.benchmarks.overlay import run


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return run("emulated:h20?scale=4096")


def test_the_planner_is_optimal_and_keeps_its_bound(record: dict[str, Any]) -> None:
    cases = {(case["name"], case["arm"]): case for case in record["cases"]}
    best = cases["brute force", "planner"]
    assert best["above"] == []
    assert best["copies_something"] > 500
    assert cases["bound", "random order"]["largest_share_of_window"] == 1.0
    sizes = [c["params"]["tenants"] for c in record["cases"] if c["name"] == "planning"]
    assert max(sizes) == 64


def test_live_jobs_move_what_was_planned(record: dict[str, Any]) -> None:
    live = {(c["name"], c["plan"]): c for c in record["cases"] if "planned_out" in c}
    assert len(live) == 6
    for (name, plan), case in live.items():
        block = case["params"]["block_bytes"]
        assert case["n"] >= 9
        if plan == "least-stall":  # the rest depends on when the copies were done
            assert case["bytes_background_in"] <= case["planned_background_in"] + block
            continue
        for way in ("out", "in"):
            assert abs(case[f"bytes_{way}"] - case[f"planned_{way}"]) <= block, name
        assert case["bytes_background_in"] == 0

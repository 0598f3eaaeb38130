"""The cases of ``weave bench overlay`` under pytest: the planner is optimal; no times."""

from __future__ import annotations

from weave_rt.benchmarks.overlay import run


def test_the_planner_is_optimal_and_keeps_its_bound():
    record = run()
    cases = {(case["name"], case["arm"]): case for case in record["cases"]}
    best = cases["brute force", "planner"]
    assert best["above"] == []
    assert best["copies_something"] > 500
    assert cases["bound", "random order"]["largest_share_of_window"] == 1.0
    sizes = [c["params"]["tenants"] for c in record["cases"] if c["name"] == "planning"]
    assert max(sizes) == 64

"""How long does a switch take, against plain pinned copies and naive ways? (`pytest bench/`)

The measuring is `weave_rt.benchmarks.switch`; this runs it on $WEAVE_BENCH_DEVICE (default: auto)
with $WEAVE_BENCH_PRESET (default: a 7B model's weights) and $WEAVE_BENCH_REPEATS rounds, shows each
case as a pytest-benchmark row, and writes the record to $WEAVE_BENCH_OUT if that is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weave_rt.benchmarks import switch

CASES = [
    (name, arm)
    for name in switch.CASES
    for arm in switch.ARMS
    if arm != "cold" or name == "one_way_in"
] + [("look_ahead", arm) for arm in ("weave", "plain")]


@pytest.fixture(scope="session")
def record() -> dict[str, Any]:
    measured = switch.run(
        os.environ.get("WEAVE_BENCH_DEVICE", "auto"),
        preset_name=os.environ.get("WEAVE_BENCH_PRESET", ""),
        repeats=int(os.environ.get("WEAVE_BENCH_REPEATS", "0")),
    )
    out = os.environ.get("WEAVE_BENCH_OUT")
    if out:
        Path(out).write_text(json.dumps(measured, indent=1) + "\n")
    return measured


@pytest.mark.parametrize(("name", "arm"), CASES)
def test_switch(tabulate: Callable[..., None], record: dict[str, Any], name: str, arm: str) -> None:
    found = [c for c in record["cases"] if (c["name"], c["arm"]) == (name, arm)]
    if not found:
        pytest.skip(f"the arm {arm} could not run here")
    tabulate(found[0], "bytes_out", "bytes_in", "efficiency")

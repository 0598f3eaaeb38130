"""What do 10,000 tensors cost against one of the same bytes? (`pytest bench/`)

The measuring is `weave_rt.benchmarks.tensors`, on $WEAVE_BENCH_DEVICE (default: auto), with
$WEAVE_BENCH_REPEATS pairs (15). pytest-benchmark only tabulates what was measured alternately.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from weave_rt.benchmarks import tensors
from weave_rt.device import resolve_spec

NAMES = ("many_tensors", "one_tensor")


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    spec = resolve_spec(os.environ.get("WEAVE_BENCH_DEVICE", "auto"))
    repeats = int(os.environ.get("WEAVE_BENCH_REPEATS", "15"))
    return {c.name: c.as_dict() for c in tensors.measure(spec, repeats, False, print)}


@pytest.mark.parametrize("name", NAMES)
def test_tensors(
    tabulate: Callable[..., None], cases: dict[str, dict[str, Any]], name: str
) -> None:
    tabulate(cases[name], "efficiency", "python_s", "scan_s", "difference_s")

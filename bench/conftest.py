"""What the benchmark files share: pytest-benchmark tabulates samples that were taken elsewhere,
with the arms alternated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def tabulate(benchmark: Any) -> Callable[..., None]:
    """Shows the samples of a case, and of its other keys those that are named."""

    def shown(case: dict[str, Any], *keys: str) -> None:
        samples = iter(case["samples_s"])
        elapsed = 0.0

        def clock() -> float:
            return elapsed

        def replay() -> None:
            nonlocal elapsed
            elapsed += next(samples)

        benchmark.extra_info.update({key: case[key] for key in keys if key in case})
        benchmark._timer = clock
        benchmark.pedantic(replay, rounds=case["n"], iterations=1)

    return shown

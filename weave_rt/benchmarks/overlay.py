"""How long does planning take, and is the plan the best one?

Cases: ``planning`` (one device planned as a whole, 2 to 64 tenants, arms ``fewest-bytes``,
``least-stall`` and ``auto``), ``brute force`` (random small instances: the planner against the
optimum over every way to put blocks into frames; what is not equal is listed) and ``bound`` (random
orders of arrival: the most blocks that one switch moved, as a share of the window); and, given an
emulated device, live jobs on it (``weave_rt.benchmarks.overlaylive``). Times of planning are wall
time of one thread; ``cpu_p50_s`` is its CPU time, which a busy machine disturbs less.

Run alone: ``python -m weave_rt.benchmarks.overlay --help``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weave_rt.benchmarks.bruteforce import LARGEST, least_copies, random_instance
from weave_rt.benchmarks.overlaylive import live_cases
from weave_rt.benchmarks.record import quantile
from weave_rt.conditions import host_conditions
from weave_rt.overlay import KINDS, Link, ResidencyMap, TenantBlocks, make_plan, moving_blocks

__all__ = ["run"]

COUNTS = (2, 4, 8, 16, 32, 64)
BLOCK_BYTES = 64 << 20
LINK = Link(55e9, 55e9, 0.75 * 55e9, 0.75 * 55e9)


def _case(
    name: str,
    arm: str,
    params: dict[str, Any],
    wall: Sequence[float],
    cpu: Sequence[float],
    **more: Any,
) -> dict[str, Any]:
    return {
        "name": name,
        "arm": arm,
        "params": params,
        "n": len(wall),
        "samples_s": list(wall),
        "p50_s": quantile(wall, 0.5),
        "p95_s": quantile(wall, 0.95),
        "cpu_p50_s": quantile(cpu, 0.5),
        **more,
    }


@contextmanager
def _timed(wall: list[float], cpu: list[float]) -> Iterator[None]:
    before, started = time.thread_time(), time.perf_counter()
    yield
    wall.append(time.perf_counter() - started)
    cpu.append(time.thread_time() - before)


def _planning(repeats: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """A device that holds a third of what its tenants have, or the largest of them."""
    cases = []
    for count in COUNTS:
        progress(f"planning {count} tenants")
        rng = random.Random(count)
        tenants = [
            TenantBlocks(
                str(at), rng.randrange(700), rng.randrange(200), rng.randrange(500),
                phase_s=rng.uniform(1, 100),
            )
            for at in range(count)
        ]  # fmt: skip
        sizes = [one.blocks for one in tenants]
        frames = max(*sizes, sum(sizes) // 3)
        samples: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in KINDS}
        for _ in range(repeats):
            for kind in KINDS:
                with _timed(*samples[kind]):
                    make_plan(tenants, frames, BLOCK_BYTES, LINK, kind)
        params = {"tenants": count, "frames": frames, "blocks": sum(sizes), "seed": count}
        for kind, (wall, cpu) in samples.items():
            headline = count == max(COUNTS) and kind == "auto"
            cases.append(_case("planning", kind, params, wall, cpu, headline=headline))
    return cases


def _brute_force(instances: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    progress(f"{instances} random instances against brute force")
    rng = random.Random(0)
    planner: tuple[list[float], list[float]] = ([], [])
    optimum: tuple[list[float], list[float]] = ([], [])
    moving, above = 0, []
    for at in range(instances):
        tenants, frames = random_instance(rng, LARGEST)
        with _timed(*planner):
            blocks = moving_blocks(tenants, frames)
        with _timed(*optimum):
            best = least_copies(tenants, frames)
        copied = sum(one.cost(m) for one, m in zip(tenants, blocks, strict=True))
        moving += best > 0
        if copied != best:
            above.append({"instance": at, "planner": copied, "optimum": best})
    params = {"instances": instances, "tenants": "2 to 5", "seed": 0}
    found: dict[str, Any] = {
        "equal": instances - len(above),
        "copies_something": moving,
        "above": above,
    }
    return [
        _case("brute force", "planner", params, *planner, headline=True, **found),
        _case("brute force", "optimum", params, *optimum, headline=False),
    ]


def _bound(instances: int, progress: Callable[[str], None]) -> dict[str, Any]:
    progress(f"{instances} instances with random orders of arrival")
    rng = random.Random(1)
    wall: list[float] = []
    cpu: list[float] = []
    switches, most = 0, 0.0
    for _ in range(instances):
        tenants, frames = random_instance(rng, {2: 40, 3: 40, 5: 40, 9: 40})
        moving = moving_blocks(tenants, frames)
        there = ResidencyMap(tenants, frames, moving)
        recent: list[int] = []
        for _ in range(50):
            incoming = rng.randrange(len(tenants))
            victims = [at for at in recent if at != incoming]
            with _timed(wall, cpu):
                moved = there.switch(incoming, victims)
            if incoming in recent:  # the first time everything comes in
                switches += 1
                most = max(most, max(moved.out, moved.into) / max(1, *moving))
            recent = [incoming, *victims]
    params = {"instances": instances, "turns": 50, "seed": 1}
    more: dict[str, Any] = {"switches": switches, "largest_share_of_window": most}
    return _case("bound", "random order", params, wall, cpu, headline=True, **more)


def run(
    device_spec: str = "",
    full: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure and return a record.

    Args:
        device_spec: an emulated device for the live cases; empty: without them.
        full: more rounds and instances.

    Raises UsageError for another device, StateChanged."""
    cases = _planning(101 if full else 31, progress)
    cases += _brute_force(5000 if full else 1000, progress)
    cases.append(_bound(500 if full else 100, progress))
    conditions = host_conditions()
    if device_spec:
        live, conditions = live_cases(device_spec, 30 if full else 9, progress)
        cases += live
    return {"format": "weave-bench", "version": 1, "conditions": conditions, "cases": cases}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weave_rt.benchmarks.overlay")
    parser.add_argument("--device", default="emulated:h20?scale=64")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path, required=True, help="file for the record")
    options = parser.parse_args(arguments)
    record = run(options.device, options.full, _say)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""timeline.json: a run as a Chrome trace, which Perfetto opens. Pure.

One process per pool, one lane per device with slices JOB/PHASE and switches, and waits and copies
in the background as asynchronous slices beside them (several at once on one device). Times are
microseconds since the start; solo runs without a run together lie one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weave_scheduler.records import RunRecord, SliceRecord
from weave_scheduler.spec import POOLS
from weave_scheduler.summary import Runs

__all__ = ["chrome_trace", "laid_out", "switch_name", "timeline"]

_HOST = "no pool"  # phases that hold no device


def timeline(runs: Runs, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The whole timeline.json."""
    shown = laid_out(runs)
    nodes = [device.node for run, _ in shown for device in run.devices]
    return chrome_trace("weave-run", shown, nodes, conditions)


def chrome_trace(
    form: str,
    shown: list[tuple[RunRecord, int]],
    nodes: Iterable[str],
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """The slices of runs, each from its nanosecond on, with a lane per node, as a file of the
    format ``form``."""
    lanes = _lanes(shown, nodes)
    events = [*_names(lanes), *_slices(shown, lanes)]
    return {
        "format": form,
        "version": 1,
        "conditions": dict(conditions),
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }


def laid_out(runs: Runs) -> list[tuple[RunRecord, int]]:
    """The runs to draw, each with the nanosecond at which it is drawn to begin."""
    if runs.together is not None:
        return [(runs.together, 0)]
    shown, start_ns = [], 0
    for run in runs.solo.values():
        shown.append((run, start_ns))
        start_ns += run.end_ns
    return shown


def switch_name(one: SliceRecord) -> str:
    """``a -> b``: who hands the device to whom, as far as the report says."""
    out = (one.report or {}).get("out")
    before = ", ".join(out) if isinstance(out, list | tuple) else str(out or "")
    return f"{before} -> {one.job}" if before else f"-> {one.job}"


Lanes = dict[str, tuple[int, int]]  # node or job -> pid, tid


def _lanes(shown: list[tuple[RunRecord, int]], nodes: Iterable[str]) -> Lanes:
    lanes: Lanes = {}
    for node in nodes:
        pool, _, number = node.partition(":")
        lanes.setdefault(node, ([*POOLS].index(pool) + 1, int(number) + 1))  # type: ignore[arg-type]
    without = sorted({one.job for run, _ in shown for one in run.slices if not one.devices})
    lanes.update({job: (len(POOLS) + 1, index + 1) for index, job in enumerate(without)})
    return lanes


def _names(lanes: Lanes) -> Iterator[dict[str, Any]]:
    processes = dict(enumerate((*POOLS, _HOST), start=1))
    for pid in sorted({pid for pid, _ in lanes.values()}):
        yield _meta("process_name", pid, 0, {"name": processes[pid]})
        yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
    for lane, (pid, tid) in lanes.items():
        yield _meta("thread_name", pid, tid, {"name": lane})
        yield _meta("thread_sort_index", pid, tid, {"sort_index": tid})


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _slices(shown: list[tuple[RunRecord, int]], lanes: Lanes) -> Iterator[dict[str, Any]]:
    beside = 0
    for run, offset_ns in shown:
        for one in sorted(run.slices, key=lambda one: (one.start_ns, -one.end_ns)):
            start_us, end_us = (offset_ns + one.start_ns) / 1e3, (offset_ns + one.end_ns) / 1e3
            for lane in one.devices or (one.job,):
                pid, tid = lanes[lane]
                event = {
                    "name": switch_name(one) if one.kind == "switch" else f"{one.job}/{one.phase}",
                    "cat": one.kind,
                    "pid": pid,
                    "tid": tid,
                    "ts": start_us,
                    "args": _args(one),
                }
                if one.kind not in ("wait", "background"):
                    yield {**event, "ph": "X", "dur": end_us - start_us}
                    continue
                beside += 1
                waits = one.kind == "wait"
                name = f"{one.job} waits for {one.phase}" if waits else f"{one.job} comes in"
                event |= {"id": f"{one.kind}-{beside}", "name": name}
                yield {**event, "ph": "b"}
                yield {**event, "ph": "e", "ts": end_us, "args": {}}


def _args(one: SliceRecord) -> dict[str, Any]:
    args: dict[str, Any] = {"job": one.job, "phase": one.phase}
    if one.step is not None:
        args["iteration"] = one.step
    if not one.ok:
        args["failed"] = True
    return args | (one.report or {})

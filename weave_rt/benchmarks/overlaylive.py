"""The residency plan on a live device: do switches move what the planner says?

Jobs with one tenant each share one device under a `LocalRuntime`, as a trainer would; sizes are GB
divided by the device's scale. Cases: ``60 60 60 on 140`` (arms fewest-bytes and least-stall, the
latter with phases long enough to hide its copies), ``60 60 on 80``, ``60 60 60 on 180``, ``50 50 10
on 60`` and ``15+40 15+40 on 80`` (weights that stay, caches that change hands). Each case has the
switch reports of its measured cycles; ``planned_*`` is what the planner said, in bytes per switch.
At the end every byte of every tenant is compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import weave_rt
from weave_rt import _core
from weave_rt.benchmarks.record import Case
from weave_rt.errors import StateChanged, UsageError
from weave_rt.local import LocalRuntime, Slice
from weave_rt.replanning import nominal_link
from weave_rt.tenant import Buffer, Tenant

__all__ = ["SCENES", "Scene", "live_cases"]

GB = 10**9
NAME = "rollout:0"


@dataclass(frozen=True, slots=True)
class Scene:
    """Tenants in GB as (keep, discard), the device's GB for jobs, and the plan."""

    tenants: tuple[tuple[int, int], ...]
    usable: int
    plan: str
    hidden: int = 0  # GB each way that a phase must be long enough for

    @property
    def name(self) -> str:
        sizes = [f"{keep}+{lost}" if lost else str(keep) for keep, lost in self.tenants]
        return f"{' '.join(sizes)} on {self.usable}"


SCENES = (
    Scene(((60, 0),) * 3, 140, "fewest-bytes"),
    Scene(((60, 0),) * 3, 140, "least-stall", hidden=40),
    Scene(((60, 0),) * 2, 80, "auto"),
    Scene(((60, 0),) * 3, 180, "auto"),
    Scene(((50, 0), (50, 0), (10, 0)), 60, "fewest-bytes"),
    Scene(((15, 40),) * 2, 80, "auto"),
)


class _Live:
    """The jobs of one scene on one device."""

    def __init__(self, scene: Scene, runtime: LocalRuntime, stack: ExitStack, scale: float) -> None:
        self.device = runtime.devices[NAME]
        self.runtime = runtime
        self.jobs = [
            stack.enter_context(weave_rt.init(f"job{at}", {"runtime": runtime}))
            for at in range(len(scene.tenants))
        ]
        self.tenants: list[Tenant] = []
        self.kept: list[Buffer] = []
        for at, (job, sizes) in enumerate(zip(self.jobs, scene.tenants, strict=True)):
            tenant = job.manage("state", pool="rollout")
            assert isinstance(tenant, Tenant)
            with job.phase("rollout"):
                for size, tag in zip(sizes, ("weights", "kv_cache"), strict=True):
                    nbytes = self.blocks(size, scale) * self.device.block_bytes
                    if nbytes:
                        buffer = tenant.buffer(nbytes, tag)
                        if tag == "weights":
                            _fill(buffer, at)
                            self.kept.append(buffer)
            self.tenants.append(tenant)

    def blocks(self, size: int, scale: float) -> int:
        return int(size * GB / scale // self.device.block_bytes)

    def turn(self, at: int, seconds: float) -> None:
        with self.jobs[at].phase("rollout"):
            if seconds:
                self.device.sleep_until_ns(self.device.now_ns() + int(seconds * 1e9))

    def check(self) -> None:
        for at, (job, buffer) in enumerate(zip(self.jobs, self.kept, strict=True)):
            with job.phase("rollout"):
                if not _holds(buffer, at):
                    raise StateChanged(f"tenant {at}: bytes differ after the benchmark")


def _pattern(seed: int) -> bytes:
    """A MiB, so that filling and comparing a GB are a thousand calls."""
    return bytes((seed * 37 + at * 101 + at // 256) % 256 for at in range(4096)) * 256


def _fill(buffer: Buffer, seed: int) -> None:
    view, piece = buffer.view(), _pattern(seed)
    for offset in range(0, len(view), len(piece)):
        view[offset : offset + len(piece)] = piece[: len(view) - offset]


def _holds(buffer: Buffer, seed: int) -> bool:
    view, piece = buffer.view(), _pattern(seed)
    return all(
        bytes(view[offset : offset + len(piece)]) == piece[: len(view) - offset]
        for offset in range(0, len(view), len(piece))
    )


def live_cases(
    spec: str, cycles: int, progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All scenes on emulated devices like `spec`; the cases, and the conditions of the last device.

    Raises UsageError for a device that is not emulated (its memory cannot be chosen)."""
    if not spec.startswith("emulated:"):
        raise UsageError(f"the live cases need an emulated device, not {spec}")
    scale = float(str(_core.parse_emulated(spec)["scale"]))
    cases = []
    conditions: dict[str, Any] = {}
    for scene in SCENES:
        progress(f"{scene.name}, {scene.plan}")
        case, conditions = _measure(scene, spec, scale, cycles)
        cases.append(case)
    return cases, conditions


def _measure(
    scene: Scene, spec: str, scale: float, cycles: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    from weave_rt.benchmarks.record import conditions

    known = _core.parse_emulated(spec)
    block, context = int(str(known["block_bytes"])), int(str(known["context_bytes"]))
    usable = int(scene.usable * GB / scale // block) * block
    capacity = int((usable + context) / 0.97) + 4 * block
    joined = f"{spec}{'&' if '?' in spec else '?'}capacity={capacity}"
    device = weave_rt.open_device(joined, usable_bytes=usable)
    seen: list[Slice] = []
    with ExitStack() as stack:
        rates = device.calibrate() if scene.hidden else {}
        runtime = stack.enter_context(
            LocalRuntime({"rollout": [device]}, plan=scene.plan, observer=seen.append)
        )
        live = _Live(scene, runtime, stack, scale)
        link = nominal_link(device)
        both = [rates[key] for key in ("h2d_duplex", "d2h_duplex") if key in rates]
        phase_s = 2 * scene.hidden * GB / scale / min(link.h2d_duplex, link.d2h_duplex, *both)
        order = range(len(scene.tenants))
        for _ in range(2 if scene.hidden else 1):  # the map follows the plan
            for at in order:
                live.turn(at, phase_s)
        seen.clear()
        before = device.stats()
        for _ in range(-(-cycles // len(scene.tenants))):
            for at in order:
                live.turn(at, phase_s)
        after = device.stats()
        reports = [one.report for one in seen if one.kind == "switch" and one.report]
        found = _case(scene, runtime, reports, phase_s)
        ahead = ("bytes_background_out", "bytes_background_in", "blocks_beyond_plan")
        found |= {key: round((after[key] - before[key]) / len(reports)) for key in ahead}
        live.check()
        block_conditions = conditions(device)
        live.kept.clear()
    return found, block_conditions


def _case(
    scene: Scene, runtime: LocalRuntime, reports: list[dict[str, Any]], phase_s: float
) -> dict[str, Any]:
    plan = runtime.plan(NAME)
    assert plan is not None
    block = plan.block_bytes
    params: dict[str, Any] = {"gb": [list(one) for one in scene.tenants]}
    params |= {"usable_gb": scene.usable, "block_bytes": block}
    case = Case(
        scene.name,
        scene.plan,
        params,
        int(statistics.median(one["bytes_out"] for one in reports)),
        int(statistics.median(one["bytes_in"] for one in reports)),
        headline=True,
        samples_s=[one["seconds"] for one in reports],
        more={"phase_s": phase_s},  # from measured rates: no part of what makes a case the same
    )
    foreground = [one.foreground for one in plan.switches]
    background = [one.background for one in plan.switches]
    return case.as_dict() | {
        "plan": plan.kind,
        "largest_out": max(one["bytes_out"] for one in reports),
        "largest_in": max(one["bytes_in"] for one in reports),
        "planned_out": round(statistics.median(one.out for one in foreground) * block),
        "planned_in": round(statistics.median(one.into for one in foreground) * block),
        "planned_background_in": round(statistics.median(o.into for o in background) * block),
    }

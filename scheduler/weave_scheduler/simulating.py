"""``weave simulate`` from the file to the record: a spec or a trace, several policies and seeds.

All policies see the same draws. The first seed of a spec draws what its modelled jobs draw in
``weave run``; every other draws for (seed of the job, its name, number of the seed), and so does
each seed of a trace, whose jobs often have one seed in common.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from weave_rt.conditions import now_utc
from weave_rt.errors import UsageError
from weave_scheduler.benchmarks.workload import paper_pools
from weave_scheduler.conditions import conditions
from weave_scheduler.devices import listed_gpus
from weave_scheduler.document import SpecError, is_trace
from weave_scheduler.groupdriver import Ran
from weave_scheduler.jobs import Iteration
from weave_scheduler.model import Group, JobModel, PairCost, PoolModel
from weave_scheduler.outdir import OutDir
from weave_scheduler.planinput import check_quantile, job_models, pool_models, settings_of
from weave_scheduler.policies.cluster import Resident
from weave_scheduler.policies.names import POLICIES, policy_of
from weave_scheduler.policies.settings import Settings
from weave_scheduler.profile import read_profile, with_profile
from weave_scheduler.progress import Screen
from weave_scheduler.records import RunRecord, SliceRecord
from weave_scheduler.residency import plan_nodes, switch_costs
from weave_scheduler.simrecord import simulation_record
from weave_scheduler.simtables import MOST_JOBS, simulation_tables
from weave_scheduler.simulator import Simulation, simulate
from weave_scheduler.specfile import load_spec
from weave_scheduler.tables import Table
from weave_scheduler.timeline import chrome_trace
from weave_scheduler.traces import read_trace

__all__ = ["Choices", "Simulated", "simulate_file"]

_NO_NODES = (
    "the trace gives no nodes; taken: 8 GPUs and 2 TB each, at 1.85 (rollout) and 5.28 (train) per"
    " GPU-hour, as many as asked for"
)

#: Phases in a timeline, at most.
MOST_PHASES = 20_000


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line says; ``intra`` and ``mode`` None: as the file has it."""

    policies: tuple[str, ...] = ()
    seeds: int = 1
    profile: Path | None = None
    intra: str | None = None
    mode: str | None = None


@dataclass(slots=True)
class Simulated:
    """What to show, and which files were written."""

    record: dict[str, Any]
    tables: list[Table]
    lines: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Input:
    """A file, read. ``live``: a run of the same file would draw by the seeds of its jobs."""

    jobs: list[JobModel]
    pools: dict[str, PoolModel]
    settings: Settings
    policy: str
    live: bool
    residency: str = "auto"
    notes: tuple[str, ...] = ()


def simulate_file(path: Path, choices: Choices, out: Path | None, screen: Screen) -> Simulated:
    """Simulate a spec or a trace. Raises SpecError or UsageError for a mistake."""
    _check(choices)
    given = _read(path, choices)
    policies = choices.policies or (given.policy,)
    if out is None:
        return _shown(path, given, policies, choices, screen)[0]
    with OutDir(out) as folder:
        shown, first = _shown(path, given, policies, choices, screen)
        folder.write("simulation.json", json.dumps(shown.record, indent=2) + "\n")
        folder.write("timeline.json", json.dumps(_timeline(first, shown.record)) + "\n")
        shown.written = list(folder.written)
    if len(first.phases) == MOST_PHASES:
        shown.lines.append(f"timeline.json has the first {MOST_PHASES} phases only")
    return shown


def _check(choices: Choices) -> None:
    for name in choices.policies:
        if name not in POLICIES:
            raise UsageError(f"policy {name!r} is not known; allowed: {', '.join(POLICIES)}")
    if len(set(choices.policies)) < len(choices.policies):
        raise UsageError("--policy names one twice; give each once")
    for option, value, allowed in (
        ("--intra", choices.intra, ("fifo", "strict", "barrier")),
        ("--mode", choices.mode, ("worst-case", "quantile")),
    ):
        if value is not None and value not in allowed:
            raise UsageError(f"{option} {value!r} is not known; allowed: {', '.join(allowed)}")


def _read(path: Path, choices: Choices) -> _Input:
    if path.is_dir():
        raise UsageError(
            f"{path}: is a folder; weave simulate takes a spec or a trace (runs cannot be replayed"
            " yet)"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""  # who reads it as a spec says what is wrong with it
    if is_trace(text):
        return _from_trace(path, choices)
    try:
        form = json.loads(text).get("format")
    except (ValueError, AttributeError):
        form = None
    if form is not None:
        raise UsageError(f"{path}: is a {form} file; weave simulate takes a spec or a trace")
    return _from_spec(path, choices)


def _from_spec(path: Path, choices: Choices) -> _Input:
    loaded = load_spec(path)
    if choices.profile is not None:
        loaded = with_profile(loaded, read_profile(choices.profile))
    chosen = {"intra": choices.intra, "mode": choices.mode}
    scheduler = loaded.spec.scheduler.model_copy(
        update={key: value for key, value in chosen.items() if value is not None}
    )
    loaded = replace(loaded, spec=loaded.spec.model_copy(update={"scheduler": scheduler}))
    check_quantile(loaded)
    pools = pool_models(loaded, gpus=listed_gpus(loaded))
    notes = []
    if any(job.phases is not None and job.phases.init is not None for job in loaded.spec.jobs):
        notes.append("phase init is not simulated")
    if scheduler.regroup_horizon is not None:
        notes.append("regrouping is not simulated")
    return _Input(
        job_models(loaded), pools, settings_of(loaded.spec), scheduler.inter, True,
        loaded.spec.plan, tuple(notes),
    )  # fmt: skip


def _from_trace(path: Path, choices: Choices) -> _Input:
    if choices.profile is not None:
        raise UsageError(f"{path}: is a trace; --profile belongs to a spec")
    trace = read_trace(path)
    settings = Settings(intra=choices.intra or "fifo", mode=choices.mode or "worst-case")  # type: ignore[arg-type]
    policies = choices.policies or ("weave",)
    if "paper" in policies or ("weave" in policies and settings.mode == "worst-case"):
        hint = "" if "paper" in policies else "; --mode quantile does without"
        try:
            _ = [job.solo_max_s for job in trace.jobs]
        except ValueError as error:
            raise SpecError(f"{path}: {error}{hint}") from None
    notes = () if trace.pools else (_NO_NODES,)
    pools = dict(trace.pools or paper_pools())
    return _Input(list(trace.jobs), pools, settings, "weave", False, notes=notes)


def _shown(
    path: Path, given: _Input, policies: Sequence[str], choices: Choices, screen: Screen
) -> tuple[Simulated, Simulation]:
    started = time.perf_counter()
    found: dict[str, list[Simulation]] = {policy: [] for policy in policies}
    pairs = _pair_costs(given)
    with screen:
        for note in given.notes:
            screen.note(note)
        for number in range(choices.seeds):
            seeds = {job.name: _seed(job, number, given.live) for job in given.jobs}
            for policy in policies:
                keep = MOST_PHASES if number == 0 and policy == policies[0] else 0
                label = policy if choices.seeds == 1 else f"{policy}, seed {number + 1}"
                tick = _tick(screen, label, sum(job.iterations for job in given.jobs))
                decider = policy_of(policy, given.settings, given.pools)
                try:
                    one = simulate(
                        given.jobs, given.pools, decider, seeds=seeds, pairs=pairs, tick=tick,
                        keep=keep,
                    )  # fmt: skip
                except ValueError as error:
                    raise SpecError(f"{path}: {error}") from None
                found[policy].append(one)
    record = {
        "format": "weave-sim",
        "version": 1,
        "conditions": conditions([], now_utc()),
        "file": path.name,
        "policies": list(policies),
        "intra": given.settings.intra,
        "mode": given.settings.mode,
        "seeds": choices.seeds,
        **({"notes": list(given.notes)} if given.notes else {}),
        **simulation_record(found, given.pools),
        "runtime": {
            "wall_s": time.perf_counter() - started,
            "events": sum(one.events for runs in found.values() for one in runs),
        },
    }
    lines = []
    if len(given.jobs) > MOST_JOBS:
        lines.append(f"{MOST_JOBS} of {len(given.jobs)} jobs are shown; --json has all")
    return Simulated(record, simulation_tables(record), lines), found[policies[0]][0]


def _seed(job: JobModel, number: int, live: bool) -> int:
    if live and number == 0:
        return job.seed
    mixed = np.random.SeedSequence([job.seed, zlib.crc32(job.name.encode()), number])
    return int(mixed.generate_state(1, np.uint64)[0])


def _pair_costs(given: _Input) -> Callable[[Resident], Sequence[PairCost]] | None:
    """What switches cost by the plans of the devices, where they are known; kept per group."""
    if all(model.node.gpu is None for model in given.pools.values()):
        return None
    known: dict[tuple[Group, tuple[int, ...] | None], Sequence[PairCost]] = {}

    def costs(resident: Resident) -> Sequence[PairCost]:
        key = resident.group, resident.order
        if key not in known:
            plans = plan_nodes(
                resident.group, given.pools, given.settings.intra, given.residency, resident.order
            )
            known[key] = switch_costs(plans)
        return known[key]

    return costs


def _tick(screen: Screen, label: str, total: int) -> Callable[[int, float], None]:
    def tick(iterations: int, now_s: float) -> None:
        if iterations:
            screen.iteration(label, Iteration(iterations - 1), total)

    return tick


def _timeline(simulation: Simulation, record: dict[str, Any]) -> dict[str, Any]:
    """The phases that were kept and the switches before them; the clock is that of the model."""
    slices: list[SliceRecord] = []
    for one in simulation.phases:
        slices.append(_slice("phase", one, float(one.begun), float(one.freed)))
        if one.begun > one.granted:
            slices.append(_slice("switch", one, float(one.granted), float(one.begun)))
    nodes = sorted({node for one in simulation.phases for node in one.nodes})
    run = RunRecord(devices=[], slices=slices)
    return chrome_trace("weave-sim", [(run, 0)], nodes, record["conditions"])


def _slice(kind: str, one: Ran, start_s: float, end_s: float) -> SliceRecord:
    nodes = tuple(sorted(one.nodes))
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    return SliceRecord(kind, one.job, one.phase, one.iteration, nodes, start_ns, end_ns)

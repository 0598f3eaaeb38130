"""How long does a decision take, how long the optimum, and how much of a plan is optimal?

Cases: ``decision`` (a job arrives where 2,000 are placed; another leaves afterwards, so that the
number stays), ``growth`` (the same with 5 to 10,000 jobs, beside the paper's Table 5),
``optimum`` (exact set partitioning, one rollout node per job) and ``monte_carlo`` (1,000
replications of 100 iterations of five jobs on one pair). Jobs are those of the paper's Table 6, see
``weave_scheduler.benchmarks.workload``. Times are wall time; ``cpu_*`` is the time of the thread,
which a busy machine disturbs less. Compiling is not counted.

Run alone: ``python -m weave_scheduler.benchmarks.sched --help``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from weave_rt.benchmarks.record import quantile
from weave_rt.conditions import host_conditions
from weave_scheduler.benchmarks.optimum import optimum_cases
from weave_scheduler.benchmarks.workload import paper_pools, table6_jobs
from weave_scheduler.laws import Lognormal
from weave_scheduler.model import Group, JobModel, Member, Placement, common_job
from weave_scheduler.montecarlo import draw_job, group_slowdowns
from weave_scheduler.policies import Cluster, Settings, WeavePolicy
from weave_scheduler.recursion import recursion_of

__all__ = ["Timed", "run"]

#: Seconds of one decision in the paper's Table 5, by number of jobs.
PAPER_S = {5: 5.6e-3, 9: 6.5e-3, 13: 7.6e-3, 100: 41.9e-3, 500: 0.198, 1000: 0.318, 2000: 0.591}

_RESIDENT = 2000


@dataclass
class Timed:
    """One arm of one question. Times in seconds."""

    name: str
    arm: str
    params: dict[str, Any]
    headline: bool = False
    samples_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def measure(self, work: Callable[[], Any]) -> Any:
        """Run it once, timed; what it returns."""
        cpu, wall = time.thread_time(), time.perf_counter()
        found = work()
        self.samples_s.append(time.perf_counter() - wall)
        self.cpu_s.append(time.thread_time() - cpu)
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "arm": self.arm,
            "params": self.params,
            "n": len(self.samples_s),
            "samples_s": self.samples_s,
            "p50_s": quantile(self.samples_s, 0.5),
            "p95_s": quantile(self.samples_s, 0.95),
            "p99_s": quantile(self.samples_s, 0.99),
            "cpu_p50_s": quantile(self.cpu_s, 0.5),
            "cpu_p99_s": quantile(self.cpu_s, 0.99),
            "headline": self.headline,
            **self.more,
        }


def run(full: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """The record. ``say`` gets progress, one line at a time."""
    say("compiling")
    _decisions(Timed("warm up", "", {}), 30, 10, Settings(), 1)
    cases = []
    for intra, arrivals in (("fifo", 500), ("strict", 500 if full else 50)):
        settings = Settings(intra=intra)  # type: ignore[arg-type]
        case = Timed(
            "decision", f"worst-case {intra}", {"jobs": _RESIDENT, "seed": 0}, intra == "fifo"
        )
        say(f"{_RESIDENT} resident jobs, {arrivals} arrivals, {case.arm}")
        _decisions(case, _RESIDENT, arrivals, settings, 0)
        cases.append(case)
    cases.append(_quantile_case(100 if full else 10, say))
    for jobs in (*PAPER_S, *((5000, 10000) if full else ())):
        case = Timed("growth", "worst-case fifo", {"jobs": jobs, "seed": 1})
        if jobs in PAPER_S:
            case.more["paper_s"] = PAPER_S[jobs]
        say(f"growth: {jobs} jobs")
        _decisions(case, jobs, 100, Settings(), 1)
        cases.append(case)
    cases += _monte_carlo(20, say)
    return {
        "format": "weave-bench",
        "version": 1,
        "conditions": host_conditions(),
        "cases": [case.as_dict() for case in cases] + optimum_cases(full, say, Timed),
    }


def _decisions(case: Timed, resident: int, arrivals: int, settings: Settings, seed: int) -> None:
    """Fill a cluster, then decide about arrivals; a random job leaves after each."""
    jobs = table6_jobs(resident + arrivals, seed)
    generator = np.random.default_rng(seed)
    cluster, policy = Cluster(paper_pools()), WeavePolicy(settings)
    for job in jobs[:resident]:
        _place(cluster, policy, job, None)
    kinds: dict[str, int] = {}
    here = [job.name for job in jobs[:resident]]
    for job in jobs[resident:]:
        kind = _place(cluster, policy, job, case)
        kinds[kind] = kinds.get(kind, 0) + 1
        here.append(job.name)
        cluster.remove(here.pop(int(generator.integers(len(here)))))
    case.more |= {"groups": len(cluster.residents), "placed": kinds}


def _place(cluster: Cluster, policy: WeavePolicy, job: JobModel, case: Timed | None) -> str:
    def decide() -> Any:
        return policy.decide(job, cluster)

    chosen = (decide() if case is None else case.measure(decide)).chosen
    verdict = chosen.verdict
    cluster.place(job, chosen.placement, chosen.group, verdict.order, verdict.by)
    return str(chosen.kind)


def _quantile_case(arrivals: int, say: Callable[[str], None]) -> Timed:
    """Residents placed at the worst case; arrivals decided by quantile. Durations are lognormal
    with mean 0.6 of the worst case, cv 0.2."""
    case = Timed("decision", "quantile fifo", {"jobs": _RESIDENT, "seed": 0})
    say(f"{_RESIDENT} resident jobs, {arrivals} arrivals, {case.arm}")
    jobs = [_noisy(job, at) for at, job in enumerate(table6_jobs(_RESIDENT + arrivals, 0))]
    cluster, first = Cluster(paper_pools()), WeavePolicy(Settings())
    for job in jobs[:_RESIDENT]:
        _place(cluster, first, job, None)
    policy = WeavePolicy(Settings(mode="quantile"))
    policy.decide(jobs[-1], cluster)  # compiles, and reads all groups
    for job in jobs[_RESIDENT:]:
        _place(cluster, policy, job, case)
    return case


def _noisy(job: JobModel, seed: int) -> JobModel:
    phases = tuple(
        replace(phase, law=Lognormal(0.6 * (phase.law.max_s or 0), 0.2, phase.law.max_s))
        for phase in job.phases
    )
    return replace(job, phases=phases, seed=seed, iterations=100)


def _monte_carlo(repeats: int, say: Callable[[str], None]) -> list[Timed]:
    """One pair, five jobs: the recursion alone, with drawing, and event by event."""
    say("Monte Carlo, 1,000 x 100 x 5")
    params = {"replications": 1000, "iterations": 100, "jobs": 5}
    members = tuple(
        Member(
            _noisy(common_job(f"j{at}", 100.0 + 20 * at, 50.0 + 10 * at), at),
            Placement((0,), (0,)),
        )
        for at in range(5)
    )
    group = Group(members, (0,), (0,))
    turns = _turns(group)
    drawn = np.concatenate([draw_job(one.job, 100, 1000) for one in members])
    ready = recursion_of(turns)
    recursion = Timed("monte_carlo", "recursion", params, headline=True)
    drawing = Timed("monte_carlo", "with drawing", params)
    events = Timed("monte_carlo", "event-driven", params)
    apart = Group(
        tuple(Member(one.job, Placement((at,), (0,))) for at, one in enumerate(members)),
        tuple(range(5)),
        (0,),
    )
    for at in range(repeats + 1):
        cases = (recursion, drawing, events) if at else tuple(Timed("", "", {}) for _ in range(3))
        cases[0].measure(lambda: ready.ends(drawn, drawn))
        cases[2].measure(lambda: group_slowdowns(apart, "fifo"))
        draw_job.cache_clear()
        cases[1].measure(lambda: group_slowdowns(group, "fifo"))
    return [recursion, drawing, events]


def _turns(group: Group) -> Sequence[Any]:
    from weave_scheduler.groupmath import mean_phases, turns_of

    return turns_of(group, mean_phases)


def _main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="10,000 jobs, 80 jobs exactly")
    parser.add_argument("--out", type=Path, help="file to write the record to")
    options = parser.parse_args()
    text = json.dumps(run(options.full, lambda line: print(line, file=sys.stderr)), indent=2)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())

"""The cases of ``weave bench sched`` about the exact optimum; none without scipy."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from weave_scheduler.benchmarks.workload import paper_pools, table6_jobs
from weave_scheduler.policies import Cluster, Settings, WeavePolicy

__all__ = ["optimum_cases"]

_SEEDS = range(5)


def optimum_cases(full: bool, say: Callable[[str], None], timed: Any) -> list[dict[str, Any]]:
    """13 jobs by subsets and by HiGHS, 40 jobs (``full``: 80) by HiGHS; five seeds each. One
    rollout node per job, group size 5. ``ratios``: greedy under strict order over the optimum."""
    if importlib.util.find_spec("scipy") is None:
        say("without scipy no optimum (pip install weave-rt[exact])")
        return []
    from weave_scheduler.exact import by_milp, by_subsets, feasible_groups
    from weave_scheduler.exact.jobs import instance_of

    settings = Settings(intra="strict")
    cases = []
    arms: list[tuple[str, int, Any]] = [("subsets", 13, by_subsets), ("HiGHS", 13, by_milp)]
    arms += [("HiGHS", jobs, by_milp) for jobs in ((40, 80) if full else (40,))]
    for arm, jobs, solve in arms:
        say(f"optimum: {jobs} jobs, {arm}")
        case = timed("optimum", arm, {"jobs": jobs, "seeds": len(_SEEDS), "max_group": 5})
        ratios, columns = [], []
        for seed in (0, *_SEEDS) if jobs == 13 else _SEEDS:
            drawn = table6_jobs(jobs, seed, most_nodes=1)

            def work(drawn: Any = drawn, jobs: int = jobs, solve: Any = solve) -> Any:
                groups = feasible_groups(instance_of(drawn, paper_pools(), settings))
                return len(groups), solve(groups, jobs)

            if jobs == 13 and not case.params.get("warm"):
                case.params["warm"] = True
                work()
                continue
            count, found = case.measure(work)
            columns.append(count)
            ratios.append(_greedy(drawn, settings) / found.price)
        case.params.pop("warm", None)
        case.more |= {"ratios": ratios, "columns": columns}
        cases.append(case.as_dict())
    return cases


def _greedy(jobs: Any, settings: Settings) -> float:
    cluster, policy = Cluster(paper_pools()), WeavePolicy(settings)
    for job in jobs:
        chosen = policy.decide(job, cluster).chosen
        assert chosen is not None
        order = None if chosen.verdict is None else chosen.verdict.order
        cluster.place(job, chosen.placement, chosen.group, order)
    return cluster.cost_per_h

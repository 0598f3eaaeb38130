"""Simulations as the rows of ``simulation.json``: jobs, pools, totals, and policies compared. Pure.

A row holds the figures of the first draws; with several seeds ``over_seeds`` has the mean of each
figure and its 95 % interval. What is not known is absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from weave_scheduler.intervals import MeanInterval, mean_interval
from weave_scheduler.model import POOLS, PoolModel
from weave_scheduler.policies.admission import ROOM
from weave_scheduler.simulator import JobRun, Simulation

__all__ = ["COMPARED", "simulation_record"]

Row = dict[str, Any]

#: Totals in which policies are compared.
COMPARED = ("makespan_s", "turnaround_s", "waited_s", "slowdown_realised", "cost")

_FIXED = ("arrival_s", "slo", "iterations", "jobs")  # the same in all seeds, or nothing to average


def simulation_record(
    found: Mapping[str, Sequence[Simulation]], pools: Mapping[str, PoolModel]
) -> Row:
    """The record of several policies over the same draws, without ``conditions`` and ``runtime``.

    ``found`` has, per policy, one simulation for each seed, the seeds in one order.
    """
    price = {pool: model.node.cost_per_h for pool, model in pools.items()}
    jobs: list[Row] = []
    shares: list[Row] = []
    totals: dict[str, list[Row]] = {}
    for policy, runs in found.items():
        by_seed = [[_job(one, price) for one in run.jobs] for run in runs]
        jobs += [_over_seeds(policy, rows) for rows in zip(*by_seed, strict=True)]
        pool_rows = [[_pool(run, pool) for pool in POOLS] for run in runs]
        shares += [_over_seeds(policy, rows) for rows in zip(*pool_rows, strict=True)]
        totals[policy] = [_totals(run, rows) for run, rows in zip(runs, by_seed, strict=True)]
    record: Row = {
        "jobs": jobs,
        "pools": shares,
        "totals": [_over_seeds(policy, rows) for policy, rows in totals.items()],
    }
    if len(found) > 1:
        record["comparison"] = _comparison(totals)
    return record


def _job(run: JobRun, price: Mapping[str, float]) -> Row:
    job = run.job
    row: Row = {"name": job.name, "arrival_s": job.arrival_s}
    if job.slo is not None:
        row["slo"] = job.slo
    if run.reason:
        row["reason"] = run.reason
    row["state"] = _state(run)
    if run.placed_s is None:
        return row
    row |= {"placed_s": run.placed_s, "waited_s": run.placed_s - job.arrival_s}
    if run.finished_s is None:
        return row
    alone = run.alone_s()
    mean, alone_mean = _means(run, alone)
    row |= {
        "finished_s": run.finished_s,
        "iterations": len(run.ends_s),
        "iteration_s": mean,
        "solo_s": math.fsum(alone),
        "slowdown_realised": mean / alone_mean,
    }
    limits = [phase.law.max_s for phase in job.phases]
    if None not in limits:
        row["slowdown_planned"] = mean / job.solo_max_s
    if job.slo is not None:
        for kind in ("planned", "realised"):
            if f"slowdown_{kind}" in row:
                kept = row[f"slowdown_{kind}"] <= job.slo * (1 + ROOM)
                row[f"slo_met_{kind}"] = kept
    if any(price.values()):
        per_h = sum(price[pool] * job.nodes(pool) for pool in POOLS)
        row |= {"cost": run.cost, "cost_solo": per_h * row["solo_s"] / 3600}
    return row


def _state(run: JobRun) -> str:
    if run.finished_s is not None:
        return "finished"
    return "refused" if run.refused else "waiting"


def _means(run: JobRun, alone: Sequence[float]) -> tuple[float, float]:
    """Mean iteration here and alone, without the first one where there are more."""
    ends = run.ends_s
    if len(ends) == 1:
        return ends[0] - (run.placed_s or 0.0), alone[0]
    return (ends[-1] - ends[0]) / (len(ends) - 1), fmean(alone[1:])


def _pool(run: Simulation, pool: str) -> Row:
    own = run.pools[pool]
    row: Row = {
        "name": pool,
        "nodes": own.nodes,
        "owned_s": own.owned_s,
        "phases_s": own.phases_s,
        "switch_s": own.switch_s,
        "idle_s": max(0.0, own.owned_s - own.phases_s - own.switch_s),
    }
    if own.owned_s > 0:
        row["busy_share"] = own.phases_s / own.owned_s
    return row


def _totals(run: Simulation, jobs: Sequence[Row]) -> Row:
    done = [row for row in jobs if "finished_s" in row]
    row: Row = {"jobs": len(jobs), "groups": run.groups}
    for state in ("finished", "waiting", "refused"):
        row[state] = sum(one["state"] == state for one in jobs)
    if not done:
        return row
    row |= {
        "makespan_s": run.end_s - min(one["arrival_s"] for one in jobs),
        "turnaround_s": fmean(one["finished_s"] - one["arrival_s"] for one in done),
        "waited_s": fmean(one["waited_s"] for one in done),
        "slowdown_realised": fmean(one["slowdown_realised"] for one in done),
    }
    for key in ("slo_met_planned", "slo_met_realised"):
        met = [one[key] for one in done if key in one]
        if met:  # who asked for a limit and never finished has not got it
            missed = sum("slo" in one and "finished_s" not in one for one in jobs)
            row[f"{key}_share"] = sum(met) / (len(met) + missed)
    if "cost" in done[0]:
        row |= {"cost": run.cost, "cost_solo": math.fsum(one["cost_solo"] for one in done)}
    return row


def _over_seeds(policy: str, rows: Sequence[Row]) -> Row:
    """The first row, and the means of what is a number in all rows."""
    row: Row = {"policy": policy, **rows[0]}
    if len(rows) == 1:
        return row
    row["over_seeds"] = {
        key: _plain(mean_interval([float(one[key]) for one in rows]))
        for key, value in rows[0].items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and key not in _FIXED
        and all(key in one for one in rows)
    }
    for key in (key for key, value in rows[0].items() if isinstance(value, bool)):
        row["over_seeds"][f"{key}_share"] = {"mean": fmean(one.get(key, False) for one in rows)}
    return row


def _comparison(totals: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Each policy over the first one, seed by seed: the same draws, so that their noise cancels."""
    first = next(iter(totals))
    compared: list[Row] = []
    for policy, rows in list(totals.items())[1:]:
        row: Row = {"policy": policy, "against": first}
        for key in COMPARED:
            pairs = [(a.get(key), b.get(key)) for a, b in zip(rows, totals[first], strict=True)]
            ratios = [a / b for a, b in pairs if a is not None and b]
            if len(ratios) < len(pairs):
                continue
            many = len(ratios) > 1
            row[key] = _plain(mean_interval(ratios)) if many else {"mean": ratios[0]}
        compared.append(row)
    return compared


def _plain(one: MeanInterval) -> dict[str, float]:
    return {"mean": one.mean, "low": one.low, "high": one.high}

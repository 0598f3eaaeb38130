"""Choosing groups so that every job is in exactly one, at the least price: set partitioning.

Three ways that must agree: dynamic programming over subsets (exact to about 20 jobs), HiGHS
through scipy, and CP-SAT where OR-Tools is installed. scipy and OR-Tools come with the extra
``weave-rt[exact]``.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from weave_scheduler.exact.columns import Columns

__all__ = ["SUBSET_JOBS", "Optimum", "by_cpsat", "by_milp", "by_subsets"]

#: More jobs than this are refused by the dynamic programme: its table has 2^n entries.
SUBSET_JOBS = 20

_PRICE_STEPS = 10**6  # CP-SAT counts in millionths of a price


@dataclass(frozen=True, slots=True)
class Optimum:
    """Indices of the chosen columns, their price per hour, and whether it is proved the least."""

    chosen: tuple[int, ...]
    price: float
    proved: bool = True


def by_subsets(columns: Columns, jobs: int) -> Optimum:
    """f(S) = least price of S = min over groups G in S with the first job of S: G + f(S - G).

    Raises ValueError for more than SUBSET_JOBS jobs.
    """
    if jobs > SUBSET_JOBS:
        raise ValueError(f"{jobs} jobs are too many for subsets; at most {SUBSET_JOBS}")
    member = columns.members
    masks = np.where(member >= 0, 1 << np.maximum(member, 0), 0).sum(axis=1).astype(np.int64)
    order = np.argsort(member[:, 0], kind="stable")
    starts = np.searchsorted(member[order, 0], np.arange(jobs + 1))
    price, choice = _subsets(masks[order], columns.prices[order], starts, jobs)
    left = (1 << jobs) - 1
    chosen = []
    while left:
        index = int(order[choice[left]])
        chosen.append(index)
        left ^= int(masks[index])
    return Optimum(tuple(sorted(chosen)), float(price[-1]))


@njit(cache=True)
def _subsets(masks: Any, prices: Any, starts: Any, jobs: int) -> Any:
    best = np.full(1 << jobs, np.inf)
    choice = np.full(1 << jobs, -1, dtype=np.int64)
    best[0] = 0.0
    for left in range(1, 1 << jobs):
        first = 0
        while not (left >> first) & 1:
            first += 1
        for index in range(starts[first], starts[first + 1]):
            mask = masks[index]
            if mask & left == mask:
                price = prices[index] + best[left ^ mask]
                if price < best[left]:
                    best[left] = price
                    choice[left] = index
    return best, choice


def by_milp(columns: Columns, jobs: int, limit_s: float | None = None) -> Optimum:
    """HiGHS, one program per number of training nodes. ``limit_s`` stops each search early.

    With that number fixed only rollout nodes are left to count, so the least bound of the
    relaxation rounds up to a whole node and the search ends early. The relaxation is convex in the
    number, so the numbers are tried outwards from its optimum until it exceeds the best found.
    Raises ImportError without scipy, RuntimeError where no solution was found in time.
    """
    search = _Search(columns, jobs, limit_s)
    start = search.relaxed(None)
    if start is None:
        raise RuntimeError("HiGHS found no partition")
    for step, number in ((1, math.ceil(start - 1e-6)), (-1, math.ceil(start - 1e-6) - 1)):
        while number >= 1 and search.try_number(number):
            number += step
    if search.chosen is None:
        raise RuntimeError("HiGHS found no partition in time")
    return _optimum(columns, search.chosen, search.proved)


class _Search:
    """The programs over one set of columns, and the best solution so far."""

    def __init__(self, columns: Columns, jobs: int, limit_s: float | None) -> None:
        self._optimize = importlib.import_module("scipy.optimize")
        sparse = importlib.import_module("scipy.sparse")
        self._columns = columns
        self._kept = kept = _worth_keeping(columns)
        rows = columns.members[kept]
        column, position = np.nonzero(rows >= 0)
        cover = sparse.csr_matrix(
            (np.ones(len(column)), (rows[column, position], column)), shape=(jobs, len(kept))
        )
        self._rollout = columns.rollout_nodes[kept].astype(float)
        self._train = columns.train_nodes[kept].astype(float)
        self._matrix = sparse.vstack([cover, self._train, self._rollout], format="csr")
        self._low = np.ones(jobs)
        self._limit_s = limit_s
        self.best = math.inf
        self.chosen: list[int] | None = None
        self.proved = True

    def relaxed(self, number: int | None) -> float | None:
        """Training nodes of the relaxation's optimum, or, with their number fixed, its price."""
        goal = self._columns.prices[self._kept] if number is None else self._rollout
        found = self._solve(goal, number, math.inf, whole=False)
        if found.x is None:
            return None
        return float(self._train @ found.x) if number is None else float(found.fun)

    def try_number(self, number: int) -> bool:
        """Solve for that many training nodes; False where the relaxation cannot do better."""
        per_node, fixed = self._columns.rollout_price, number * self._columns.train_price
        nodes = self.relaxed(number)
        if nodes is None or fixed + per_node * nodes >= self.best * (1 - 1e-9):
            # an even number of training nodes may be all that the degrees allow
            return nodes is None and number < self._train.sum() and self.chosen is None
        most = math.inf
        if per_node and math.isfinite(self.best):
            most = math.ceil((self.best - fixed) / per_node - 1e-6) - 1
        if math.ceil(nodes - 1e-6) <= most:
            found = self._solve(self._rollout, number, most, whole=True)
            if found.x is not None:
                self.chosen = self._kept[np.flatnonzero(found.x > 0.5)].tolist()
                self.best = fixed + per_node * round(float(found.fun))
            self.proved = self.proved and found.status in (0, 2)
        return True

    def _solve(self, goal: Any, number: int | None, most: float, *, whole: bool) -> Any:
        low, high = (0.0, math.inf) if number is None else (number, number)
        options: dict[str, float] = {"mip_rel_gap": 0.0}
        if self._limit_s is not None:
            options["time_limit"] = self._limit_s
        return self._optimize.milp(
            c=goal,
            constraints=self._optimize.LinearConstraint(
                self._matrix,
                np.concatenate([self._low, [low, 0.0]]),
                np.concatenate([np.full(len(self._low), math.inf), [high, most]]),
            ),
            bounds=self._optimize.Bounds(0, 1),
            integrality=np.full(len(goal), int(whole)),
            options=options,
        )


def by_cpsat(columns: Columns, jobs: int, limit_s: float | None = None) -> Optimum:
    """OR-Tools' CP-SAT with one worker, so that runs repeat; prices rounded to millionths.

    Raises ImportError without OR-Tools, RuntimeError where no solution was found in time.
    """
    cp_model = importlib.import_module("ortools.sat.python.cp_model")
    kept = _worth_keeping(columns)
    model = cp_model.CpModel()
    taken = [model.new_bool_var("") for _ in kept]
    having: list[list[Any]] = [[] for _ in range(jobs)]
    for variable, index in zip(taken, kept, strict=True):
        for job in columns.group(int(index)):
            having[job].append(variable)
    for variables in having:
        model.add_bool_or(variables)
    steps = [round(float(columns.prices[index]) * _PRICE_STEPS) for index in kept]
    model.minimize(sum(step * one for step, one in zip(steps, taken, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if limit_s is not None:
        solver.parameters.max_time_in_seconds = limit_s
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise RuntimeError(f"CP-SAT found no partition: {solver.status_name(status)}")
    chosen = [int(index) for index, one in zip(kept, taken, strict=True) if solver.value(one)]
    return _optimum(columns, chosen, status == cp_model.OPTIMAL)


def _worth_keeping(columns: Columns) -> Any:
    """Indices of the groups that no group with one job more has at the same price or less.

    A part of a group never costs more than the group, so jobs may be covered twice: the second
    group simply does without them. That is the same optimum with far fewer columns.
    """
    price = {columns.group(at): float(columns.prices[at]) for at in range(len(columns))}
    worse = set()
    for group, whole in price.items():
        for out in range(len(group) if len(group) > 1 else 0):
            part = group[:out] + group[out + 1 :]
            if price[part] >= whole:
                worse.add(part)
    return np.array(
        [at for at in range(len(columns)) if columns.group(at) not in worse], dtype=np.int64
    )


def _trimmed(columns: Columns, chosen: list[int]) -> list[int]:
    """Groups that cover every job once, from groups that may cover a job twice."""
    number = {columns.group(at): at for at in range(len(columns))}
    seen: set[int] = set()
    trimmed = []
    for at in chosen:
        group = tuple(job for job in columns.group(at) if job not in seen)
        seen.update(group)
        if group:
            trimmed.append(number[group])
    return trimmed


def _optimum(columns: Columns, chosen: list[int], proved: bool) -> Optimum:
    chosen = _trimmed(columns, chosen)
    return Optimum(tuple(sorted(chosen)), float(columns.prices[chosen].sum()), proved)

"""Whether a group keeps the limits of all its members, and by which test. Pure.

The limit of job k is SLO_k times its solo iteration (design: worst case, or the mean of its own
draws). In mode ``worst-case`` the tests are, in this order: the closed form where its conditions
hold; a lower bound that refuses; an upper bound that admits; the maximum cycle ratio of the best
strict order; simulation of the very policy that will run. In mode ``quantile``: the lower bound at
the means, the policy itself at the means, a small sample of joint draws, all of which only refuse,
then the upper confidence limit of the quantile over joint draws. Nothing but the closed
form under its own conditions, an upper bound, the cycle ratio, a simulation of that policy or the
quantile ever admits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weave_scheduler.groupmath import (
    Turn,
    bounds,
    closed_form,
    longest_phases,
    mean_phases,
    node_numbers,
    turns_of,
    why_not_closed,
)
from weave_scheduler.groupsim import simulated_iterations
from weave_scheduler.laws import Constant
from weave_scheduler.model import Group, JobModel
from weave_scheduler.montecarlo import group_slowdowns, quantile_bound
from weave_scheduler.policies.components import (
    components,
    fifo_lower_bounds,
    fifo_upper_bounds,
)
from weave_scheduler.policies.decision import Verdict
from weave_scheduler.policies.quick import MOST_LAPS, MOST_NODES, fifo_iterations
from weave_scheduler.policies.settings import Settings
from weave_scheduler.strictorder import best_order, strict_period

__all__ = ["ROOM", "judge", "laps", "limit_s", "oversaturated", "solo_s"]

#: Relative room for rounding when a sum of durations is held against a limit.
ROOM = 1e-9

#: Iterations over which a slowdown is taken, at most (design section 8).
_WINDOW = 100

#: Replications of a first sample in mode ``quantile``; two above a limit refuse the group.
_SCREEN = 24


def solo_s(job: JobModel, settings: Settings) -> float:
    """What the mode measures a slowdown by. Raises ValueError where a law has no max."""
    return job.solo_max_s if settings.mode == "worst-case" else job.solo_mean_s


def limit_s(job: JobModel, settings: Settings) -> float:
    """The longest mean iteration that keeps the job's SLO; inf where it has none."""
    return math.inf if job.slo is None else job.slo * solo_s(job, settings)


def judge(group: Group, settings: Settings, order: Sequence[int] | None = None) -> Verdict:
    """Test a group as a whole; ``order``: a strict order to try before others are searched.

    Raises ValueError in mode ``worst-case`` where a law has no max.
    """
    if settings.mode == "quantile" and not _constant(group):
        return _judge_quantile(group, settings, order)
    turns = turns_of(group, longest_phases)
    refusal = why_not_closed(turns, settings.intra, group.pairs)
    if refusal is None:
        period = closed_form(turns)
        return _verdict(
            group, settings, [float(period.seconds)] * len(turns), "closed form", period.what
        )
    return _judge_open(group, turns, settings, order)


def _judge_open(
    group: Group, turns: Sequence[Turn], settings: Settings, order: Sequence[int] | None
) -> Verdict:
    """Where the closed form does not hold: bounds, then the policy itself."""
    lower = lower_bounds(turns, settings)
    refused = _verdict(group, settings, lower, "lower bound")
    if not refused.admitted:
        return refused
    upper = upper_bounds(turns, settings, bool(group.pairs))
    if upper is not None:
        admitted = _verdict(group, settings, upper, "upper bound")
        if admitted.admitted:
            return admitted
    if settings.intra == "strict":
        return _judge_order(group, turns, settings, order)
    if settings.intra == "fifo" and laps(turns) > MOST_LAPS:
        return _judge_uneven(group, turns, settings)
    means = None if settings.intra != "fifo" or group.pairs else _common_iterations(turns)
    if means is None:
        found = simulated_iterations(turns, settings.intra, pairs=group.pairs)
        means = [float(one) for one in found]
    return _verdict(group, settings, means, "simulation")


def _common_iterations(turns: Sequence[Turn]) -> list[float] | None:
    """Long-run means of common jobs by the same compiled form as in the table of groups, so that
    what is explained is what was decided; None where there are other jobs."""
    number = node_numbers(turns)
    held = [{number[node] for node in turn.steps[0].nodes} for turn in turns]
    behind = any(step.background for turn in turns for step in turn.steps)
    if components(turns) is None or behind or max(map(max, held)) >= MOST_NODES:
        return None
    times = np.array([
        [float(part) for step in turn.steps for part in (step.seconds, step.foreground)]
        for turn in turns
    ])  # fmt: skip
    mask = np.array([sum(1 << at for at in own) for own in held])
    means = np.zeros(len(turns))
    fifo_iterations(times, mask, means)
    return [float(one) for one in means]


def laps(turns: Sequence[Turn]) -> float:
    """How many iterations the quickest job can do during one of the slowest, by their lower bounds:
    jobs that share a rollout node have one period and never lap each other."""
    least = fifo_lower_bounds(turns) or [float(turn.solo) for turn in turns]
    return max(least) / min(least)


def _judge_uneven(group: Group, turns: Sequence[Turn], settings: Settings) -> Verdict:
    """Too uneven to be simulated: a coarse bound decides. When a phase enters its queues, every
    phase of every other job stands in front of it at most once, and one of them always runs."""
    whole = [
        sum(float(s.seconds + s.lag + s.foreground + s.background) for s in turn.steps)
        for turn in turns
    ]
    others = sum(whole)
    longest = [
        own + len(turn.steps) * (others - own) for own, turn in zip(whole, turns, strict=True)
    ]
    verdict = _verdict(group, settings, longest, "upper bound")
    limited = any(member.job.slo is not None for member in group.members)
    if verdict.admitted and not (limited and settings.mode == "quantile" and not _constant(group)):
        return verdict  # at the means it is no bound on what is drawn
    count = f"{laps(turns):.0f} times, more than the {MOST_LAPS:.0f} that are simulated"
    return replace(verdict, admitted=False, reason=f"the lengths of iterations differ {count}")


def _judge_order(
    group: Group, turns: Sequence[Turn], settings: Settings, order: Sequence[int] | None
) -> Verdict:
    if order is not None:
        seconds = [float(strict_period(turns, order, group.pairs))] * len(turns)
        kept = _verdict(group, settings, seconds, "cycle ratio", order=tuple(order))
        if kept.admitted:
            return kept
    best, period = best_order(turns, group.pairs)
    return _verdict(group, settings, [float(period)] * len(turns), "cycle ratio", order=best)


def lower_bounds(turns: Sequence[Turn], settings: Settings) -> list[float]:
    """Per job, no more than its long-run mean iteration under the policy."""
    if settings.intra == "strict":
        return [float(bounds(turns).lower)] * len(turns)
    if settings.intra == "fifo":
        found = fifo_lower_bounds(turns)
        if found is not None:
            return found
    return [float(turn.solo) for turn in turns]


def upper_bounds(turns: Sequence[Turn], settings: Settings, pairs: bool) -> list[float] | None:
    """Per job, no less than its long-run mean iteration; None where no bound is known."""
    if len(turns) == 1:  # nobody to wait for
        return [float(turns[0].solo)]
    if pairs:
        return None
    if settings.intra == "strict":
        return [float(bounds(turns).upper)] * len(turns)
    return fifo_upper_bounds(turns) if settings.intra == "fifo" else None


def _judge_quantile(group: Group, settings: Settings, order: Sequence[int] | None) -> Verdict:
    turns = turns_of(group, mean_phases)
    if len(turns) == 1:  # it takes what its own phases take, in every draw
        return _verdict(group, settings, [float(turns[0].solo)], "upper bound")
    refused = _verdict(group, settings, lower_bounds(turns, settings), "lower bound")
    if not refused.admitted:
        return refused
    if settings.intra == "fifo" and len(turns) > 1 and laps(turns) > MOST_LAPS:
        return _judge_uneven(group, turns, settings)
    if settings.intra == "strict" and order is None:
        order = best_order(turns, group.pairs)[0]
    fixed = simulated_iterations(turns, settings.intra, order=order, pairs=group.pairs)
    refused = _verdict(group, settings, [float(one) for one in fixed], "simulation at the means")
    if not refused.admitted:
        return refused
    screened = _slowdown_limits(group, settings, order, screening=True)
    return _slowdown_limits(group, settings, order) if screened.admitted else screened


def _slowdown_limits(
    group: Group, settings: Settings, order: Sequence[int] | None, *, screening: bool = False
) -> Verdict:
    """Slowdowns over joint draws: upper confidence limits of the quantile, or, for a screening
    sample that is too small for those, the second largest (one draw may lie above)."""
    found = group_slowdowns(
        group,
        settings.intra,
        order=order,
        iterations=_WINDOW,
        replications=_SCREEN if screening else settings.replications,
    )
    ratios = [
        float(np.partition(own, -2)[-2])
        if screening
        else quantile_bound(own, settings.quantile, settings.confidence).upper
        for own in found.ratios
    ]
    means = [float(own.mean()) for own in found.iterations_s]
    slack, worst = _slack(group, ratios)
    kept = slack is None or slack >= -ROOM
    return Verdict(
        admitted=kept,
        by="screening" if screening else "quantile",
        reason="" if kept else _too_slow(group, worst, ratios[worst]),
        period_s=max(means),
        slack=slack,
        iterations_s=tuple(means),
        slowdowns=tuple(ratios),
        order=None if order is None else tuple(order),
    )


def _verdict(
    group: Group,
    settings: Settings,
    seconds: Sequence[float],
    by: str,
    binds: str = "",
    order: tuple[int, ...] | None = None,
) -> Verdict:
    """Hold planned iterations against the limits. A lower bound only refuses."""
    ratios = [
        one / solo_s(member.job, settings)
        for one, member in zip(seconds, group.members, strict=True)
    ]
    slack, worst = _slack(group, ratios)
    kept = slack is None or slack >= -ROOM
    return Verdict(
        admitted=kept,
        by=by,
        reason="" if kept else _too_slow(group, worst, ratios[worst]),
        period_s=max(seconds),
        binds=binds,
        slack=slack,
        iterations_s=tuple(seconds),
        slowdowns=tuple(ratios),
        order=order,
    )


def _slack(group: Group, ratios: Sequence[float]) -> tuple[float | None, int]:
    """The least share of a limit that is left, and whose it is; None where no job has a limit."""
    left = [
        (1 - ratio / member.job.slo, place)
        for place, (ratio, member) in enumerate(zip(ratios, group.members, strict=True))
        if member.job.slo is not None
    ]
    return min(left, default=(None, 0))


def _too_slow(group: Group, place: int, ratio: float) -> str:
    job = group.members[place].job
    return f"job {job.name} would be {ratio:.3f} times slower than alone; its limit is {job.slo:g}"


def _constant(group: Group) -> bool:
    return all(
        isinstance(phase.law, Constant) for member in group.members for phase in member.job.phases
    )


def oversaturated(group: Group) -> int:
    """The paper's test (4.2, Figure 6), without switches: -1 under-utilised, 0 full, 1 over.

    T_cycle is the longest solo iteration on the group's nodes, T_load the largest load of a node.
    """
    loads: dict[str, float] = {}
    cycle = 0.0
    for turn in turns_of(group, longest_phases):
        cycle = max(cycle, float(turn.solo))
        for step in turn.steps:
            for node in step.nodes:
                loads[node] = loads.get(node, 0.0) + float(step.seconds)
    load = max(loads.values(), default=0.0)
    return 0 if math.isclose(load, cycle, rel_tol=ROOM) else (1 if load > cycle else -1)

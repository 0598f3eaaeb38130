"""How fast the jobs of a group go: steps, the closed form and its conditions, the bounds.

A job's iteration is a ``Turn``: its steps with durations, the nodes they hold and what they follow.
Numbers may be int, Fraction or float; with int and Fraction every result is exact. Sources:
Theorem A and sections 3.2, 3.5 and 3.7 of our notes on round robin, and paper 4.2 and 4.3. The
period of a strict order is in ``weave_scheduler.strictorder``, simulation of the very policy in
``weave_scheduler.groupsim``, random durations in ``weave_scheduler.montecarlo``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from weave_scheduler.model import Group, Intra, Member, PairCost, Phase

__all__ = [
    "Bounds",
    "Number",
    "Period",
    "Step",
    "Turn",
    "bounds",
    "closed_form",
    "longest_phases",
    "mean_phases",
    "node_numbers",
    "scale_of",
    "turn_of",
    "turns_of",
    "why_not_closed",
]

Number = int | float | Fraction
Binds = Literal["rollout", "train", "solo"]


@dataclass(frozen=True, slots=True)
class Step:
    """One phase of one job.

    Attributes:
        seconds: how long it holds its nodes, without any switch.
        nodes: what it holds, like ``rollout:0``; empty: a pure latency.
        after: indices of earlier steps of the same turn.
        foreground: added in front of it when another job held one of its nodes before.
        background: copied meanwhile; it may run from start of the phase before + this.
        lag: between freeing its nodes and being done (a migrated tail).
    """

    phase: str
    seconds: Number
    nodes: frozenset[str]
    after: tuple[int, ...] = ()
    foreground: Number = 0
    background: Number = 0
    lag: Number = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One iteration of one job; the first step follows all steps of the turn before."""

    job: str
    steps: tuple[Step, ...]

    @property
    def solo(self) -> Number:
        """Its length alone, without switches: the longest path, a tail's lag in full."""
        return _path([step.seconds + step.lag for step in self.steps], self.steps)

    def visits(self, node: str) -> int:
        """How many of its steps hold that node."""
        return sum(node in step.nodes for step in self.steps)


@dataclass(frozen=True, slots=True)
class Period:
    """A period and the term that binds: a node's load (``rollout``, ``train``) or one job.

    ``what`` names the node (``rollout:0``) or the job.
    """

    seconds: Number
    binds: Binds
    what: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """lower <= period of the strict order <= upper, in seconds."""

    lower: Number
    upper: Number


def longest_phases(member: Member, phase: Phase) -> float:
    """The law's ``max``. Raises ValueError where it has none (mode worst-case refuses it)."""
    most = phase.law.max_s
    if most is None:
        raise ValueError(
            f"job {member.job.name}: phase {phase.name}: law has no max; mode worst-case needs one"
        )
    return most


def mean_phases(member: Member, phase: Phase) -> float:
    """The law's mean."""
    return phase.law.mean_s


def turns_of(
    group: Group, seconds: Callable[[Member, Phase], Number] = longest_phases
) -> tuple[Turn, ...]:
    """The turns of the members, in their order.

    Scales training by the member's degree, takes switch costs of the jobs (none on nodes that one
    job has to itself; the larger one where a phase holds both pools), and splits a rollout whose
    tail migrates into what holds the nodes and a lag, if anyone else wants those nodes. Raises
    ValueError where a law has no max and ``longest_phases`` asks for it.
    """
    return tuple(turn_of(group, member, seconds) for member in group.members)


def turn_of(group: Group, member: Member, seconds: Callable[[Member, Phase], Number]) -> Turn:
    """The turn of one member, as :func:`turns_of` makes those of all."""
    job, place = member.job, member.placement
    index = {phase.name: at for at, phase in enumerate(job.phases)}
    others = [other for other in group.members if other is not member]
    steps = []
    for phase in job.phases:
        nodes = place.names(phase.pools)
        taken: Number = seconds(member, phase) * scale_of(group, member, phase)
        hold: Number = taken
        lag: Number = 0
        shared = any(nodes & other.placement.names() for other in others)
        if phase.tail is not None and shared:
            lag = taken - taken * phase.tail.hold_share
            hold = taken * phase.tail.hold_share + phase.tail.migrate_s
        costs = [job.switch(pool) for pool in phase.pools] if shared else []
        steps.append(
            Step(
                phase.name,
                hold,
                nodes,
                tuple(index[name] for name in phase.after),
                max((cost.foreground_s for cost in costs), default=0),
                max((cost.background_s for cost in costs), default=0),
                lag,
            )
        )
    return Turn(job.name, tuple(steps))


def scale_of(group: Group, member: Member, phase: Phase) -> float:
    """What the phase's law is multiplied by in this group.

    Training with a degree of d nodes takes N_T / d as long, or what the profile measured; a
    rollout on nodes where others leave their tails is slower by 1 / (1 - kept share).
    """
    job, place = member.job, member.placement
    scale = 1.0
    if phase.pools == ("train",) and phase.name not in ("weight_sync", "save"):
        scale = job.train_factor(len(place.train))
    if phase.pools == ("rollout",):
        mine = place.names(("rollout",))
        kept = [
            their.tail.kept_share
            for other in group.members
            if other is not member and mine & other.placement.names(("rollout",))
            for their in other.job.phases
            if their.tail is not None
        ]
        scale /= 1 - max(kept, default=0.0)
    return scale


def node_numbers(turns: Sequence[Turn]) -> dict[str, int]:
    """A number per node, from 0 in order of names; one in common for nodes of a pool that the same
    steps hold, for what happens on one of them happens on all."""
    users: dict[str, list[tuple[int, int]]] = {}
    for job, turn in enumerate(turns):
        for at, step in enumerate(turn.steps):
            for node in step.nodes:
                users.setdefault(node, []).append((job, at))
    known: dict[tuple[str, tuple[tuple[int, int], ...]], int] = {}
    return {
        node: known.setdefault((node.partition(":")[0], tuple(users[node])), len(known))
        for node in sorted(users)
    }


def why_not_closed(
    turns: Sequence[Turn], intra: Intra, pairs: Sequence[PairCost] = ()
) -> str | None:
    """None where the closed form is exact, else the condition that fails, as one line.

    Conditions (design section 8): each job has one rollout and one training phase per iteration,
    no phase holds both pools or none, no tail migrates, switch costs do not depend on the pair and
    their background part fits behind every other job's phase. Under ``fifo`` all on one rollout
    and one training node. Under ``strict`` all on the same training nodes, and on the same rollout
    nodes or on one rollout node each. Never under ``barrier``.
    """
    if intra == "barrier":
        return "mode barrier has no closed form"
    if pairs:
        return "switch costs depend on the pair of jobs"
    for turn in turns:
        wrong = _not_common(turn)
        if wrong is not None:
            return f"job {turn.job}: {wrong}"
    rollouts = {turn.steps[0].nodes for turn in turns}
    trains = {turn.steps[1].nodes for turn in turns}
    if len(trains) > 1:
        return "the jobs train on different nodes"
    if intra == "fifo" and any(len(nodes) > 1 for nodes in (*rollouts, *trains)):
        return "fifo with a job on several nodes"
    if intra == "fifo" and len(rollouts) > 1:
        return "fifo with several rollout nodes"
    if len(rollouts) > 1 and any(len(nodes) > 1 for nodes in rollouts):
        return "a job spans several rollout nodes"
    return _background_late(turns)


def _not_common(turn: Turn) -> str | None:
    pools = [sorted({name.split(":")[0] for name in step.nodes}) for step in turn.steps]
    for step, held in zip(turn.steps, pools, strict=True):
        if len(held) != 1:
            return f"{step.phase} holds {'both pools' if held else 'no pool'}"
        if step.lag != 0:
            return f"the tail of {step.phase} migrates"
    if pools != [["rollout"], ["train"]] or turn.steps[1].after != (0,):
        return "its iteration is not one rollout and then one training"
    return None


def _background_late(turns: Sequence[Turn]) -> str | None:
    for turn in turns:
        for at, step in enumerate(turn.steps):
            for other in turns:
                before = other.steps[at]
                shares = other is not turn and before.nodes & step.nodes
                if shares and step.background > before.seconds:
                    return f"job {turn.job}: its copies do not fit behind {other.job}"
    return None


def closed_form(turns: Sequence[Turn]) -> Period:
    """max(largest node load, longest solo iteration), switches included (Theorem A).

    Exact where ``why_not_closed`` is None, else a lower bound of every strict order's period. The
    first of equal terms binds: loads before single jobs.
    """
    terms: list[Period] = []
    load: dict[str, Number] = {}
    users: Counter[str] = Counter(
        node for turn in turns for node in set().union(*(step.nodes for step in turn.steps))
    )
    for turn in turns:
        held = [_held(turn, step, users) for step in turn.steps]
        for taken, step in zip(held, turn.steps, strict=True):
            for node in step.nodes:
                load[node] = load.get(node, 0) + taken
        alone = [taken + step.lag for taken, step in zip(held, turn.steps, strict=True)]
        terms.append(Period(_path(alone, turn.steps), "solo", turn.job))
    for node in sorted(load, reverse=True):
        pool: Binds = "rollout" if node.startswith("rollout") else "train"
        terms.insert(0, Period(load[node], pool, node))
    return max(terms, key=lambda term: term.seconds)


def bounds(turns: Sequence[Turn]) -> Bounds:
    """Bounds of the period of any strict order, the same for all jobs (notes 3.5 and 3.7).

    Lower: largest node load, longest iteration. Upper: where every job has one rollout and one
    training on the same nodes and else only latencies, lower + half of the longest latency; else
    all steps one after the other.
    """
    lower = closed_form(turns).seconds
    upper: Number = sum(
        step.seconds + step.foreground + step.background + step.lag
        for turn in turns
        for step in turn.steps
    )
    latency = _latency(turns)
    if latency is not None:
        upper = min(upper, lower + (Fraction(latency) / 2 if _exact(latency) else latency / 2))
    return Bounds(lower, max(lower, upper))


def _latency(turns: Sequence[Turn]) -> Number | None:
    """The longest latencies up and down, added; None where the bound does not apply."""
    down: Number = 0  # rollout to training
    up: Number = 0  # training to the next rollout
    held: set[tuple[frozenset[str], ...]] = set()
    for turn in turns:
        after = 0
        sums: list[Number] = [0, 0]
        for at, step in enumerate(turn.steps):
            if at and step.after != (at - 1,):
                return None
            if step.nodes:
                after += 1
            if after not in (1, 2) or step.background:
                return None
            sums[after - 1] += step.lag if step.nodes else step.seconds
        down, up = max(down, sums[0]), max(up, sums[1])
        held.add(tuple(step.nodes for step in turn.steps if step.nodes))
    same = len(held) == 1 and len(next(iter(held))) == 2
    return down + up if same and frozenset.isdisjoint(*next(iter(held))) else None


def _held(turn: Turn, step: Step, users: Mapping[str, int]) -> Number:
    """How long it holds its nodes at least; a switch counts where others come in between for sure:
    on nodes that others use and the job visits once."""
    once = all(turn.visits(node) == 1 for node in step.nodes)
    shared = any(users[node] > 1 for node in step.nodes)
    return step.seconds + (step.foreground if once and shared else 0)


def _path(seconds: Sequence[Number], steps: Sequence[Step]) -> Number:
    ends: list[Number] = []
    for taken, step in zip(seconds, steps, strict=True):
        ends.append(max((ends[at] for at in step.after), default=0) + taken)
    return max(ends)


def _exact(number: Number) -> bool:
    return isinstance(number, int | Fraction)

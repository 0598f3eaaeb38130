"""A cluster over time: arrivals, placement, phases, departures, in one pass over one agenda. Pure.

Placement goes through the desk and the policy that plan and run use, the order inside a group
through its state machine (``weave_scheduler.groupdriver``). A phase takes what its law draws for
(seed of the job, iteration, phase), so a job has the same durations whatever the policy, the group
or the other jobs: common random numbers. Switches cost what the planner says. Seconds are those of
the real job.

A job joins its group at the instant at which it is placed, and leaves with its last iteration.
The rings of ``strict`` and the barrier of ``barrier`` name their jobs when the group starts, so a
job that joins such a group later is refused (``SimulationRefused``), as in a live run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from weave_scheduler.groupdriver import Agenda, GroupDriver, Ran
from weave_scheduler.groupmath import Turn, mean_phases, turn_of, turns_of
from weave_scheduler.intra import state_for
from weave_scheduler.laws import draw
from weave_scheduler.model import POOLS, JobModel, Member, PairCost, Phase, PoolModel
from weave_scheduler.montecarlo import solo_iterations
from weave_scheduler.policies.cluster import Resident
from weave_scheduler.policies.decision import Decision
from weave_scheduler.policies.desk import Desk, Policy

__all__ = ["JobRun", "PoolRun", "Simulation", "SimulationRefused", "simulate"]

Pairs = Callable[[Resident], Sequence[PairCost]]
Tick = Callable[[int, float], None]

_TICK_EVERY = 1000  # events


class SimulationRefused(ValueError):
    """What was asked for cannot be simulated; one line."""


@dataclass(slots=True)
class JobRun:
    """One job in a simulation; times are seconds since the start of the clock.

    Attributes:
        drawn_s: per iteration the seconds drawn for its phases, at the requested size.
        ends_s: when each iteration was over.
        cost: its share of the price of its group, in proportion to what the jobs there at the same
            time would pay alone.
        reason: why it had to wait, or was refused; the latest one.
        refused: it can never be placed.
    """

    job: JobModel
    seed: int
    placed_s: float | None = None
    finished_s: float | None = None
    drawn_s: list[tuple[float, ...]] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    cost: float = 0.0
    reason: str = ""
    refused: bool = False

    def draws(self, iteration: int) -> tuple[float, ...]:
        """Seconds of the phases of an iteration; iterations are asked for in order."""
        while len(self.drawn_s) <= iteration:
            at = len(self.drawn_s)
            phases = self.job.phases
            self.drawn_s.append(tuple(draw(one.law, self.seed, at, one.name) for one in phases))
        return self.drawn_s[iteration]

    def alone_s(self) -> list[float]:
        """How long each of its iterations would have taken alone, without switches."""
        drawn = np.array(self.drawn_s).T[:, :, None]
        alone: list[float] = solo_iterations(self.job, drawn)[:, 0].tolist()
        return alone


@dataclass(slots=True)
class PoolRun:
    """One pool in a simulation; seconds are summed over its nodes.

    Attributes:
        nodes: the most that groups owned at one time.
        owned_s: node-seconds owned by groups.
        phases_s, switch_s: of these in phases, and waiting for switches.
    """

    nodes: int = 0
    owned_s: float = 0.0
    phases_s: float = 0.0
    switch_s: float = 0.0


@dataclass(slots=True)
class Simulation:
    """What happened.

    Attributes:
        jobs: in order of arrival.
        phases: the first phases that ran, where they were asked for, in the order of their grants.
        groups: how many there were over time.
    """

    policy: str
    jobs: list[JobRun]
    pools: dict[str, PoolRun]
    end_s: float = 0.0
    cost: float = 0.0
    groups: int = 0
    events: int = 0
    phases: list[Ran] = field(default_factory=list)


def simulate(
    jobs: Sequence[JobModel],
    pools: Mapping[str, PoolModel],
    policy: Policy,
    *,
    seeds: Mapping[str, int] | None = None,
    pairs: Pairs | None = None,
    tick: Tick | None = None,
    keep: int = 0,
) -> Simulation:
    """Run the jobs to their ends.

    ``seeds``: per job, of its draws (default: the job's own). ``pairs``: switch costs of a group
    that depend on the pair. ``tick`` is told iterations done and the time now and then. ``keep``:
    how many phases to keep. Raises SimulationRefused; ValueError where the policy cannot plan.
    """
    cluster = _Cluster(jobs, pools, policy, seeds or {}, pairs, keep)
    cluster.run(tick)
    return cluster.result


@dataclass(slots=True)
class _Group:
    """One group while it lives; what it costs is settled whenever it changes."""

    resident: Resident
    driver: GroupDriver
    since: float


class _Cluster:
    """The desk, the groups and the agenda; the watcher of all groups."""

    def __init__(
        self,
        jobs: Sequence[JobModel],
        pools: Mapping[str, PoolModel],
        policy: Policy,
        seeds: Mapping[str, int],
        pairs: Pairs | None,
        keep: int,
    ) -> None:
        self._agenda = Agenda()
        self._desk = Desk(policy, pools)
        self._intra = policy.settings.intra
        self._pairs = pairs
        self._keep = keep
        self._price = {pool: model.node.cost_per_h for pool, model in pools.items()}
        ordered = sorted(jobs, key=lambda job: job.arrival_s)
        self._runs = {job.name: JobRun(job, seeds.get(job.name, job.seed)) for job in ordered}
        if len(self._runs) < len(ordered):
            raise ValueError("two jobs have one name; give each job a name of its own")
        self._groups: dict[int, _Group] = {}
        self._members: dict[str, Member] = {}
        self._turns: dict[str, tuple[int, Turn]] = {}  # of the iteration that a job is in
        self._iterations = 0
        self.result = Simulation(
            policy.name, list(self._runs.values()), {pool: PoolRun() for pool in POOLS}
        )
        for at, together in itertools.groupby(ordered, key=lambda job: job.arrival_s):
            self._agenda.plan(at, partial(self._arrive, list(together)))

    @property
    def _now(self) -> float:
        return float(self._agenda.now)

    def run(self, tick: Tick | None) -> None:
        while self._agenda.step():
            if tick is not None and self._agenda.taken % _TICK_EVERY == 0:
                tick(self._iterations, self._now)
        stuck = [name for name in self._members if name in self._desk.cluster]
        if stuck:
            raise RuntimeError(f"job {stuck[0]} stands still: every phase waits for another one")
        for one in self._desk.waiting:
            self._runs[one.job.name].reason = one.reason
        self.result.events = self._agenda.taken

    def ran(self, one: Ran) -> None:
        for node in one.nodes:
            pool = self.result.pools[node.partition(":")[0]]
            pool.phases_s += float(one.freed - one.begun)
            pool.switch_s += float(one.begun - one.granted)
        if len(self.result.phases) < self._keep:
            self.result.phases.append(one)

    def iterated(self, job: str) -> None:
        run = self._runs[job]
        run.ends_s.append(self._now)
        self._iterations += 1
        if len(run.ends_s) == run.job.iterations:
            self._depart(run)

    def _arrive(self, jobs: Sequence[JobModel]) -> None:
        """All that arrive at one instant are decided about, then those that are placed begin."""
        placed = []
        for job in jobs:
            decision = self._desk.submit(job)
            run = self._runs[job.name]
            run.refused = decision.never
            if decision.chosen is None:
                run.reason = decision.reason
            else:
                placed.append(decision)
        self._begin(placed)

    def _depart(self, run: JobRun) -> None:
        name = run.job.name
        run.finished_s = self.result.end_s = self._now
        number = self._desk.cluster.home(name).id
        driver = self._groups[number].driver
        served = self._desk.leave(name)
        del self._members[name]
        self._settle(number)
        driver.leave(name)  # what is granted now is granted in the group without it
        self._begin(served)

    def _begin(self, decisions: Sequence[Decision]) -> None:
        """The jobs that were just placed join their groups, group by group."""
        joining: dict[int, list[str]] = {}
        for decision in decisions:
            self._runs[decision.job].placed_s = self._now
            number = self._desk.cluster.home(decision.job).id
            joining.setdefault(number, []).append(decision.job)
        for number, names in joining.items():
            group = self._settle(number)
            order = names
            if self._intra != "fifo":
                resident = group.resident
                whole = resident.order or range(len(resident.group.members))
                order = [resident.group.names[at] for at in whole]
                if set(order) != set(names):
                    raise SimulationRefused(
                        f"job {names[0]} joins jobs that run already, at {self._now:g} s: the"
                        f" order of {self._intra} is fixed when a group starts; simulate with fifo"
                    )
            group.driver.join({name: partial(self._turn, name) for name in order})
        for pool, total in self.result.pools.items():
            total.nodes = max(total.nodes, self._desk.cluster.owned(pool))

    def _settle(self, number: int) -> _Group:
        """Bring a group up to date with the cluster; until now it costs what it cost before."""
        group = self._groups.get(number)
        if group is not None:
            self._pay(group)
        resident = self._desk.cluster.residents.get(number)
        if resident is None:
            assert group is not None
            return self._groups.pop(number)
        pairs = self._pairs(resident) if self._pairs is not None else ()
        if group is None:
            turns = turns_of(resident.group, mean_phases)
            state = state_for(self._intra, turns, resident.order)
            group = _Group(resident, GroupDriver(self._agenda, state, self, pairs), self._now)
            self._groups[number] = group
            self.result.groups += 1
        group.resident, group.since = resident, self._now
        group.driver.set_pairs(pairs)
        for member in resident.group.members:
            self._members[member.job.name] = member
            self._turns.pop(member.job.name, None)
        return group

    def _pay(self, group: _Group) -> None:
        own, passed_s = group.resident.group, self._now - group.since
        price = 0.0
        for pool, total in self.result.pools.items():
            count = len(own.nodes(pool))
            total.owned_s += count * passed_s
            price += count * self._price[pool]
        paid = price * passed_s / 3600
        self.result.cost += paid
        weights = [
            sum(self._price[pool] * one.job.nodes(pool) for pool in POOLS) for one in own.members
        ]
        whole = sum(weights)
        for one, weight in zip(own.members, weights, strict=True):
            share = weight / whole if whole else 1 / len(weights)
            self._runs[one.job.name].cost += paid * share

    def _turn(self, name: str, iteration: int) -> Turn:
        """With what was drawn, in the group as it is now."""
        known = self._turns.get(name)
        if known is not None and known[0] == iteration:
            return known[1]
        member = self._members[name]
        drawn = self._runs[name].draws(iteration)
        seconds = dict(zip((one.name for one in member.job.phases), drawn, strict=True))

        def taken(_: Member, phase: Phase) -> float:
            return seconds[phase.name]

        group = self._groups[self._desk.cluster.home(name).id].resident.group
        turn = turn_of(group, member, taken)
        self._turns[name] = iteration, turn
        return turn

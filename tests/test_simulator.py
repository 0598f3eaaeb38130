"""A simulated cluster: against the group simulation and SimPy, by hand, and what is refused."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import simpy
from scheduling import job, odd_job, pools, random_job, rng
from simpy_oracle import Group

from weave_scheduler.groupmath import turns_of
from weave_scheduler.groupsim import simulate_group, simulate_slices
from weave_scheduler.intervals import mean_interval, t_quantile
from weave_scheduler.laws import POOLS_OF, Constant, Drifting, Empirical, draw
from weave_scheduler.model import JobModel, PairCost, Phase, Placement, SwitchCost, Tail
from weave_scheduler.policies import POLICIES, Settings, policy_of
from weave_scheduler.policies.decision import Candidate, Decision, Verdict
from weave_scheduler.simrecord import simulation_record
from weave_scheduler.simulator import SimulationRefused, simulate
from weave_scheduler.strictorder import rings_of

MODES = ("fifo", "strict", "barrier")
SEEDS = range(12)


class Fixed:
    """A policy that puts all jobs into one group, on nodes and in an order given beforehand."""

    name = "fixed"

    def __init__(self, intra, places, order):
        self.settings = Settings(intra=intra)
        self.places, self.order = places, order

    def decide(self, job, cluster, *, explain=False):
        place = self.places[job.name]
        group = next(iter(cluster.residents.values()), None)
        there = () if group is None else group.group.rollout
        names = [*(() if group is None else group.group.names), job.name]
        rank = [name for name in self.order if name in names]
        verdict = Verdict(True, "untested", order=tuple(names.index(name) for name in rank))
        new = tuple(node for node in place.rollout if node not in there)
        added = Placement(new, () if group else place.train)
        number = None if group is None else group.id
        chosen = Candidate("rollout scaling", number, place, 0.0, added, verdict)
        return Decision(job.name, self.name, chosen)


def law(chance):
    """Whole seconds, so that sums are exact, and so many that two events at once do not happen."""
    measured = Empirical.of(chance.randint(1, 10**6) for _ in range(30))
    return Drifting(measured, 1, 3, 2) if chance.random() < 0.2 else measured


def any_job(name, chance, iterations):
    """A rollout and a training, and perhaps a reward, a sync of any mode, switches, a tail."""
    phases = [Phase("rollout", ("rollout",), law(chance))]
    if chance.random() < 0.3:
        phases[0] = replace(phases[0], law=Constant(chance.randint(1, 10**6) * 4.0),
                            tail=Tail(0.75, 2.0))  # fmt: skip
    if chance.random() < 0.4:
        phases.append(Phase("reward", (), law(chance), ("rollout",)))
    phases.append(Phase("train", ("train",), law(chance), (phases[-1].name,)))
    if chance.random() < 0.6:
        held = chance.choice([(), ("train",), POOLS_OF["weight_sync"]])
        phases.append(Phase("weight_sync", held, law(chance), ("train",)))
    costs = [SwitchCost(chance.randint(0, 9999), chance.randint(0, 99999)) for _ in range(2)]
    return JobModel(
        name, tuple(phases), iterations=iterations, seed=chance.randrange(99),
        switch_rollout=costs[0], switch_train=costs[1],
    )  # fmt: skip


def drawn_turns(group, iterations):
    """Per member the turn of every iteration, from the laws and the seeds alone."""
    return [
        tuple(
            turns_of(
                group, lambda one, phase, at=at: draw(phase.law, one.job.seed, at, phase.name)
            )[place]
            for at in range(iterations)
        )
        for place in range(len(group.members))
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_fixed_group_is_the_group_simulation_and_simpy_to_the_last_event(mode):
    for seed in SEEDS:
        chance = random.Random(seed)
        jobs = [any_job(f"j{at}", chance, 6) for at in range(chance.randint(1, 4))]
        wide = 1 if chance.random() < 0.5 else 3
        places = {
            one.name: Placement(tuple(chance.sample(range(wide), chance.randint(1, min(wide, 2)))),
                                (0,))
            for one in jobs
        }  # fmt: skip
        order = chance.sample([one.name for one in jobs], len(jobs))
        if mode == "fifo":  # the machine's order is that of joining
            order = [one.name for one in jobs]
        groups = []
        policy = Fixed(mode, places, order)
        found = simulate(
            jobs, pools(), policy, keep=10**6,
            pairs=lambda one, groups=groups: groups.append(one.group) or (),
        )  # fmt: skip
        whole = groups[0]
        turns = drawn_turns(whole, 6)
        ranks = [whole.names.index(name) for name in order]
        first = min(one.finished_s for one in found.jobs)  # until then nobody has left
        expected = simulate_group(turns, mode, 6, order=ranks)
        oracle = Group(turns, mode, 6, ranks, rings_of([own[0] for own in turns], ranks)).run()
        for one, ours, theirs in zip(found.jobs, expected, oracle, strict=True):
            ends = [end for end in one.ends_s if end <= first]
            assert ends == [end for end in ours.ends if end <= first]
            assert ends == [end for end in theirs if end <= first]
        slices = [
            (whole.names[one.job], one.step, one.iteration, one.granted, one.begun, one.freed)
            for one in simulate_slices(turns, mode, 6, order=ranks)
        ]
        ran = [
            (one.job, one.step, one.iteration, one.granted, one.begun, one.freed)
            for one in found.phases
        ]
        assert [one for one in ran if one[3] < first] == [one for one in slices if one[3] < first]
        assert all(len(one.ends_s) == 6 for one in found.jobs)


def one_pair(jobs, draws):
    """Arrivals and departures on one pair of nodes in SimPy, whose resources are queues."""
    env = simpy.Environment()
    nodes = [simpy.Resource(env), simpy.Resource(env)]
    ends = {one.name: [] for one in jobs}

    def run(one):
        yield env.timeout(one.arrival_s)
        for at in range(one.iterations):
            for node, taken in zip(nodes, draws[one.name][at], strict=True):
                with node.request() as turn:
                    yield turn
                    yield env.timeout(taken)
            ends[one.name].append(env.now)

    for one in jobs:
        env.process(run(one))
    env.run()
    return ends


def test_jobs_that_come_and_go_on_one_pair_agree_with_simpy():
    for seed in SEEDS:
        chance = random.Random(100 + seed)
        jobs = [
            replace(
                job(f"j{at}", 1.0, 1.0, None, iterations=chance.randint(1, 9), seed=at),
                phases=(Phase("rollout", ("rollout",), law(chance)),
                        Phase("train", ("train",), law(chance), ("rollout",))),
                arrival_s=float(chance.randint(0, 10**7)),
            )
            for at in range(8)
        ]  # fmt: skip
        found = simulate(jobs, pools(1, 1), policy_of("most-idle", Settings(max_group=8)))
        expected = one_pair(jobs, {one.job.name: one.drawn_s for one in found.jobs})
        assert {one.job.name: one.ends_s for one in found.jobs} == expected
        assert all(one.placed_s == one.job.arrival_s for one in found.jobs)


class TestByHand:
    def test_two_jobs_on_one_pair_with_switches(self):
        a = job("a", 30.0, 20.0, None, iterations=2)
        b = job("b", 30.0, 20.0, None, iterations=1, arrival_s=10.0,
                switch_rollout=SwitchCost(2.0))  # fmt: skip
        found = simulate([b, a], pools(1, 1), policy_of("most-idle", Settings()), keep=99)
        times = [(one.job, one.phase, one.granted, one.begun, one.freed) for one in found.phases]
        assert times == [
            ("a", "rollout", 0, 0, 30),
            ("b", "rollout", 30, 32, 62),  # after its switch
            ("a", "train", 30, 30, 50),
            ("a", "rollout", 62, 62, 92),
            ("b", "train", 62, 62, 82),
            ("a", "train", 92, 92, 112),
        ]
        rollout, train = found.pools["rollout"], found.pools["train"]
        assert (rollout.owned_s, rollout.phases_s, rollout.switch_s) == (112, 90, 2)
        assert (train.owned_s, train.phases_s, train.switch_s) == (112, 60, 0)
        price = 14.8 + 42.24
        assert found.cost == pytest.approx(price * 112 / 3600)
        costs = {one.job.name: one.cost for one in found.jobs}
        assert costs["b"] == pytest.approx(price * (82 - 10) / 2 / 3600)
        assert sum(costs.values()) == pytest.approx(found.cost)

    def test_switches_of_a_pair_replace_those_of_the_job(self):
        jobs = [job(name, 30.0, 20.0, None, switch_rollout=SwitchCost(9.0)) for name in "ab"]
        found = simulate(
            jobs, pools(1, 1), policy_of("most-idle", Settings()), keep=99,
            pairs=lambda one: [PairCost("rollout", "a", "b", SwitchCost(1.0))],
        )  # fmt: skip
        assert [one.begun - one.granted for one in found.phases if one.job == "b"] == [1, 0]

    def test_a_job_that_joins_changes_the_switches_of_the_iteration_under_way(self):
        phases = (
            Phase("rollout", ("rollout",), Constant(30.0)),
            Phase("train", ("train",), Constant(20.0), ("rollout",)),
            Phase("eval", ("rollout",), Constant(10.0), ("train",)),
        )
        jobs = [
            JobModel("a", phases, switch_rollout=SwitchCost(3.0)),
            job("b", 10.0, 5.0, None, arrival_s=5.0),
        ]

        def pairs(one):
            known = {"a", "b"} <= set(one.group.names)
            return [PairCost("rollout", "a", "b", SwitchCost(1.0))] if known else []

        policy = policy_of("most-idle", Settings())
        found = simulate(jobs, pools(1, 1), policy, keep=9, pairs=pairs)
        waits = {(one.job, one.phase): (one.granted, one.begun) for one in found.phases}
        assert waits["b", "rollout"] == (30, 31)
        assert waits["a", "eval"] == (50, 53)

    def test_who_finds_no_node_waits_in_line_and_says_why(self):
        jobs = [
            job("a", 30.0, 20.0, 1.0, iterations=10),
            job("b", 30.0, 20.0, 1.0, arrival_s=100.0),
            job("c", 10.0, 10.0, 1.0, arrival_s=101.0),
            job("wide", 1.0, 1.0, 1.0, rollout_nodes=2),
        ]
        for name in ("weave", "solo"):
            found = simulate(jobs, pools(1, 1), policy_of(name, Settings()))
            runs = {one.job.name: one for one in found.jobs}
            assert (runs["b"].placed_s, runs["b"].finished_s) == (500, 550)
            assert (runs["c"].placed_s, runs["c"].finished_s) == (550, 570)
            assert "free" in runs["b"].reason
            assert runs["wide"].refused
            assert runs["wide"].placed_s is None
            assert found.end_s == 570

    def test_a_phase_that_starts_after_a_departure_takes_what_it_takes_alone(self):
        """The tail of a rollout migrates only while somebody else wants the nodes."""
        phases = (
            Phase("rollout", ("rollout",), Constant(40.0), (), Tail(0.5)),
            Phase("train", ("train",), Constant(10.0), ("rollout",)),
        )
        jobs = [JobModel("a", phases, iterations=3), job("b", 10.0, 5.0, None)]
        found = simulate(jobs, pools(1, 1), policy_of("most-idle", Settings()), keep=99)
        held = [one.freed - one.begun for one in found.phases
                if (one.job, one.phase) == ("a", "rollout")]  # fmt: skip
        assert held == [20, 40, 40]


class TestDraws:
    def test_they_depend_on_job_and_iteration_and_not_on_the_policy(self):
        generator = rng(5)
        jobs = [
            replace(random_job(f"j{at}", generator, most_nodes=1, switches=False),
                    iterations=4, arrival_s=50.0 * at, seed=at,
                    phases=(Phase("rollout", ("rollout",), Empirical((1.0, 50.0, 60.0), 90.0)),
                            Phase("train", ("train",), Empirical((1.0, 20.0, 30.0), 40.0),
                                  ("rollout",))))
            for at in range(6)
        ]  # fmt: skip
        runs = [simulate(jobs, pools(), policy_of(name, Settings())) for name in ("weave", "solo")]
        draws = [[one.drawn_s for one in run.jobs] for run in runs]
        assert draws[0] == draws[1]
        assert runs[0].groups < runs[1].groups == 6
        for one in runs[1].jobs:  # alone it is what it would be alone
            assert np.diff([one.placed_s, *one.ends_s]) == pytest.approx(one.alone_s())
        other = simulate(jobs, pools(), policy_of("solo", Settings()), seeds={"j0": 77})
        assert other.jobs[0].drawn_s != draws[0][0]
        assert [one.drawn_s for one in other.jobs[1:]] == draws[0][1:]

    def test_a_record_over_seeds_has_means_and_paired_ratios(self):
        phases = (Phase("rollout", ("rollout",), Empirical((10.0, 20.0, 40.0), 50.0)),
                  Phase("train", ("train",), Constant(5.0), ("rollout",)))  # fmt: skip
        jobs = [JobModel(name, phases, slo=2.0, iterations=5, seed=3) for name in "ab"]
        found = {
            name: [
                simulate(jobs, pools(), policy_of(name, Settings()), seeds={"a": at, "b": 9 + at})
                for at in range(4)
            ]
            for name in ("most-idle", "solo")
        }
        record = simulation_record(found, pools())
        packed, solo = record["totals"]
        values = [one.end_s for one in found["solo"]]
        interval = mean_interval(values)
        assert solo["makespan_s"] == values[0]
        assert solo["over_seeds"]["makespan_s"] == {
            "mean": interval.mean, "low": interval.low, "high": interval.high,
        }  # fmt: skip
        ratios = [b.cost / a.cost for a, b in zip(*found.values(), strict=True)]
        (row,) = record["comparison"]
        assert (row["policy"], row["against"]) == ("solo", "most-idle")
        assert row["cost"]["mean"] == pytest.approx(np.mean(ratios))
        assert packed["cost"] < solo["cost"] == pytest.approx(solo["cost_solo"])
        jobs_alone = [one for one in record["jobs"] if one["policy"] == "solo"]
        assert all(one["slowdown_realised"] == pytest.approx(1) for one in jobs_alone)
        assert all(one["slo_met_realised"] and one["slo_met_planned"] for one in jobs_alone)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_random_clusters_keep_the_books(name):
    for seed in range(4):
        generator = rng(seed)
        jobs = [
            replace(
                random_job(f"j{at}", generator) if at % 3 else odd_job(f"j{at}", generator),
                iterations=int(generator.integers(1, 8)),
                arrival_s=float(generator.uniform(0, 9000)),
            )
            for at in range(14)
        ]
        found = simulate(jobs, pools(5, 4), policy_of(name, Settings()), keep=10**6)
        on = {}
        for one in found.phases:
            for node in one.nodes:
                on.setdefault(node, []).append((one.granted, one.freed))
        for node, times in on.items():
            pool, _, number = node.partition(":")
            assert int(number) < {"rollout": 5, "train": 4}[pool]
            assert all(end <= start for (_, end), (start, _) in pairwise(sorted(times)))
        for one in found.jobs:
            own = [ran for ran in found.phases if ran.job == one.job.name]
            assert len(own) == one.job.iterations * len(one.job.phases)
            assert all(a.done <= b.granted for a, b in pairwise(own))  # phases are chains here
            assert (own[0].iteration, own[-1].iteration) == (0, one.job.iterations - 1)
            assert one.job.arrival_s <= one.placed_s <= own[0].granted
            assert one.finished_s == own[-1].done == one.ends_s[-1]
        assert sum(one.cost for one in found.jobs) == pytest.approx(found.cost)
        for pool, total in found.pools.items():
            used = sum(end - start for node, times in on.items() if node.startswith(pool)
                       for start, end in times)  # fmt: skip
            assert total.phases_s + total.switch_s == pytest.approx(used)
            assert used <= total.owned_s * (1 + 1e-9)


@pytest.mark.parametrize("mode", ["strict", "barrier"])
def test_a_group_whose_order_is_fixed_takes_nobody_later(mode):
    jobs = [job("a", 30.0, 20.0, 3.0, iterations=9), job("b", 20.0, 30.0, 3.0, iterations=5)]
    settings = Settings(intra=mode)
    found = simulate(jobs, pools(1, 1), policy_of("weave", settings))
    assert [len(one.ends_s) for one in found.jobs] == [9, 5]
    assert found.groups == 1
    late = [jobs[0], replace(jobs[1], arrival_s=60.0)]
    with pytest.raises(SimulationRefused, match="job b joins jobs that run already, at 60 s"):
        simulate(late, pools(1, 1), policy_of("weave", settings))


def test_the_interval_is_students():
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 3, 4, 9, 30, 101):
        for probability in (0.6, 0.95, 0.975, 0.999):
            expected = stats.t.ppf(probability, degrees)
            assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-9)
    found = mean_interval([1.0, 2.0, 4.0])
    low, high = stats.t.interval(0.95, 2, np.mean([1, 2, 4]), stats.sem([1, 2, 4]))
    assert (found.low, found.high) == pytest.approx((low, high))

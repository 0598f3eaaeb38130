"""The exact optimum: three solvers and brute force agree, and no greedy policy is below it."""

import importlib.util
import itertools

import numpy as np
import pytest
from scheduling import pools, random_job

from weave_scheduler.benchmarks.workload import table6_jobs
from weave_scheduler.exact import Instance, by_cpsat, by_milp, by_subsets, feasible_groups
from weave_scheduler.exact.jobs import instance_of
from weave_scheduler.model import Group, Member, Placement
from weave_scheduler.policies import Cluster, PaperPolicy, Settings, WeavePolicy
from weave_scheduler.policies.admission import judge

pytest.importorskip("scipy")


def random_instance(jobs, seed, degrees=(1,), max_group=5, room=2000):
    generator = np.random.default_rng(seed)
    rollout = generator.uniform(50, 400, jobs)
    train = generator.uniform(25, 300, jobs)
    scale = np.array([1 / one for one in degrees])
    return Instance(
        rollout_s=rollout,
        train_s=train[:, None] * scale,
        rollout_switch_s=np.zeros(jobs),
        train_switch_s=np.zeros(jobs),
        limit_s=generator.uniform(1, 2.5, jobs) * (rollout + train),
        rollout_bytes=generator.uniform(200, 700, jobs),
        train_bytes=generator.uniform(200, 700, jobs)[:, None] * scale,
        degrees=np.array(degrees),
        rollout_price=14.8,
        train_price=42.24,
        rollout_memory=room,
        train_memory=room,
        max_group=max_group,
    )


def partitions(jobs):
    """Every partition of the jobs, by restricted growth."""

    def grow(done, left):
        if not left:
            yield done
            return
        first, rest = left[0], left[1:]
        for at in range(len(done)):
            yield from grow([*done[:at], (*done[at], first), *done[at + 1 :]], rest)
        yield from grow([*done, (first,)], rest)

    yield from grow([], list(range(jobs)))


def price_of(instance, group):
    """The least price of a group by trying every assignment of rollouts to nodes; None: none."""
    best = None
    for place, degree in enumerate(instance.degrees):
        limit = min(instance.limit_s[job] for job in group) * (1 + 1e-12)
        if (
            len(group) > instance.max_group
            or sum(instance.train_s[job, place] for job in group) > limit
            or sum(instance.train_bytes[job, place] for job in group) > instance.train_memory
            or any(instance.rollout_s[job] + instance.train_s[job, place] > limit for job in group)
        ):
            continue
        for nodes in partitions(len(group)):
            bins = [[group[at] for at in node] for node in nodes]
            if all(
                sum(instance.rollout_s[job] for job in one) <= limit
                and sum(instance.rollout_bytes[job] for job in one) <= instance.rollout_memory
                for one in bins
            ):
                price = len(bins) * instance.rollout_price + int(degree) * instance.train_price
                best = price if best is None else min(best, price)
    return best


def brute_force(instance):
    prices = {}

    def price(group):
        if group not in prices:
            prices[group] = price_of(instance, group)
        return prices[group]

    totals = []
    for groups in partitions(instance.jobs):
        found = [price(tuple(sorted(group))) for group in groups]
        if None not in found:
            totals.append(sum(found))
    return min(totals)


@pytest.mark.parametrize("seed", range(12))
def test_subsets_milp_cpsat_and_brute_force_agree(seed):
    jobs = 3 + seed % 6
    degrees = (1, 2) if seed % 3 == 0 else (1,)
    room = 1100 if seed % 4 == 0 else 2000
    instance = random_instance(jobs, seed, degrees, max_group=3 + seed % 3, room=room)
    columns = feasible_groups(instance)
    least = brute_force(instance)
    assert by_subsets(columns, jobs).price == pytest.approx(least)
    assert by_milp(columns, jobs).price == pytest.approx(least)
    if importlib.util.find_spec("ortools"):
        assert by_cpsat(columns, jobs).price == pytest.approx(least)


@pytest.mark.parametrize("seed", range(4))
def test_chosen_groups_hold_every_job_once_and_cost_what_is_said(seed):
    instance = random_instance(16, seed)
    columns = feasible_groups(instance)
    for found in (by_subsets(columns, 16), by_milp(columns, 16)):
        seen = [job for at in found.chosen for job in columns.group(at)]
        assert sorted(seen) == list(range(16))
        assert found.price == pytest.approx(columns.prices[list(found.chosen)].sum())
        assert found.proved


@pytest.mark.parametrize("seed", range(6))
def test_every_feasible_group_is_found_and_parts_of_it_too(seed):
    instance = random_instance(7, seed)
    columns = feasible_groups(instance)
    found = {columns.group(at): columns.prices[at] for at in range(len(columns))}
    for size in range(1, 6):
        import itertools

        for group in itertools.combinations(range(7), size):
            price = price_of(instance, group)
            assert (group in found) == (price is not None)
            if price is not None:
                assert found[group] == pytest.approx(price)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", [PaperPolicy, WeavePolicy])
def test_greedy_is_never_below_the_optimum(seed, kind):
    """Under strict order, where the closed form is the period for one rollout node per job."""
    settings = Settings(intra="strict")
    jobs = table6_jobs(12, seed, most_nodes=1)
    cluster = Cluster(pools())
    policy = kind(settings)
    for one in jobs:
        chosen = policy.decide(one, cluster).chosen
        cluster.place(one, chosen.placement, chosen.group, chosen.verdict.order)
    least = by_subsets(feasible_groups(instance_of(jobs, pools(), settings)), 12).price
    assert cluster.cost_per_h >= least * (1 - 1e-9)
    assert cluster.cost_per_h <= sum(57.04 for _ in jobs) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_those_that_strict_order_admits_switches_included(seed):
    """Nothing is paid on a node that a job has to itself, nor by a job alone."""
    generator = np.random.default_rng(seed)
    jobs = [random_job(f"j{at}", generator, most_nodes=1) for at in range(6)]
    settings = Settings(intra="strict", max_group=4)
    columns = feasible_groups(instance_of(jobs, pools(memory=10**15), settings))
    found = {columns.group(at): int(columns.rollout_nodes[at]) for at in range(len(columns))}
    for size in range(1, 5):
        for group in itertools.combinations(range(6), size):
            fewest = [len(nodes) for nodes in partitions(size) if admitted(jobs, group, nodes)]
            assert found.get(group) == min(fewest, default=None), group


def admitted(jobs, group, nodes):
    members = tuple(
        Member(jobs[group[at]], Placement((node,), (0,)))
        for node, inside in enumerate(nodes)
        for at in inside
    )
    return judge(Group(members, tuple(range(len(nodes))), (0,)), Settings(intra="strict")).admitted


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="rollout nodes"):
        instance_of(table6_jobs(30, 0), pools(), Settings())
    with pytest.raises(ValueError, match="too many for subsets"):
        by_subsets(feasible_groups(random_instance(3, 0)), 21)
    instance = random_instance(3, 0, room=100)
    with pytest.raises(ValueError, match="even alone"):
        feasible_groups(instance)

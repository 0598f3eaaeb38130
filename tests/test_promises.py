"""What a plan promises: limits are kept while no duration exceeds its planned maximum."""

from dataclasses import replace

import numpy as np
import pytest
from scheduling import noisy_job, pools, random_job, rng

from weave_scheduler.groupmath import longest_phases, turns_of
from weave_scheduler.groupsim import simulate_group
from weave_scheduler.model import Group, Member, Placement
from weave_scheduler.montecarlo import group_slowdowns
from weave_scheduler.policies import Cluster, Settings, WeavePolicy
from weave_scheduler.policies.admission import judge

ROUNDS = 40


def placed(intra, seed, jobs=16, most=2):
    generator = rng(seed)
    cluster = Cluster(pools())
    policy = WeavePolicy(Settings(intra=intra))
    for at in range(jobs):
        one = random_job(f"j{at}", generator, most_nodes=most)
        chosen = policy.decide(one, cluster).chosen
        verdict = chosen.verdict
        cluster.place(one, chosen.placement, chosen.group, verdict.order, verdict.by)
    return [one for one in cluster.residents.values() if len(one.group.members) > 1]


def ends(group, intra, order, generator=None):
    """Ends of iterations at the maxima, or with every duration at 30 to 100 % of its max."""

    def drawn(member, phase):
        share = 1.0 if generator is None else float(generator.uniform(0.3, 1))
        return longest_phases(member, phase) * share

    rounds = [turns_of(group, drawn) for _ in range(ROUNDS)]
    per_job = [[one[at] for one in rounds] for at in range(len(group.members))]
    times = simulate_group(per_job, intra, ROUNDS, order=order)
    return np.array([[float(end) for end in one.ends] for one in times])


def keeps(group, intra, order, generator):
    """No iteration ends later than with all durations at their max, so the mean is no larger."""
    worst = ends(group, intra, order)
    shorter = ends(group, intra, order, generator)
    assert (shorter <= worst * (1 + 1e-9)).all()
    period = (worst[:, -1] - worst[:, ROUNDS // 2]) / (ROUNDS - 1 - ROUNDS // 2)
    limits = [one.job.slo * one.job.solo_max_s for one in group.members]
    assert (period <= np.array(limits) * (1 + 2e-2)).all()


@pytest.mark.parametrize("seed", range(6))
def test_strict_order_keeps_every_worst_case_plan(seed):
    for resident in placed("strict", seed):
        keeps(resident.group, "strict", resident.order, rng(seed))


def test_fifo_keeps_what_the_closed_form_admitted():
    found = 0
    for seed in range(10):
        for resident in placed("fifo", seed, most=1):
            if resident.admitted_by == "closed form":
                keeps(resident.group, "fifo", None, rng(seed))
                found += 1
    assert found >= 3


def tight_group(generator, apart):
    """A noisy group whose limits are exactly what mode quantile admits."""
    jobs = [noisy_job(f"j{at}", generator, cv=0.25) for at in range(int(generator.integers(2, 5)))]
    nodes = range(len(jobs)) if apart else [0] * len(jobs)
    members = tuple(
        Member(replace(one, slo=99.0), Placement((node,), (0,)))
        for one, node in zip(jobs, nodes, strict=True)
    )
    group = Group(members, tuple(sorted(set(nodes))), (0,))
    verdict = judge(group, Settings(mode="quantile", replications=400))
    assert verdict.by == "quantile"
    return Group(
        tuple(
            replace(one, job=replace(one.job, slo=max(1.0, limit)))
            for one, limit in zip(members, verdict.slowdowns, strict=True)
        ),
        group.rollout,
        group.train,
    )


def broken(groups, runs, seed):
    """How many of (groups x members x runs) jobs exceed their limit in fresh draws, and of how
    many; one run is one seed of its own."""
    over = count = 0
    for group in groups:
        fresh = Group(
            tuple(
                replace(one, job=replace(one.job, seed=seed + 1000 * at))
                for at, one in enumerate(group.members)
            ),
            group.rollout,
            group.train,
        )
        found = group_slowdowns(fresh, "fifo", iterations=100, replications=runs)
        for own, member in zip(found.ratios, group.members, strict=True):
            over += int((own > member.job.slo).sum())
            count += len(own)
        seed += 1
    return over, count


def test_quantile_is_broken_no_more_often_than_it_says():
    generator = rng(5)
    groups = [tight_group(generator, apart=at % 2 == 1) for at in range(4)]
    over, count = broken(groups, 40, 10**6)
    assert over <= 0.01 * count + 3 * (0.01 * count) ** 0.5


@pytest.mark.soak
def test_quantile_on_a_thousand_seeded_jobs():
    generator = rng(6)
    groups = [tight_group(generator, apart=at % 2 == 1) for at in range(60)]
    over, count = broken(groups, 6, 10**7)
    assert count >= 1000
    # the upper end of the 95 % interval of a binomial with p = 0.01
    assert over <= 0.01 * count + 1.96 * (0.01 * 0.99 * count) ** 0.5 + 1

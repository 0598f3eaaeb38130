"""Long-run mean iterations under fifo, where jobs lap each other: against the machine itself."""

from __future__ import annotations

import numpy as np
import pytest

from weave_scheduler.benchmarks.workload import paper_pools, table6_jobs
from weave_scheduler.groupmath import Step, Turn, node_numbers
from weave_scheduler.groupsim import simulate_group, simulated_iterations
from weave_scheduler.model import common_job
from weave_scheduler.policies import Cluster, PaperPolicy, WeavePolicy
from weave_scheduler.policies.quick import fifo_iterations

TRAIN = frozenset({"train:0"})


def turns_on(rollout, train, nodes):
    """Jobs of one rollout on the node of that number, then one training."""
    return [
        Turn(f"job{at}", (
            Step("rollout", float(seconds), frozenset({f"rollout:{node}"})),
            Step("train", float(spent), TRAIN, (0,)),
        ))
        for at, (seconds, spent, node) in enumerate(zip(rollout, train, nodes, strict=True))
    ]  # fmt: skip


def compiled(rollout, train, nodes):
    times = np.array([[one, 0.0, other, 0.0] for one, other in zip(rollout, train, strict=True)])
    means = np.zeros(len(nodes))
    repeated = fifo_iterations(times, np.array([1 << node for node in nodes]), means)
    return repeated, means


def test_a_job_that_is_undisturbed_three_times_in_four_is_not_taken_for_undisturbed():
    """Three laps of 176 s follow each other, then one waits behind the long job's training."""
    jobs = ((35, 574), (141, 123), (0, 1))
    ends = np.array(simulate_group(turns_on(*jobs), "fifo", 40)[0].ends, float)
    assert np.diff(ends)[-4:].tolist().count(176.0) == 3
    expected = pytest.approx([float(np.diff(ends)[-4:].mean()), 4 * np.diff(ends)[-4:].mean()])
    assert expected == [198.0, 792.0]
    assert simulated_iterations(turns_on(*jobs), "fifo") == expected
    repeated, means = compiled(*jobs)
    assert repeated
    assert means.tolist() == expected


def test_slack_that_shrinks_unseen_is_no_repetition():
    """Ends of iterations repeat while the rollouts of two jobs drift towards their trainings."""
    rollout, train = (
        (76.90716566, 350.60604154, 145.5928963),
        (132.97317165, 86.09415267, 158.65183268),
    )
    jobs = (rollout, train, (0, 1, 1))
    truth = [271.83, 498.36, 498.36]
    assert simulated_iterations(turns_on(*jobs), "fifo") == pytest.approx(truth, rel=2e-2)
    assert compiled(*jobs)[1].tolist() == pytest.approx(truth, rel=2e-2)


@pytest.mark.parametrize("seed", range(2))
def test_uneven_groups_have_the_means_that_the_machine_runs(seed):
    """Iterations differ up to 20 times; also where no repetition is found."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(20):
        count = int(generator.integers(2, 5))
        length = 10 * np.where(generator.random(count) < 0.5, 1, 20 ** generator.uniform())
        share = generator.uniform(0.1, 0.9, count)
        nodes = generator.integers(0, count, count).tolist()
        jobs = ((length * share).tolist(), (length * (1 - share)).tolist(), nodes)
        turns = turns_on(*jobs)
        ends = [np.array(one.ends, float) for one in simulate_group(turns, "fifo", 240)]
        horizon = min(own[-1] for own in ends)
        truth = []
        for own in ends:
            late = own[(own >= horizon / 4) & (own <= horizon)]
            truth.append((late[-1] - late[0]) / (len(late) - 1))
        repeated, means = compiled(*jobs)
        found.append(repeated)
        assert simulated_iterations(turns, "fifo") == pytest.approx(truth, rel=2e-2)
        assert means.tolist() == pytest.approx(truth, rel=2e-2)
    assert any(found)


def test_jobs_of_many_nodes_are_counted_by_kinds_of_nodes():
    """A group may have more nodes than a bit set has bits; nodes that go together are one."""
    wide = [common_job(name, 100.0, 40.0, slo=1.2, rollout_nodes=33) for name in "ab"]
    for policy, explain in ((WeavePolicy(), False), (WeavePolicy(), True), (PaperPolicy(), True)):
        cluster = Cluster(paper_pools())
        for job in wide:
            chosen = policy.decide(job, cluster, explain=explain).chosen
            cluster.place(job, chosen.placement, chosen.group)
        assert [len(one.group.rollout) for one in cluster.residents.values()] == [66]
        assert chosen.verdict.iterations_s == pytest.approx((140.0, 140.0))


def test_nodes_that_the_same_steps_hold_have_one_number():
    def turn(name, nodes):
        held = frozenset(f"rollout:{node}" for node in nodes)
        return Turn(name, (Step("rollout", 1, held), Step("train", 1, TRAIN, (0,))))

    numbers = node_numbers([turn("a", range(100)), turn("b", range(50, 200))])
    kinds = [{numbers[f"rollout:{node}"] for node in part}
             for part in (range(50), range(50, 100), range(100, 200))]  # fmt: skip
    assert [len(kind) for kind in kinds] == [1, 1, 1]
    assert len(set().union(*kinds, {numbers["train:0"]})) == 4


def test_what_is_explained_is_what_was_decided_among_jobs_that_lap_each_other():
    for seed in range(3):
        cluster = Cluster(paper_pools())
        fast, slow = WeavePolicy(), WeavePolicy()
        for at, job in enumerate(table6_jobs(60, seed, most_nodes=1)):
            quick = fast.decide(job, cluster).chosen
            full = slow.decide(job, cluster, explain=True).chosen
            assert (quick.group, quick.placement) == (full.group, full.placement), (seed, at)
            assert quick.verdict.iterations_s == pytest.approx(full.verdict.iterations_s)
            cluster.place(job, quick.placement, quick.group)
            if at % 3 == 2:
                cluster.remove(f"j{at // 3 * 2}")

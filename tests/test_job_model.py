"""Jobs, nodes, placements and groups: what is refused, and by which name."""

import pytest

from weave_scheduler.laws import Constant, Lognormal
from weave_scheduler.model import (
    Degree,
    Group,
    JobModel,
    Member,
    Need,
    Node,
    Phase,
    Placement,
    PoolModel,
    SwitchCost,
    Tail,
    common_job,
)

ROLLOUT = Phase("rollout", ("rollout",), Constant(10))
TRAIN = Phase("train", ("train",), Constant(5), ("rollout",))
WRONG = [
    (lambda: Phase("rollout", ("rollout",), Constant(0)), "phase rollout: 0"),
    (lambda: Phase("rollout", ("rollout",), Constant(float("nan"))), "phase rollout: nan"),
    (lambda: Phase("rollout", ("gpu",), Constant(1)), "'gpu' is not known"),
    (lambda: Phase("rollout", ("train", "train"), Constant(1)), "given twice"),
    (lambda: common_job("a", -1, 1), "-1 s; allowed"),
    (lambda: common_job("a", 1, 1, slo=0.9), "job a: slo: 0.9"),
    (lambda: common_job("a", 1, 1, slo=float("nan")), "job a: slo"),
    (lambda: common_job("a", 1, 1, arrival_s=-1), "job a: arrival_s"),
    (lambda: common_job("a", 1, 1, iterations=0), "job a: iterations"),
    (lambda: common_job("a", 1, 1, rollout_pins=(1, 2)), "rollout_pins: 2 ids for 1 nodes"),
    (lambda: JobModel("a", ()), "must not be empty"),
    (lambda: JobModel("a", (ROLLOUT, ROLLOUT)), "'rollout' is given twice"),
    (lambda: JobModel("a", (TRAIN,)), "'rollout' does not stand before it"),
    (lambda: JobModel("a", (ROLLOUT, Phase("train", ("train",), Constant(5)))), "is missing"),
    (lambda: Need(host_bytes=-1), "host_bytes"),
    (lambda: SwitchCost(-1), "foreground_s"),
    (lambda: Tail(0), "out of range"),
    (lambda: Degree(0), "nodes"),
    (lambda: Degree(1, 0), "train_factor"),
    (lambda: Node(0, 1, 1), "gpus"),
    (lambda: Node(1, float("inf"), 1), "price"),
    (lambda: PoolModel("cpu", Node(1, 1, 1)), "'cpu' is not known"),
    (lambda: Member(common_job("a", 1, 1), Placement((), (0,))), "no rollout node"),
    (lambda: Member(common_job("a", 1, 1), Placement((0,), (0, 1))), "not support 2 train"),
    (lambda: Group((Member(common_job("a", 1, 1), Placement((1,), (0,))),), (0,), (0,)),
     "rollout:1 is not the group's"),
    (lambda: Group((Member(common_job("a", 1, 1), Placement((0,), (0,))),) * 2, (0,), (0,)),
     "members: 'a' is given twice"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_nonsense_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=r".") as error:
        make()
    assert message in str(error.value)


def test_a_job_without_a_worst_case_has_no_worst_solo():
    job = JobModel("a", (Phase("rollout", ("rollout",), Lognormal(10, 0.1)),))
    assert job.solo_mean_s == 10
    with pytest.raises(ValueError, match="phase rollout: law has no max"):
        _ = job.solo_max_s


def test_training_and_memory_scale_with_the_degree_unless_measured():
    job = common_job("a", 10, 8, train_nodes=2, degrees=(Degree(4), Degree(1, 1.5, Need(7))),
                     train_need=Need(100, 50, 25, 3))  # fmt: skip
    assert job.supported() == (1, 2, 4)
    assert [job.train_factor(nodes) for nodes in (1, 2, 4)] == [1.5, 1, 0.5]
    assert job.need("train", 4) == Need(50, 25, 13, 3)
    assert job.need("train", 1) == Need(7)
    assert job.need("train") == Need(100, 50, 25, 3)
    with pytest.raises(KeyError):
        job.degree(3)


def test_prices_are_per_gpu_hour():
    assert Node(8, 1.85, 10**12).cost_per_h == pytest.approx(14.8)

"""Draws, laws, slowdowns and quantiles with confidence."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from weave_scheduler.groupmath import closed_form, turns_of
from weave_scheduler.laws import Constant, Drifting, Empirical, Lognormal, draw
from weave_scheduler.lengths import Lengths, RolloutFromLengths, TrainFromLengths, engine_seconds
from weave_scheduler.model import Group, JobModel, Member, Phase, Placement, Tail, common_job
from weave_scheduler.montecarlo import (
    draw_job,
    group_slowdowns,
    quantile_bound,
    solo_iterations,
)
from weave_scheduler.samples import sample

LENGTHS = Lengths.lognormal(mean=400, cv=0.8, max_tokens=1024, responses=64)
LAWS = [
    Constant(3.0),
    Lognormal(100, 0.3, 180),
    Lognormal(100, 0.3),
    Empirical.of([3, 1, 2, 2], 5),
    Drifting(Lognormal(100, 0.1, 150), 1.0, 2.0, 40),
    RolloutFromLengths(LENGTHS, 8, 8e-3, 6e-5),
    TrainFromLengths(LENGTHS, 1e-3, 2.0),
]


def noisy_job(name, seed, cv=0.2, iterations=100):
    phases = (
        Phase("rollout", ("rollout",), Lognormal(100, cv, 180)),
        Phase("train", ("train",), Lognormal(40, cv, 80), ("rollout",)),
    )
    return JobModel(name, phases, slo=2.0, iterations=iterations, seed=seed)


def group_of(*jobs):
    return Group(tuple(Member(job, Placement((0,), (0,))) for job in jobs), (0,), (0,))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_draws_stay_below_the_max_and_near_the_mean(law):
    drawn = sample(law, np.random.default_rng(1), (100, 200))
    single = [draw(law, 5, iteration, "rollout") for iteration in range(100)]
    assert drawn.shape == (100, 200)
    if law.max_s is not None:
        assert max(drawn.max(), *single) <= law.max_s * (1 + 1e-12)
    assert min(drawn.min(), *single) > 0
    settled = drawn[50:].mean() if isinstance(law, Drifting) else drawn.mean()
    assert settled == pytest.approx(law.mean_s, rel=0.02)
    assert single == [draw(law, 5, iteration, "rollout") for iteration in range(100)]


def test_engine_time_is_that_of_a_token_loop():
    rng = random.Random(2)
    for _ in range(30):
        tokens = [rng.randint(1, 40) for _ in range(rng.randint(1, 9))]
        looped = sum(
            0.5 + 0.25 * sum(length > done for length in tokens) for done in range(max(tokens))
        )
        assert engine_seconds(np.array(tokens, float), 0.5, 0.25) == pytest.approx(looped)


def test_rollout_and_training_of_one_iteration_see_the_same_responses():
    rollout, train = LAWS[5], LAWS[6]
    job = JobModel("a", (Phase("rollout", ("rollout",), rollout),
                         Phase("train", ("train",), train, ("rollout",))), seed=3)  # fmt: skip
    drawn = draw_job(job, 50, 100)
    assert np.corrcoef(drawn[0].ravel(), drawn[1].ravel())[0, 1] > 0.3
    one = Lengths((10, 10), 100, 4)
    assert draw(TrainFromLengths(one, 1.0), 1, 0, "train") == 40
    assert TrainFromLengths(one, 1.0).max_s == 400
    assert RolloutFromLengths(one, 2, 1.0, 0.5).max_s == 100 * (1.0 + 0.5 * 2)


def test_a_tail_holds_its_nodes_for_a_part_of_the_rollout():
    law = LAWS[5]
    shares = [law.hold_share(share) for share in (0.5, 0.8, 1.0)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[1] < 1
    assert shares[2] == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Empirical((2, 1)), lambda: Empirical((0.0,)), lambda: Empirical((1.0, 9.0), 5),
        lambda: Drifting(Constant(1), 0, 1, 5), lambda: Lengths((5, 4), 10, 1),
        lambda: Lengths((1,), 10, 1), lambda: RolloutFromLengths(LENGTHS, 65, 1, 1),
        lambda: TrainFromLengths(LENGTHS, 0), lambda: Empirical((float("nan"),)),
    ],
)  # fmt: skip
def test_laws_refuse_nonsense(make):
    with pytest.raises(ValueError, match=r"must|below|more|drift"):
        make()


def test_constant_phases_give_the_closed_form_in_every_replication():
    group = group_of(*(common_job(name, 100, 40, iterations=50) for name in "abc"))
    for intra in ("fifo", "strict"):
        drawn = group_slowdowns(group, intra, replications=20)
        assert np.allclose(drawn.iterations_s, closed_form(turns_of(group)).seconds)
        assert np.allclose(drawn.ratios, 300 / 140)
    assert group_slowdowns(group, "barrier", replications=2).ratios.min() > 300 / 140


def test_draws_of_a_job_do_not_depend_on_its_group():
    job = noisy_job("a", 1)
    few, many = draw_job(job, 20, 50), draw_job(job, 60, 50)
    assert np.array_equal(few, many[:, :20])
    alone = group_slowdowns(group_of(job), "fifo", replications=50)
    assert np.allclose(alone.ratios, 1)
    pair = group_slowdowns(group_of(job, noisy_job("b", 2)), "fifo", replications=50)
    assert np.all(pair.iterations_s[0] >= alone.iterations_s[0] - 1e-9)


def test_one_pair_is_the_same_under_fifo_and_strict():
    group = group_of(*(noisy_job(name, seed) for seed, name in enumerate("abcd")))
    fifo, strict = (group_slowdowns(group, intra, replications=40) for intra in ("fifo", "strict"))
    assert np.array_equal(fifo.ratios, strict.ratios)


def test_jobs_of_unequal_length_count_their_own_iterations():
    group = group_of(noisy_job("a", 1, iterations=1), noisy_job("b", 2, iterations=30))
    drawn = group_slowdowns(group, "strict", replications=30)
    assert np.allclose(drawn.ratios[0], 1)  # the first to roll out does not wait
    assert np.all(drawn.ratios[1] > 0)


def test_a_migrating_tail_lets_the_next_job_start_early():
    def job(name, tail):
        phases = (
            Phase("rollout", ("rollout",), Constant(100), tail=tail),
            Phase("train", ("train",), Constant(40), ("rollout",)),
        )
        return JobModel(name, phases, iterations=20)

    plain = group_slowdowns(group_of(job("a", None), job("b", None)), "strict", replications=1)
    tail = Tail(0.7)
    early = group_slowdowns(group_of(job("a", tail), job("b", tail)), "strict", replications=1)
    assert plain.iterations_s[0, 0] == pytest.approx(200)
    assert early.iterations_s[0, 0] == pytest.approx(140)


def test_phases_side_by_side_take_the_longer_one():
    phases = (
        Phase("rollout", ("rollout",), Constant(10)),
        Phase("reward", (), Constant(3), ("rollout",)),
        Phase("eval", ("rollout",), Constant(9), ("rollout",)),
        Phase("train", ("train",), Constant(4), ("reward",)),
    )
    job = JobModel("a", phases, iterations=5)
    assert job.solo_max_s == 19
    assert np.all(solo_iterations(job, draw_job(job, 5, 3)) == 19)


def test_the_upper_limit_is_the_order_statistic_of_the_binomial():
    values = np.arange(1, 1001, dtype=float)
    bound = quantile_bound(values, 0.99, 0.95)
    assert bound.estimate == 990
    assert bound.upper == 996  # P(Bin(1000, 0.99) <= 995) = 0.971, <= 994: 0.934
    needed = math.log(0.05) / math.log(0.99)  # 298.07
    assert quantile_bound(values[: int(needed)], 0.99, 0.95).upper == math.inf
    assert quantile_bound(values[: int(needed) + 1], 0.99, 0.95).upper == int(needed) + 1


def test_the_upper_limit_covers_the_quantile_as_often_as_it_says():
    generator = np.random.default_rng(4)
    truth = -math.log(0.1)  # 90 % quantile of the exponential
    covered = sum(
        quantile_bound(generator.exponential(size=200), 0.9, 0.95).upper >= truth
        for _ in range(1000)
    )
    assert covered >= 930


@pytest.mark.parametrize("values", [np.array([]), np.array([1.0, np.inf])])
def test_a_quantile_needs_finite_values(values):
    with pytest.raises(ValueError, match="finite"):
        quantile_bound(values, 0.5, 0.5)
    with pytest.raises(ValueError, match="allowed"):
        quantile_bound(np.ones(3), 1.0, 0.5)


def test_a_quantile_plan_is_broken_as_rarely_as_it_says():
    """Fresh seeds exceed the planned limit in at most 1 - q of the runs, within the binomial."""
    group = group_of(noisy_job("a", 1), noisy_job("b", 2))
    limit = quantile_bound(group_slowdowns(group, "fifo").ratios[0], 0.99, 0.95).upper
    again = group_of(*(replace(member.job, seed=member.job.seed + 1000) for member in
                       group.members))  # fmt: skip
    broken = int((group_slowdowns(again, "fifo").ratios[0] > limit).sum())
    assert broken <= 10 + 3 * math.sqrt(1000 * 0.01 * 0.99)

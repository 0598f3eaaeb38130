"""The mathematics of groups in exact arithmetic: the closed form, bounds, orders, monotonicity."""

import importlib.util
import itertools
import random
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from group_cases import (
    TRAIN,
    common_turns,
    drawn_turns,
    lead_limited_means,
    random_turns,
    rollout_nodes,
)

from weave_scheduler.groupmath import (
    Step,
    Turn,
    bounds,
    closed_form,
    longest_phases,
    turns_of,
    why_not_closed,
)
from weave_scheduler.groupsim import simulate_group, simulated_iterations
from weave_scheduler.laws import Constant, Lognormal
from weave_scheduler.model import (
    Degree,
    Group,
    JobModel,
    Member,
    PairCost,
    Phase,
    Placement,
    SwitchCost,
    Tail,
    common_job,
)
from weave_scheduler.strictorder import best_order, rings_of, strict_period

ORACLE = Path(__file__).parents[2] / "shared" / "reference" / "verify_round_robin.py"


def durations(rng, most=5, longest=30):
    count = rng.randint(2, most)
    return [[rng.randint(1, longest) for _ in range(count)] for _ in range(2)]


def orders(count):
    return [(0, *rest) for rest in itertools.permutations(range(1, count))]


def test_every_order_of_one_pair_reaches_the_closed_form():
    rng = random.Random(1)
    for _ in range(2500):
        turns = common_turns(*durations(rng))
        expected = closed_form(turns).seconds
        assert why_not_closed(turns, "strict") is None
        order = rng.choice(orders(len(turns)))
        assert strict_period(turns, order) == expected


@pytest.mark.soak
def test_every_order_of_one_pair_reaches_the_closed_form_thousands_of_times():
    rng = random.Random(2)
    for _ in range(5000):
        turns = common_turns(*durations(rng))
        expected = closed_form(turns).seconds
        assert all(strict_period(turns, order) == expected for order in orders(len(turns)))


def test_one_rollout_node_per_job_reaches_the_closed_form_too():
    rng = random.Random(3)
    for _ in range(500):
        rollout, train = durations(rng)
        turns = common_turns(rollout, train, [(rng.randrange(3),) for _ in rollout])
        assert why_not_closed(turns, "strict") is None
        assert strict_period(turns, rng.choice(orders(len(turns)))) == closed_form(turns).seconds


def test_switches_that_every_phase_pays_add_to_both_pools():
    rng = random.Random(4)
    for _ in range(300):
        rollout, train = durations(rng)
        turns = common_turns(rollout, train, switch=rng.randint(1, 5))
        longer = [[value + turns[0].steps[0].foreground for value in own] for own in
                  (rollout, train)]  # fmt: skip
        assert strict_period(turns) == closed_form(turns).seconds
        assert closed_form(turns).seconds == closed_form(common_turns(*longer)).seconds


def test_fifo_is_round_robin_on_one_pair_for_any_durations():
    rng = random.Random(5)
    for _ in range(150):
        turns = common_turns(*durations(rng, most=6), switch=rng.randint(0, 3))
        drawn = drawn_turns(rng, turns, 10)
        assert simulate_group(drawn, "fifo", 10) == simulate_group(drawn, "strict", 10)


def test_fifo_is_not_round_robin_with_a_sync_latency():
    rng = random.Random(6)
    differs = 0
    for _ in range(100):
        rollout, train = durations(rng, most=5)
        turns = common_turns(rollout, train, sync=[rng.randint(1, 20) for _ in rollout])
        drawn = drawn_turns(rng, turns, 10)
        differs += simulate_group(drawn, "fifo", 10) != simulate_group(drawn, "strict", 10)
    assert differs > 50


def test_the_cycle_ratio_is_the_slope_of_the_very_policy():
    rng = random.Random(7)
    for _ in range(120):
        turns = random_turns(rng)
        order = rng.sample(range(len(turns)), len(turns))
        period = strict_period(turns, order)
        times = simulate_group(turns, "strict", 120, order=order)
        slope = max(Fraction(one.ends[-1] - one.ends[-61]) / 60 for one in times)
        assert abs(slope - period) <= Fraction(period) / 100
        assert isinstance(period, int | Fraction)
        floats = [replace(turn, steps=tuple(replace(step, seconds=float(step.seconds))
                  for step in turn.steps)) for turn in turns]  # fmt: skip
        assert strict_period(floats, order) == pytest.approx(float(period), rel=1e-9)


def test_a_strict_order_is_monotone_in_every_duration():
    rng = random.Random(8)
    for _ in range(120):
        turns = random_turns(rng)
        drawn = drawn_turns(rng, turns, 8)
        shorter = [
            [
                replace(turn, steps=tuple(
                    replace(step, seconds=rng.randint(1, step.seconds)) if rng.random() < 0.3
                    else step for step in turn.steps))
                for turn in own
            ]
            for own in drawn
        ]  # fmt: skip
        order = rng.sample(range(len(turns)), len(turns))
        before = simulate_group(drawn, "strict", 8, order=order)
        after = simulate_group(shorter, "strict", 8, order=order)
        for slow, fast in zip(before, after, strict=True):
            assert all(one <= other for one, other in zip(fast.ends, slow.ends, strict=True))


def test_fifo_with_several_nodes_is_not_monotone():
    rng = random.Random(9)
    worse = 0
    for _ in range(200):
        count = rng.randint(2, 5)
        nodes = [(rng.randrange(3),) for _ in range(count)]
        rollout = [rng.randint(100, 600) for _ in range(count)]
        train = [rng.randint(25, 200) for _ in range(count)]
        before = simulated_iterations(common_turns(rollout, train, nodes), "fifo")
        rollout[rng.randrange(count)] *= 0.75
        after = simulated_iterations(common_turns(rollout, train, nodes), "fifo")
        worse += any(later > earlier * 1.02 for earlier, later in zip(before, after, strict=True))
    assert worse > 5


def test_a_limit_on_the_lead_is_not_monotone_either_and_a_strict_order_is():
    long, short = ((272, 461, 196), (46, 80, 247)), ((259, 456, 190), (43, 79, 239))
    nodes = (0, 1, 0)
    assert lead_limited_means(*long, nodes) == [541, 541, 541]
    assert lead_limited_means(*short, nodes) == [767, 767, 767]
    single = [(node,) for node in nodes]
    assert strict_period(common_turns(*long, single)) == 541
    assert strict_period(common_turns(*short, single)) == 535


def test_repeating_two_jobs_beats_once_each_in_an_unsaturated_group():
    """The paper's theorem covers one repeated job; two that overlap each other can gain."""
    rollout, train = (21, 5, 104), (2, 19, 75)
    once = strict_period(common_turns(rollout, train))
    assert once == 179  # unsaturated: the longest job binds
    assert max(sum(rollout), sum(train)) <= 179
    twice = set(itertools.permutations((0, 1, 0, 1, 2)))
    assert min(cycle_of_visits(rollout, train, order) for order in twice) == 207
    best = max(utilisation(rollout, train, order) for order in twice)
    assert best > Fraction(sum(rollout) + sum(train), once)


def utilisation(rollout, train, order):
    """Summed utilisation of both pools where jobs come in this cyclic order, some repeatedly."""
    seconds = cycle_of_visits(rollout, train, order)
    return Fraction(sum(rollout[job] + train[job] for job in order)) / seconds


def cycle_of_visits(rollout, train, order):
    """Seconds of one cycle in which both pools serve the jobs in ``order``; a job waits for its
    own training. By running it long enough."""
    free, trained, ends = 0, 0, {job: 0 for job in order}
    marks = []
    for _ in range(60):
        for job in order:
            free = max(free, ends[job]) + rollout[job]
            trained = max(trained, free) + train[job]
            ends[job] = trained
        marks.append(trained)
    return Fraction(marks[-1] - marks[-31], 30)


def test_one_repeated_job_never_gains_in_an_unsaturated_group():
    rng = random.Random(10)
    checked = 0
    while checked < 60:
        rollout, train = durations(rng, most=4)
        longest = rng.randrange(len(rollout))
        rollout[longest] += rng.randint(20, 90)
        train[longest] += rng.randint(20, 90)
        solo = max(r + t for r, t in zip(rollout, train, strict=True))
        if max(sum(rollout), sum(train)) > solo:
            continue
        checked += 1
        once = utilisation(rollout, train, range(len(rollout)))
        for job in range(len(rollout)):
            for order in set(itertools.permutations((*range(len(rollout)), job))):
                assert utilisation(rollout, train, order) <= once


def test_bounds_hold_with_syncs_and_tails():
    rng = random.Random(11)
    above = 0
    for _ in range(400):
        rollout, train = durations(rng)
        sync = [rng.choice([0, rng.randint(1, 60)]) for _ in rollout]
        lag = [rng.choice([0, rng.randint(1, 60)]) for _ in rollout] if rng.random() < 0.5 else None
        turns = common_turns(rollout, train, sync=sync, lag=lag)
        limits = bounds(turns)
        longest = max(sync) + max(lag or [0])
        assert limits.upper <= limits.lower + Fraction(longest, 2)
        for order in orders(len(turns)):
            period = strict_period(turns, order)
            assert limits.lower <= period <= limits.upper
            above += period > limits.lower
    assert above > 50  # the closed form would have been wrong


def test_bounds_hold_for_any_group():
    rng = random.Random(12)
    for _ in range(200):
        turns = random_turns(rng)
        limits = bounds(turns)
        order = rng.sample(range(len(turns)), len(turns))
        assert limits.lower <= strict_period(turns, order) <= limits.upper


def test_jobs_on_several_nodes_can_miss_the_load_bound():
    three = common_turns((10, 10, 10), (1, 1, 1), [(0, 1), (1, 2), (0, 2)])
    assert closed_form(three).seconds == 20
    assert best_order(three)[1] == 30
    assert why_not_closed(three, "strict") is not None
    ring = [(node, (node + 1) % 5) for node in range(5)]
    five = common_turns((10,) * 5, (1,) * 5, ring)
    periods = [strict_period(five, order) for order in orders(5)]
    assert (min(periods), max(periods)) == (25, 50)
    assert best_order(five)[1] == 25


def test_the_order_matters_where_switches_depend_on_the_pair():
    turns = common_turns((20, 20, 20), (1, 1, 1))
    pairs = [
        PairCost("rollout", f"job{a}", f"job{b}", SwitchCost(9 if (b - a) % 3 == 1 else 1))
        for a in range(3) for b in range(3) if a != b
    ]  # fmt: skip
    assert why_not_closed(turns, "strict", pairs) is not None
    assert strict_period(turns, (0, 1, 2), pairs) == 87
    assert best_order(turns, pairs) == ((0, 2, 1), 63)


def test_best_order_of_many_jobs_is_an_order():
    rng = random.Random(13)
    nodes = [tuple(rng.sample(range(4), 2)) for _ in range(9)]
    turns = common_turns([rng.randint(5, 50) for _ in nodes], [5] * 9, nodes)
    order, period = best_order(turns)
    assert sorted(order) == list(range(9))
    assert strict_period(turns, order) == period
    assert bounds(turns).lower <= period <= bounds(turns).upper


def test_copies_behind_the_phase_before_cost_nothing_while_they_fit():
    plain = common_turns((30, 40), (10, 20))
    hidden = [
        replace(turn, steps=tuple(replace(step, background=10) for step in turn.steps))
        for turn in plain
    ]
    assert why_not_closed(hidden, "strict") is None
    assert strict_period(hidden) == strict_period(plain) == 70
    late = [
        replace(turn, steps=tuple(replace(step, background=60) for step in turn.steps))
        for turn in plain
    ]
    assert why_not_closed(late, "strict") is not None
    assert strict_period(late) == 120  # 60 behind each of the two phases


CLOSED = [
    (common_turns((9, 9), (9, 9)), "fifo", True),
    (common_turns((9, 9), (9, 9)), "barrier", False),
    (common_turns((9, 9), (9, 9), [(0,), (1,)]), "strict", True),
    (common_turns((9, 9), (9, 9), [(0,), (1,)]), "fifo", False),
    (common_turns((9, 9), (9, 9), [(0, 1), (0, 1)]), "strict", True),
    (common_turns((9, 9), (9, 9), [(0, 1), (0, 1)]), "fifo", False),
    (common_turns((9, 9), (9, 9), [(0, 1), (0,)]), "strict", False),
    (common_turns((9, 9), (9, 9), sync=(1, 1)), "strict", False),
    (common_turns((9, 9), (9, 9), lag=(1, 0)), "fifo", False),
]


@pytest.mark.parametrize(("turns", "intra", "closed"), CLOSED)
def test_when_the_closed_form_holds(turns, intra, closed):
    assert (why_not_closed(turns, intra) is None) is closed


def test_a_sync_on_both_pools_lets_others_go_on_in_between():
    sync = TRAIN | rollout_nodes(0)
    turns = tuple(
        replace(turn, steps=(*turn.steps, Step("weight_sync", 2, sync, (1,))))
        for turn in common_turns((30, 40), (20, 10))
    )
    rings = rings_of(turns, (0, 1))
    assert [(visit.job, visit.step, visit.lag) for visit in rings["rollout:0"]] == [
        (0, 2, 1), (0, 0, 0), (1, 2, 1), (1, 0, 0),
    ]  # fmt: skip
    assert strict_period(turns) == 74  # all rollouts and syncs; training hides
    assert "both pools" in why_not_closed(turns, "strict")


def test_an_order_that_cannot_run_is_refused():
    turns = common_turns((1, 1), (1, 1))
    stuck = (turns[0], replace(turns[1], steps=turns[1].steps[::-1]))
    with pytest.raises(ValueError, match="not name each"):
        simulate_group(turns, "strict", 1, order=(0, 0))
    assert stuck[1].steps[0].phase == "train"


def two_jobs(**more):
    jobs = [common_job("a", 100, 40, **more), common_job("b", 60, 30, **more)]
    return Group(tuple(Member(job, Placement((0,), (0,))) for job in jobs), (0,), (0,))


def test_turns_take_degrees_switches_and_tails_from_the_group():
    cost = SwitchCost(2, 5)
    group = two_jobs(switch_rollout=cost, switch_train=cost)
    turns = turns_of(group)
    assert turns[0].steps[0] == Step("rollout", 100, rollout_nodes(0), (), 2, 5)
    assert closed_form(turns).seconds == 164
    assert closed_form(turns).binds == "rollout"
    alone = turns_of(Group(group.members[:1], (0,), (0,)))
    assert closed_form(alone).seconds == 140  # nobody to switch with
    wide = replace(group.members[0].job, degrees=(Degree(2), Degree(4, 0.4)))
    for nodes, expected in ((1, 40), (2, 20), (4, 16)):
        placed = Member(wide, Placement((0,), tuple(range(nodes))))
        turn = turns_of(Group((placed,), (0,), (0, 1, 2, 3)))[0]
        assert turn.steps[1].seconds == expected


def test_a_tail_frees_its_nodes_early_only_where_someone_wants_them():
    tail = Tail(0.6, migrate_s=3, kept_share=0.2)
    phases = (
        Phase("rollout", ("rollout",), Constant(100), tail=tail),
        Phase("train", ("train",), Constant(40), ("rollout",)),
    )
    first, second = (JobModel(name, phases) for name in "ab")
    both = Group(tuple(Member(job, Placement((0,), (0,))) for job in (first, second)), (0,), (0,))
    step = turns_of(both)[0].steps[0]
    assert (step.seconds, step.lag) == pytest.approx((78, 50))  # 125 s next to the other's tail
    alone = turns_of(Group(both.members[:1], (0,), (0,)))[0].steps[0]
    assert (alone.seconds, alone.lag) == (100, 0)


def test_a_law_without_max_is_refused_by_name():
    job = JobModel("a", (Phase("rollout", ("rollout",), Lognormal(10, 0.2)),))
    group = Group((Member(job, Placement((0,), ())),), (0,), ())
    with pytest.raises(ValueError, match="job a: phase rollout: law has no max"):
        turns_of(group, longest_phases)


def test_the_oracle_agrees_where_it_is_at_hand():
    if not ORACLE.exists():
        pytest.skip("the reference script is not beside this checkout")
    spec = importlib.util.spec_from_file_location("oracle", ORACLE)
    oracle = importlib.util.module_from_spec(spec)
    sys.modules["oracle"] = oracle
    spec.loader.exec_module(oracle)
    rng = random.Random(14)
    for _ in range(200):
        rollout, train = durations(rng)
        sync = [rng.randint(0, 30) for _ in rollout]
        lag = [rng.randint(0, 30) for _ in rollout]
        nodes = [tuple(rng.sample(range(3), rng.randint(1, 2))) for _ in rollout]
        order = rng.choice(orders(len(rollout)))
        expected = oracle.rr_period(rollout, train, order, sync, lag, [set(one) for one in nodes])
        assert strict_period(common_turns(rollout, train, nodes, sync, lag), order) == expected
    del sys.modules["oracle"]


def test_a_turn_knows_its_length_alone():
    turn = Turn("a", (
        Step("rollout", 10, rollout_nodes(0), lag=5),
        Step("reward", 3, frozenset(), (0,)),
        Step("eval", 9, frozenset(), (0,)),
        Step("train", 4, TRAIN, (1,)),
    ))  # fmt: skip
    assert turn.solo == 24

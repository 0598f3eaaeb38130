"""The modes against an independent SimPy model, and the compiled forms against the machines."""

import random
from dataclasses import replace

import numpy as np
import pytest
from group_cases import TRAIN, drawn_turns, random_turns, rollout_nodes
from simpy_oracle import Group

from weave_scheduler.eventkernel import event_ends
from weave_scheduler.groupmath import Step, Turn
from weave_scheduler.groupsim import simulate_group, simulate_slices
from weave_scheduler.model import PairCost, SwitchCost
from weave_scheduler.recursion import recursion_of
from weave_scheduler.strictorder import rings_of

MODES = ("fifo", "strict", "barrier")


def spread(rng, drawn):
    """Durations without any two events at one time, for whose order the rules say nothing."""
    return tuple(
        tuple(
            replace(turn, steps=tuple(
                replace(step, seconds=step.seconds * 10**6 + rng.randrange(10**6))
                for step in turn.steps))
            for turn in own
        )
        for own in drawn
    )  # fmt: skip


def arrays(drawn):
    """[step, iteration, 1] of how long nodes are held and until the step is done."""
    hold, done = [], []
    for own in drawn:
        for at in range(len(own[0].steps)):
            steps = [turn.steps[at] for turn in own]
            hold.append([[float(step.seconds)] for step in steps])
            done.append([[float(step.seconds + step.lag)] for step in steps])
    return np.array(hold), np.array(done)


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_agree_with_simpy_to_the_last_event(mode):
    rng = random.Random(21)
    for _ in range(60):
        turns = random_turns(rng)
        drawn = spread(rng, drawn_turns(rng, turns, 6))
        order = rng.sample(range(len(turns)), len(turns))
        oracle = Group(drawn, mode, 6, order, rings_of(turns, order))
        assert [one.ends for one in simulate_group(drawn, mode, 6, order=order)] == oracle.run()
        ours = [(one.granted, one.job, one.step)
                for one in simulate_slices(drawn, mode, 6, order=order)]  # fmt: skip
        end = min(ours[-1][0], max(oracle.starts)[0])  # both stop with phases under way
        early = [sorted(one for one in own if one[0] < end) for own in (ours, oracle.starts)]
        assert early[0] == early[1]


@pytest.mark.parametrize("mode", MODES)
def test_the_compiled_forms_are_the_machines_event_for_event(mode):
    rng = random.Random(22)
    for _ in range(150):
        turns = random_turns(rng)
        drawn = drawn_turns(rng, turns, 9)
        order = rng.sample(range(len(turns)), len(turns))
        hold, done = arrays(drawn)
        if mode == "strict":
            ends = recursion_of(turns, order).ends(hold, done)
        else:
            ends = event_ends(turns, mode, hold, done, order=order)
        expected = simulate_group(drawn, mode, 9, order=order)
        assert [tuple(own) for own in ends[:, :, 0]] == [one.ends for one in expected]


def test_the_two_compiled_forms_of_fifo_are_one_bit_for_bit(monkeypatch):
    """Chains have a form of their own; the general one is held to the same numbers."""
    rng, generator = random.Random(26), np.random.default_rng(26)
    for _ in range(100):
        turns = random_turns(rng)
        order = rng.sample(range(len(turns)), len(turns))
        hold, done = arrays(drawn_turns(rng, turns, 6))
        shape = (*hold.shape[:2], 3)
        stretch = generator.uniform(0.5, 2, shape) if rng.random() < 0.7 else np.ones(shape)
        hold, done = hold * stretch, done * stretch
        pairs = (PairCost("train", "job0", "job1", SwitchCost(1.5, 7.0)),)
        several = [event_ends(turns, "fifo", hold, done, order=order, pairs=pairs, iterations=9)]
        with monkeypatch.context() as patch:
            patch.setattr("weave_scheduler.eventkernel._is_chain", lambda turn: False)
            several.append(
                event_ends(turns, "fifo", hold, done, order=order, pairs=pairs, iterations=9)
            )
        assert np.array_equal(*several)


def test_a_turn_that_is_no_chain_runs_its_phases_side_by_side():
    """Reward beside training: the general form, against the machine."""
    rng = random.Random(27)
    for _ in range(50):
        turns = tuple(
            Turn(f"job{job}", (
                Step("rollout", 1, rollout_nodes(rng.randrange(2))),
                Step("reward", 1, frozenset(), (0,)),
                Step("train", 1, TRAIN, (0,)),
                Step("eval", 1, rollout_nodes(rng.randrange(2)), (1, 2)),
            ))
            for job in range(3)
        )  # fmt: skip
        drawn = spread(rng, drawn_turns(rng, turns, 6))
        ends = event_ends(turns, "fifo", *arrays(drawn))
        expected = simulate_group(drawn, "fifo", 6)
        assert [tuple(own) for own in ends[:, :, 0]] == [one.ends for one in expected]


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_many_more_groups_agree_with_simpy(mode):
    rng = random.Random(23)
    for _ in range(3000):
        turns = random_turns(rng)
        drawn = spread(rng, drawn_turns(rng, turns, 8))
        order = rng.sample(range(len(turns)), len(turns))
        oracle = Group(drawn, mode, 8, order, rings_of(turns, order))
        assert [one.ends for one in simulate_group(drawn, mode, 8, order=order)] == oracle.run()


def test_replications_do_not_touch_each_other():
    rng = random.Random(24)
    turns = random_turns(rng)
    parts = [arrays(drawn_turns(rng, turns, 5)) for _ in range(4)]
    hold, done = (np.concatenate(own, axis=2) for own in zip(*parts, strict=True))
    whole = event_ends(turns, "fifo", hold, done)
    alone = [event_ends(turns, "fifo", *part) for part in parts]
    assert np.array_equal(whole, np.concatenate(alone, axis=2))


def test_the_compiled_event_form_refuses_what_it_cannot_do():
    turns = random_turns(random.Random(25))
    hold, done = arrays(drawn_turns(random.Random(25), turns, 2))
    with pytest.raises(ValueError, match="strict has no queues"):
        event_ends(turns, "strict", hold, done)

"""The machines of ``strict`` and ``barrier``: order, exclusion, no standstill, idempotence."""

import random

import pytest
from group_cases import common_turns, random_turns

from weave_scheduler.barrierstate import BarrierState
from weave_scheduler.commands import Grant
from weave_scheduler.events import JobJoined, JobLeft, PhaseCancelled, PhaseDone, PhaseRequested
from weave_scheduler.intra import state_for
from weave_scheduler.strictstate import RingVisit, StrictState

MODES = ("fifo", "strict", "barrier")
R, T = ("rollout:0",), ("train:0",)
BOTH = (*R, *T)


class Jobs:
    """Jobs that come late, go, come back, and run their turns in any order that is allowed."""

    def __init__(self, turns, mode, rng):
        self.turns = {turn.job: turn for turn in turns}
        self.state = state_for(mode, turns)
        self.rng = rng
        self.serial = 0
        self.at = {}  # joined job -> step that it waits for or runs
        self.asks = {}  # serial -> event, of requests that are under way
        self.past = []
        self.granted = []

    def say(self, event):
        commands = self.state.handle(event)
        self.granted += [command.serial for command in commands]
        self.state.validate()
        if not isinstance(event, JobJoined | JobLeft):
            self.past.append(event)

    def join(self, job):
        nodes = {node for step in self.turns[job].steps for node in step.nodes}
        self.say(JobJoined(job, tuple(sorted(nodes))))
        self.at[job] = -1
        self.next(job)

    def next(self, job):
        turn = self.turns[job]
        self.at[job] = (self.at[job] + 1) % len(turn.steps)
        step = turn.steps[self.at[job]]
        self.serial += 1
        ask = PhaseRequested(job, step.phase, tuple(sorted(step.nodes)), self.serial)
        self.asks[self.serial] = ask
        self.say(ask)

    def leave(self, job):
        self.say(JobLeft(job))
        del self.at[job]
        self.asks = {serial: ask for serial, ask in self.asks.items() if ask.job != job}

    def repeat(self):
        """Events that came before change nothing, in any order."""
        over = [event for event in self.past
                if isinstance(event, PhaseRequested) or event.serial not in self.asks]  # fmt: skip
        for event in self.rng.sample(over, min(3, len(over))):
            before = self.state.waiting, self.state.running
            assert self.state.handle(event) == []
            assert (self.state.waiting, self.state.running) == before

    def step(self):
        away = sorted(set(self.turns) - set(self.at))
        if away and (not self.at or self.rng.random() < 0.3):
            self.join(self.rng.choice(away))
            return
        if self.rng.random() < 0.04:
            self.leave(self.rng.choice(sorted(self.at)))
            return
        running = [ask.serial for ask in self.state.running]
        assert running, "nobody runs though jobs wait"
        serial = self.rng.choice(running)
        job = self.asks.pop(serial).job
        self.say(PhaseDone(serial))
        self.next(job)


@pytest.mark.parametrize("mode", MODES)
def test_no_standstill_whoever_comes_and_goes(mode):
    rng = random.Random(31)
    for _ in range(60):
        jobs = Jobs(random_turns(rng, switches=False), mode, rng)
        for _ in range(80):
            jobs.step()
            jobs.repeat()
        assert len(jobs.granted) == len(set(jobs.granted)), "granted twice"


def test_a_late_job_does_not_turn_the_order_round_between_two_nodes():
    ring = [RingVisit(job, "rollout") for job in ("a", "b")]
    other = [RingVisit(job, "rollout") for job in ("c", "a", "b")]
    state = StrictState({"rollout:0": ring, "rollout:1": other})
    wide = ("rollout:0", "rollout:1")
    state.handle(JobJoined("b", wide))
    state.handle(JobJoined("c", wide[1:]))
    assert state.handle(PhaseRequested("c", "rollout", wide[1:], 0)) == [Grant(0)]
    assert state.handle(PhaseDone(0)) == []
    assert state.handle(PhaseRequested("b", "rollout", wide, 1)) == [Grant(1)]
    state.handle(JobJoined("a", wide))
    assert state.handle(PhaseDone(1)) == []
    assert state.handle(PhaseRequested("b", "rollout", wide, 2)) == []
    assert state.handle(PhaseRequested("a", "rollout", wide, 3)) == []
    assert state.handle(PhaseRequested("c", "rollout", wide[1:], 4)) == [Grant(4)]
    assert state.handle(PhaseDone(4)) == [Grant(3)]
    assert state.handle(PhaseDone(3)) == [Grant(2)]


def test_strict_waits_for_the_job_whose_turn_it_is():
    state = state_for("strict", common_turns((1, 1), (1, 1)), (1, 0))
    for job in ("job0", "job1"):
        state.handle(JobJoined(job, BOTH))
    assert state.handle(PhaseRequested("job0", "rollout", R, 1)) == []
    assert state.next_visit("rollout:0") == RingVisit("job1", "rollout")
    assert state.handle(PhaseRequested("job1", "rollout", R, 2)) == [Grant(2)]
    assert state.handle(PhaseDone(2)) == [Grant(1)]
    assert state.handle(PhaseRequested("job1", "train", T, 3)) == [Grant(3)]
    assert state.handle(PhaseDone(1)) == []
    assert state.handle(PhaseRequested("job0", "train", T, 4)) == []
    assert state.handle(PhaseDone(3)) == [Grant(4)]
    state.validate()


def test_strict_skips_who_left_and_lets_phases_outside_the_rings_go_first():
    state = state_for("strict", common_turns((1, 1), (1, 1)))
    for job in ("job0", "job1"):
        state.handle(JobJoined(job, BOTH))
    assert state.handle(PhaseRequested("job0", "init", BOTH, 1)) == [Grant(1)]
    assert state.handle(PhaseRequested("job1", "init", BOTH, 2)) == []
    assert state.handle(PhaseRequested("job1", "rollout", R, 3)) == []
    assert state.handle(PhaseDone(1)) == [Grant(2)]
    assert state.handle(PhaseDone(2)) == []  # the turn is job0's
    assert state.handle(JobLeft("job0")) == [Grant(3)]
    assert state.handle(PhaseDone(3)) == []
    assert state.handle(PhaseRequested("job1", "train", T, 4)) == [Grant(4)]


def test_a_withdrawn_visit_keeps_its_turn():
    state = state_for("strict", common_turns((1, 1), (1, 1)))
    for job in ("job0", "job1"):
        state.handle(JobJoined(job, BOTH))
    state.handle(PhaseRequested("job0", "rollout", R, 1))
    state.handle(PhaseRequested("job1", "rollout", R, 2))
    assert state.handle(PhaseCancelled(1)) == []  # it runs: too late to withdraw
    assert state.handle(PhaseCancelled(2)) == []
    assert state.handle(PhaseDone(1)) == []
    assert state.handle(PhaseRequested("job1", "rollout", R, 3)) == [Grant(3)]


def test_a_visit_on_other_nodes_than_planned_still_takes_its_turn():
    ring = [RingVisit("a", "train"), RingVisit("a", "weight_sync"), RingVisit("b", "train")]
    state = StrictState({"train:0": ring, "rollout:0": [RingVisit("a", "weight_sync")]})
    for job in ("a", "b"):
        state.handle(JobJoined(job, BOTH))
    state.handle(PhaseRequested("a", "train", T, 1))
    state.handle(PhaseDone(1))
    assert state.handle(PhaseRequested("b", "train", T, 2)) == []
    assert state.handle(PhaseRequested("a", "weight_sync", T, 3)) == [Grant(3)]  # publishes
    assert state.handle(PhaseDone(3)) == [Grant(2)]


def test_the_barrier_holds_until_all_have_ended_their_round():
    state = BarrierState({"a": "rollout", "b": "rollout"})
    for job in ("a", "b"):
        state.handle(JobJoined(job, BOTH))
    assert state.handle(PhaseRequested("b", "rollout", R, 1)) == []
    assert state.held == (1,)
    assert state.queue("rollout:0") == ()
    assert state.handle(PhaseRequested("a", "rollout", R, 2)) == [Grant(2)]  # a is first
    assert state.handle(PhaseDone(2)) == [Grant(1)]
    assert state.handle(PhaseRequested("a", "train", T, 3)) == [Grant(3)]
    assert state.handle(PhaseDone(3)) == []
    assert state.handle(PhaseRequested("a", "rollout", R, 4)) == []
    assert state.handle(PhaseDone(1)) == []
    assert state.handle(PhaseRequested("b", "train", T, 5)) == [Grant(5)]
    assert state.handle(PhaseDone(5)) == []
    assert state.handle(PhaseRequested("b", "rollout", R, 6)) == [Grant(4)]
    assert state.handle(PhaseDone(4)) == [Grant(6)]


def test_who_leaves_does_not_hold_the_barrier():
    state = BarrierState({"a": "rollout", "b": "rollout"})
    for job in ("a", "b"):
        state.handle(JobJoined(job, BOTH))
    state.handle(PhaseRequested("a", "rollout", R, 1))
    assert state.handle(JobLeft("b")) == [Grant(1)]


def test_an_order_names_each_job_once():
    with pytest.raises(ValueError, match="does not name each of the 2 jobs once"):
        state_for("strict", common_turns((1, 1), (1, 1)), (0, 0))

"""The intra-group machine under any order of events: exclusive, fair, live, idempotent."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weave_rt import FirstCome, Request
from weave_scheduler.commands import Grant
from weave_scheduler.events import JobJoined, JobLeft, PhaseCancelled, PhaseDone, PhaseRequested
from weave_scheduler.policy import GroupPolicy
from weave_scheduler.state import GroupState

NODES = ("rollout:0", "rollout:1", "train:0")
JOBS = ("a", "b", "c")

requests = st.tuples(
    st.just("request"), st.sampled_from(JOBS), st.sets(st.sampled_from(NODES)).map(sorted)
)
endings = st.tuples(st.sampled_from(["done", "cancel"]), st.integers(0, 30), st.just(None))
members = st.tuples(st.sampled_from(["join", "leave"]), st.sampled_from(JOBS), st.just(None))
stories = st.lists(st.one_of(requests, requests, endings, members), max_size=40)


def events_of(story):
    """A story as events; requests are numbered as they come."""
    serial = 0
    for verb, who, nodes in story:
        match verb:
            case "request":
                serial += 1
                yield PhaseRequested(who, "rollout", tuple(nodes), serial)
            case "done":
                yield PhaseDone(who)
            case "cancel":
                yield PhaseCancelled(who)
            case "join":
                yield JobJoined(who, NODES)
            case "leave":
                yield JobLeft(who)


def joined():
    state = GroupState()
    for job in JOBS:
        assert state.handle(JobJoined(job, NODES)) == []
    return state


@given(stories)
@settings(max_examples=400)
def test_never_two_phases_on_one_node_and_nothing_waits_in_vain(story):
    state = joined()
    for event in events_of(story):
        state.handle(event)
        state.validate()
        held = Counter(node for ask in state.running for node in ask.nodes)
        assert all(count == 1 for count in held.values())


@given(stories)
@settings(max_examples=400)
def test_nothing_overtakes_on_any_node(story):
    state = joined()
    asked: dict[int, PhaseRequested] = {}
    granted: list[int] = []
    ended: set[int] = set()
    for event in events_of(story):
        if isinstance(event, PhaseRequested):
            asked[event.serial] = event
        before = {ask.serial for ask in (*state.waiting, *state.running)}
        commands = state.handle(event)
        for command in commands:
            ask = asked[command.serial]
            for other in before - {command.serial}:
                shares = set(asked[other].nodes) & set(ask.nodes)
                waits = other in {one.serial for one in state.waiting}
                assert not (shares and waits and other < command.serial)
        granted += [command.serial for command in commands]
        ended |= before - {ask.serial for ask in (*state.waiting, *state.running)}
    assert len(granted) == len(set(granted)), "granted twice"
    assert not ended & {ask.serial for ask in state.running}


@given(stories)
@settings(max_examples=400)
def test_whatever_happened_every_request_comes_to_its_turn(story):
    state = joined()
    for event in events_of(story):
        state.handle(event)
    left = {ask.serial for ask in state.waiting}
    for _ in range(len(left) + len(NODES) + 1):
        for ask in state.running:
            left -= {command.serial for command in state.handle(PhaseDone(ask.serial))}
    assert not left
    assert not state.waiting


@given(stories, st.data())
@settings(max_examples=300)
def test_repeated_and_late_events_change_nothing(story, data):
    plain, repeated = joined(), joined()
    past = []
    for event in events_of(story):
        first = plain.handle(event)
        assert repeated.handle(event) == first
        if not isinstance(event, JobJoined | JobLeft):  # a job may leave and come back
            past.append(event)
        for again in data.draw(st.lists(st.sampled_from(past), max_size=3)) if past else ():
            if not counts(repeated, again):
                assert repeated.handle(again) == []
        for ask in repeated.running:
            assert repeated.handle(ask) == []
            assert repeated.handle(PhaseCancelled(ask.serial)) == [], "withdrawn after the grant"
        for ask in repeated.waiting:
            assert repeated.handle(PhaseDone(ask.serial)) == [], "done before the grant"
        assert repeated.waiting == plain.waiting
        assert repeated.running == plain.running
        repeated.validate()


def counts(state, past_event):
    """Whether an event of the past would be one now."""
    match past_event:
        case PhaseDone(serial):
            return serial in {ask.serial for ask in state.running}
        case PhaseCancelled(serial):
            return serial in {ask.serial for ask in state.waiting}
    return False


@given(stories)
@settings(max_examples=400)
def test_grants_are_those_of_the_runtime_alone(story):
    """`FirstCome` of weave_rt is a second form of the same rule. Both are told what the runtime
    tells a policy: requests of joined jobs, and endings, late ones too, of what was requested."""
    alone, scheduled = FirstCome(), GroupPolicy()
    here, asked = set(), set()
    for event in [*(JobJoined(job, NODES) for job in JOBS), *events_of(story)]:
        match event:
            case JobJoined(job, nodes) if job not in here:
                here.add(job)
                granted = [policy.joined(job, nodes) for policy in (alone, scheduled)]
            case JobLeft(job) if job in here:
                here.discard(job)
                granted = [list(policy.left(job)) for policy in (alone, scheduled)]
            case PhaseRequested(job, phase, nodes, serial) if job in here:
                asked.add(serial)
                request = Request(serial, job, phase, nodes)
                granted = [list(policy.requested(request)) for policy in (alone, scheduled)]
            case PhaseDone(serial) if serial in asked:
                granted = [list(policy.released(serial)) for policy in (alone, scheduled)]
            case PhaseCancelled(serial) if serial in asked:
                granted = [list(policy.cancelled(serial)) for policy in (alone, scheduled)]
            case _:
                continue
        assert granted[0] == granted[1], event


@given(stories)
def test_the_same_events_give_the_same_commands(story):
    one, other = joined(), joined()
    for event in events_of(story):
        assert one.handle(event) == other.handle(event)


def test_a_phase_on_two_nodes_waits_for_both_and_holds_back_what_came_later():
    state = joined()
    assert state.handle(PhaseRequested("a", "train", ("train:0",), 1)) == [Grant(1)]
    assert state.handle(PhaseRequested("b", "weight_sync", ("train:0", "rollout:0"), 2)) == []
    assert state.handle(PhaseRequested("c", "rollout", ("rollout:0",), 3)) == []
    assert state.handle(PhaseRequested("c", "rollout", ("rollout:1",), 4)) == [Grant(4)]
    assert state.queue("rollout:0") == (2, 3)
    assert state.holder("train:0") == 1
    assert state.handle(PhaseDone(1)) == [Grant(2)]
    assert state.handle(PhaseDone(2)) == [Grant(3)]


def test_a_phase_without_nodes_starts_at_once():
    assert joined().handle(PhaseRequested("a", "reward", (), 1)) == [Grant(1)]


def test_a_job_that_leaves_frees_what_it_holds_and_waits_for():
    state = joined()
    state.handle(PhaseRequested("a", "train", ("train:0",), 1))
    state.handle(PhaseRequested("a", "rollout", ("train:0",), 2))
    state.handle(PhaseRequested("b", "train", ("train:0",), 3))
    assert state.handle(JobLeft("a")) == [Grant(3)]
    assert state.handle(PhaseDone(1)) == []
    assert state.handle(PhaseRequested("a", "train", ("train:0",), 4)) == []
    assert state.jobs == ("b", "c")


def test_a_withdrawal_may_overtake_its_request():
    state = joined()
    assert state.handle(PhaseCancelled(1)) == []
    assert state.handle(PhaseRequested("a", "train", ("train:0",), 1)) == []


def test_done_before_the_grant_is_no_end():
    state = joined()
    state.handle(PhaseRequested("a", "train", ("train:0",), 1))
    state.handle(PhaseRequested("b", "train", ("train:0",), 2))
    assert state.handle(PhaseDone(2)) == []
    assert state.queue("train:0") == (2,)


def test_a_node_that_the_job_did_not_join_with_is_refused():
    state = GroupState()
    state.handle(JobJoined("a", ("train:0",)))
    with pytest.raises(ValueError, match="no node rollout:0"):
        state.handle(PhaseRequested("a", "rollout", ("rollout:0",), 1))


def test_past_serials_take_no_memory():
    state = joined()
    for serial in range(1, 5000):
        state.handle(PhaseRequested("a", "train", ("train:0",), serial))
        state.handle(PhaseDone(serial))
    assert len(state._over._beyond) == 0

"""Drift of jobs that run: reported, or submitted again without changing a byte."""

import json
from dataclasses import asdict

import pytest
from scheduling import job, pools

from weave_scheduler.document import SpecError
from weave_scheduler.driftplan import drift_desk
from weave_scheduler.laws import Constant
from weave_scheduler.livedrift import LiveDrift
from weave_scheduler.model import Placement
from weave_scheduler.policies import Settings, WeavePolicy
from weave_scheduler.policies.driftdesk import DriftDesk, DriftRule
from weave_scheduler.progress import Screen
from weave_scheduler.records import RunRecord, SliceRecord, load_run
from weave_scheduler.session import run_spec
from weave_scheduler.specfile import parse_spec
from weave_scheduler.support import check_runnable
from weave_scheduler.traces.lawdata import law_to_data

PAIR = Placement((0,), (0,))


def desk_of(*jobs, intra="fifo", stop=True, order=()):
    rule = DriftRule(window=3, tolerance=0.2, stop=stop)
    policy = WeavePolicy(Settings(intra=intra))
    return DriftDesk([(one, PAIR) for one in jobs], pools(1, 1), policy, rule, order)


def slow(desk, name, rollout, train=50.0, times=3):
    for _ in range(times):
        desk.measured(name, "rollout", rollout)
        desk.measured(name, "train", train)


class TestDesk:
    def test_a_report_is_made_once_per_phase_and_changes_nothing(self):
        desk = desk_of(job("a", 100.0, 50.0), job("b", 100.0, 50.0), stop=False)
        slow(desk, "a", 200.0, times=2)
        assert desk.iteration_over("a", 9) == []
        slow(desk, "a", 200.0)
        (drift,) = desk.iteration_over("a", 8)
        assert (drift.phase, drift.measured_mean_s, drift.above_max) == ("rollout", 200.0, 3)
        slow(desk, "a", 200.0)
        assert desk.iteration_over("a", 7) == []
        assert desk.may_run("a")

    def test_times_as_planned_and_phases_without_a_plan_are_no_drift(self):
        desk = desk_of(job("a", 100.0, 50.0))
        slow(desk, "a", 115.0)  # inside the tolerance, also of the max
        desk.measured("a", "weight_sync", 1.0)
        desk.measured("unknown", "rollout", 1.0)
        assert desk.iteration_over("a", 5) == []

    def test_a_job_that_still_fits_goes_on_at_once_with_new_laws(self):
        desk = desk_of(job("a", 100.0, 50.0, 3.0), job("b", 100.0, 50.0, 3.0))
        slow(desk, "a", 150.0)
        assert len(desk.iteration_over("a", 5)) == 1
        assert desk.may_run("a")
        slow(desk, "a", 150.0)  # as planned now
        assert desk.iteration_over("a", 2) == []

    def test_a_job_that_breaks_a_limit_waits_until_the_others_are_done(self):
        desk = desk_of(job("a", 100.0, 50.0, 2.0), job("b", 100.0, 50.0, 1.5))
        slow(desk, "a", 400.0)
        desk.iteration_over("a", 5)
        assert not desk.may_run("a")
        assert "job b would be" in desk.reason("a")
        desk.ended("b")
        assert desk.may_run("a")
        assert desk.reason("a") == ""
        desk.ended("a")

    def test_when_all_wait_the_first_goes_on_alone(self):
        """Both leave their plans at the same time; neither takes the other."""
        desk = desk_of(job("a", 100.0, 50.0, 1.0), job("b", 100.0, 50.0, 1.0))
        slow(desk, "a", 400.0)
        desk.iteration_over("a", 5)
        assert not desk.may_run("a")
        slow(desk, "b", 900.0)
        desk.iteration_over("b", 5)  # b leaves, so a, the first in line, goes on
        assert (desk.may_run("a"), desk.may_run("b")) == (True, False)
        desk.ended("a")
        assert desk.may_run("b")

    def test_the_last_iteration_is_reported_but_not_submitted_again(self):
        desk = desk_of(job("a", 100.0, 50.0, 1.0), job("b", 100.0, 50.0, 1.0))
        slow(desk, "a", 400.0)
        assert len(desk.iteration_over("a", 0)) == 1
        assert desk.may_run("a")

    def test_strict_keeps_the_order_that_runs(self):
        jobs = [job(name, 100.0, 50.0, 9.0) for name in "abc"]
        desk = desk_of(*jobs, intra="strict", order="abc")
        slow(desk, "b", 150.0)
        desk.iteration_over("b", 5)
        assert desk.may_run("b")
        resident = desk._desk.cluster.home("b")
        names = [resident.group.names[at] for at in resident.order or (0, 1, 2)]
        if resident.order is not None:
            assert "".join(names) in ("abc", "bca", "cab")

    def test_a_job_that_ends_while_it_waits_is_forgotten(self):
        desk = desk_of(job("a", 100.0, 50.0, 1.0), job("b", 100.0, 50.0, 1.0))
        slow(desk, "a", 400.0)
        desk.iteration_over("a", 5)
        desk.ended("a")
        assert (desk.may_run("a"), desk.may_run("b")) == (False, True)
        desk.ended("b")
        desk.ended("b")


class Gate:
    def __init__(self):
        self.calls = []

    def leave(self, name):
        self.calls.append(("leave", name))

    def join(self, name, devices):
        self.calls.append(("join", name, devices))


def test_an_interrupt_ends_the_wait():
    desk = desk_of(job("a", 100.0, 50.0, 2.0), job("b", 100.0, 50.0, 1.0))
    run, said, gate = RunRecord([]), [], Gate()
    live = LiveDrift(desk, {"a": 10.0, "b": 10.0}, run, lambda: 7, said.append, lambda: True)
    for step in range(4):  # the first iteration does not count
        for phase, seconds in (("rollout", 40), ("train", 5)):
            end_ns = seconds * 10**9
            live.measured(SliceRecord("phase", "a", phase, step, ("x",), 0, end_ns))
    assert not live.iteration_over("a", 4, 5, gate, ("train:0",))
    assert gate.calls == [("leave", "a")]
    (record,) = run.drifts
    assert (record.planned_mean_s, record.measured_mean_s) == (10.0, 40.0)  # of the device clock
    assert (record.iteration, record.resubmitted, record.waited_s) == (3, True, 0.0)
    assert "its limit is 1" in (record.reason or "")
    assert any("rollout takes 4.00 of its planned mean" in line for line in said)
    assert load_run(json.loads(json.dumps(asdict(run)))) == run


SPEC = """
version: 1
devices:
  rollout: ["emulated:h20?capacity=16MiB&block=256KiB&context=1MiB&scale=1024&speed=2000"]
  train: ["emulated:h800?capacity=16MiB&block=256KiB&context=1MiB&scale=1024&speed=2000"]
scheduler: {drift: resubmit, drift_window: 2, drift_tolerance: 5, intra: INTRA}
jobs:
  - name: a
    kind: synthetic
    iterations: 5
    slo: 1.5
    state: {rollout: {weights: 2.5GB}, train: {weights: 1GB, optimizer: 2.5GB}}
    phases: {rollout: 50s, reward: 1s, train: 40s, weight_sync: 1s}
  - name: b
    kind: synthetic
    iterations: 6
    state: {rollout: {weights: 2.5GB}, train: {weights: 1GB, optimizer: 2.5GB}}
    phases: {rollout: {law: lognormal, mean: 50s, cv: 0, max: 900s}, train: 40s}
"""


@pytest.mark.parametrize("intra", ["fifo", "strict", "barrier"])
def test_a_run_goes_on_with_the_same_bytes(tmp_path, intra):
    spec, profile, out = (tmp_path / name for name in ("spec.yaml", "profile.json", "out"))
    spec.write_text(SPEC.replace("INTRA", intra))
    law = law_to_data(Constant(1.0))
    planned = {"name": "a", "phases": {"rollout": {"law": law}}, "bytes": {}}
    profile.write_text(json.dumps({"format": "weave-profile", "version": 1, "jobs": [planned]}))
    mode = "compare" if intra == "fifo" else "together"  # every phase checks its bytes anyway
    outcome = run_spec(spec, out, mode, Screen(), profile)
    assert outcome.code == 0, outcome.complaints
    summary = json.loads((out / "summary.json").read_text())
    if mode == "compare":
        assert [one["identical_to_solo"] for one in summary["jobs"]] == [True, True]
    assert [one["iterations"] for one in summary["jobs"]] == [5, 6]
    rollout = next(one for one in summary["drift"] if one["phase"] == "rollout")
    assert (rollout["job"], rollout["resubmitted"]) == ("a", True)
    assert rollout["measured_mean_s"] > 6 * rollout["planned_mean_s"]
    assert "job a would be" in rollout["reason"]
    assert rollout["waited_s"] > 0
    assert "Drift" in (out / "report.html").read_text()
    names = [one["name"] for one in json.loads((out / "timeline.json").read_text())["traceEvents"]]
    assert "a waits for a place" in names
    assert "a/reward" in names  # a phase that holds no pool


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("drift: never", r"scheduler.drift: is not known; allowed: 'off', 'report' or 'resubmit'"),
        ("drift_window: 1", "drift_window: is too small"),
        ("drift_tolerance: 0", "drift_tolerance: is too small"),
    ],
)
def test_wrong_keys_are_refused(change, message):
    start, end = SPEC.index("{drift"), SPEC.index("INTRA}")
    with pytest.raises(SpecError, match=message):
        parse_spec(SPEC[:start] + "{" + change + SPEC[end + len("INTRA") :])


def test_what_is_watched_follows_the_spec():
    text = SPEC.replace("INTRA", "fifo")
    off = parse_spec(text.replace("drift: resubmit", "drift: off"))
    assert drift_desk(off, check_runnable(off)) is None
    vague = parse_spec(text.replace(", max: 900s", ""))
    with pytest.raises(SpecError, match=r"drift: resubmit plans jobs anew: job b: .* no max"):
        drift_desk(vague, check_runnable(vague))
    report = parse_spec(text.replace(", max: 900s", "").replace("resubmit", "report"))
    assert drift_desk(report, check_runnable(report)) is not None

"""``weave run`` end to end on emulated devices: together, alone, compared, failing, interrupted."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import weave_rt
from weave_rt.errors import GrowthRefused
from weave_scheduler import jobs, live
from weave_scheduler.document import SpecError
from weave_scheduler.jobs import JobResult
from weave_scheduler.planning import run_order
from weave_scheduler.progress import Screen
from weave_scheduler.records import load_run
from weave_scheduler.session import run_spec
from weave_scheduler.specfile import parse_spec
from weave_scheduler.summary import Runs, summarise

# Two jobs that do not fit together: 3.5 GB each, on models of 6 GB devices (about 90 blocks).
SPEC = """
version: 1
devices:
  rollout: ["emulated:h20?capacity=6MB&scale=1024&speed=1000"]
  train: ["emulated:h800?capacity=6MB&scale=1024&speed=1000"]
jobs:
  - name: a
    kind: synthetic
    iterations: 4
    seed: 1
    state: {rollout: {weights: 2.5GB, kv_cache: 1GB}, train: {weights: 1GB, optimizer: 2.5GB}}
    phases: {rollout: 20s, reward: 1s, train: 18s, weight_sync: 1s}
  - name: b
    kind: synthetic
    iterations: 4
    seed: 2
    state: {rollout: {weights: 2.5GB, kv_cache: 1GB}, train: {weights: 1GB, optimizer: 2.5GB}}
    phases: {rollout: {law: lognormal, mean: 20s, cv: 0.2, max: 40s}, train: 18s, weight_sync: 1s}
"""
MODES = ("fifo", "strict", "barrier")
FILES = {"summary.json", "timeline.json", "report.html"}


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "weave_scheduler", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def read(out, name="summary.json"):
    return json.loads((out / name).read_text())


def emulated_blocks(pid):
    """Open descriptors of device memory."""
    links = []
    for link in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            links.append(os.readlink(f"/proc/{pid}/fd/{link}"))
    return [link for link in links if "memfd" in link]


def test_two_jobs_share_the_devices_and_nothing_is_left(spec, tmp_path):
    out = tmp_path / "out"
    outcome = run_spec(spec, out, "together", Screen())
    assert outcome.code == 0, outcome.complaints
    assert {path.name for path in out.iterdir()} == FILES
    whole = read(out)
    assert [job["iterations"] for job in whole["jobs"]] == [4, 4]
    assert whole["totals"]["bytes_in"] > 0, "the jobs fit together, so nothing was tried"
    assert whole["totals"]["bytes_out"] > 0
    assert any(one.get("mode") for one in whole["switches"])
    assert emulated_blocks(os.getpid()) == []
    slices = [one for one in read(out, "timeline.json")["traceEvents"] if one["ph"] == "X"]
    assert {"a/rollout", "b/train", "b/weight_sync"} <= {one["name"] for one in slices}
    for one, other in itertools.combinations(slices, 2):
        if (one["pid"], one["tid"]) == (other["pid"], other["tid"]):
            first, second = sorted((one, other), key=lambda part: (part["ts"], -part["dur"]))
            end = first["ts"] + first["dur"]
            inside = second["ts"] + second["dur"] <= end + 1e-3
            assert second["ts"] >= end - 1e-3 or inside, "two phases on one device"


def test_alone_and_together_give_the_same_bytes(spec, tmp_path):
    outcome = run_spec(spec, tmp_path / "out", "compare", Screen())
    assert outcome.code == 0, outcome.complaints
    whole = read(tmp_path / "out")
    assert [job["identical_to_solo"] for job in whole["jobs"]] == [True, True]
    assert {"solo_s", "slowdown"} <= whole["jobs"][0].keys()
    assert {"solo_wall_s", "gain"} <= whole["totals"].keys()


def test_alone_is_one_process_per_job(spec, tmp_path):
    outcome = run_spec(spec, tmp_path / "out", "solo", Screen())
    assert outcome.code == 0, outcome.complaints
    whole = read(tmp_path / "out")
    assert whole["mode"] == "solo"
    assert all("solo_s" in job and "wall_s" not in job for job in whole["jobs"])


def test_a_difference_is_found_and_fails_the_run(spec, monkeypatch):
    plain = live.run_jobs

    def altered(*arguments):
        run = plain(*arguments)
        run.jobs[1].weights_digest = "0" * 64
        return run

    monkeypatch.setattr("weave_scheduler.session.run_jobs", altered)
    outcome = run_spec(spec, None, "compare", Screen())
    assert outcome.code == 1
    assert len(outcome.complaints) == 1
    assert "job b differs from the same job alone: final weights" in outcome.complaints[0]


class Breaking:
    """A kind that raises in the middle of a phase."""

    def __init__(self, error):
        self.error = error

    def prepare(self, job):
        pass

    def run(self, rt_job, spec_job, seed, iterations, on_iteration):
        on_iteration(jobs.Iteration(0))
        with rt_job.phase("rollout", step=1):
            rt_job.manage("some", pool="rollout").buffer(1000, tag="weights")
            raise self.error


@pytest.fixture
def breaking(monkeypatch):
    """Makes job b raise ``error`` in its rollout of iteration 1."""

    def arrange(error):
        plain = live.kind_of
        monkeypatch.setattr(
            live, "kind_of",
            lambda job, setting: Breaking(error) if job.name == "b" else plain(job, setting),
        )  # fmt: skip

    return arrange


def test_a_job_that_raises_ends_alone(spec, breaking, tmp_path):
    breaking(ValueError("no\nluck"))
    outcome = run_spec(spec, tmp_path / "out", "together", Screen())
    assert outcome.code == 1
    assert outcome.complaints == ["job b failed in rollout of iteration 1: ValueError: no luck"]
    a, b = read(tmp_path / "out")["jobs"]
    assert a["iterations"] == 4
    assert "error" not in a
    assert b["error"].startswith("failed in rollout")
    assert emulated_blocks(os.getpid()) == []


class Taking:
    """A kind that takes a block of its device outside regions in every phase from the third on."""

    def prepare(self, job):
        pass

    def run(self, rt_job, spec_job, seed, iterations, on_iteration):
        device = rt_job.runtime.devices["rollout:0"]
        raw = weave_rt._core.TensorCopies(device, [device.block_bytes], [])
        rt_job.manage("some", pool="rollout")
        for step in range(iterations):
            with rt_job.phase("rollout", step=step):
                if step >= 2:
                    raw.allocate()
            on_iteration(jobs.Iteration(step))
        raw.close()
        return JobResult("0" * 64)


def test_memory_outside_regions_is_in_the_summary(spec, monkeypatch, tmp_path):
    plain = live.kind_of
    monkeypatch.setattr(
        live, "kind_of",
        lambda job, setting: Taking() if job.name == "b" else plain(job, setting),
    )  # fmt: skip
    outcome = run_spec(spec, tmp_path / "out", "together", Screen())
    assert outcome.code == 0, outcome.complaints
    whole = read(tmp_path / "out")
    a, b = whole["jobs"]
    nothing = {"running": 0, "sleeping": 0}
    assert a["unmanaged"] == {"rollout": nothing, "train": nothing}
    block = 65536
    assert b["unmanaged"] == {"rollout": {"running": block, "sleeping": block}}
    (row,) = whole["unmanaged"]
    assert row["usable_bytes"] % block == 0
    assert row.pop("usable_bytes") < 6_000_000
    assert row.pop("at_s") > 0
    assert row == {
        "job": "b", "phase": "rollout", "iteration": 2, "node": "rollout:0",
        "recorded_running": 0, "recorded_sleeping": 0,
        "measured_running": block, "measured_sleeping": block,
    }  # fmt: skip
    assert "Memory outside regions" in (tmp_path / "out" / "report.html").read_text()
    names = [one["name"] for one in read(tmp_path / "out", "timeline.json")["traceEvents"]]
    assert names.count("b/rollout") == 4


def test_a_job_too_large_for_its_device_is_the_users_mistake(spec, breaking):
    breaking(GrowthRefused("too large", bytes_needed=9765625, bytes_usable=4882812))
    outcome = run_spec(spec, None, "together", Screen())
    assert outcome.code == 2
    assert outcome.complaints == [
        "job b failed in rollout of iteration 1: it needs 10 GB of device memory, but the device"
        " has 5 GB for jobs; make the job smaller or the device larger"
    ]


def test_jobs_may_raise_anything(spec, breaking):
    breaking(SystemExit(3))
    outcome = run_spec(spec, None, "together", Screen())
    assert outcome.code == 1
    assert "SystemExit: 3" in outcome.complaints[0]


LONG = SPEC.replace("iterations: 4", "iterations: 100000")


def wait_for(process, text):
    """Read stderr until a line holds ``text``."""
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"{text!r} was never said; exit code {process.wait()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_cleanly_and_lists_what_was_written(spec, tmp_path, number):
    spec.write_text(LONG)
    out = tmp_path / "out"
    process = start("run", spec, "--out", out)
    wait_for(process, "a: 1/")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    last = errors.splitlines()[-1]
    assert last.startswith("weave: interrupted; written: ")
    assert str(out / "summary.json") in last
    assert "Traceback" not in errors
    assert {path.name for path in out.iterdir()} == FILES
    whole = read(out)
    assert whole["interrupted"] is True
    assert whole["jobs"][0]["iterations"] >= 1
    assert "gain" not in whole["totals"]


def test_an_interrupt_while_a_job_runs_alone_ends_that_process_too(spec):
    spec.write_text(LONG)
    process = start("run", spec, "--compare-solo")
    wait_for(process, "a: 1/")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "weave: interrupted; nothing written"
    assert not Path(f"/proc/{children[0]}").exists()


def test_a_killed_run_leaves_no_process(spec):
    spec.write_text(LONG)
    process = start("run", spec, "--solo")
    wait_for(process, "a: 1/")
    child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
    process.kill()
    process.communicate()
    deadline_s = time.monotonic() + 30
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline_s, "the solo process outlived its parent"
        time.sleep(0.05)


def test_two_runs_at_once_do_not_meet(spec, tmp_path):
    outs = [tmp_path / "one", tmp_path / "two"]
    processes = [start("run", spec, "--out", out) for out in outs]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    one, two = map(read, outs)
    digests = [[job["weights_digest"] for job in whole["jobs"]] for whole in (one, two)]
    assert digests[0] == digests[1]


def test_one_folder_is_for_one_run_at_a_time(spec, tmp_path):
    long = tmp_path / "long.yaml"
    long.write_text(LONG)
    first = start("run", long, "--out", tmp_path / "out")
    wait_for(first, "a: 1/")
    second = start("run", spec, "--out", tmp_path / "out")
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 2
    assert errors.count("\n") == 1
    assert f"another weave run (process {first.pid}) writes there" in errors
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    third = start("run", spec, "--out", tmp_path / "out")
    _, errors = third.communicate(timeout=120)
    assert third.returncode == 0, errors


class Silent:
    """A listener that says nothing."""

    def devices(self, devices): ...
    def note(self, text): ...
    def iteration(self, job, iteration, total): ...
    def job_ended(self, job): ...
    def trace(self, text): ...


def test_an_error_is_raised_only_after_the_devices_are_closed():
    loaded = parse_spec(SPEC.replace('speed=1000"]\njobs', 'speed=10"]\njobs'))
    with pytest.raises(ValueError, match="give all devices the same"):
        live.run_jobs(loaded, ["a", "b"], Silent(), lambda: False)
    assert emulated_blocks(os.getpid()) == []
    assert threading.active_count() == 1


def test_a_run_that_is_stopped_before_it_starts_runs_nothing():
    run = live.run_jobs(parse_spec(SPEC), ["a", "b"], Silent(), lambda: True)
    assert run.stopped
    assert [job.iterations for job in run.jobs] == [0, 0]


def test_jobs_on_nodes_of_their_own_share_what_they_share():
    text = SPEC.replace('rollout: ["emulated:h20?capacity=6MB&scale=1024&speed=1000"]',
                        'rollout: ["emulated:h20?capacity=6MB&scale=1024&speed=1000", '
                        '"emulated:h20?capacity=6MB&scale=1024&speed=1000"]')  # fmt: skip
    text = text.replace("seed: 1", "rollout: [1]").replace("seed: 2", "rollout: [0]")
    run = live.run_jobs(parse_spec(text), ["a", "b"], Silent(), lambda: False)
    assert not run.failed
    used = {(one.job, name) for one in run.slices if one.phase == "rollout" for name in one.devices}
    assert used == {("a", "rollout:1"), ("b", "rollout:0")}


def test_the_host_budget_is_that_of_the_real_job():
    text = SPEC.replace("jobs:", "host: {budget: 0.5GB}\njobs:", 1)
    run = live.run_jobs(parse_spec(text), ["a", "b"], Silent(), lambda: False)
    assert any("HostMemoryError" in (job.error or "") for job in run.jobs)


def test_beyond_the_host_budget_jobs_spill_and_every_byte_is_right(tmp_path):
    # 12 GB to keep, and both jobs check all their bytes in each phase.
    text = SPEC.replace("jobs:", "host: {budget: 7GB, spill: spilled}\njobs:", 1)
    run = live.run_jobs(parse_spec(text, folder=tmp_path), ["a", "b"], Silent(), lambda: False)
    assert not run.failed
    plain = live.run_jobs(parse_spec(SPEC), ["a", "b"], Silent(), lambda: False)
    digests = [[job.weights_digest for job in one.jobs] for one in (run, plain)]
    assert digests[0] == digests[1]
    assert not list((tmp_path / "spilled").iterdir())
    totals = [
        summarise(Runs(parse_spec(SPEC).spec, one), {})["totals"].get("bytes_spilled")
        for one in (run, plain)
    ]
    assert totals == [run.bytes_spilled, None]
    assert totals[0] > 0


def test_a_spill_directory_that_cannot_be_made_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    text = SPEC.replace("jobs:", "host: {spill: file/spilled}\njobs:", 1)
    with pytest.raises(SpecError, match=r"host\.spill.*Not a directory"):
        live.run_jobs(parse_spec(text, folder=tmp_path), ["a", "b"], Silent(), lambda: False)


def test_a_record_survives_its_journey():
    from dataclasses import asdict

    run = live.run_jobs(parse_spec(SPEC), ["a"], Silent(), lambda: False)
    run.jobs[0].losses = [0.1 + 0.2, float("nan"), 1e-320]
    back = load_run(json.loads(json.dumps(asdict(run))))
    assert repr(asdict(back)) == repr(asdict(run))


def test_the_result_of_a_kind_is_kept(monkeypatch):
    class Told(Breaking):
        def run(self, rt_job, spec_job, seed, iterations, on_iteration):
            assert isinstance(rt_job, weave_rt.Job)
            for step in range(iterations):
                on_iteration(jobs.Iteration(step, loss=step / 3, reward=step / 4))
            return JobResult("w", "l", torch_threads=1)

    monkeypatch.setattr(live, "kind_of", lambda job, setting: Told(None))
    run = live.run_jobs(parse_spec(SPEC), ["a"], Silent(), lambda: False)
    job = run.jobs[0]
    assert (job.weights_digest, job.loss_digest, job.torch_threads) == ("w", "l", 1)
    assert job.losses == [0.0, 1 / 3, 2 / 3, 1.0]


@pytest.mark.parametrize("intra", MODES)
def test_every_mode_runs_both_jobs_to_the_end(tmp_path, intra):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC + f"scheduler: {{intra: {intra}}}\n")
    outcome = run_spec(path, tmp_path / "out", "together", Screen())
    assert outcome.code == 0, outcome.complaints
    starts = [
        (one["ts"], one["name"]) for one in read(tmp_path / "out", "timeline.json")["traceEvents"]
        if one["ph"] == "X" and one["name"].endswith("/rollout")
    ]  # fmt: skip
    jobs = [name.split("/")[0] for _, name in sorted(starts)]
    assert sorted(jobs) == ["a"] * 4 + ["b"] * 4
    if intra != "fifo":  # in turns from where both have begun to where one has ended
        begun = max(jobs.index("a"), jobs.index("b"))
        ended = min(len(jobs) - jobs[::-1].index(job) for job in "ab")
        turns = jobs[begun:ended]
        assert all(one != other for one, other in itertools.pairwise(turns)), jobs


def test_a_strict_run_takes_the_planned_order_else_that_of_the_spec():
    durations = {"a": 40, "b": 5, "c": 30}
    jobs = "\n".join(
        f"  - {{name: {name}, kind: synthetic, iterations: 2, state: {{train: {{weights: 1GB}}}},"
        f" phases: {{rollout: {seconds}s, train: {seconds}s, weight_sync: {seconds}s}}}}"
        for name, seconds in durations.items()
    )
    loaded = parse_spec(f"version: 1\nscheduler: {{intra: strict}}\njobs:\n{jobs}\n")
    order = run_order(loaded, live.check_jobs(loaded))
    assert sorted(order) == ["a", "b", "c"]
    unplanned = parse_spec(f"version: 1\nscheduler: {{intra: strict}}\njobs:\n{jobs}\n".replace(
        "rollout: 5s", "rollout: {law: lognormal, mean: 5s, cv: 1}"))  # fmt: skip
    assert run_order(unplanned, live.check_jobs(unplanned)) == ["a", "b", "c"]

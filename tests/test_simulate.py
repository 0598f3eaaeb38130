"""``weave simulate`` from outside: records, files, comparison, and what is refused in one line."""

import json

import pytest
from test_cli import refused, weave

from weave_scheduler import simulating
from weave_scheduler.cli import _code_of
from weave_scheduler.planning import plan_file

SPEC = """
version: 1
nodes: {rollout: {gpus: 8, price: 1.85}, train: {gpus: 8, price: 5.28, count: 1}}
jobs:
  - {name: a, kind: synthetic, iterations: 4, slo: 1.6, seed: 1,
     phases: {rollout: {law: lognormal, mean: 250s, cv: 0.2, max: 300s}, train: 60s}}
  - {name: b, kind: synthetic, iterations: 3, slo: 2.0, arrival: 400s,
     phases: {rollout: 150s, train: 150s}}
  - {name: c, kind: synthetic, iterations: 2, slo: 1.1, phases: {rollout: 60s, train: 290s}}
"""

TRACE = """\
{"format": "weave-trace", "version": 1}
{"id": "x", "iterations": 3, "rollout": 100, "train": 40, "slo": 1.5, "arrival_s": 5}
{"id": "y", "iterations": 2, "rollout": {"law": "lognormal", "mean_s": 60, "cv": 0.1}, "train": 30}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text(TRACE)
    return path


@pytest.fixture
def told(capsys):
    """Run the command in this process: its stdout, or what it complains."""

    def run(*arguments, code=0):
        assert _code_of(["simulate", *map(str, arguments)]) == code
        found = capsys.readouterr()
        if code:
            assert found.out == ""
            assert found.err.count("\n") == 1
        return found.err if code else found.out

    return run


def test_the_record_says_who_waited_how_slow_and_at_what_price(told, spec):
    record = json.loads(told(spec, "--json"))
    assert (record["format"], record["version"]) == ("weave-sim", 1)
    assert "started_at" in record["conditions"]
    assert record["policies"] == ["weave"]
    assert record["runtime"].keys() == {"wall_s", "events"}
    jobs = {row["name"]: row for row in record["jobs"]}
    a, b, c = (jobs[name] for name in "abc")
    assert (a["placed_s"], a["waited_s"], a["state"]) == (0, 0, "finished")
    assert (c["placed_s"], c["state"]) == (0, "finished")  # beside the first one
    assert b["placed_s"] == c["finished_s"] == 400 + b["waited_s"]  # beside both is too slow
    assert "needs 1 train node(s), 0 free" in b["reason"]
    assert "reason" not in a
    for row in jobs.values():
        assert row["iterations"] in (2, 3, 4)
        assert row["slo_met_planned"] == (row["slowdown_planned"] <= row["slo"])
        assert row["slo_met_realised"] == (row["slowdown_realised"] <= row["slo"])
    (totals,) = record["totals"]
    assert totals["cost"] == pytest.approx(sum(row["cost"] for row in jobs.values()))
    assert totals["makespan_s"] == max(row["finished_s"] for row in jobs.values())
    pools = {row["name"]: row for row in record["pools"]}
    assert pools["train"]["phases_s"] == 4 * 60 + 3 * 150 + 2 * 290
    for row in pools.values():
        assert row["busy_share"] == pytest.approx(row["phases_s"] / row["owned_s"])
        assert row["idle_s"] >= 0


def test_placement_is_that_of_the_plan_where_all_come_at_once(told, spec):
    spec.write_text(SPEC.replace(", arrival: 400s", "").replace(", count: 1", ""))
    record = json.loads(told(spec, "--json"))
    groups = plan_file(spec, None, None).record["groups"]
    assert record["totals"][0]["groups"] == len(groups)
    assert all(row["placed_s"] == 0 for row in record["jobs"])


def test_files_are_written_and_the_timeline_has_every_phase(told, spec, tmp_path):
    out = tmp_path / "out"
    said = told(spec, "--out", out)
    assert f"written: {out / 'simulation.json'}, {out / 'timeline.json'}" in said
    assert sorted(path.name for path in out.iterdir()) == ["simulation.json", "timeline.json"]
    record = json.loads((out / "simulation.json").read_text())
    assert record["file"] == "spec.yaml"
    timeline = json.loads((out / "timeline.json").read_text())
    assert timeline["format"] == "weave-sim"
    phases = [one for one in timeline["traceEvents"] if one.get("cat") == "phase"]
    assert len(phases) == 2 * (4 + 3 + 2)
    assert {one["name"] for one in phases} >= {"a/rollout", "c/train"}


def test_policies_are_compared_over_the_same_draws(told, spec):
    record = json.loads(
        told(spec, "--policy", "weave", "--policy", "solo", "--seeds", "3", "--json")
    )
    assert [row["policy"] for row in record["totals"]] == ["weave", "solo"]
    solo = {row["name"]: row for row in record["jobs"] if row["policy"] == "solo"}
    weave_ = {row["name"]: row for row in record["jobs"] if row["policy"] == "weave"}
    for name, row in solo.items():
        assert row["slowdown_realised"] == pytest.approx(1)
        assert row["over_seeds"]["solo_s"] == weave_[name]["over_seeds"]["solo_s"]
    spread = solo["a"]["over_seeds"]["solo_s"]
    assert spread["low"] < spread["mean"] < spread["high"]
    (row,) = record["comparison"]
    assert (row["policy"], row["against"]) == ("solo", "weave")
    assert row["makespan_s"].keys() == {"mean", "low", "high"}
    tables = told(spec, "--policy", "weave", "--policy", "solo", "--seeds", "2")
    for word in ("Jobs under solo", "As a multiple of weave", "±", "100 %"):
        assert word in tables


def test_the_same_command_gives_the_same_numbers(told, spec):
    first, second = (json.loads(told(spec, "--json")) for _ in range(2))
    for record in (first, second):
        del record["conditions"], record["runtime"]["wall_s"]
    assert first == second


def test_a_trace_and_a_profile(told, trace, spec, tmp_path, capsys):
    record = json.loads(told(trace, "--mode", "quantile", "--json"))
    jobs = {row["name"]: row for row in record["jobs"]}
    assert jobs["x"]["placed_s"] == 5
    assert "gives no nodes" in record["notes"][0]
    assert "slowdown_planned" not in jobs["y"]  # its law has no max
    assert "slo_met_planned" not in jobs["y"]
    profile = tmp_path / "profile.json"
    law = {"law": "empirical", "values_s": [10.0], "limit_s": 10.0}
    profile.write_text(json.dumps({
        "format": "weave-profile", "version": 1,
        "jobs": [{"name": "a", "phases": {"rollout": {"law": law}}}],
    }))  # fmt: skip
    record = json.loads(told(spec, "--profile", profile, "--policy", "solo", "--json"))
    (a,) = [row for row in record["jobs"] if row["name"] == "a"]
    assert a["iteration_s"] == 70


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["spec.yaml", "--policy", "best"], "policy 'best' is not known; allowed: weave, paper"),
        (["spec.yaml", "--policy", "solo", "--policy", "solo"], "names one twice"),
        (["spec.yaml", "--intra", "lifo"], "--intra 'lifo' is not known; allowed: fifo"),
        (["spec.yaml", "--mode", "mean"], "--mode 'mean' is not known"),
        (["spec.yaml", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["spec.yaml", "--out", ""], "--out is empty"),
        (["spec.yaml", "--out", "spec.yaml"], "is a file; give a folder"),
        (["spec.yaml", "--intra", "strict"], "joins jobs that run already"),
        (["jobs.jsonl"], "law has no max; mode worst-case needs one; --mode quantile does"),
        (["jobs.jsonl", "--policy", "paper", "--mode", "quantile"], "law has no max"),
        (["jobs.jsonl", "--profile", "p.json"], "--profile belongs to a spec"),
        (["run.json"], "is a weave-run file; weave simulate takes a spec or a trace"),
        (["."], "is a folder; weave simulate takes a spec or a trace"),
        (["none.yaml"], "none.yaml"),
        (["bad.jsonl"], "bad.jsonl:2: iterations"),
    ],
)
def test_a_mistake_is_one_line(told, spec, trace, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "weave-run", "version": 1}')
    bad = TRACE.splitlines()[0] + '\n{"id": "x", "rollout": 1, "train": 1}\n'
    (tmp_path / "bad.jsonl").write_text(bad)
    assert said in told(*arguments, code=2)


def test_ctrl_c_ends_it_with_130_and_leaves_nothing(told, spec, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulating, "simulate", interrupted)
    out = tmp_path / "out"
    assert told(spec, "--out", out, code=130) == "weave: interrupted\n"
    assert list(out.iterdir()) == []


def test_help_has_an_example_and_a_mistake_has_no_traceback(tmp_path):
    assert "Examples: weave simulate" in weave("simulate", "--help").stdout
    assert "nothing.yaml" in refused(weave("simulate", tmp_path / "nothing.yaml"))


def test_a_refused_job_has_not_kept_its_limit_and_all_means_all():
    from weave_scheduler.simrecord import _totals
    from weave_scheduler.simtables import _percent

    rows = [
        {"state": "finished", "arrival_s": 0.0, "finished_s": 2.0, "waited_s": 0.0, "slo": 2.0,
         "slowdown_realised": 1.0, "slo_met_planned": True, "slo_met_realised": True},
        {"state": "refused", "arrival_s": 0.0, "slo": 1.5},
    ]  # fmt: skip

    class Run:
        groups, end_s, cost = 1, 2.0, 0.0

    totals = _totals(Run(), rows)
    assert totals["slo_met_planned_share"] == totals["slo_met_realised_share"] == 0.5
    assert (_percent(0.9965), _percent(1.0), _percent(0.5)) == ("99.6 %", "100 %", "50 %")

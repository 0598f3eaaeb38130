"""``weave plan`` from outside: tables, JSON, why, snapshot and replay, what is refused."""

import json
import re
from pathlib import Path

import pytest
from test_cli import refused, weave

from weave_scheduler.cli import _code_of

SPEC = """
version: 1
nodes: {rollout: {gpus: 8, price: 1.85, host_memory: 2TB}, train: {gpus: 8, price: 5.28}}
jobs:
  - {name: a, kind: synthetic, iterations: 9, slo: 1.6,
     state: {rollout: {weights: 100GB, kv_cache: 50GB}, train: {optimizer: 200GB}},
     phases: {rollout: 300s, train: 60s}}
  - {name: b, kind: synthetic, iterations: 9, slo: 2.0, phases: {rollout: 150s, train: 150s}}
  - {name: c, kind: synthetic, iterations: 9, slo: 1.1, phases: {rollout: 60s, train: 290s}}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def planned(*arguments):
    done = weave("plan", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_record_says_who_is_where_how_fast_and_at_what_price(spec):
    record = planned(spec)
    assert (record["format"], record["version"]) == ("weave-plan", 1)
    assert "started_at" in record["conditions"]
    first = record["groups"][0]
    for key in ("jobs", "period_s", "binds", "slack", "cost", "admitted_by"):
        assert key in first
    assert first["jobs"] == ["a", "b"]
    assert (first["period_s"], first["binds"]) == (450.0, "rollout:0")
    assert first["admitted_by"] == "closed form"
    assert first["cost"] == pytest.approx(57.04)
    assert first["slack"] == pytest.approx(1 - 450 / 576)
    a, b = first["members"]
    assert (a["slowdown_worst"], b["slowdown_worst"]) == (450 / 360, 1.5)
    assert first["bubbles"] == pytest.approx({"rollout:0": 0.0, "train:0": 1 - 210 / 450})
    memory = {row["node"]: row for row in first["memory"]}
    assert memory["rollout:0"] == {
        "node": "rollout:0", "host_bytes": 100 * 10**9, "host_capacity": 2 * 10**12,
    }  # fmt: skip
    assert "host_capacity" not in memory["train:0"]
    assert record["totals"]["cost"] == pytest.approx(sum(one["cost"] for one in record["groups"]))
    assert record["waiting"] == record["refused"] == []


def test_the_tables_draw_the_timeline(spec):
    done = weave("plan", spec)
    assert done.returncode == 0, done.stderr
    for word in ("Groups", "closed form", "rollout:0", "A a, B b", "7 min 30 s"):
        assert word in done.stdout


def test_why_shows_every_candidate(spec):
    why = planned(spec, "--why", "c")["why"]
    kinds = [one["kind"] for one in why["candidates"]]
    assert kinds == ["direct packing", "rollout scaling", "isolated"]
    assert [one["delta"] for one in why["candidates"]] == pytest.approx([0, 14.8, 57.04])
    refusals = [one["verdict"] for one in why["candidates"][:2]]
    assert not any(one["admitted"] for one in refusals)
    assert all("times slower than alone" in one["reason"] for one in refusals)
    assert why["chosen"]["kind"] == "isolated"


def test_a_decision_is_written_and_made_again(spec, tmp_path):
    path = tmp_path / "decision.json"
    assert weave("plan", spec, "--why", "b", "--snapshot", path).returncode == 0
    content = json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("weave-decision", 1)
    done = weave("plan", path)
    assert done.returncode == 0, done.stderr
    assert "the same answer" in done.stdout
    content["decision"]["chosen"]["group"] = 7
    path.write_text(json.dumps(content))
    done = weave("plan", path)
    assert done.returncode == 1
    assert "a different answer" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("price: 1.85, ", "", "nodes.rollout.price: is missing"),
        ("rollout: 300s", "rollout: 0s", "more than 0 s"),
        ("rollout: 300s", "rollout: {law: lognormal, mean: 300s, cv: 1}", "has no max"),
        ("slo: 1.6", "slo: 0.9", "slo: is too small"),
        ("name: b", "name: a", "names two jobs"),
        ("phases: {rollout: 150s, train: 150s}", "rollout: 0", "is no placement"),
    ],
)
def test_mistakes_are_one_line_with_the_place(spec, old, new, said):
    assert old in SPEC
    spec.write_text(SPEC.replace(old, new))
    line = refused(weave("plan", spec))
    assert said in line
    assert "spec.yaml" in line


def test_unknown_names_and_files_are_refused(spec, tmp_path):
    assert "is not in the spec" in refused(weave("plan", spec, "--why", "x"))
    path = tmp_path / "other.json"
    path.write_text('{"format": "weave-decision", "version": 2}')
    assert "version 2 is not known" in refused(weave("plan", path))
    path.write_text('{"format": "weave-run", "version": 1}')
    assert "weave-run" in refused(weave("plan", path))
    path.write_text('{"format": "weave-decision", "version": 1, "settings": {}}')
    assert "whole snapshot" in refused(weave("plan", path))


class TestHere:
    """The same command inside this process."""

    @pytest.fixture(autouse=True)
    def capture(self, capsys):
        self.capsys = capsys

    def plan(self, *arguments, code=0):
        assert _code_of(["plan", *map(str, arguments)]) == code
        found = self.capsys.readouterr()
        if code:
            assert found.err.count("\n") == 1
        return found.err if code else found.out

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("slo: 1.6", "slo: .nan", "slo: must be a finite number"),
            ("rollout: 300s", "rollout: .nan", "nan is not a duration"),
            ("rollout: 300s", "rollout: -3s", "'-3s' is not a duration"),
            ("rollout: 300s", "rollout: 300 parsecs", "unknown unit 'parsecs'"),
            ("version: 1", "version: 1\nscheduler: {mode: quantile, quantile: 0.9999}",
             "needs 29956 joint draws"),
        ],
    )  # fmt: skip
    def test_wrong_values_are_one_line(self, spec, old, new, said):
        spec.write_text(SPEC.replace(old, new))
        assert said in self.plan(spec, code=2)

    def test_the_file_for_a_snapshot_is_checked_first(self, spec, tmp_path):
        folder = tmp_path / "no"
        for target, said in ((tmp_path, "a folder"), (folder / "x", "nothing"), ("", "no file")):
            line = self.plan(spec, "--snapshot", target, code=2)
            assert f"--snapshot {target or '.'}" in line
            assert said in line

    def test_a_trace_is_no_spec(self, tmp_path):
        path = tmp_path / "jobs.jsonl"
        path.write_text('{"format": "weave-trace", "version": 1}\n{"id": "a"}\n')
        assert "is a trace; weave plan takes a spec or a decision" in self.plan(path, code=2)

    def test_iterations_of_very_different_length_are_planned(self, spec):
        spec.write_text(SPEC.replace("rollout: 300s", "rollout: 100000h"))
        assert "not drawn" in self.plan(spec)

    def test_a_job_behind_others_says_so(self, spec):
        wide = "{name: w, kind: synthetic, iterations: 9, rollout: 3, slo: 1, phases: {train: 9s}}"
        text = SPEC.replace("host_memory: 2TB", "host_memory: 2TB, count: 3")
        text = text.replace("slo: 1.6", "slo: 1").replace("slo: 2.0", "slo: 1") + f"  - {wide}\n"
        spec.write_text(text)
        assert "job w waits" in self.plan(spec, "--why", "w")

    def test_a_regrouping_is_weighed(self, spec):
        text = SPEC.replace("slo: 1.6", "slo: 1.3") + "scheduler: {regroup_horizon: HOURS}\n"
        spec.write_text(text.replace("HOURS", "240h"))
        assert "regrouping: would" in self.plan(spec)
        record = json.loads(self.plan(spec, "--json"))["regrouping"]
        assert record["horizon_h"] == 240
        assert record["worth"] == (record["saving_per_h"] * 240 > record["cost"])
        spec.write_text(text.replace("HOURS", "0h"))
        assert "regroup_horizon: '0h' is too short" in self.plan(spec, code=2)

    def test_only_some_groups_are_drawn(self, spec):
        one = "  - {{name: j{}, kind: synthetic, iterations: 9, slo: 1, phases: {{rollout: 9s}}}}"
        jobs = "\n".join(one.format(at) for at in range(22))
        spec.write_text(SPEC[: SPEC.index("  - {name: a")] + jobs + "\nscheduler: {max_group: 1}")
        assert "and 2 groups more, not drawn" in self.plan(spec)


def test_a_job_that_fits_nowhere_is_named_and_the_others_are_planned(spec):
    spec.write_text(SPEC.replace("weights: 100GB", "weights: 3TB"))
    record = planned(spec)
    (refusal,) = record["refused"]
    assert refusal["job"] == "a"
    assert "3 TB of 2 TB" in refusal["reason"]
    assert record["totals"]["jobs"] == 2


def test_a_plan_that_places_nobody_is_a_failure_of_one_line(spec):
    alone = SPEC[: SPEC.index("  - {name: b")]
    spec.write_text(alone.replace("weights: 100GB", "weights: 3TB"))
    done = weave("plan", spec)
    assert done.returncode == 1
    assert "Not placed" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("weave: no job was placed; a: fits on no node: ")


def test_prices_that_are_missing_are_asked_for_where_they_belong(spec):
    spec.write_text(re.sub("(?m)^nodes: .*$", "", SPEC))
    at = spec.read_text().splitlines().index("jobs:") + 1
    line = refused(weave("plan", spec))
    assert f"spec.yaml:{at}: nodes: is missing; a plan compares prices" in line


@pytest.mark.parametrize(
    ("budget", "spill", "says"),
    [
        ("100GB", "", None),
        ("60GB", "", "the budget is 60 GB: without host.spill weave run has no place for 20 GB"),
        ("60GB", "gone/spilled", "20 GB will be in files in "),
    ],
)
def test_state_beyond_the_host_budget_is_told(spec, tmp_path, budget, spill, says):
    jobs = "".join(
        f"  - {{name: {name}, kind: synthetic, iterations: 2,"
        " state: {rollout: {weights: 40GB}}, phases: {rollout: 9s, train: 9s}}\n"
        for name in "ab"
    )
    more = f", spill: {spill}" if spill else ""
    nodes = "nodes: {rollout: {price: 1}, train: {price: 1}}"
    spec.write_text(f"version: 1\n{nodes}\nhost: {{budget: {budget}{more}}}\njobs:\n{jobs}")
    done = weave("plan", spec)
    assert done.returncode == 0, done.stderr
    assert ("host.budget: the state" in done.stdout) is (says is not None)
    assert says is None or says in done.stdout
    assert planned(spec)["host"]["bytes"] == 80 * 10**9
    assert not (tmp_path / "gone").exists()


def test_a_spill_directory_that_cannot_be_used_is_refused_by_a_plan(spec, tmp_path):
    (tmp_path / "file").touch()
    spec.write_text(SPEC.replace("version: 1", "version: 1\nhost: {spill: file/spilled}"))
    assert "host.spill: " in refused(weave("plan", spec))


def test_run_says_its_plan_first(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        SPEC.replace("version: 1", 'version: 1\ndevices: {rollout: ["emulated:h20?scale=65536&'
                     'speed=9000"], train: ["emulated:h800?scale=65536&speed=9000"]}')
        .replace("gpus: 8, ", "").replace("200GB", "2GB").replace("50GB", "5GB")
        .replace("100GB", "10GB")
    )  # fmt: skip
    done = weave("run", path)
    assert done.returncode == 0, done.stderr
    assert "plan: a period of 8 min 30 s, bound by rollout:0 (closed form)" in done.stderr
    assert "plan: a limit will not be kept" in done.stderr  # c at 1.1
    assert "plan:" not in done.stdout


def test_a_decision_is_never_written_over_its_spec(tmp_path, capsys):
    spec = tmp_path / "spec.yaml"
    spec.write_text((Path(__file__).parent.parent / "examples/two_modelled_jobs.yaml").read_text())
    text = spec.read_text()
    assert _code_of(["plan", str(spec), "--snapshot", str(spec)]) == 2
    assert "is the file that is read; give another" in capsys.readouterr().err
    assert _code_of(["profile", str(spec), "--out", str(spec)]) == 2
    assert "is the file that is read; give another" in capsys.readouterr().err
    assert spec.read_text() == text

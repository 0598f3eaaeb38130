"""summary.json, timeline.json and report.html, made from records without running anything."""

import json
import re
from html.parser import HTMLParser

import pytest

from weave_scheduler.compare import first_difference
from weave_scheduler.conditions import conditions
from weave_scheduler.outdir import OutDir, write_whole
from weave_scheduler.records import DeviceRecord, JobRecord, RunRecord, SliceRecord
from weave_scheduler.report import Verdict, condition_lines, report_page, verdict
from weave_scheduler.specfile import parse_spec
from weave_scheduler.summary import Runs, learning, summarise
from weave_scheduler.timeline import timeline

SPEC = parse_spec(
    """
version: 1
devices: {rollout: ["emulated:h20"], train: ["emulated:h800"]}
nodes: {rollout: {price: 1.85}, train: {price: 5.28}}
jobs:
  - {name: "a", kind: synthetic, iterations: 2, slo: 2, phases: {rollout: 2s, train: 1s}}
  - {name: "b", kind: synthetic, iterations: 2, phases: {rollout: 2s, train: 1s, reward: 1s}}
"""
).spec
S = 1_000_000_000


def device(pool):
    return DeviceRecord(
        pool, f"{pool}:0", "emulated:h20?x=<1>", "emulated", "emulated h20", "GPU-1", 0,
        10**9, 9 * 10**8, 2**20, 1.0, 1.0, False,
    )  # fmt: skip


def piece(kind, job, phase, start_s, end_s, **more):
    pools = {"rollout": ("rollout:0",), "train": ("train:0",)}
    return SliceRecord(kind, job, phase, more.pop("step", 0), more.pop("on", pools.get(phase, ())),
                       int(start_s * S), int(end_s * S), **more)  # fmt: skip


def run_of(*names, shift=0.0):
    report = {"out": ["b"], "in": "a", "bytes_out": 5, "bytes_in": 7, "seconds": 0.25}
    slices = []
    for at, name in enumerate(names):
        t = at * 2 + shift
        slices += [
            piece("wait", name, "rollout", 0, t),
            piece("switch", name, "rollout", t, t + 0.25, report=report),
            piece("phase", name, "rollout", t + 0.25, t + 2),
            piece("phase", name, "train", t + 2, t + 3, step=1),
            piece("phase", name, "reward", t + 3, t + 4),
            piece("background", name, "", t + 0.5, t + 1, step=None, on=("rollout:0",),
                  report={"bytes_in": 3, "tenant": "kv"}),
        ]  # fmt: skip
    jobs = [
        JobRecord(name, "synthetic", 0, int((at * 2 + 4 + shift) * S), [2 * S, 4 * S],
                  [0.5, 0.25], [0.0, 1.0], "l", "w")
        for at, name in enumerate(names)
    ]  # fmt: skip
    return RunRecord([device("rollout"), device("train")], jobs, slices, jobs[-1].end_ns, "now")


def runs(mode="compare"):
    return Runs(
        SPEC,
        None if mode == "solo" else run_of("a", "b"),
        {} if mode == "together" else {"a": run_of("a"), "b": run_of("b")},
    )


def summary(mode="compare"):
    return summarise(runs(mode), conditions([device("rollout"), device("train")]))


def test_the_summary_has_the_keys_of_the_design():
    whole = summary()
    assert list(whole)[:3] == ["format", "version", "conditions"]
    assert (whole["format"], whole["version"]) == ("weave-run", 1)
    assert {"device", "device_name", "spec", "weave", "python", "cores", "started_at",
            "host_limited"} <= whole["conditions"].keys()  # fmt: skip
    assert "driver" not in whole["conditions"], "an emulated device has no driver"
    assert {"name", "iterations", "wall_s", "solo_s", "slowdown", "waited_s", "reward_first",
            "reward_last", "loss_digest", "weights_digest", "identical_to_solo", "cost",
            } <= whole["jobs"][0].keys()  # fmt: skip
    assert whole["pools"][0].keys() == {"name", "phases_s", "switch_s", "idle_s", "busy_share",
                                        "busy_share_solo"}  # fmt: skip
    assert whole["totals"].keys() == {"wall_s", "solo_wall_s", "gain", "bytes_out", "bytes_in",
                                      "cost", "cost_solo"}  # fmt: skip
    json.dumps(whole, allow_nan=False)


def test_the_numbers_of_a_summary_are_those_of_the_records():
    whole = summary()
    a, b = whole["jobs"]
    assert (a["wall_s"], a["solo_s"], b["wall_s"], b["slowdown"]) == (4, 4, 6, 1.5)
    assert b["waited_s"] == 2
    assert a["identical_to_solo"] is True
    rollout, train = whole["pools"]
    assert (rollout["phases_s"], rollout["switch_s"], rollout["idle_s"]) == (3.5, 0.5, 2)
    assert rollout["busy_share"] == pytest.approx(3.5 / 6)
    assert train["busy_share_solo"] == pytest.approx(2 / 8)
    totals = whole["totals"]
    assert (totals["wall_s"], totals["solo_wall_s"]) == (6, 8)
    assert totals["gain"] == pytest.approx(8 / 6)
    assert (totals["bytes_out"], totals["bytes_in"]) == (10, 14)
    assert a["cost"] + b["cost"] == pytest.approx(totals["cost"])
    assert totals["cost"] == pytest.approx((1.85 + 5.28) * 6 / 3600)
    # b pays all of the last two seconds, when a is gone
    assert b["cost"] - a["cost"] == pytest.approx((1.85 + 5.28) * 2 / 3600)


def test_what_was_not_measured_is_absent():
    together, solo = summary("together"), summary("solo")
    assert "solo_s" not in together["jobs"][0]
    assert "identical_to_solo" not in together["jobs"][0]
    assert together["totals"].keys() == {"wall_s", "bytes_out", "bytes_in", "cost"}
    assert "busy_share_solo" not in together["pools"][0]
    assert solo["totals"].keys() == {"solo_wall_s", "cost_solo"}
    assert "wall_s" not in solo["jobs"][0]
    assert "switches" not in solo
    assert "reward_se" not in together["jobs"][0], "one iteration has no spread"


def test_a_failed_job_leaves_no_gain_and_no_comparison():
    broken = runs()
    broken.together.jobs[0].error = "failed in train: ValueError"
    whole = summarise(broken, {})
    assert "gain" not in whole["totals"]
    assert "identical_to_solo" not in whole["jobs"][0]
    assert whole["jobs"][0]["error"].startswith("failed")


def test_the_slo_is_held_against_worst_case_and_against_own_phases():
    row = summary()["jobs"][0]
    assert row["slo_met_planned"] is True  # mean 2 s, worst case alone 3 s, SLO 2
    assert row["slo_met_realised"] is True  # own phases of iteration 1: 1 s


def test_learning_compares_the_first_and_the_last_tenth():
    rewards = [0.0, 0.1] + [0.5] * 16 + [0.9, 1.0]
    first, last, error = learning(rewards)
    assert (first, last) == (0.05, 0.95)
    assert error == pytest.approx(((0.005 + 0.005) / 2) ** 0.5)
    assert learning([0.1] * 5)[2] is None
    assert learning([]) is None


def test_the_first_difference_names_the_iteration():
    job, same = (run_of("a").jobs[0] for _ in range(2))
    assert first_difference(job, same) is None
    same.losses[1] = 0.25000000000000006
    assert "loss of iteration 1 is 0.25000000000000006, alone 0.25" in first_difference(job, same)
    same.losses[:] = [0.5]
    assert "iteration 1 is absent" in first_difference(job, same)
    same.losses[:] = [0.5, 0.25]
    same.weights_digest = "other"
    assert "final weights" in first_difference(job, same)
    same.losses[1] = job.losses[1] = float("nan")
    same.weights_digest = "w"
    assert first_difference(job, same) is None


# The rules of the trace event format that Perfetto's JSON importer relies on.


def check_trace(trace):
    events = trace["traceEvents"]
    json.dumps(trace, allow_nan=False)
    named, lanes, open_waits = set(), {}, {}
    for event in events:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert isinstance(event["ts"], int | float)
        match event["ph"]:
            case "M":
                assert event["name"] in {"process_name", "thread_name", "process_sort_index",
                                         "thread_sort_index"}  # fmt: skip
                key = "sort_index" if event["name"].endswith("sort_index") else "name"
                assert event["args"].keys() == {key}
                named.add((event["name"], event["pid"], event["tid"]))
            case "X":
                assert event["dur"] >= 0
                lanes.setdefault((event["pid"], event["tid"]), []).append(event)
            case "b":
                key = (event["cat"], event["id"])
                assert key not in open_waits
                open_waits[key] = event
            case "e":
                begin = open_waits.pop((event["cat"], event["id"]))
                assert event["ts"] >= begin["ts"]
                assert (event["pid"], event["name"]) == (begin["pid"], begin["name"])
            case other:
                pytest.fail(f"unknown phase {other}")
    assert not open_waits
    for (pid, tid), slices in lanes.items():
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
        ends = []
        for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
            while ends and ends[-1] <= one["ts"] + 1e-6:
                ends.pop()
            end = one["ts"] + one["dur"]
            assert not ends or end <= ends[-1] + 1e-6, "slices of a lane overlap without nesting"
            ends.append(end)
    return lanes


@pytest.mark.parametrize("mode", ["compare", "together", "solo"])
def test_the_timeline_keeps_the_rules_of_the_trace_format(mode):
    trace = timeline(runs(mode), conditions([device("rollout")]))
    assert (trace["format"], trace["version"]) == ("weave-run", 1)
    lanes = check_trace(trace)
    assert len(lanes) == 4 if mode != "solo" else 3  # two devices, and jobs in reward
    names = {event["name"] for events in lanes.values() for event in events}
    assert {"a/rollout", "b/train", "b -> a"} <= names
    beside = {event["name"]: event["cat"] for event in trace["traceEvents"] if event["ph"] == "b"}
    assert beside["a comes in"] == "background"


LINKS = ("src", "href", "xlink:href", "data", "action", "srcset")


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links, self.open = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [(name, value) for name, value in attributes if name in LINKS]
        if tag not in ("meta", "line", "rect", "br", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag in ("rect", "line"):
            return
        assert self.open.pop() == tag


@pytest.mark.parametrize("mode", ["compare", "together", "solo"])
def test_the_report_is_one_page_without_outside_parts(mode):
    text = report_page(runs(mode), summary(mode), [], ["a <note>"], "my.yaml")
    page = Page()
    page.feed(text)
    assert not page.open
    assert page.links == []
    assert not re.search(r"https?:|url\(|@import|<script|<link|<img|<iframe", text)
    assert text.count("<rect") == 2 * 6, "a bar for every slice"
    assert "a &lt;note&gt;" in text
    assert "x=&lt;1&gt;" in text
    assert "prefers-color-scheme: dark" in text
    assert "<td>a</td>" in text
    assert re.search(r"<title>Weave run my.yaml: a, b, \d{4}-\d\d-\d\d \d\d:\d\d UTC</title>", text)
    assert "[&#39;" not in text, "a Python list is shown"


def test_the_verdict_is_the_first_thing_said():
    assert verdict(summary()) == Verdict(
        "1.33 times as fast together as one after the other;"
        " every job identical to its run alone", False
    )  # fmt: skip
    assert verdict(summary("solo")) == Verdict("all jobs ran to their end", False)
    stopped = summary() | {"interrupted": True}
    assert verdict(stopped).text.startswith("interrupted before the end; ")
    whole = summary()
    whole["jobs"][1]["identical_to_solo"] = False
    assert "different from the run alone: b" in verdict(whole).text
    whole["jobs"][0]["error"] = "failed"
    told = verdict(whole)
    assert told.warns
    assert told.text.startswith("failed: a; ")
    assert 'class="verdict warn">failed: a; ' in report_page(runs(), whole, ["x"], [])


def test_conditions_are_text():
    lines = dict(condition_lines(conditions([device("rollout"), device("train")])))
    assert lines["device, rollout"] == "emulated:h20?x=<1>"
    assert lines["host too slow"] == "no"


def test_a_report_folds_long_lists_of_switches_and_explains_them():
    many = summary()
    many["switches"] = [many["switches"][0] | {"efficiency": 1.25}] * 50
    text = report_page(runs(), many, [], [])
    folded = text.split("<details>")[1]
    assert folded.count("<td>b</td>") == 30
    assert "30 more" in folded
    assert "noise of the host" in text
    plain = report_page(runs(), summary(), [], [])
    assert "<details>" not in plain
    assert "noise of the host" not in plain


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "x.json", "new")
    assert (tmp_path / "x.json").read_text() == "new"
    with pytest.raises(TypeError):
        write_whole(tmp_path / "x.json", 3)
    assert (tmp_path / "x.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path):
    with OutDir(tmp_path / "new" / "out") as folder:
        folder.write("a.txt", "a")
        with pytest.raises(ValueError, match=r"another weave run \(process"):
            OutDir(folder.path).__enter__()
    with OutDir(folder.path):
        pass
    assert [path.name for path in folder.path.iterdir()] == ["a.txt"]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        OutDir(tmp_path / "file").__enter__()

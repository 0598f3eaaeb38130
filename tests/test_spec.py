"""SPEC.yaml: every key, every mistake in one line with its place, and what is not run yet."""

import re
from pathlib import Path

import pytest
import yaml

from weave_scheduler.document import SpecError
from weave_scheduler.laws import Constant, Lognormal, draw
from weave_scheduler.specfile import load_spec, parse_spec
from weave_scheduler.support import check_runnable, notes

SPEC = """\
version: 1
devices:
  rollout: ["emulated:h20?scale=4096&speed=50"]
  train: ["emulated:h800?scale=4096&speed=50"]
nodes:
  rollout: {gpus: 1, price: 1.85, host_memory: 64GB, count: 1}
scheduler: {intra: fifo, tail: off}
host: {budget: 64GB}
plan: auto
jobs:
  - name: first
    kind: synthetic
    iterations: 3
    seed: 7
    state: {rollout: {weights: 15.2GB, kv_cache: 40GB}, train: {optimizer: 1GiB}}
    policy: {kv_cache: discard}
    phases:
      rollout: {law: lognormal, mean: 100s, cv: 0.2, max: 180s}
      train: 40s
  - name: second
    kind: grpo
    iterations: 2
    config: {task: spell_backward}
"""

EVERYTHING = """\
version: 1
devices: {rollout: ["emulated:h20", "emulated:h20"], train: ["emulated:h800", "emulated:h800"]}
nodes:
  rollout: {gpus: 2, price: 1.85, host_memory: 64GB, count: 1}
  train: {gpus: 1, price: 5.28, host_memory: 64GB}
scheduler: {intra: strict, inter: weave, mode: quantile, quantile: 0.99, confidence: 0.95,
  max_group: 5, require_unsaturated_after: true, tail: 0.8}
host: {budget: 64GB, spill: spilled}
plan: least-stall
jobs:
  - {name: c, kind: command, command: [python, train.py], iterations: 5, arrival: 3s, ranks: 2,
     rollout: 1, train: [0, 1], train_nodes: [1, 2], restart_every: 4, slo: 1.5, threads: 2}
  - {name: d, kind: command, command: python train.py, iterations: 5}
"""

WRONG = [
    ("iterations: 3", "iteration: 3", "jobs.0.iteration", "did you mean iterations"),
    ("seed: 7", "sede: 7\n    colour: red", "jobs.0.sede", "(and 1 more)"),
    ("version: 1", "version: 2", "version", "allowed: 1"),
    ("version: 1\n", "", "version", "is missing"),
    ("version: 1", "version: 1\nwhat: 1", "what", "unknown key; allowed: version, devices"),
    ("40GB", "40Gb", "jobs.0.state.rollout.kv_cache", "unknown unit 'Gb'"),
    ("1GiB", "-1GiB", "jobs.0.state.train.optimizer", "allowed: "),
    ("train: 40s", "train: 40", "jobs.0.phases.train", "allowed: a number with ns"),
    ("train: 40s", "trian: 40s", "jobs.0.phases.trian", "did you mean train"),
    ("cv: 0.2", "cv: high", "jobs.0.phases.rollout.cv", "must be a number"),
    ("cv: 0.2", "cv: .nan", "jobs.0.phases.rollout.cv", "must be a finite number"),
    ("seed: 7", "slo: .nan", "jobs.0.slo", "must be a finite number"),
    ("tail: off", "drift_tolerance: .inf", "scheduler.drift_tolerance", "must be a finite number"),
    ("cv: 0.2, ", "", "jobs.0.phases.rollout.cv", "is missing"),
    ("law: lognormal", "law: gamma", "jobs.0.phases.rollout.law", "'lognormal'"),
    ("max: 180s", "max: 50s", "jobs.0.phases.rollout", "max is below mean"),
    ("weights: 15.2GB", "weigths: 15.2GB", "jobs.0.state.rollout.weigths", "'weights'"),
    ("kv_cache: discard", "kv_cache: drop", "jobs.0.policy.kv_cache", "'discard'"),
    ("kv_cache: discard", "grads: discard", "jobs.0.policy.grads", "no such tag"),
    ("kind: synthetic", "kind: synthetical", "jobs.0.kind", "'synthetic'"),
    ("kind: synthetic", "kind: 3", "jobs.0.kind", "3 is not known; allowed: 'grpo' or 'synthetic'"),
    ("kind: synthetic", "kind: command", "jobs.0.command", "is missing"),
    ("iterations: 3", "iterations: '3'", "jobs.0.iterations", "must be a whole number"),
    ("iterations: 3", "iterations: 0", "jobs.0.iterations", "allowed: 1 or more"),
    ("iterations: 3", "iterations: true", "jobs.0.iterations", "must be a whole number"),
    ("seed: 7", "seed: -1", "jobs.0.seed", "allowed: 0 or more"),
    ("seed: 7", "slo: 0.5", "jobs.0.slo", "allowed: 1"),
    ("seed: 7", "rollout: [1]", "jobs.0.rollout", "out of range"),
    ("seed: 7", "train: 2", "jobs.0.train", "out of range"),
    ("seed: 7", "train: [0, 0]", "jobs.0.train", "twice"),
    ("seed: 7", "train: first", "jobs.0.train", "allowed: a list of node ids"),
    ("seed: 7", "config: {a: 1}", "jobs.0.config", "has no config"),
    ("name: second", "name: first", "jobs.1.name", "names two jobs"),
    ("name: second", "name: 2", "jobs.1.name", "allowed: 1 to 64 letters"),
    ("name: second", "name: a/b", "jobs.1.name", "allowed: 1 to 64 letters"),
    ("config: {task: spell_backward}", "config: gone.yaml", "jobs.1.config", "no such file"),
    ("config: {task: spell_backward}", "config: [1]", "jobs.1.config", "must be a mapping"),
    ("config: {task: spell_backward}", "command: ls", "jobs.1.command", "remove it"),
    ('["emulated:h20?scale=4096&speed=50"]', "[]", "devices.rollout", "is empty"),
    ('["emulated:h20?scale=4096&speed=50"]', "[gpu0]", "devices.rollout.0", "allowed: auto"),
    ('["emulated:h20?scale=4096&speed=50"]', "cuda:0", "devices.rollout", "must be a list"),
    ("count: 1", "count: 2", "nodes.rollout.count", "more than the 1 devices"),
    ("gpus: 1", "gpus: 2", "devices.rollout", "no whole number of nodes"),
    ("price: 1.85", "price: cheap", "nodes.rollout.price", "allowed: a number"),
    ("intra: fifo", "intra: lifo", "scheduler.intra", "'fifo'"),
    ("tail: off", "tail: 2", "scheduler.tail", "allowed: off"),
    ("tail: off", "quantile: 1", "scheduler.quantile", "less than 1"),
    ("budget: 64GB", "budget: lots", "host.budget", "allowed: "),
    ("plan: auto", "plan: best", "plan", "'auto'"),
]  # fmt: skip

LATER = [
    ("seed: 7", "arrival: 3s", "jobs.0.arrival"),
    ("seed: 7", "ranks: 2", "jobs.0.ranks"),
    ("seed: 7", "restart_every: 2", "jobs.0.restart_every"),
    ("seed: 7", "train_nodes: [2]", "jobs.0.train_nodes"),
    ("tail: off", "tail: 0.8", "scheduler.tail"),
    ("intra: fifo", "mode: quantile", "scheduler.mode"),
    ("intra: fifo", "require_unsaturated_after: true", "scheduler.require_unsaturated_after"),
]


def changed(old, new):
    assert SPEC.count(old) >= 1
    return SPEC.replace(old, new, 1)


def line_of(text, key):
    """The line of the last key of a dotted path, or of the nearest key around it."""
    lines = text.splitlines()
    for word in reversed(key.split(".")):
        found = [n for n, line in enumerate(lines, 1) if re.search(rf"\b{word}:", line)]
        if found:
            return found
    return [1]


def test_a_right_spec_is_read():
    loaded = parse_spec(SPEC)
    first, second = loaded.spec.jobs
    assert first.phases.given() == {"rollout": Lognormal(100.0, 0.2, 180.0), "train": Constant(40)}
    assert first.state.rollout == {"weights": 15_200_000_000, "kv_cache": 40 * 10**9}
    assert second.config == {"task": "spell_backward"}
    assert loaded.spec.scheduler.tail is None
    assert check_runnable(loaded)["first"].rollout == (0,)


def test_every_key_of_the_design_is_known():
    spec = parse_spec(EVERYTHING).spec
    assert spec.jobs[0].command == ("python", "train.py")
    assert spec.jobs[0].train == (0, 1)
    assert spec.scheduler.tail == 0.8
    with pytest.raises(SpecError, match="not supported by this version"):
        check_runnable(parse_spec(EVERYTHING))


@pytest.mark.parametrize(("old", "new", "key", "says"), WRONG)
def test_a_mistake_is_one_line_with_its_place(old, new, key, says):
    text = changed(old, new)
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "my.yaml")
    message = str(caught.value)
    assert "\n" not in message
    place = re.match(r"my\.yaml:(\d+): ([\w.-]+): ", message)
    assert place, message
    assert place[2] == key
    assert int(place[1]) in line_of(text, key) or says == "is missing"
    assert says in message


@pytest.mark.parametrize(("old", "new", "key"), LATER)
def test_what_comes_later_is_refused_not_ignored(old, new, key):
    loaded = parse_spec(changed(old, new), "my.yaml")
    with pytest.raises(
        SpecError, match=rf"my\.yaml:\d+: {re.escape(key)}: .*this version"
    ) as caught:
        check_runnable(loaded)
    assert "\n" not in str(caught.value)


def test_jobs_of_one_process_must_agree_on_threads():
    loaded = parse_spec(changed("name: second", "name: second\n    threads: 2"), "my.yaml")
    with pytest.raises(
        SpecError, match=r"my\.yaml:21: jobs\.1\.threads: is 2, but job first has 1"
    ):
        check_runnable(loaded)


def test_more_jobs_than_a_group_may_have_are_refused():
    loaded = parse_spec(changed("intra: fifo", "max_group: 1"))
    with pytest.raises(SpecError, match=r"scheduler\.max_group: the 2 jobs form one group"):
        check_runnable(loaded)


def test_a_job_must_say_which_of_several_nodes_it_wants():
    text = SPEC.replace('"emulated:h20?scale=4096&speed=50"', "emulated:h20, emulated:h20")
    with pytest.raises(
        SpecError, match=r"rollout: the rollout pool has 2 nodes .*write rollout: \[0\]"
    ):
        check_runnable(parse_spec(text.replace(", count: 1", "")))


def test_declared_sizes_of_a_measured_job_are_pointed_out():
    text = changed("config: {task", "phases: {train: 3s}\n    config: {task")
    assert "job second: state and phases" in notes(parse_spec(text))[0]
    assert notes(parse_spec(SPEC)) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("[]", "must be a mapping"),
        ("version: 1", "jobs: is missing"),
        ("version: 1\njobs: []", "jobs: is empty"),
        ("version: 1\njobs:\n  - 3", ":3: jobs.0: must be a mapping"),
        ("version: 1\njobs: [", "is not valid YAML"),
        ("version: 1\nversion: 1", ":2: version: is given twice (first on line 1)"),
        ("&a {version: *a}", "contains itself"),
        ("a: !!python/object:os.system x", "is not valid YAML"),
        ("\x01", "is not valid YAML"),
        ("a: 2001-99-99", "is not valid YAML"),
        ("---\na: 1\n---\nb: 1", "is not valid YAML"),
        ("{[1]: 2}", "a key must be a word"),
    ],
)
def test_what_is_no_spec_is_one_line(text, says):
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "my.yaml")
    assert "\n" not in str(caught.value)
    assert says in str(caught.value)


def test_files_that_cannot_be_read_are_one_line(tmp_path):
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"#" * (5 * 2**20))
    for name, says in (
        ("gone.yaml", "no such file"), (".", "is a folder"), ("latin", "not UTF-8"),
        ("large", "larger than"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=says):
            load_spec(tmp_path / name)


def test_a_config_file_is_read_beside_the_spec(tmp_path):
    (tmp_path / "job.yaml").write_text("task: basic_arithmetic\n")
    (tmp_path / "spec.yaml").write_text(changed("{task: spell_backward}", "job.yaml"))
    assert load_spec(tmp_path / "spec.yaml").spec.jobs[1].config == {"task": "basic_arithmetic"}


def test_anchors_and_merges_keep_their_lines():
    text = SPEC.replace("  - name: second\n    kind: grpo\n    iterations: 2\n", "").replace(
        "    config: {task: spell_backward}\n", ""
    )
    text = text.replace("  - name: first", "  - &one\n    name: first")
    text += "  - {<<: *one, name: other, iterations: 0}\n"
    with pytest.raises(SpecError, match=rf":{len(text.splitlines())}: jobs\.1\.iterations: "):
        parse_spec(text)


def test_a_draw_depends_on_seed_iteration_and_phase_only():
    law = Lognormal(100.0, 0.3, 150.0)
    drawn = [draw(law, 5, step, "rollout") for step in range(200)]
    assert drawn == [draw(law, 5, step, "rollout") for step in range(200)]
    assert (
        len({draw(law, 5, 0, "rollout"), draw(law, 6, 0, "rollout"), draw(law, 5, 0, "train")}) == 3
    )
    assert max(drawn) == 150.0
    assert 80 < sum(drawn) / len(drawn) < 105
    assert draw(Constant(3.0), 5, 0, "train") == 3.0


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.parent.glob("examples/*.yaml")))
def test_the_examples_are_valid(path):
    assert yaml.safe_load(path.read_text())["version"] == 1
    check_runnable(load_spec(path))

"""The console command from outside: exit codes, one line for a mistake, output for scripts."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import types

import pytest

from weave_scheduler import cli

TINY = """
version: 1
devices:
  rollout: ["emulated:h20?scale=65536&speed=1000"]
  train: ["emulated:h800?scale=65536&speed=1000"]
jobs:
  - {name: a, kind: synthetic, iterations: 2, state: {rollout: {weights: 1GB}},
     phases: {rollout: 1s, train: 1s}}
"""


def weave(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-m", "weave_scheduler", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, **more,
    )  # fmt: skip


def refused(done, code=2):
    """The one line of a refusal."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("weave: ")
    return lines[0]


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(TINY)
    return path


def test_help_shows_the_commands_and_examples():
    done = weave("--help")
    assert done.returncode == 0
    for word in ("run", "doctor", "bench", "Examples:"):
        assert word in done.stdout
    assert "solo-job" not in done.stdout
    assert "Example:" in weave("run", "--help").stdout


def test_version_is_one_line():
    done = weave("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("weave ")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["fly"], ["run"], ["run", "a", "b"], ["run", "x.yaml", "--fast"], ["bench"],
        ["bench", "nothing"], ["run", "x.yaml", "--solo", "--compare-solo"], ["doctor", "--device"],
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_and_exit_2(arguments):
    refused(weave(*arguments))


def test_a_missing_file_is_named():
    assert "gone.yaml: no such file" in refused(weave("run", "gone.yaml"))


def test_a_trace_is_no_spec(tmp_path):
    trace = tmp_path / "jobs.jsonl"
    trace.write_text('{"format": "weave-trace", "version": 1}\n{"id": "a"}\n')
    for command in ("run", "profile"):
        assert "jobs.jsonl: is a trace, which names no devices" in refused(weave(command, trace))


def test_a_mistake_in_the_spec_is_named_with_its_line(spec):
    spec.write_text(TINY.replace("iterations", "iteration"))
    assert f"{spec}:7: jobs.0.iteration: unknown key" in refused(weave("run", spec))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("emulated:h20?scale", "emulated:h99?scale", ":4: devices.rollout.0: "),
        ("emulated:h20?scale=", "emulated:h20?weight=3&scale=", ":4: devices.rollout.0: "),
        ("emulated:h800?scale=65536&speed=1000", "cuda:77", ":5: devices.train.0: "),
        ("emulated:h800?scale=65536", "emulated:h800?scale=4096", "give all devices the same"),
        (
            "train: [",
            "# [",
            ":3: devices.train: is missing, so auto was used; train device 0 has scale",
        ),
        (
            "rollout: [",
            "# [",
            ":3: devices.rollout: is missing, so auto was used; train device 0 has",
        ),
        (
            "weights: 1GB",
            "weights: 97GB",
            ":7: jobs.0.state.rollout: fits on no node: a rollout node would need 97",
        ),
        ("train: 1s", "train: 1", ":8: jobs.0.phases.train: "),
        ("iterations: 2", "iterations: 2, arrival: 1s", "not supported by this version"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(spec, old, new, says):
    assert old in TINY
    spec.write_text(TINY.replace(old, new))
    check_refusal(weave("run", spec), says)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("state: {rollout: {weights: 97GB}}", "a rollout node would need 97"),
        ("state: {rollout: {weights: 9GB}}, unmanaged: {rollout: {running: 90GB}}", "would need 9"),
        ("state: {rollout: {weights: 9GB}}, unmanaged: {rollout: {running: 96GB}}", "nothing is"),
    ],
)
def test_what_fits_nowhere_is_refused_before_anything_is_written(spec, tmp_path, more, says):
    spec.write_text(TINY.replace("state: {rollout: {weights: 1GB}}", more))
    line = refused(weave("run", spec, "--out", tmp_path / "out"))
    assert "fits on no node: " in line
    assert says in line
    assert not (tmp_path / "out").exists()


def test_what_does_not_fit_beside_what_others_keep_is_refused_first(spec, tmp_path):
    more = (
        "state: {rollout: {weights: 40GB}}, unmanaged: {rollout: {running: 45GB, sleeping: 10GB}}"
    )
    text = TINY.replace("state: {rollout: {weights: 1GB}}", more)
    job = text[text.index("  - {name: a") :]
    spec.write_text(text + job.replace("name: a", "name: b"))
    line = refused(weave("run", spec, "--out", tmp_path / "out"))
    assert "jobs.0.state.rollout: does not fit beside what other jobs take outside regions:" in line
    assert "rollout:0 would need 40" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--solo", "--compare-solo"])
def test_what_cannot_run_alone_is_refused_in_the_same_words(spec, option):
    spec.write_text(TINY.replace("emulated:h20?scale", "emulated:h99?scale"))
    check_refusal(weave("run", spec, option), ":4: devices.rollout.0: ")


def check_refusal(done, says):
    """Like ``refused``, for mistakes that are found when progress was shown already."""
    assert done.returncode == 2, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("weave: ")]
    assert len(complaints) == 1
    assert says in complaints[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_debug_shows_the_traceback():
    assert "Traceback" in weave("run", "gone.yaml", "--debug").stderr


def test_a_run_prints_tables_or_json(spec):
    shown = weave("run", spec)
    assert shown.returncode == 0, shown.stderr
    for word in ("Jobs", "Pools", "Totals"):
        assert word in shown.stdout
    assert "rollout:0: emulated:h20" in shown.stderr
    record = json.loads(weave("run", spec, "--json").stdout)
    assert (record["format"], record["version"]) == ("weave-run", 1)


def test_an_out_folder_that_cannot_be_used_is_one_line(spec):
    assert "is a file; give a folder" in refused(weave("run", spec, "--out", spec))
    assert "cannot be used" in refused(weave("run", spec, "--out", "/proc/out"))
    assert "--out is empty" in refused(weave("run", spec, "--out", ""))


def test_a_run_that_keeps_nothing_says_how_to_keep_it(spec, tmp_path):
    last = "nothing kept; --out DIR writes summary.json, timeline.json and report.html"
    assert weave("run", spec).stdout.splitlines()[-1] == last
    assert last not in weave("run", spec, "--out", tmp_path / "out").stdout


@pytest.mark.parametrize(
    ("out", "says"),
    [("gone/x.json", "make the folder"), ("", "is a folder"), ("file/x.json", "nothing can be")],
)
@pytest.mark.parametrize("name", ["switch", "pool", "overlay", "sched"])
def test_the_target_of_a_benchmark_is_checked_before_it_runs(tmp_path, name, out, says):
    (tmp_path / "file").touch()
    assert says in refused(weave("bench", name, "--out", tmp_path / out))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run"], ["run", "--json"]])
def test_a_full_disk_behind_stdout_is_one_line(spec, arguments):
    more = [spec] if arguments[0] == "run" else []
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "weave_scheduler", *arguments, *more],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "stdout" in line or "rror" in line]
    assert said == [
        "weave: stdout cannot be written: No space left on device;"
        " make room or send the output elsewhere"
    ]


@pytest.mark.parametrize("arguments", [["--help"], ["run"]])
def test_a_reader_that_left_is_no_error(spec, arguments):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    more = [spec] if arguments[0] == "run" else []
    done = subprocess.run(
        [sys.executable, "-m", "weave_scheduler", *arguments, *more],
        stdout=write_fd, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    os.close(write_fd)
    assert done.returncode == 128 + signal.SIGPIPE
    assert "rror" not in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_outside_a_run_is_one_line(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    module = types.ModuleType("weave_rt.benchmarks.switch")
    module.run = interrupted
    monkeypatch.setitem(sys.modules, "weave_rt.benchmarks.switch", module)
    monkeypatch.setattr("weave_scheduler.session.load_spec", interrupted)
    for arguments in (["bench", "switch"], ["run", "x.yaml"]):
        assert cli._code_of(arguments) == 130
        assert capsys.readouterr().err == "weave: interrupted\n"


def test_doctor_runs_where_torch_cannot_be_imported(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = weave("doctor", "--device", "emulated:h20?scale=4096",
                 env=os.environ | {"PYTHONPATH": path})  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_importing_the_command_does_not_import_torch():
    check = "import sys, weave_scheduler.cli, weave_scheduler.session, weave_scheduler.doctor\n" \
            "import weave_rt.doctor\n" \
            "sys.exit('torch' in sys.modules)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    "module", ["units", "laws", "document", "spec", "specfile", "support", "events", "commands",
               "state", "policy", "compare"],
)  # fmt: skip
def test_deciding_parts_import_no_runtime(module):
    check = f"import sys, weave_scheduler.{module}\n" \
            "sys.exit(bool({'weave_rt._core', 'torch'} & set(sys.modules)))"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_bench_switch_prints_the_record_and_writes_it(tmp_path, monkeypatch, capsys):
    record = {
        "format": "weave-bench",
        "version": 1,
        "conditions": {},
        "cases": [{"name": "duplex", "arm": "weave", "n": 1, "samples_s": [0.5]}],
    }
    asked = []

    def run(device, full, progress, **options):
        asked.append((device, full, options))
        progress("working")
        return record

    module = types.ModuleType("weave_rt.benchmarks.switch")
    module.run = run
    monkeypatch.setitem(sys.modules, "weave_rt.benchmarks.switch", module)
    out = tmp_path / "record.json"
    assert cli._code_of(["bench", "switch", "--full", "--device", "cuda:0", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert asked == [("cuda:0", True, {"repeats": 0, "preset_name": "", "load": False})]
    assert "duplex" in shown.out
    assert "500 ms" in shown.out
    assert "working" in shown.err
    assert json.loads(out.read_text()) == record
    more = [
        "--preset",
        "train-7b",
        "--load",
        "--repeats",
        "3",
        "--arms",
        "weave,plain",
        "--tensors",
    ]
    assert cli._code_of(["bench", "switch", "--json", *more]) == 0
    assert asked[-1] == ("auto", False, {"repeats": 3, "preset_name": "train-7b", "load": True,
                         "arms": ["weave", "plain"], "many_tensors": True})  # fmt: skip
    assert json.loads(capsys.readouterr().out) == record


def test_on_a_terminal_progress_moves_and_results_follow(spec):
    leader, follower = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "weave_scheduler", "run", str(spec)],
        stdout=subprocess.PIPE, stderr=follower, text=True, timeout=120, check=False,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while chunk := os.read(leader, 65536):
            shown += chunk
    os.close(leader)
    assert done.returncode == 0
    assert "Jobs" in done.stdout
    assert "\x1b" not in done.stdout
    assert b"\x1b[" in shown

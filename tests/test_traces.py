"""The trace format, the Philly importer and the step logs: what is read, and what is refused."""

import json
from pathlib import Path

import pytest

from weave_scheduler.cli import _code_of
from weave_scheduler.document import SpecError
from weave_scheduler.laws import Constant, Drifting, Empirical, Lognormal
from weave_scheduler.lengths import Lengths, RolloutFromLengths, TrainFromLengths
from weave_scheduler.model import Degree, JobModel, Need, Phase, SwitchCost, common_job
from weave_scheduler.pools import Node, PoolModel
from weave_scheduler.traces import (
    JobClass,
    TraceError,
    job_from_steps,
    parse_trace,
    read_philly,
    read_step_log,
    read_trace,
    table6_classes,
    write_trace,
)

DATA = Path(__file__).parent / "data"
HEAD = '{"format": "weave-trace", "version": 1}'
NODES = {
    "rollout": {"gpus": 8, "price": 1.85, "host_bytes": 10**12},
    "train": {"gpus": 8, "price": 5.28, "host_bytes": 10**12, "count": 4},
}
ROW = {"id": "a", "iterations": 10, "rollout": 100, "train": 40}


def lines_of(*rows, head=HEAD):
    return [head, *(row if isinstance(row, str) else json.dumps(row) for row in rows)]


def many_kinds():
    lengths = Lengths((1.0, 50.0, 100.0), 80, 16)
    laws = [
        (Constant(3.0), Constant(2.0)),
        (Lognormal(100.0, 0.3, 180.0), Lognormal(50.0, 0.1)),
        (Empirical.of([3, 1, 2], 5.0), Empirical.of([1, 2])),
        (Drifting(Lognormal(100.0, 0.1, 150.0), 1.0, 2.0, 40), Constant(1.0)),
        (RolloutFromLengths(lengths, 4, 0.01, 0.001), TrainFromLengths(lengths, 0.01, 1.0)),
    ]
    jobs = []
    for at, (rollout, train) in enumerate(laws):
        phases = [
            Phase("rollout", ("rollout",), rollout),
            Phase("train", ("train",), train, ("rollout",)),
        ]
        held = ((), ("train",), ("train", "rollout"))[at % 3]
        if at % 2:
            phases.append(Phase("weight_sync", held, Constant(1.5), ("train",)))
        jobs.append(
            JobModel(
                f"job-{at}", tuple(phases), slo=1.5 if at else None, iterations=at + 1,
                arrival_s=60.0 * at, rollout_nodes=1 + at % 2, train_nodes=2,
                degrees=(Degree(1), Degree(4)) if at == 2 else (),
                rollout_pins=(3,) if at == 4 else (), train_need=Need(10 * at, 5, 3, 1),
                switch_train=SwitchCost(0.5 * at, 2.0), restart=at == 1, seed=at,
            )
        )  # fmt: skip
    return tuple(jobs)


@pytest.mark.parametrize("name", ["jobs.jsonl", "jobs.csv"])
def test_what_is_written_is_read_again(tmp_path, name):
    pools = {pool: PoolModel(pool, Node(8, 1.5, 10**12), count)
             for pool, count in (("rollout", None), ("train", 4))}  # fmt: skip
    path = tmp_path / name
    write_trace(path, many_kinds(), pools)
    trace = read_trace(path)
    assert trace.jobs == many_kinds()
    assert trace.pools == pools
    assert json.loads(path.read_text().splitlines()[0])["format"] == "weave-trace"


def test_csv_as_people_write_it():
    text = [
        HEAD,
        "id,arrival,iterations,rollout,train,slo",
        '007,2026-01-01 00:00:00,5,"{""law"": ""lognormal"", ""mean_s"": 9, ""cv"": 0.1}",4,',
        "8,2026-01-01 00:01:30,5,9,4,1.5",
    ]
    jobs = parse_trace([line + "\n" for line in text]).jobs
    assert [job.name for job in jobs] == ["007", "8"]
    assert [job.arrival_s for job in jobs] == [0, 90]
    assert [job.slo for job in jobs] == [None, 1.5]
    assert jobs[0].phases[0].law == Lognormal(9, 0.1)


WRONG_HEADS = [
    ("", "first line must be"),
    ('{"format": "weave-run", "version": 1}', "first line must be"),
    ('{"format": "weave-trace", "version": 2}', "version: 2 is not known; allowed: 1"),
    ('{"format": "weave-trace", "version": true}', "version: True is not known"),
    ('{"format": "weave-trace", "version": 1, "node": {}}', "node: unknown; did you mean nodes"),
    (json.dumps({**json.loads(HEAD), "nodes": {**NODES, "train": {"gpus": 8}}}),
     "nodes.train.price: is missing"),
    (json.dumps({**json.loads(HEAD), "nodes": {"train": NODES["train"]}}),
     "nodes.rollout: is missing"),
    (json.dumps({**json.loads(HEAD), "nodes": {**NODES, "train": {**NODES["train"], "price": -1}}}),
     "nodes.train.price: -1 is out of range"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "message"), WRONG_HEADS)
def test_wrong_headers_are_refused(head, message):
    with pytest.raises(TraceError) as error:
        parse_trace(lines_of(ROW, head=head), "t.jsonl")
    assert str(error.value).startswith("t.jsonl:1: ")
    assert message in str(error.value)


WRONG_ROWS = [
    ({"rollout": -3}, "rollout: -3 is out of range; allowed: more than 0"),
    ({"train": 0}, "train: 0 is out of range"),
    ({"train": float("nan")}, "train: nan is not finite"),
    ({"rollout": float("inf")}, "rollout: inf is not finite"),
    ({"rollout": "100s"}, "rollout: '100s' is not a number"),
    ({"rollout": None}, "rollout: is missing"),
    ({"rollout": True}, "rollout: True is not a number"),
    ({"slo": 0.99}, "slo: 0.99 is out of range; allowed: at least 1"),
    ({"iterations": 0}, "iterations: 0 is out of range"),
    ({"iterations": 1.5}, "iterations: 1.5 is out of range"),
    ({"iteratoins": 1}, "iteratoins: unknown; did you mean iterations"),
    ({"id": ""}, "id: ''; allowed: a text"),
    ({"arrival_s": -1}, "arrival_s: -1 is out of range"),
    ({"sync_mode": "push"}, "sync_mode: 'push' is not known; allowed: latency, publish, direct"),
    ({"restart": 1}, "restart: 1; allowed: true or false"),
    ({"train_degrees": []}, "train_degrees: must be a list"),
    ({"train_degrees": [0]}, "train_degrees: 0 is out of range"),
    ({"rollout_pins": [-1]}, "rollout_pins: -1 is out of range"),
    ({"rollout": {"law": "lognormol", "mean_s": 1}}, "rollout.law: 'lognormol' is not known; did"),
    ({"rollout": {"law": "lognormal", "mean_s": 1}}, "rollout.cv: is missing"),
    ({"rollout": {"law": "lognormal", "mean_s": 9, "cv": 1, "max_s": 8}}, "rollout.max_s: 8"),
    ({"rollout": {"law": "empirical", "values_s": [1, -2]}}, "rollout.values_s.1: -2"),
    ({"rollout": {"law": "empirical", "values_s": [1, 9], "limit_s": 5}}, "rollout: limit_s: 5"),
    ({"train_host_bytes": 2 * 10**12}, "train_host_bytes: needs 2000000000000 on a node"),
    ({"arrival_s": 1.8e18}, "arrival_s: 1.8e+18 is out of range; allowed: at least 0, up to 1e12"),
    ({"rollout": 10**400}, "rollout: 1000"),
    ({"iterations": 10**400}, "iterations: 1000"),
    ({"rollout_host_bytes": 10**400}, "rollout_host_bytes: 1000"),
    ({"rollout_nodes": 30_000_000}, "job a: rollout_nodes: 30000000 is out of range"),
    ({"rollout_pins": [10**9]}, "job a: rollout_pins: 1000000000 is out of range"),
    ({"arrival": "yesterday"}, "arrival: 'yesterday' is no time"),
    ({"arrival": "2026-01-01", "arrival_s": 0}, "arrival: stands beside arrival_s"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_ROWS, ids=lambda value: str(value)[:40])
def test_wrong_rows_are_refused_with_line_and_field(change, message):
    head = json.dumps({**json.loads(HEAD), "nodes": NODES})
    rows = lines_of({**ROW, "id": "fine"}, {**ROW, **change}, head=head)
    with pytest.raises(TraceError) as error:
        parse_trace(rows, "t.jsonl")
    assert str(error.value).startswith(f"t.jsonl:3: {message}"), error.value


def test_ids_zones_and_order_are_checked_between_rows():
    twice = lines_of(ROW, ROW, {**ROW, "id": "b", "slo": 0})
    with pytest.raises(TraceError, match=r":3: id: 'a' is that of line 2 \(and 1 more\)"):
        parse_trace(twice)
    plain, zoned, late = "2026-01-01 10:00", "2026-01-01 10:00+02:00", "2026-01-01 09:00"
    for other, message in ((zoned, "has time zone .0200, the first row no time zone"),
                           (late, "lies before that of the first row")):  # fmt: skip
        rows = lines_of({**ROW, "arrival": plain}, {**ROW, "id": "b", "arrival": other})
        with pytest.raises(TraceError, match=f":3: arrival: {message}"):
            parse_trace(rows)
    two = lines_of({**ROW, "arrival": zoned}, {**ROW, "id": "b", "arrival": "2026-01-01T10:00Z"})
    with pytest.raises(TraceError, match="use one time zone"):
        parse_trace(two)


def test_broken_lines_are_named():
    twice = json.dumps(ROW)[:-1] + ', "rollout": 7}'
    deep = '{"rollout": ' + "[" * 100_000
    for line, message in (("{", "is not JSON"), ("[]", "is no JSON object"), (deep, "is not JSON"),
                          (twice, "rollout: is given twice")):  # fmt: skip
        with pytest.raises(TraceError, match=f":3: {message}"):
            parse_trace(lines_of(ROW, line))
    with pytest.raises(TraceError, match=":3: has 2 cells for 4 columns"):
        parse_trace([HEAD + "\n", "id,iterations,rollout,train\n", "a,3\n"])
    with pytest.raises(TraceError, match="a column is given twice"):
        parse_trace([HEAD + "\n", "id,id\n", "a,3\n"])
    with pytest.raises(TraceError, match="rollout: nan is not finite"):
        parse_trace([HEAD + "\n", "id,iterations,rollout,train\n", "a,3,NaN,1\n"])
    with pytest.raises(TraceError, match="has no jobs"):
        parse_trace([HEAD])


def test_unreadable_files_are_one_line(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(tmp_path / "bytes")


def test_a_hundred_thousand_jobs_are_read(tmp_path):
    path = tmp_path / "many.csv"
    rows = (f"job-{at},{at},10,100,40,1.5\n" for at in range(100_000))
    path.write_text(HEAD + "\nid,arrival_s,iterations,rollout,train,slo\n" + "".join(rows))
    assert len(read_trace(path).jobs) == 100_000


def test_phases_that_the_format_does_not_know_are_not_written(tmp_path):
    job = JobModel("a", (Phase("rollout", ("rollout",), Constant(1)),))
    with pytest.raises(ValueError, match="has rollout, reward, train and weight_sync"):
        write_trace(tmp_path / "t.jsonl", [job])
    write_trace(tmp_path / "t.jsonl", [common_job("a", 1, 1)])


PHILLY_HEAD = "timestamp,duration,num_gpus,gpu_time,cluster"


def test_philly_rows_become_jobs_and_the_rest_is_counted():
    rows = [
        PHILLY_HEAD,
        "2017-10-09 07:01:55,7200.0,1,7200.0,11cb48",
        "2017-10-09 06:01:55,36000.0,8,1,6214e9",
        "2017-10-09 06:13:03,51.0,1,51.0,6214e9",
        "2017-10-09 06:13:03,9999999.0,1,51.0,6214e9",
        "2017-10-09 06:13:03,7200.0,0,51.0,6214e9",
    ]
    jobs, skipped = read_philly(rows, seed=1)
    assert [job.arrival_s for job in jobs] == [0, 3600]
    assert [job.name for job in jobs] == ["philly-3", "philly-2"]
    assert skipped.reasons == {"too short": 1, "too long": 1, "too few GPUs": 1}
    assert all(abs(job.iterations * job.solo_max_s - duration) < job.solo_max_s
               for job, duration in zip(jobs, (36000, 7200), strict=True))  # fmt: skip
    assert all(1 <= job.slo <= 2 for job in jobs)
    assert read_philly(rows, seed=1) == (jobs, skipped)
    assert read_philly(rows, seed=2)[0] != jobs
    one = [JobClass("only", (10, 10), (5, 5))]
    assert read_philly(rows, seed=1, classes=one, limit=1)[0][0].solo_max_s == 15


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2017-10-09 07:01:55,-1,1,1,a", ":3: duration: -1.0 is out of range"),
        ("2017-10-09 07:01:55,nan,1,1,a", ":3: duration: nan is not finite"),
        ("2017-10-09 07:01:55,,1,1,a", ":3: duration: '' is not a number"),
        ("soon,1,1,1,a", ":3: timestamp: 'soon' is no time"),
        ("2017-10-09 07:01:55+01:00,1,1,1,a", ":3: timestamp: has time zone"),
    ],
)
def test_wrong_philly_rows_are_refused(row, message):
    with pytest.raises(SpecError) as error:
        read_philly([PHILLY_HEAD, "2017-10-09 07:01:55,7200,1,1,a", row], seed=1)
    assert message in str(error.value)
    with pytest.raises(SpecError, match="columns: must be timestamp"):
        read_philly(["a,b", "1,2"], seed=1)


STEPS = [
    ("verl", "verl_steps.log", 6, 1, True),
    ("nemo-rl", "nemo_rl_steps.log", 4, 1, True),
    ("roll", "roll_steps.log", 4, 0, False),
]


def test_rows_of_the_public_philly_trace():
    with (DATA / "philly.csv").open() as lines:
        jobs, skipped = read_philly(lines, seed=1, min_duration_s=600)
    assert len(jobs) == 34
    assert skipped.reasons == {"too short": 4, "too long": 1}
    assert jobs == tuple(sorted(jobs, key=lambda job: job.arrival_s))
    assert len({kind.name for kind in table6_classes()}) == 9


class TestImport:
    """``weave trace import``: what is written can be read again."""

    def run(self, *arguments):
        return _code_of(["trace", "import", *map(str, arguments)])

    def test_philly(self, tmp_path, capsys):
        for out in (tmp_path / "jobs.jsonl", tmp_path / "jobs.csv"):
            assert self.run("philly", DATA / "philly.csv", "--out", out, "--seed", 1) == 0
            assert "4 jobs; left out: 1 too long, 34 too short" in capsys.readouterr().out
            with (DATA / "philly.csv").open() as lines:
                assert read_trace(out).jobs == read_philly(lines, seed=1)[0]
        assert self.run("philly", DATA / "philly.csv", "--out", out, "--limit", 2) == 0
        assert len(read_trace(out).jobs) == 2

    @pytest.mark.parametrize(("framework", "name"), [one[:2] for one in STEPS])
    def test_step_logs(self, framework, name, tmp_path, capsys):
        out, other = tmp_path / "jobs.jsonl", tmp_path / "other.log"
        other.write_bytes((DATA / name).read_bytes())
        limits = ("--rollout-limit", "500s", "--train-limit", "5min", "--slo", 1.5)
        assert self.run(framework, DATA / name, other, "--out", out, *limits) == 0
        jobs = read_trace(out).jobs
        assert [job.name for job in jobs] == [Path(name).stem, "other"]
        assert jobs[0].solo_max_s >= 800
        assert (jobs[0].slo, jobs[0].seed, jobs[1].seed) == (1.5, 0, 1)
        steps = read_step_log((DATA / name).read_text().splitlines(), framework)
        assert jobs[0].phases[0].law.mean_s == pytest.approx(
            sum(step.rollout_s for step in steps[1:]) / (len(steps) - 1)
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("trl", "x.log"), "'trl' is not known; allowed: philly, verl, nemo-rl, roll"),
            (("philly", "none.csv"), "none.csv: cannot be read"),
            (("verl", DATA / "philly.csv"), "has no step of verl"),
            (("verl", DATA / "verl_steps.log", "--skip", 9), "6 steps, the first 9 are left out"),
            (("verl", DATA / "verl_steps.log", "--rollout-limit", "2s"), "below the longest"),
            (("verl", DATA / "verl_steps.log", "--rollout-limit", "2x"), "unknown unit 'x'"),
            (("verl", DATA / "verl_steps.log", "--train-limit", "0s"), "more than 0s"),
            (("verl", *[DATA / "verl_steps.log"] * 2), "two logs would make job verl_steps"),
            (("philly", *[DATA / "philly.csv"] * 2), "philly takes one file"),
            (("roll", "/dev/null"), "has no step of roll"),
        ],
    )
    def test_mistakes_are_one_line_and_nothing_is_written(
        self, arguments, message, tmp_path, capsys
    ):
        out = tmp_path / "jobs.jsonl"
        assert self.run(*arguments, "--out", out) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not out.exists()


@pytest.mark.parametrize(("framework", "name", "count", "first", "lengths"), STEPS)
def test_step_logs_become_laws(framework, name, count, first, lengths):
    steps = read_step_log((DATA / name).read_text().splitlines(), framework, name)
    assert len(steps) == count
    assert [step.step for step in steps] == list(range(first, first + count))
    assert all(step.rollout_s > step.train_s > 0 for step in steps)
    assert all(step.weight_sync_s for step in steps)
    assert all((step.mean_tokens is not None) == lengths for step in steps)
    job = job_from_steps("a", steps, rollout_limit_s=200, train_limit_s=100)
    assert job.solo_mean_s < job.solo_max_s
    assert job.phases[0].law.values_s == tuple(sorted(step.rollout_s for step in steps[1:]))
    assert job.phases[-1].name == "weight_sync"
    with pytest.raises(ValueError, match="law has no max"):
        _ = job_from_steps("a", steps).solo_max_s


def test_the_parts_of_a_verl_step_are_added_up():
    line = ("step:7 - timing_s/gen:10.0 - timing_s/old_log_prob:np.float64(2.0) - "
            "timing_s/update_actor:3e+00 - response_length/max:512")  # fmt: skip
    (step,) = read_step_log([line], "verl")
    assert (step.step, step.rollout_s, step.train_s, step.max_tokens) == (7, 10, 5, 512)
    assert (step.reward_s, step.weight_sync_s, step.mean_tokens) == (None, None, None)


@pytest.mark.parametrize(
    ("line", "framework", "message"),
    [
        ("step:1 - timing_s/gen:-3.0 - timing_s/update_actor:1.0", "verl", "timing_s/gen: -3.0"),
        ("step:1 - timing_s/gen:nan - timing_s/update_actor:1.0", "verl", "timing_s/gen: nan"),
        ("step:1 - timing_s/gen:0.0 - timing_s/update_actor:1.0", "verl", "timing_s/gen: 0 s"),
        ("nothing", "verl", "has no step of verl; looked for timing_s/gen"),
        ("nothing", "nemo-rl", "has no step of nemo-rl"),
        ("nothing", "roll", "has no step of roll"),
        ("nothing", "trl", "'trl' is not known; allowed: verl, nemo-rl, roll"),
    ],
)
def test_wrong_step_logs_are_refused(line, framework, message):
    with pytest.raises(SpecError) as error:
        read_step_log([line], framework, "run.log")
    assert message in str(error.value)


def test_a_log_shorter_than_its_warm_up_is_no_job():
    line = "step:1 - timing_s/gen:3.0 - timing_s/update_actor:1.0"
    with pytest.raises(ValueError, match="1 steps, the first 1 are left out"):
        job_from_steps("a", read_step_log([line], "verl"))


def test_an_import_never_writes_over_what_it_reads(tmp_path, capsys):
    from weave_scheduler.cli import _code_of

    log = tmp_path / "run.log"
    text = (Path(__file__).parent / "data" / "verl_steps.log").read_text()
    log.write_text(text)
    assert _code_of(["trace", "import", "verl", str(log), "--out", str(log)]) == 2
    assert "is the file that is read; give another" in capsys.readouterr().err
    assert log.read_text() == text


def test_options_of_the_other_kind_of_trace_are_refused(tmp_path, capsys):
    from weave_scheduler.cli import _code_of

    csv = Path(__file__).parent / "data" / "philly.csv"
    out = tmp_path / "jobs.jsonl"
    command = ["trace", "import", "philly", str(csv), "--slo", "2", "--out", str(out)]
    assert _code_of(command) == 2
    assert "--slo: for step logs only" in capsys.readouterr().err
    assert not out.exists()


def test_a_limit_below_what_was_measured_is_named_by_its_option(tmp_path, capsys):
    from weave_scheduler.cli import _code_of

    log = Path(__file__).parent / "data" / "verl_steps.log"
    out = tmp_path / "jobs.jsonl"
    command = ["trace", "import", "verl", str(log), "--rollout-limit", "1s", "--out", str(out)]
    assert _code_of(command) == 2
    assert "--rollout-limit 1s is below the longest rollout" in capsys.readouterr().err

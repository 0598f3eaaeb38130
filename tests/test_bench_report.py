"""What ``weave bench report`` and ``compare`` make of records."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weave_rt import UsageError
from weave_rt.benchmarks import overlaylive
from weave_rt.benchmarks.compare import compare
from weave_rt.benchmarks.overlaylive import SCENES
from weave_rt.benchmarks.reading import key_of, read
from weave_rt.benchmarks.report import factors, moved_as_planned, rows
from weave_scheduler import cli

ROOT = Path(__file__).parent.parent


def case(name: str, arm: str, samples: list[float], **more: Any) -> dict[str, Any]:
    params = more.pop("params", {"tenant_bytes": 1_000_000})
    return {"name": name, "arm": arm, "params": params, "n": len(samples), "samples_s": samples,
            "headline": arm == "weave", **more}  # fmt: skip


def a_record(weave_s: float = 1.0, plain_s: float = 0.5, **conditions: Any) -> dict[str, Any]:
    spread = [0.99, 1.0, 1.01, 1.02, 0.98]
    return {
        "format": "weave-bench",
        "version": 1,
        "conditions": {"device": "emulated", "spec": "emulated:h20", **conditions},
        "cases": [
            case("duplex", "weave", [weave_s * s for s in spread], efficiency=0.9),
            case("duplex", "plain", [plain_s * s for s in spread]),
            case("duplex", "per_tensor_pageable", [10 * s for s in spread]),
            case("decision", "strict", [2.0, 3.0], params={}),
        ],
    }


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_rows_of_an_emulated_device_are_ratios_only() -> None:
    ours, plain, naive, alone = rows(a_record())
    assert ours["against_plain"] == pytest.approx(2.0)
    assert ours["p95_against_plain"] == pytest.approx(2 * 1.018)
    assert plain["against_plain"] == pytest.approx(1.0)
    assert naive["against_plain"] == pytest.approx(20.0)
    assert ours["efficiency"] == 0.9
    assert "against_plain" not in alone
    assert all("p50_s" not in row for row in (ours, plain, naive, alone))
    real = rows(a_record() | {"conditions": {"device": "cuda"}})
    assert real[0]["p50_s"] == pytest.approx(1.0)
    assert real[3]["p50_s"] == 2.5


def test_factors_are_how_much_longer_the_others_take() -> None:
    (only,) = factors(a_record())
    assert only["name"] == "duplex"
    assert only["factors"]["per_tensor_pageable"] == pytest.approx(10.0)
    assert only["factors"]["plain"] == pytest.approx(0.5)


def test_what_moved_nothing_has_no_factor() -> None:
    record = a_record()
    record["cases"] += [
        case("look_ahead", "weave", [1e-6], bytes_out=0, bytes_in=0),
        case("look_ahead", "plain", [0.5], bytes_out=9, bytes_in=9),
    ]
    assert [row["name"] for row in factors(record)] == ["duplex"]
    assert rows(record)[-2]["against_plain"] == pytest.approx(2e-6)


def test_the_same_record_shows_no_difference() -> None:
    found = compare(a_record(), a_record())
    assert [row["verdict"] for row in found["rows"]] == ["no difference shown"] * 4
    assert all(row["low"] <= row["change"] <= row["high"] for row in found["rows"])
    assert found["conditions_differ"] == found["only_old"] == found["only_new"] == []
    assert found["regressed"] == []


def test_a_slower_machine_is_no_slower_engine() -> None:
    slow = a_record(weave_s=3.0, plain_s=1.5, spec="emulated:h800", cores=4)
    found = compare(a_record(), slow, fail_above=1.05)
    ours, plain = found["rows"][:2]
    assert ours["basis"] == "time against plain copies"
    assert ours["change"] == pytest.approx(1.0)
    assert (plain["basis"], plain["verdict"]) == ("time", "slower")
    assert found["regressed"] == []
    assert found["conditions_differ"] == [
        {"key": "cores", "new": 4},
        {"key": "spec", "old": "emulated:h20", "new": "emulated:h800"},
    ]


def test_a_slower_engine_is_found_and_fails_only_beyond_the_factor() -> None:
    slow = a_record(weave_s=1.3)
    assert compare(a_record(), slow)["regressed"] == []
    assert compare(a_record(), slow)["rows"][0]["verdict"] == "slower"
    assert compare(slow, a_record())["rows"][0]["verdict"] == "faster"
    assert compare(a_record(), slow, fail_above=1.1)["regressed"] == ["duplex weave (1 MB)"]
    assert compare(a_record(), slow, fail_above=1.4)["regressed"] == []
    with pytest.raises(UsageError, match="more than 0"):
        compare(a_record(), slow, fail_above=0)


def test_cases_of_one_side_are_named_and_none_in_common_is_refused() -> None:
    more = a_record()
    more["cases"].append(case("new", "weave", [1.0], params={"preset": "train-3b", "load": "t"}))
    found = compare(a_record(), more)
    assert found["only_new"] == ["new weave (train-3b, under load)"]
    other = copy.deepcopy(more)
    other["cases"] = other["cases"][-1:]
    with pytest.raises(UsageError, match="no case in common"):
        compare(a_record(), other)


def test_times_of_nothing_do_not_break_a_comparison() -> None:
    zero = a_record(weave_s=0.0, plain_s=0.0)
    assert compare(zero, zero)["rows"][0]["change"] == 1.0
    assert compare(a_record(), zero)["rows"][1]["verdict"] == "faster"
    assert factors(zero) == []
    assert "against_plain" not in rows(zero)[0]


BAD = {
    "empty": ("", "is empty"),
    "text": ("hello", "is not JSON"),
    "list": ("[]", "no format"),
    "deep": ("[" * 100_000, "is not JSON"),
    "format": ({"format": "weave-run", "version": 1}, "has format 'weave-run'"),
    "version": (a_record() | {"version": 2}, "has version 2"),
    "conditions": ({"format": "weave-bench", "version": 1}, "no conditions"),
    "cases": (a_record() | {"cases": []}, "has no cases"),
    "shape": (a_record() | {"cases": [3]}, "case 1 is not an object"),
    "arm": (a_record() | {"cases": [{"name": "x"}]}, "case 1 has no arm"),
    "samples": (a_record() | {"cases": [case("x", "y", [])]}, r"case 1 \(x\) has no samples"),
    "nan": (a_record() | {"cases": [case("x", "y", [float("nan")])]}, "no time: nan"),
    "params": (a_record() | {"cases": [case("x", "y", [1.0], params=[])]}, "params that are not"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_record_is_one_line(name: str, tmp_path: Path, capsys: Any) -> None:
    content, says = BAD[name]
    path = write(tmp_path / "x.json", content)
    with pytest.raises(UsageError, match=says) as refused:
        read(path)
    assert str(path) in str(refused.value)
    good = write(tmp_path / "good.json", a_record())
    for arguments in (["report", good, path], ["compare", good, path], ["compare", path, good]):
        assert cli._code_of(["bench", *map(str, arguments)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1


@pytest.mark.parametrize("name", ["gone.json", "."])
def test_a_file_that_cannot_be_read_is_one_line(name: str, tmp_path: Path, capsys: Any) -> None:
    assert cli._code_of(["bench", "report", str(tmp_path / name)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    write(tmp_path / "b.json", "")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    assert cli._code_of(["bench", "report", str(tmp_path / "b.json")]) == 2


def test_report_prints_tables_json_and_plots(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    path = write(tmp_path / "one.json", a_record())
    folder = tmp_path / "plots"
    assert cli._code_of(["bench", "report", str(path), "--plots", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "ratios only: the device is emulated" in out
    assert "per_tensor_pageable" in out
    assert "10.00" in out
    (drawn,) = folder.iterdir()
    assert drawn.name == "one-1_MB.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert f"written: {drawn}" in out
    (tmp_path / "two").mkdir()
    again = write(tmp_path / "two" / "one.json", a_record())
    more = ["--json", "--plots", str(folder)]
    assert cli._code_of(["bench", "report", str(path), str(again), *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["version"]) == ("weave-bench", 1)
    assert [entry["file"] for entry in found["reports"]] == [str(path), str(again)]
    assert {p.name for p in folder.iterdir()} == {
        "one-1_MB.png", "one-1-1_MB.png", "one-2-1_MB.png",
    }  # fmt: skip


def test_plots_without_matplotlib_or_a_folder_are_one_line(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "one.json", a_record())
    assert cli._code_of(["bench", "report", str(path), "--plots", str(path)]) == 2
    assert "cannot be used" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli._code_of(["bench", "report", str(path), "--plots", str(tmp_path)]) == 2
    assert "pip install 'weave-rt[plots]'" in capsys.readouterr().err


def test_compare_exits_1_for_a_regression_only_when_asked(tmp_path: Path, capsys: Any) -> None:
    old = write(tmp_path / "old.json", a_record())
    new = write(tmp_path / "new.json", a_record(weave_s=1.3, spec="emulated:h800"))
    assert cli._code_of(["bench", "compare", str(old), str(new)]) == 0
    out = capsys.readouterr().out
    assert "Conditions that differ" in out
    assert "emulated:h800" in out
    assert "slower" in out
    code = cli._code_of(["bench", "compare", str(old), str(new), "--fail-above", "1.1", "--json"])
    assert code == 1
    shown = capsys.readouterr()
    assert "more than 1.1 times as long as before: duplex weave (1 MB)" in shown.err
    assert json.loads(shown.out)["comparison"]["regressed"] == ["duplex weave (1 MB)"]


def test_the_committed_records_can_be_reported(capsys: Any) -> None:
    for name in ("switch_emulated_h20.json", "sched.json"):
        path = str(ROOT / "bench" / "records" / name)
        assert cli._code_of(["bench", "report", path]) == 0
        assert cli._code_of(["bench", "compare", path, path, "--fail-above", "1.01"]) == 0
    assert "decision" in capsys.readouterr().out


def test_a_residency_record_shows_each_example_beside_its_plan(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    path = ROOT / "bench" / "records" / "overlay.json"
    assert cli._code_of(["bench", "report", str(path), "--plots", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    live = [line for line in out.splitlines() if line.endswith(" yes")]
    assert len(live) == 6
    assert any("60 60 60 on 140" in line and "625 MB" in line for line in live)
    assert "1000 of 1000 optimal" in out
    (drawn,) = tmp_path.iterdir()
    assert drawn.name == "overlay.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    record = json.loads(path.read_text())
    shown = rows(record)
    assert {"planned_in", "planned_background_in"} <= shown[-1].keys()
    assert "p50_s" not in shown[-1], "times of an emulated device"


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ({}, True),
        ({"bytes_in": 11}, True),
        ({"bytes_in": 12}, False),
        ({"bytes_out": 8}, False),
        ({"bytes_background_in": 3}, True),
        ({"bytes_background_in": 7}, False),
    ],
)
def test_what_was_moved_is_held_against_the_plan(change: dict[str, int], fine: bool) -> None:
    case = {
        "params": {"block_bytes": 1},
        **dict.fromkeys(("bytes_out", "bytes_in", "planned_out", "planned_in"), 10),
        **dict.fromkeys(("bytes_background_in", "planned_background_in"), 5),
    }
    assert moved_as_planned({**case, **change}) is fine


def test_reports_and_presets_need_no_torch() -> None:
    check = (
        "import sys, weave_rt.benchmarks.compare, weave_rt.benchmarks.report, "
        "weave_rt.benchmarks.switch\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_what_is_measured_is_no_part_of_a_live_case() -> None:
    """How long a phase must be follows from rates that each run measures anew."""
    plan = SimpleNamespace(block_bytes=8, switches=[], kind="least-stall")
    nothing = SimpleNamespace(out=1, into=1)
    plan.switches = [SimpleNamespace(foreground=nothing, background=nothing)]
    runtime: Any = SimpleNamespace(plan=lambda name: plan)
    report = {"bytes_out": 8, "bytes_in": 8, "seconds": 0.1}
    one, other = (overlaylive._case(SCENES[1], runtime, [report], s) for s in (0.25, 0.26))
    assert key_of(one) == key_of(other)
    assert (one["phase_s"], other["phase_s"]) == (0.25, 0.26)


def test_a_scheduling_record_is_one_figure(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    record = json.loads((ROOT / "bench" / "records" / "sched.json").read_text())
    whole = write(tmp_path / "sched.json", record)
    parts = {
        name: write(tmp_path / f"{name}.json", record | {"cases": [case]})
        for name in ("decision", "growth")
        for case in record["cases"]
        if case["name"] == name
    }
    folder = tmp_path / "plots"
    files = [str(whole), *map(str, parts.values())]
    assert cli._code_of(["bench", "report", *files, "--plots", str(folder)]) == 0
    assert {p.name for p in folder.iterdir()} == {"sched.png", "decision.png", "growth.png"}

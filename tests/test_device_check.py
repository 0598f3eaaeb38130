"""bench/device_check.sh, whole, on the emulated device: ready for whoever gets a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "bench" / "device_check.sh"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def test_quick_on_the_emulated_device(tmp_path: Path) -> None:
    spec = "emulated:h20?scale=4096&speed=20&capacity=16MiB"
    done = run(str(tmp_path), "--device", spec, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("all parts passed")
    record = json.loads((tmp_path / "switch.json").read_text())
    assert record["format"] == "weave-bench"
    assert record["conditions"]["device"] == "emulated"
    names = ("one_way_out", "one_way_in", "duplex")
    both = {(name, arm) for name in (*names, "look_ahead") for arm in ("weave", "plain")}
    assert {(case["name"], case["arm"]) for case in record["cases"]} == both
    record = json.loads((tmp_path / "naive.json").read_text())
    naive = {(n, arm) for n in names for arm in ("per_tensor_pageable", "per_tensor_pinned_now")}
    found = {(case["name"], case["arm"]) for case in record["cases"]}
    assert found == both | naive | {("one_way_in", "cold")}  # fmt: skip


def test_a_part_that_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    done = run(str(tmp_path), "--device", "cuda:999", "--quick")
    assert done.returncode == 1
    assert "FAILED: contract switch" in done.stdout


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for arguments in (
        (),
        ("--quick",),
        (str(tmp_path), "--wrong"),
        (str(tmp_path), "--wheels", "no"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("device_check: ")
        assert done.stderr.count("\n") == 1

"""Rates of a link are measured once per host and driver; whatever the cache folder is like, a
device has rates or the error of measuring. The folder is the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROLLOUT

import weave_rt
from weave_rt import Device, LocalRuntime, UsageError, _core, calibration
from weave_rt.calibration import RATES, calibrated, recall, remember
from weave_rt.process_runtime import leave_process_runtime, process_runtime

Opening = Callable[[str], Device]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WEAVE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "weave"


def copies() -> int:
    return _core.call_counts("emulated")["memcpy_htod_async"]


def only_file(folder: Path) -> Path:
    (found,) = folder.glob("*.json")
    return found


def test_the_second_device_of_a_kind_does_not_measure(folder: Path, open_checked: Opening) -> None:
    first = open_checked(ROLLOUT)
    assert first.calibration == {}
    rates = calibrated(first)
    assert first.calibration == rates
    record = json.loads(only_file(folder).read_text())
    assert (record["format"], record["version"]) == ("weave-calibration", 1)
    assert record["rates"] == rates
    assert "weave" in record["conditions"]
    before = copies()
    second = open_checked(ROLLOUT)
    assert calibrated(second) == rates
    assert second.calibration == rates
    assert copies() == before
    assert calibrated(open_checked(ROLLOUT.replace("seed=1", "seed=2"))) is not None
    assert copies() > before  # another model is another device
    assert len(list(folder.glob("*.json"))) == 2


def test_reports_of_a_later_process_have_a_limit(folder: Path, open_checked: Opening) -> None:
    calibrated(open_checked(ROLLOUT))
    before = copies()
    runtime = LocalRuntime({"rollout": [open_checked(ROLLOUT)]})
    assert copies() == before
    (device,) = runtime.devices.values()
    tenant = device.add_tenant("a")
    tenant.resume()
    span = tenant.region("weights").allocate(4 * device.block_bytes)
    assert tenant.suspend().as_dict()["limit_s"] == pytest.approx(
        4 * device.block_bytes / device.calibration["d2h"]
    )
    del span
    runtime.close()


def test_the_runtime_of_a_process_measures_where_nothing_is_known(folder: Path) -> None:
    for known in (False, True):
        before = copies()
        runtime = process_runtime(ROLLOUT, ROLLOUT)
        try:
            assert all(set(RATES) <= set(d.calibration) for d in runtime.devices.values())
        finally:
            leave_process_runtime(runtime)
        assert (copies() == before) == known


def test_anew_measures_and_replaces(folder: Path, open_checked: Opening) -> None:
    device = open_checked(ROLLOUT)
    assert remember(device, dict.fromkeys(RATES, 1.0))
    assert calibrated(device) == dict.fromkeys(RATES, 1.0)
    rates = calibrated(device, anew=True)
    assert rates["h2d"] > 1
    assert recall(open_checked(ROLLOUT)) == rates


@pytest.mark.parametrize("value", ["off", "OFF", "0"])
def test_off_neither_reads_nor_writes(
    folder: Path, open_checked: Opening, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    remember(open_checked(ROLLOUT), dict.fromkeys(RATES, 1.0))
    written = only_file(folder).read_bytes()
    monkeypatch.setenv("WEAVE_CACHE", value)
    device = open_checked(ROLLOUT)
    assert recall(device) is None
    assert calibrated(device)["h2d"] > 1
    monkeypatch.setenv("WEAVE_CACHE", "on")
    assert only_file(folder).read_bytes() == written


def changed(record: dict[str, Any], path: str, value: object) -> str:
    *parents, last = path.split(".")
    inner = record
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: "",
        lambda r: json.dumps(r)[:40],
        lambda r: "[" * 100_000,
        lambda r: "[]",
        lambda r: "null",
        lambda r: changed(r, "format", "weave-run"),
        lambda r: changed(r, "version", 2),
        lambda r: changed(r, "key.weave", "0.0.0"),
        lambda r: changed(r, "key.host", "another"),
        lambda r: changed(r, "rates", {"h2d": 1.0}),
        lambda r: changed(r, "rates.h2d", 0),
        lambda r: changed(r, "rates.d2h", -1.0),
        lambda r: changed(r, "rates.d2h_duplex", float("nan")),
        lambda r: changed(r, "rates.h2d", "fast"),
        lambda r: changed(r, "rates.h2d_duplex", None),
    ],
)
def test_a_file_that_is_not_ours_or_damaged_is_replaced(
    folder: Path, open_checked: Opening, spoil: Callable[[dict[str, Any]], str]
) -> None:
    device = open_checked(ROLLOUT)
    remember(device, dict.fromkeys(RATES, 1.0))
    path = only_file(folder)
    path.write_text(spoil(json.loads(path.read_text())))
    assert recall(device) is None
    assert device.calibration == {}
    rates = calibrated(device)
    assert rates["h2d"] > 1
    assert recall(open_checked(ROLLOUT)) == rates


def test_old_rates_are_measured_again(folder: Path, open_checked: Opening) -> None:
    device = open_checked(ROLLOUT)
    remember(device, dict.fromkeys(RATES, 1.0))
    then = time.time() - calibration.MAX_AGE_S - 10
    os.utime(only_file(folder), (then, then))
    assert calibrated(device)["h2d"] > 1


def test_bytes_that_are_no_text_and_folders_that_are_files(
    folder: Path, open_checked: Opening
) -> None:
    device = open_checked(ROLLOUT)
    remember(device, dict.fromkeys(RATES, 1.0))
    path = only_file(folder)
    path.write_bytes(b"\xff\xfe\x00")
    assert recall(device) is None
    path.unlink()
    path.mkdir()
    assert recall(device) is None
    assert not remember(device, dict.fromkeys(RATES, 1.0))
    assert calibrated(device)["h2d"] > 1
    assert not list(folder.glob(".*"))


def test_without_a_place_to_write_every_process_measures(
    tmp_path: Path, open_checked: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("WEAVE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert calibrated(open_checked(ROLLOUT))["h2d"] > 1
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not allowed: the default is meant
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    calibrated(open_checked(ROLLOUT))
    assert only_file(tmp_path / "home" / ".cache" / "weave")


def test_only_the_newest_files_are_kept(
    folder: Path, open_checked: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "KEPT", 2)
    for seed in range(1, 5):
        remember(open_checked(ROLLOUT.replace("seed=1", f"seed={seed}")), dict.fromkeys(RATES, 1.0))
    assert len(list(folder.glob("*.json"))) == 2


def test_measuring_that_fails_leaves_nothing(folder: Path, open_checked: Opening) -> None:
    device = open_checked(ROLLOUT)
    with (
        _core.FaultScope(nth=3, only="memcpy_dtoh_async"),
        pytest.raises(weave_rt.DriverError),
    ):
        calibrated(device)
    assert device.calibration == {}
    assert not list(folder.glob("*.json"))
    assert calibrated(device)["h2d"] > 0


def test_rates_that_are_none_are_refused_by_the_core(open_checked: Opening) -> None:
    device = open_checked(ROLLOUT)
    for wrong in ({}, {"h2d": 1.0}, dict.fromkeys(RATES, 0.0), dict.fromkeys(RATES, float("inf"))):
        with pytest.raises(UsageError, match="rates of a link"):
            device.use_calibration(wrong)
    assert device.calibration == {}


MEASURE = f"""
from weave_rt import _core, open_device
from weave_rt.calibration import calibrated
device = open_device({ROLLOUT!r})
print("ready", flush=True)
input()
rates = calibrated(device)
print(_core.call_counts("emulated")["memcpy_htod_async"], rates["h2d"])
"""


def test_of_processes_that_start_at_once_one_measures(folder: Path) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", MEASURE], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)  # fmt: skip

    children = [start() for _ in range(3)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    told = [child.communicate(timeout=120)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert sorted(count != "0" for count, _ in told) == [False, False, True]
    assert len({rate for _, rate in told}) == 1


def test_who_cannot_have_the_lock_measures_and_does_not_remember(
    folder: Path, open_checked: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "PATIENCE_S", 0.0)
    device = open_checked(ROLLOUT)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with calibration._turn() as ours:
            assert ours
            inside.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    try:
        assert calibrated(device)["h2d"] > 0
    finally:
        leave.set()
        holder.join()
    assert not list(folder.glob("*.json"))


@pytest.mark.parametrize(("slowdown", "copies_ahead"), [(0.02, True), (0.04, False)])
def test_background_copies_are_off_where_the_doctor_found_that_phases_lose_by_them(
    folder: Path, open_checked: Opening, slowdown: float, copies_ahead: bool
) -> None:
    device = open_checked(ROLLOUT)
    rates = calibrated(device)
    remember(device, rates | {calibration.SLOWDOWN: slowdown})
    with LocalRuntime({"rollout": [device]}) as runtime:
        jobs = [weave_rt.init(name, {"runtime": runtime}) for name in "abc"]
        held = []
        for job in jobs:
            tenant = job.manage("engine", pool="rollout")
            assert isinstance(tenant, weave_rt.Tenant)
            with job.phase("rollout"):
                held.append(tenant.buffer(device.usable_bytes * 2 // 5, "weights"))
        for _ in range(3):
            for job in jobs:
                with job.phase("rollout"):
                    # What comes next is under way or not at all; the time limit ends a wait.
                    while copies_ahead and not device.stats()["bytes_background_in"]:
                        threading.Event().wait(0.001)
        assert (device.stats()["bytes_background_in"] > 0) == copies_ahead
        held.clear()
        for job in jobs:
            job.close()


def test_rates_without_a_verdict_on_copies_allow_them() -> None:
    assert not calibration.is_disturbed(None)
    assert not calibration.is_disturbed({"h2d": 1.0})
    assert not calibration.is_disturbed({calibration.SLOWDOWN: "much"})
    assert not calibration.is_disturbed({calibration.SLOWDOWN: -0.2})
    assert calibration.is_disturbed({calibration.SLOWDOWN: 0.031})


def test_a_link_that_is_no_faster_than_pageable_memory_is_named() -> None:
    good = {"h2d": 55e9, "d2h": 54e9, "h2d_duplex": 1e9, "d2h_duplex": 1e9}
    assert calibration.slow_directions(good) == ""
    assert calibration.slow_directions({**good, "d2h": 1.94e9}) == "d2h 1.9 GB/s"
    assert (
        calibration.slow_directions({**good, "h2d": 2e9, "d2h": 2e9})
        == "h2d 2.0 GB/s, d2h 2.0 GB/s"
    )


def test_calibration_chooses_the_size_of_chunks(open_checked: Callable[[str], Device]) -> None:
    """Where a call costs as much as 300 KB do, few large ones are best."""
    device = open_checked(
        "emulated:h20?scale=4096&seed=3&capacity=16MiB&block=1MiB&granularity=4KiB&context=4KiB"
        "&map=0ns&access=0ns&unmap=0ns&create=0ns&copy=2ms&h2d=150MB/s&d2h=150MB/s"
    )
    assert device.calibrate(4 << 20)["chunks"] == 16

"""Pinned host memory from Python: growing ahead, giving back, spilling to files and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from weave_rt import (
    Device,
    HostMemoryError,
    OutOfMemoryError,
    StateFileError,
    Tenant,
    UsageError,
    open_device,
)
from weave_rt._core import FaultScope
from weave_rt.benchmarks.pool import Resident

SPEC = "emulated:h20?scale=4096&speed=100&capacity=8MiB&copy=0ns&map=0ns&access=0ns&unmap=0ns"
MIB = 1 << 20


def pattern(nbytes: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


class Owner:
    """A tenant with one buffer of known bytes."""

    def __init__(self, device: Device, name: str, nbytes: int, seed: int) -> None:
        self.tenant = Tenant(device, name, job=f"job-{name}", pool="train")
        self.tenant.resume()
        self.buffer = self.tenant.buffer(nbytes, "weights")
        self.bytes = pattern(nbytes, seed)
        np.frombuffer(self.buffer.view(), np.uint8)[:] = self.bytes

    def intact(self) -> bool:
        return bool(np.array_equal(np.frombuffer(self.buffer.view(), np.uint8), self.bytes))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    opened = open_device(SPEC, host_budget_bytes=3 * MIB, spill_directory=str(tmp_path / "spill"))
    yield opened
    opened.close()
    assert not list((tmp_path / "spill").iterdir())


def files(path: Path) -> list[Path]:
    return sorted((path / "spill").iterdir())


def test_a_pool_grows_ahead_and_gives_back(device: Device) -> None:
    growth = device.host_pool.reserve("job-a", MIB)
    assert growth.wait()
    assert growth.finished
    assert not growth.cancelled
    assert growth.error is None
    assert growth.bytes_done == growth.bytes_total >= MIB
    stats = device.host_pool.stats()
    assert stats["bytes_reserved"] == stats["bytes_free"] == growth.bytes_total
    assert stats["page_kind"] in ("small", "transparent", "hugetlb")
    nodes = stats["node_bytes"]
    assert isinstance(nodes, dict)
    assert sum(nodes.values()) == stats["bytes_registered"]
    owner = Owner(device, "a", MIB // 2, 1)
    assert device.host_pool.stats()["registrations"] == stats["registrations"]
    owner.tenant.close()
    assert device.host_pool.bytes_registered == 0  # the job's last tenant is gone
    assert device.host_pool.trim() == 0


def test_what_cannot_be_had_is_refused_at_once(device: Device) -> None:
    with pytest.raises(HostMemoryError, match="budget") as caught:
        device.host_pool.reserve("a", 4 * MIB)
    assert caught.value.bytes_needed == 4 * MIB
    assert caught.value.bytes_available == 3 * MIB
    with pytest.raises(UsageError):
        device.host_pool.reserve("a", 0)


@pytest.mark.parametrize(
    ("spill", "says"),
    [(False, "with a spill directory idle tenants"), (True, "no idle tenant is left to spill")],
)
def test_a_refusal_says_what_would_help(tmp_path: Path, spill: bool, says: str) -> None:
    directory = str(tmp_path) if spill else ""
    device = open_device(SPEC, host_budget_bytes=MIB, spill_directory=directory)
    idle, runs = Tenant(device, "idle"), Tenant(device, "runs")
    try:
        idle.resume()
        first = idle.buffer(MIB // 2, "weights")
        idle.switch(runs)
        with pytest.raises(HostMemoryError, match=says):
            runs.buffer(2 * MIB, "weights")
        assert first.nbytes == MIB // 2
    finally:
        del first
        device.close()


def test_a_growth_that_fails_says_so(device: Device) -> None:
    with FaultScope(nth=1, only="mem_host_register", status=2, from_then_on=True):
        growth = device.host_pool.reserve("a", MIB)
        with pytest.raises(OutOfMemoryError, match="cuMemHostRegister"):
            growth.wait(60)
    assert growth.error is not None
    assert "cuMemHostRegister" in growth.error
    assert growth.bytes_done == 0
    assert device.host_pool.bytes_registered == 0


def test_a_growth_that_is_refused_once_goes_on_in_halves(
    device: Device, capfd: pytest.CaptureFixture[str]
) -> None:
    with FaultScope(nth=1, only="mem_host_register", status=2):
        growth = device.host_pool.reserve("a", MIB)
        growth.wait(60)
    assert growth.bytes_done == growth.bytes_total
    stats = device.host_pool.stats()
    # Sixteen blocks are a piece where there is spilling; the next ones are as small as what worked.
    assert (stats["registrations_refused"], stats["pieces"]) == (
        1,
        2 * MIB // (16 * device.block_bytes),
    )
    assert "at once failed with CUresult 2; went on with" in capfd.readouterr().err


def test_device_memory_goes_back_to_the_driver(device: Device) -> None:
    owner = Owner(device, "a", MIB, 1)
    owner.tenant.suspend()
    used, usable = device.census()["bytes_used"], device.usable_bytes
    given = device.trim(MIB)
    assert given == MIB
    assert device.census()["bytes_used"] == used - given
    assert device.usable_bytes == usable - given
    assert device.stats()["bytes_trimmed"] == given
    owner.tenant.resume()
    assert owner.intact()
    assert device.usable_bytes == usable


def test_idle_tenants_spill_and_come_back(device: Device, tmp_path: Path) -> None:
    owners = [Owner(device, "a", 2 * MIB, 1)]
    owners[0].tenant.release()
    owners.append(Owner(device, "b", 2 * MIB, 2))
    assert owners[0].tenant.core.bytes_spilled == 2 * MIB
    for turn in range(4):
        running, waiting = owners[(turn + 1) % 2], owners[turn % 2]
        running.tenant.switch(waiting.tenant)
        assert waiting.intact()
        assert device.host_pool.bytes_registered <= 3 * MIB
    assert device.stats()["spills"] >= 4
    assert device.stats()["bytes_in_files"] == 2 * MIB
    for owner in owners:
        owner.tenant.close()
    assert not files(tmp_path)


def test_a_spilled_tenant_is_a_safetensors_file(device: Device, tmp_path: Path) -> None:
    owner = Owner(device, "a", 2 * MIB, 1)
    owner.tenant.buffer(1000, "optimizer")
    owner.tenant.suspend()
    assert owner.tenant.core.spill() > 2 * MIB
    (path,) = files(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    with safe_open(path, "numpy") as opened:
        assert set(opened.keys()) == {"weights", "optimizer"}
        assert np.array_equal(opened.get_tensor("weights")[: 2 * MIB], owner.bytes)
        metadata = opened.metadata()
    assert metadata["job"] == "job-a"
    assert metadata["tenant"] == "a"
    assert metadata["version"] == "1"
    assert len(metadata["checksum.weights"]) == 16
    assert owner.tenant.core.rescue("weights")["weights"][: 2 * MIB] == owner.bytes.tobytes()
    owner.tenant.resume()
    assert owner.intact()


@pytest.mark.parametrize("damage", ["altered", "truncated"])
def test_a_damaged_file_is_a_typed_error(device: Device, tmp_path: Path, damage: str) -> None:
    owner, other = Owner(device, "a", MIB, 1), Owner(device, "b", MIB, 2)
    owner.tenant.suspend()
    owner.tenant.core.spill()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    with path.open("r+b") as file:
        if damage == "altered":
            file.seek(-1000, os.SEEK_END)
            file.write(b"\x00" if whole[-1000] else b"\x01")
        else:
            file.truncate(len(whole) - 1)
    with pytest.raises(StateFileError, match="weights") as caught:
        owner.tenant.resume()
    assert caught.value.path == str(path)
    assert caught.value.tag == "weights"
    assert owner.tenant.state == "HOST"
    assert other.intact()
    with path.open("r+b") as file:
        file.write(whole)
    owner.tenant.resume()
    assert owner.intact()


def test_a_directory_that_cannot_be_used_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="spill directory"):
        open_device(SPEC, spill_directory=str(tmp_path / "file"))
    with pytest.raises(UsageError, match="path as text"):
        open_device(SPEC, spill_directory=tmp_path)  # type: ignore[arg-type]


def test_files_go_when_the_process_ends(tmp_path: Path) -> None:
    code = f"""
import sys, weave_rt
device = weave_rt.open_device({SPEC!r}, spill_directory={str(tmp_path / "spill")!r})
tenant = weave_rt.Tenant(device, "a")
tenant.resume()
buffer = tenant.buffer(100000, "weights")
tenant.suspend()
tenant.core.spill()
import os
assert len(os.listdir({str(tmp_path / "spill")!r})) == 1
sys.stdout.write("spilled")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("spilled", 0), done.stderr
    assert not files(tmp_path)


def test_closing_and_rescuing_hold_nothing_twice(tmp_path: Path) -> None:
    size = 96 * MIB
    spec = "emulated:h20?scale=1024&speed=50&capacity=256MiB&block=4MiB"
    device = open_device(spec, spill_directory=str(tmp_path / "spill"))
    try:
        owner = Owner(device, "a", size, 1)
        with Resident() as resident:
            assert owner.tenant.rescue(tmp_path / "a.safetensors") == ["weights"]
        assert resident.growth < 32 * MIB
        owner.tenant.suspend()
        owner.tenant.core.spill()
        with Resident() as resident:
            owner.tenant.rescue(tmp_path / "b.safetensors")
        assert resident.growth < 32 * MIB
        for name in "ab":
            assert np.array_equal(
                load_file(tmp_path / f"{name}.safetensors")["weights"][:size], owner.bytes
            )
        with safe_open(tmp_path / "a.safetensors", "numpy") as opened:
            assert json.loads(opened.metadata()["tensors"]) == {}
        with pytest.raises(StateFileError) as caught:
            owner.tenant.rescue(tmp_path / "nowhere" / "c.safetensors")
        assert caught.value.path.endswith("c.safetensors")
    finally:
        device.close()

"""`weave doctor`: what it measures here, and what it says about machines that are not like this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weave_rt import UsageError, _core, doctor
from weave_rt.calibration import is_disturbed, recall
from weave_rt.device import open_device
from weave_rt.doctor import examine
from weave_rt.host import cgroup_memory, numa_nodes, pci_node
from weave_rt.pages import page_kinds
from weave_rt.verdicts import checks
from weave_scheduler import doctor as shown

SPEC = "emulated:h20?scale=4096&speed=50&capacity=2MiB&seed=1"
GIB = 1 << 30


def verdicts(record: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    return {c.name: (c.verdict, c.value, c.advice) for c in checks(record)}


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return examine(SPEC)


def test_the_record_of_this_machine(record: dict[str, Any]) -> None:
    assert list(record)[:3] == ["format", "version", "conditions"]
    assert (record["format"], record["version"]) == ("weave-doctor", 1)
    conditions = {"device", "device_name", "spec", "weave", "python", "cores", "started_at"}
    assert conditions <= record["conditions"].keys()
    assert json.loads(json.dumps(record)) == record
    (device,) = record["devices"]
    assert {"kind", "block_bytes", "host_limited"} <= device.keys()
    assert device["usable_bytes"] > 0
    assert device["attributes"]["async_engines"] == 2
    assert record["link"]["h2d_bytes_per_s"] > 0
    assert 0 < record["link"]["h2d_model_share"] < 1.1
    assert record["link"]["pageable_copies"] == 0
    assert record["memory"]["total"] == device["capacity_bytes"]
    assert record["background"]["slowdown"] > -1
    assert record["pages"]["shmem"] in ("huge", "collapsed", "small")
    names = [check["name"] for check in record["checks"]]
    assert len(set(names)) == len(names)
    for name in ("CUDA driver", "virtual memory management", "copy engines", "integrated",
                 "memory to pin", "memlock", "open files", "huge pages", "link out", "link in",
                 "link both ways"):  # fmt: skip
        assert name in names
    for check in record["checks"]:
        assert (check["verdict"] == "ok") or check["advice"]


def test_it_measures_anew_and_later_runs_know(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("WEAVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = examine(SPEC)["link"]["h2d_bytes_per_s"]
    device = open_device(SPEC)
    known = recall(device) or {}
    assert known["h2d"] == first
    assert "background_slowdown" not in known  # of the host, not of the device that it models
    device.close()
    before = _core.call_counts("emulated")["memcpy_htod_async"]
    examine(SPEC)
    assert _core.call_counts("emulated")["memcpy_htod_async"] > before


def test_what_copies_cost_on_a_gpu_is_remembered_and_binds(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Seen with a device that says it is a GPU."""
    monkeypatch.delenv("WEAVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = open_device(SPEC)

    class Gpu:
        kind, name, uuid, driver_version = "cuda", "GPU", "GPU-1", 12080

        def __init__(self, loss: float | None) -> None:
            self.loss = loss

        def __getattr__(self, name: str) -> Any:
            return getattr(device, name)

        def slowdown(self) -> float | None:
            return self.loss

    for loss, allowed in ((0.05, False), (0.01, True), (None, None)):
        looked: dict[str, Any] = {"numa": {}}
        doctor._look_at(Gpu(loss), looked)  # type: ignore[arg-type]
        rates = recall(Gpu(loss)) or {}  # type: ignore[arg-type]
        assert is_disturbed(rates) == (allowed is False)
        assert looked.get("background") == (
            None if loss is None else {"slowdown": loss, "allowed": allowed}
        )
    device.close()


def test_duplex_of_the_device_is_measured_not_assumed() -> None:
    link = examine(SPEC.replace("&seed", "&duplex=0.4&h2d=2MB/s&d2h=2MB/s&seed"))["link"]
    assert 0.3 < link["duplex_share"] < 0.5


def test_a_device_that_is_one_memory_with_the_host_is_told_apart() -> None:
    found = verdicts(examine(SPEC + "&integrated=1"))
    verdict, value, advice = found["integrated"]
    assert (verdict, value) == ("warning", "yes: device and host are one memory")
    assert "host.budget" in advice


def test_pinning_that_fails_is_a_problem_that_names_the_limits() -> None:
    with _core.FaultScope(nth=1, only="mem_host_register", status=2, from_then_on=True):
        record = examine(SPEC)
    verdict, value, advice = verdicts(record)["link"]
    assert verdict == "problem"
    assert "cuMemHostRegister" in value
    assert "RLIMIT_MEMLOCK is" in advice
    assert shown.has_problem(record)
    assert "link" not in record


def test_a_device_that_does_not_open_is_a_problem_and_the_rest_is_shown() -> None:
    with _core.FaultScope(nth=1, only="primary_ctx_retain", status=101, from_then_on=True):
        record = examine(SPEC)
    assert verdicts(record)["device"][0] == "problem"
    assert record["devices"] == []
    assert "huge pages" in verdicts(record)
    titles = [table.title for table in shown.doctor_tables(record)]
    assert titles[-1] == "Checks"


def test_a_spec_that_names_no_device_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="h99"):
        examine("emulated:h99")


def test_the_value_of_memlock_is_told() -> None:
    command = f"ulimit -l 64 && exec {sys.executable} -m weave_scheduler doctor --json " \
              f"--device '{SPEC}'"  # fmt: skip
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    assert record["limits"]["memlock_bytes"] == 64 * 1024
    assert "65.5 KB" in verdicts(record)["memlock"][1]


def test_the_command_prints_tables_and_refuses_in_one_line() -> None:
    def weave(device: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "weave_scheduler", "doctor", "--device", device]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = weave(SPEC)
    assert done.returncode == 0, done.stderr
    for word in ("Versions", "Checks", "CUDA driver", "emulated:h20", "huge pages"):
        assert word in done.stdout
    refused = weave("emulated:h99")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1


# --- machines that are not like this one


def gpu(**attributes: int) -> dict[str, Any]:
    has = {"virtual_memory_management": 1, "async_engines": 3, "integrated": 0, "compute_mode": 0}
    return {
        "versions": {},
        "system": {},
        "cuda": {"available": True, "driver_version": 12080, "devices": [{}]},
        "devices": [
            {
                "spec": "cuda:0",
                "kind": "cuda",
                "block_bytes": 64 << 20,
                "usable_bytes": 90 * GIB,
                "attributes": has | attributes,
            }
        ],
        "limits": {
            "pinnable_bytes": 500 * GIB,
            "memlock_bytes": "unlimited",
            "open_files_hard": 4096,
            "mappings_max": 65530,
        },
        "pages": {"thp_shmem": "advise", "shmem": "huge", "hugetlb": []},
        "numa": {"nodes": [{"node": 0, "memory_free_bytes": 400 * GIB}]},
        "memory": {"total": 96 * GIB, "free": 95 * GIB, "managed": 0, "unmanaged": GIB},
        "background": {"slowdown": 0.012, "allowed": True},
        "link": {
            "d2h_bytes_per_s": 5e10,
            "h2d_bytes_per_s": 5e10,
            "duplex_share": 0.75,
            "mode": "duplex",
        },
    }


def changed(path: str, value: object) -> dict[str, Any]:
    machine = gpu()
    *parents, last = path.split("/")
    inner: Any = machine
    for name in parents:
        inner = inner[int(name) if name.isdigit() else name]
    inner[last] = value
    return machine


def test_a_good_machine_has_nothing_to_do() -> None:
    found = verdicts(gpu())
    assert {verdict for verdict, _, _ in found.values()} == {"ok"}
    assert found["CUDA driver"][1] == "CUDA 12.8, 1 GPU(s)"
    assert found["link out"][1] == "50.0 GB/s"
    assert found["compute mode"][1] == "default"


NUMA = {"nodes": [{"node": 0, "memory_free_bytes": 9 * GIB},
                  {"node": 1, "memory_free_bytes": 400 * GIB}], "device_node": 0}  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "name", "verdict", "words"),
    [
        (changed("cuda/driver_version", 11030), "CUDA driver", "problem", "470"),
        (changed("cuda/missing", ["cuMemMap"]), "CUDA driver", "warning", "470"),
        (gpu(virtual_memory_management=0), "virtual memory management", "problem", "virtual GPU"),
        (gpu(async_engines=1), "copy engines", "warning", "take turns"),
        (gpu(integrated=1), "integrated", "warning", "fit together"),
        (gpu(compute_mode=2), "compute mode", "problem", "DEFAULT"),
        (gpu(compute_mode=3), "compute mode", "warning", "DEFAULT"),
        (gpu(mps_enabled=1), "MPS", "warning", "quit"),
        (changed("system/mps_pipe", "somewhere"), "MPS", "warning", "quit"),
        (changed("limits/pinnable_bytes", GIB), "memory to pin", "warning", "container"),
        (changed("limits/open_files_hard", 1024), "open files", "warning", "ulimit -Hn"),
        (changed("limits/mappings_max", 2000), "mappings", "problem", "max_map_count"),
        (changed("numa", NUMA), "NUMA", "warning", "that one"),
        (changed("pages/shmem", "small"), "huge pages", "warning", "shmem_enabled"),
        (changed("link/d2h_bytes_per_s", 1.7e9), "link out", "warning", "slot"),
        (changed("link/h2d_bytes_per_s", 2.9e9), "link in", "warning", "slot"),
        (changed("memory/unmanaged", 20 * GIB), "device memory", "warning", "nvidia-smi"),
        (changed("background/allowed", False), "background copies", "warning", "off"),
        (changed("link/pageable_copies", 4), "pinned copies", "problem", "report"),
    ],
)
def test_what_is_not_well_is_one_line_with_advice(
    machine: dict[str, Any], name: str, verdict: str, words: str
) -> None:
    found = verdicts(machine)
    assert found[name][0] == verdict
    assert words in found[name][2]
    others = {other: one[0] for other, one in found.items() if other != name}
    assert set(others.values()) == {"ok"}


def test_a_slow_duplex_is_no_fault_but_said() -> None:
    said = verdicts(changed("link/mode", "sequential"))["link both ways"]
    assert (said[0], said[1]) == ("ok", "75% of each direction: one after the other is faster")
    assert "at once" in verdicts(gpu())["link both ways"][1]


def test_no_driver_is_no_problem_and_said_once() -> None:
    machine = gpu() | {"devices": []}
    reason = "cannot open libcuda.so.1: libcuda.so.1: no file"
    machine["cuda"] = {"available": False, "reason": reason}
    verdict, value, _ = verdicts(machine)["CUDA driver"]
    assert (verdict, value) == ("ok", "none: cannot open libcuda.so.1: no file")


def test_the_tables_show_what_to_do_only_where_there_is_something() -> None:
    for machine, columns in ((gpu(), 3), (gpu(integrated=1), 4)):
        machine["checks"] = [
            {"name": c.name, "value": c.value, "verdict": c.verdict, "advice": c.advice}
            for c in checks(machine)
        ]
        machine["cuda"]["devices"] = [{"ordinal": 0, "name": "H20", "total_bytes": 96 * 10**9}]
        tables = {table.title: table for table in shown.doctor_tables(machine)}
        assert len(tables["Checks"].columns) == columns
        assert tables["GPUs"].rows == [["cuda:0", "H20, 96 GB"]]
        assert ["usable", "96.6 GB"] in tables["Device cuda:0"].rows


# --- what is read from the system


def test_nodes_and_their_devices(tmp_path: Path) -> None:
    for number, total in ((0, 1024), (1, 2048), (2, 0)):
        folder = tmp_path / f"node{number}"
        folder.mkdir()
        (folder / "cpulist").write_text(f"{number}-{number + 3}\n")
        (folder / "meminfo").write_text(
            f"Node {number} MemTotal:  {total} kB\nNode {number} MemFree: 512 kB\n"
        )
    (tmp_path / "node_list").mkdir()
    nodes = numa_nodes(tmp_path)
    assert [(one["node"], one["memory_total_bytes"]) for one in nodes] == [
        (0, 1 << 20),
        (1, 2 << 20),
    ]
    assert nodes[1]["cpus"] == "1-4"
    assert numa_nodes(tmp_path / "none") == []
    slot = tmp_path / "0000:41:00.0"
    slot.mkdir()
    (slot / "numa_node").write_text("1\n")
    assert pci_node(0, 0x41, 0, tmp_path) == 1
    (slot / "numa_node").write_text("-1\n")
    assert pci_node(0, 0x41, 0, tmp_path) is None
    assert pci_node(0, 1, 0, tmp_path) is None


def test_page_settings_are_read(tmp_path: Path) -> None:
    thp = tmp_path / "transparent_hugepage"
    thp.mkdir()
    (thp / "shmem_enabled").write_text("always within_size [advise] never deny force\n")
    folder = tmp_path / "hugepages" / "hugepages-2048kB"
    folder.mkdir(parents=True)
    (folder / "nr_hugepages").write_text("12\n")
    (folder / "free_hugepages").write_text("5\n")
    found = page_kinds(tmp_path)
    assert found["thp_shmem"] == "advise"
    assert "thp" not in found
    assert found["hugetlb"] == [{"page_bytes": 2 << 20, "reserved": 12, "free": 5}]
    before = set(os.listdir("/proc/self/fd"))
    page_kinds(tmp_path)
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_tightest_cgroup_is_named(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    for path, limit in (("a", 1000), ("a/b", 3000)):
        (tmp_path / path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / path / "memory.current").write_text("10\n")
    assert cgroup_memory(own, tmp_path) == {"cgroup_limit_bytes": 1000, "cgroup_used_bytes": 10}

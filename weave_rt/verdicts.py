"""What a weave-doctor record means: a line per matter, with a verdict and what to do. Pure.

Called by `weave_rt.doctor`; the record is described in docs/outputs.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from weave_rt.calibration import SLOW_LINK

__all__ = ["Check", "checks"]

OK, WARNING, PROBLEM = "ok", "warning", "problem"
OLDEST_DRIVER = 11040  # CUDA 11.4, driver 470
LEAST_MODEL_SHARE = 0.9
MOST_UNMANAGED_SHARE = 0.1  # of the capacity, before it is worth a line
OWN_FILES = 64  # descriptors that a process needs beside the blocks
OTHER_MAPPINGS = 1000
MAPPINGS_PER_BLOCK = 3  # home, region, and the alias of an emulated engine


@dataclass(frozen=True, slots=True)
class Check:
    """One matter. verdict: ``ok``, ``warning`` (works, but slower or with a limit) or ``problem``
    (something will fail); `advice` says what to do about the latter two."""

    name: str
    value: str
    verdict: str = OK
    advice: str = ""


def _judge(name: str, value: str, fine: bool, advice: str, verdict: str = WARNING) -> Check:
    return Check(name, value) if fine else Check(name, value, verdict, advice)


def checks(record: dict[str, Any]) -> list[Check]:
    """The lines of a record, in the order in which one would put things right."""
    found = [_driver(record["cuda"], record["devices"])]
    if "failed" in record:
        found.append(_failed(record))
    for device in record["devices"]:
        found += _device(device, record["system"])
        found += _memory(device, record["limits"])
        found += _numa(device, record["numa"])
    found.append(_pages(record["pages"]))
    if "memory" in record:
        found.append(_others(record["memory"]))
    if "link" in record:
        found += _link(record["link"])
    if "background" in record:
        found.append(_background(record["devices"], record["background"]))
    return found


def _driver(cuda: dict[str, Any], devices: list[dict[str, Any]]) -> Check:
    name, update = "CUDA driver", "update it to 470 (CUDA 11.4) or newer"
    if cuda.get("missing"):
        return Check(name, f"lacks {', '.join(cuda['missing'])}", WARNING, update)
    if not cuda.get("available"):
        reason = re.sub(r"(\S+: )\1", r"\1", str(cuda.get("reason", "")))  # the loader repeats it
        return Check(name, f"none: {reason}", OK, "emulated devices work without one")
    version = int(cuda.get("driver_version", 0))
    value = (
        f"CUDA {version // 1000}.{version % 1000 // 10}, {len(cuda.get('devices') or [])} GPU(s)"
    )
    used = any(device["kind"] == "cuda" for device in devices)
    return _judge(name, value, version >= OLDEST_DRIVER, update, PROBLEM if used else WARNING)


def _failed(record: dict[str, Any]) -> Check:
    failed, limits = record["failed"], record["limits"]
    if failed["what"] == "open":
        advice = "another process may hold the GPU: see nvidia-smi"
        return Check("device", failed["error"], PROBLEM, advice)
    advice = (
        f"pinned memory could not be had: RLIMIT_MEMLOCK is {_amount(limits['memlock_bytes'])} "
        f"(ulimit -l), {_amount(limits['pinnable_bytes'])} of memory can be taken"
    )
    return Check("link", f"not measured: {failed['error']}", PROBLEM, advice)


def _device(device: dict[str, Any], system: dict[str, Any]) -> list[Check]:
    has: dict[str, int] = device["attributes"]
    engines, mode = has.get("async_engines", 0), has.get("compute_mode", 0)
    mps = has.get("mps_enabled") or (device["kind"] == "cuda" and "mps_pipe" in system)
    shared = "jobs in processes of their own need nvidia-smi -c DEFAULT"
    found = [
        _judge(
            "virtual memory management",
            "yes" if has.get("virtual_memory_management", 1) else "no",
            bool(has.get("virtual_memory_management", 1)),
            "Weave needs it: not on this GPU, or switched off for this virtual GPU",
            PROBLEM,
        ),
        _judge(
            "copy engines",
            str(engines),
            engines >= 2,
            "copies in and out take turns: a switch takes the sum of both",
        ),
        _judge(
            "integrated",
            "yes: device and host are one memory" if has.get("integrated") else "no",
            not has.get("integrated"),
            "a host copy frees nothing here: let all tenants fit together, then none moves, and "
            "set host.budget to what is really left",
        ),
    ]
    if device["kind"] == "cuda" or mode:
        name = {0: "default", 2: "prohibited"}.get(mode, "exclusive")
        worst = PROBLEM if mode == 2 else WARNING
        found.append(
            _judge("compute mode", name, mode == 0, f"one process at most: {shared}", worst)
        )
    if mps:
        advice = (
            "a fault of one process ends all: for jobs in processes of their own stop it "
            "(echo quit | nvidia-cuda-mps-control)"
        )
        found.append(Check("MPS", "on", WARNING, advice))
    return found


def _memory(device: dict[str, Any], limits: dict[str, Any]) -> list[Check]:
    usable, pinnable = device["usable_bytes"], limits["pinnable_bytes"]
    blocks = usable // device["block_bytes"]
    # An emulated device takes the memory of the host for its own.
    needed = usable * (2 if device["kind"] == "emulated" else 1)
    value = f"{_amount(pinnable)}; a tenant that fills the device takes {_amount(usable)}"
    if limits.get("cgroup_limit_bytes", "unlimited") != "unlimited":
        value += f"; limit of the cgroup {_amount(limits['cgroup_limit_bytes'])}"
    memlock = _amount(limits["memlock_bytes"])
    found = [
        _judge(
            "memory to pin",
            value,
            pinnable >= needed,
            "raise the limit of the container, or plan for smaller tenants",
        ),
        # What a driver pins need not count; the real test is that the link was measured.
        Check("memlock", f"RLIMIT_MEMLOCK {memlock}"),
        _limit(
            "open files",
            limits["open_files_hard"],
            OWN_FILES + blocks,
            "raise the hard limit (ulimit -Hn)",
            # A GPU's block takes a descriptor only where it is shared with another process.
            PROBLEM if device["kind"] == "emulated" else WARNING,
        ),
    ]
    if "mappings_max" in limits:
        mappings = OTHER_MAPPINGS + MAPPINGS_PER_BLOCK * blocks
        advice = "raise it (sysctl vm.max_map_count), or take larger blocks"
        found.append(_limit("mappings", limits["mappings_max"], mappings, advice, PROBLEM))
    return found


def _limit(name: str, limit: int | str, needed: int, advice: str, verdict: str) -> Check:
    enough = limit == "unlimited" or int(limit) >= needed
    return _judge(name, f"{limit}, needed {needed}", enough, advice, verdict)


def _numa(device: dict[str, Any], numa: dict[str, Any]) -> list[Check]:
    nodes, own = numa["nodes"], numa.get("device_node")
    if len(nodes) < 2:
        return [Check("NUMA", f"{len(nodes)} node")] if nodes else []
    if own is None:
        return [Check("NUMA", f"{len(nodes)} nodes, the device's is unknown")]
    free = {node["node"]: node["memory_free_bytes"] for node in nodes}.get(own, 0)
    value = f"{len(nodes)} nodes, the device's is {own} with {_amount(free)} free"
    advice = "copies from another node are slower: free memory on that one"
    return [_judge("NUMA", value, free >= device["usable_bytes"], advice)]


def _pages(pages: dict[str, Any]) -> Check:
    reserved = sum(one["reserved"] for one in pages.get("hugetlb", []))
    setting = f"shmem_enabled {pages.get('thp_shmem', 'unknown')}, {reserved} hugetlb reserved"
    got = {"huge": "yes", "collapsed": "when collapsed"}.get(pages.get("shmem", ""), "no")
    if pages.get("hugetlb_mapped"):
        got = "from hugetlb"
    advice = (
        "switches are slower while all cores are busy: echo advise > "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled, or reserve some (vm.nr_hugepages)"
    )
    return _judge("huge pages", f"{got} ({setting})", got != "no", advice)


def _link(link: dict[str, Any]) -> list[Check]:
    found = []
    for name, direction in (("d2h", "out"), ("h2d", "in")):
        rate, share = link[f"{name}_bytes_per_s"], link.get(f"{name}_model_share")
        if share is None:
            advice = (
                "as slow as copies of pageable memory: see the width and generation of the slot "
                "(nvidia-smi -q) and the IOMMU of the host"
            )
            fine, value = rate >= SLOW_LINK, f"{rate / 1e9:.1f} GB/s"
        else:
            advice = (
                "this host is slower than the model, or was busy: raise scale or lower speed, or "
                "measure again"
            )
            fine, value = share >= LEAST_MODEL_SHARE, f"{share:.0%} of the model"
        found.append(_judge(f"link {direction}", value, fine, advice))
    both = link["duplex_share"]
    way = "one after the other is faster" if link["mode"] == "sequential" else "at once"
    found.append(Check("link both ways", f"{both:.0%} of each direction: {way}"))
    if "pageable_copies" in link:
        count = link["pageable_copies"]
        found.append(
            _judge("pinned copies", f"{count} pageable", count == 0, "please report this", PROBLEM)
        )
    return found


def _others(memory: dict[str, int]) -> Check:
    taken, capacity = memory["unmanaged"], memory["total"]
    value = f"{_amount(taken)} of {_amount(capacity)} are not for tenants"
    advice = "other processes hold the device's memory (nvidia-smi): end them"
    return _judge("device memory", value, taken <= MOST_UNMANAGED_SHARE * capacity, advice)


def _background(devices: list[dict[str, Any]], background: dict[str, Any]) -> Check:
    loss = max(background["slowdown"], 0.0)
    value = f"a phase that only writes memory takes {loss:.1%} longer"
    if any(device["kind"] == "emulated" for device in devices):
        # Its engines and its kernels share the cores and the memory of this host.
        value += ", which is this host and binds nobody"
    advice = "they are off on this device: all that moves, moves while the GPU waits"
    return _judge("background copies", value, background["allowed"], advice)


def _amount(value: int | str) -> str:
    if isinstance(value, str):
        return value
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value} B"

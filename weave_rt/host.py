"""What the host allows: limits of the process, memory, cgroup, NUMA nodes. Linux; read only.

What cannot be read on this machine is absent from the answer.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["cgroup_memory", "host_limits", "memory_info", "numa_nodes", "pci_node"]

_CGROUP = Path("/sys/fs/cgroup")
_NODES = Path("/sys/devices/system/node")
_PCI = Path("/sys/bus/pci/devices")
_UNLIMITED_BYTES = 2**60  # cgroup v1 writes a number near 2^63 for no limit


def host_limits() -> dict[str, Any]:
    """Limits by name; bytes as integers, ``unlimited`` where there is none."""
    limits: dict[str, Any] = {
        "open_files_soft": _limit(resource.RLIMIT_NOFILE, 0),
        "open_files_hard": _limit(resource.RLIMIT_NOFILE, 1),
        "memlock_bytes": _limit(resource.RLIMIT_MEMLOCK, 0),
    }
    memory = memory_info()
    for name, key in (
        ("memory_total_bytes", "MemTotal"),
        ("memory_available_bytes", "MemAvailable"),
    ):
        if key in memory:
            limits[name] = memory[key]
    limits.update(cgroup_memory())
    with suppress(OSError, ValueError):
        limits["mappings_max"] = int(Path("/proc/sys/vm/max_map_count").read_text())
    return limits


def memory_info(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """/proc/meminfo; sizes in bytes, page counts as they are."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def numa_nodes(root: Path = _NODES) -> list[dict[str, Any]]:
    """Nodes that have memory: ``node``, ``cpus`` (a list like 0-7,16), ``memory_total_bytes``,
    ``memory_free_bytes``. Empty where the kernel does not say."""
    nodes: list[dict[str, Any]] = []
    for folder in sorted(root.glob("node[0-9]*"), key=lambda one: int(one.name[4:])):
        memory: dict[str, int] = {}
        with suppress(OSError, ValueError):
            for line in (folder / "meminfo").read_text().splitlines():
                words = line.split()  # Node 0 MemTotal: 1024 kB
                memory[words[2].rstrip(":")] = int(words[3]) * 1024
            if memory.get("MemTotal", 0) > 0:
                nodes.append(
                    {
                        "node": int(folder.name[4:]),
                        "cpus": (folder / "cpulist").read_text().strip(),
                        "memory_total_bytes": memory["MemTotal"],
                        "memory_free_bytes": memory.get("MemFree", 0),
                    }
                )
    return nodes


def pci_node(domain: int, bus: int, device: int, root: Path = _PCI) -> int | None:
    """The NUMA node of a PCI device; None where the system does not say."""
    with suppress(OSError, ValueError):
        node = int((root / f"{domain:04x}:{bus:02x}:{device:02x}.0" / "numa_node").read_text())
        return node if node >= 0 else None
    return None


def cgroup_memory(
    own: Path = Path("/proc/self/cgroup"), root: Path = _CGROUP
) -> dict[str, int | str]:
    """The tightest memory limit of our cgroup and those above it, and what is used there."""
    for group, limit_file, used_file in _groups(own, root):
        tightest: tuple[int, int] | None = None
        for folder in (group, *group.parents):
            if folder != root and root not in folder.parents:
                break
            with suppress(OSError, ValueError):
                limit = int((folder / limit_file).read_text())
                used = int((folder / used_file).read_text())
                if limit < _UNLIMITED_BYTES and (tightest is None or limit < tightest[0]):
                    tightest = (limit, used)
        if tightest is not None:
            return {"cgroup_limit_bytes": tightest[0], "cgroup_used_bytes": tightest[1]}
        if group.exists():
            return {"cgroup_limit_bytes": "unlimited"}
    return {}


def _groups(own: Path, root: Path) -> list[tuple[Path, str, str]]:
    """Our group under cgroup v2 or v1, with the names of its files."""
    groups: list[tuple[Path, str, str]] = []
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            if controllers == "":
                groups.append((root / inside, "memory.max", "memory.current"))
            elif "memory" in controllers.split(","):
                files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
                groups.append((root / "memory" / inside, *files))
    return groups


def _limit(which: int, part: int) -> int | str:
    value = resource.getrlimit(which)[part]
    return "unlimited" if value == resource.RLIM_INFINITY else value

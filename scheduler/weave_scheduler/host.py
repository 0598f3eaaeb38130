"""What the host allows: limits of the process, memory, cgroup, huge pages. Linux; read only.

What cannot be read on this machine is absent from the answer.
"""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["cgroup_memory", "host_limits", "memory_info"]

_CGROUP = Path("/sys/fs/cgroup")
_THP = Path("/sys/kernel/mm/transparent_hugepage")
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
        ("hugetlb_page_bytes", "Hugepagesize"),
        ("hugetlb_pages_total", "HugePages_Total"),
        ("hugetlb_pages_free", "HugePages_Free"),
    ):
        if key in memory:
            limits[name] = memory[key]
    limits.update(cgroup_memory())
    for name, file in (("thp", "enabled"), ("thp_shmem", "shmem_enabled")):
        with suppress(OSError):
            chosen = re.search(r"\[(\S+)\]", (_THP / file).read_text())
            if chosen:
                limits[name] = chosen.group(1)
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

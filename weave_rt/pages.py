"""What kind of pages shared memory really gets on this host.

Settings say little: an advice may be accepted and do nothing, and a setting of ``never`` may still
allow to collapse. So the core maps a huge page as it maps the pieces of the host pool, and what the
kernel then says about that very mapping counts. Linux; called by ``weave doctor``.
"""

from __future__ import annotations

import mmap
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from weave_rt import _core

__all__ = ["page_kinds"]

_SYSTEM = Path("/sys/kernel/mm")


def page_kinds(system: Path = _SYSTEM) -> dict[str, Any]:
    """``shmem``: huge, collapsed (small until MADV_COLLAPSE) or small; ``hugetlb``: by page size
    in bytes, how many are reserved and free; ``hugetlb_mapped``: whether one can be had now;
    ``thp`` and ``thp_shmem``: the settings. What cannot be found out is absent."""
    found: dict[str, Any] = {"page_bytes": mmap.PAGESIZE}
    for name, file in (("thp", "enabled"), ("thp_shmem", "shmem_enabled")):
        with suppress(OSError):
            chosen = re.search(r"\[(\S+)\]", (system / "transparent_hugepage" / file).read_text())
            if chosen:
                found[name] = chosen.group(1)
    found["hugetlb"] = hugetlb = []
    for folder in sorted(system.glob("hugepages/hugepages-*kB")):
        with suppress(OSError, ValueError):
            hugetlb.append(
                {
                    "page_bytes": int(folder.name.removeprefix("hugepages-")[:-2]) * 1024,
                    "reserved": int((folder / "nr_hugepages").read_text()),
                    "free": int((folder / "free_hugepages").read_text()),
                }
            )
    tried = _core.probe_pages()
    if "shmem" in tried:
        found["shmem"] = tried["shmem"]
    found["hugetlb_mapped"] = tried["hugetlb"]
    return found

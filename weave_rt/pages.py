"""What kind of pages shared memory really gets on this host.

Settings say little: an advice may be accepted and do nothing, and a setting of ``never`` may still
allow to collapse. So a small memfd is mapped as the host pool maps its pieces, and what the kernel
then says about that very mapping counts. Linux; called by ``weave doctor``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["page_kinds"]

HUGE = 2 << 20
MADV_COLLAPSE = 25
MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
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
    with suppress(OSError):
        found["shmem"] = _shmem()
    found["hugetlb_mapped"] = _hugetlb()
    return found


def _shmem() -> str:
    with _mapped(os.MFD_CLOEXEC) as address:
        libc = _libc()
        libc.madvise(ctypes.c_void_p(address), HUGE, mmap.MADV_HUGEPAGE)
        ctypes.memset(address, 1, HUGE)
        if _is_huge(address):
            return "huge"
        libc.madvise(ctypes.c_void_p(address), HUGE, MADV_COLLAPSE)
        return "collapsed" if _is_huge(address) else "small"


def _hugetlb() -> bool:
    """Mapping reserves the page, so it need not be touched, which could be fatal."""
    try:
        with _mapped(os.MFD_CLOEXEC | os.MFD_HUGETLB | os.MFD_HUGE_2MB):
            return True
    except OSError:
        return False


@contextmanager
def _mapped(flags: int) -> Iterator[int]:
    """The address of a shared mapping of one huge page's bytes, aligned to it. Raises OSError."""
    libc = _libc()
    file = os.memfd_create("weave-page-kinds", flags)
    try:
        os.ftruncate(file, HUGE)
        room = _map(None, 2 * HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        try:
            aligned = -(-room // HUGE) * HUGE
            both = mmap.PROT_READ | mmap.PROT_WRITE
            yield _map(aligned, HUGE, both, mmap.MAP_SHARED | MAP_FIXED, file)
        finally:
            libc.munmap(ctypes.c_void_p(room), 2 * HUGE)
    finally:
        os.close(file)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _map(at: int | None, nbytes: int, protection: int, flags: int, file: int) -> int:
    address: int | None = _libc().mmap(at, nbytes, protection, flags, file, 0)
    if address is None or address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return address


def _is_huge(address: int) -> bool:
    """Whether the mapping at `address` is by huge pages, as the kernel sees it."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-[0-9a-f]+ ", line)
        if head:
            inside = int(head.group(1), 16) == address
        elif inside and re.match(r"(ShmemPmdMapped|FilePmdMapped):\s+[1-9]", line):
            return True
    return False

"""Keeps every core busy in this process while something is measured: torch matrix products, as the
optimizer or the reward model of another job would.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from weave_rt.errors import UsageError

__all__ = ["busy_cores"]

SIDE = 384  # of the matrices: a product takes a few milliseconds of one core, without the GIL


@contextmanager
def busy_cores(wanted: bool = True) -> Iterator[None]:
    """One thread per core that multiplies matrices until the end.

    Raises UsageError without torch."""
    if not wanted:
        yield
        return
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise UsageError("--load multiplies torch matrices; pip install torch") from None
    done = threading.Event()
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # each of ours is one core's work

    def work() -> None:
        left = torch.rand(SIDE, SIDE)
        product = torch.empty(SIDE, SIDE)
        while not done.is_set():
            torch.mm(left, left, out=product)

    cores = len(os.sched_getaffinity(0))
    threads = [threading.Thread(target=work, name=f"load-{n}", daemon=True) for n in range(cores)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
        torch.set_num_threads(before)

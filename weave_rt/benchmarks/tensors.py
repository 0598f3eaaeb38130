"""What does the number of tensors cost? 10,000 small ones against one of the same bytes.

Cases ``many_tensors`` and ``one_tensor``: two tenants of the torch adapter, each suspended and
resumed in turn, all bytes moving both ways. A sample is what the caller waits for, Python included;
``python_s`` is the median of what is not the core's, ``scan_s`` that of looking at unchanged
tensors alone (a part of it), ``difference_s`` the median over pairs of rounds.
"""

from __future__ import annotations

import importlib
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weave_rt import _core
from weave_rt.benchmarks.load import busy_cores
from weave_rt.benchmarks.record import Case
from weave_rt.errors import StateChanged, UsageError
from weave_rt.tenant import Tenant

__all__ = ["measure", "sizes"]

COUNT = 10_000
SMALLEST, LARGEST = 4 << 10, 256 << 10  # bytes
ALIGNMENT = 512


def sizes(count: int = COUNT, seed: int = 0) -> list[int]:
    """Bytes of each tensor: log-uniform, in whole steps of 512, the same for the same seed."""
    draw = random.Random(seed)
    low, high = math.log(SMALLEST), math.log(LARGEST)
    return [round(math.exp(draw.uniform(low, high)) / ALIGNMENT) * ALIGNMENT for _ in range(count)]


@dataclass
class _Side:
    """A tenant with its tensors, and what was measured beside the samples."""

    case: Case
    tenant: Tenant
    tensors: list[Any]
    python_s: list[float] = field(default_factory=list)
    scan_s: list[float] = field(default_factory=list)

    def cycle(self, counts: bool) -> None:
        """Out and in again. pre: the tenant is resident; it is afterwards."""
        before = time.perf_counter()
        self.tenant.scan()
        scanned = time.perf_counter()
        core_s = self.tenant.suspend().seconds
        core_s += self.tenant.resume().seconds
        total = time.perf_counter() - scanned
        if counts:
            self.case.samples_s.append(total)
            self.python_s.append(total - core_s)
            self.scan_s.append(scanned - before)


def measure(
    spec: str,
    repeats: int,
    load: bool,
    progress: Callable[[str], None],
    count: int = COUNT,
) -> list[Case]:
    """Both cases, measured alternately. `spec` is resolved.

    Raises UsageError without torch or where the device is too small; StateChanged."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise UsageError("many_tensors needs torch; pip install torch") from None
    each = sizes(count)
    total = sum(each)
    device = _core.Device.open(spec)
    sides: list[_Side] = []
    try:
        needed = 2 * (-(-total // device.block_bytes) + 1) * device.block_bytes
        if needed > device.usable_bytes:
            raise UsageError(
                f"many_tensors needs {needed / 1e6:.0f} MB on the device, which has "
                f"{device.usable_bytes / 1e6:.0f} MB for tenants"
            )
        rates = device.calibrate()
        limit = total / rates["d2h"] + total / rates["h2d"]
        place = "cpu" if device.kind == "emulated" else device.spec
        for name, parts in (("many_tensors", each), ("one_tensor", [total])):
            tenant = Tenant(device, name, job="bench")
            tenant.resume()
            tensors = [
                torch.full((part,), index % 251, dtype=torch.uint8, device=place)
                for index, part in enumerate(parts)
            ]
            tenant.adopt(*tensors)
            params = {"tensors": len(parts), **({"load": "torch"} if load else {})}
            case = Case(name, "weave", params, total, total, limit, headline=not sides)
            sides.append(_Side(case, tenant, tensors))
        progress(f"{count} tensors against one of {total / 1e6:.0f} MB, {repeats} rounds")
        with busy_cores(load):
            for index in range(1 + repeats):
                for side in sides if index % 2 == 0 else reversed(sides):
                    side.cycle(counts=index > 0)
        for side in sides:
            _check(side)
    finally:
        for side in sides:
            side.tensors.clear()
        device.close()
    return _cases(sides)


def _check(side: _Side) -> None:
    for index, tensor in enumerate(side.tensors):
        if int(tensor.min()) != index % 251 or int(tensor.max()) != index % 251:
            raise StateChanged(f"{side.case.name}: tensor {index} differs after the benchmark")


def _cases(sides: list[_Side]) -> list[Case]:
    many, one = sides
    for side in sides:
        side.case.more["python_s"] = statistics.median(side.python_s)
        side.case.more["scan_s"] = statistics.median(side.scan_s)
    many.case.more["difference_s"] = statistics.median(
        a - b for a, b in zip(many.case.samples_s, one.case.samples_s, strict=True)
    )
    return [side.case for side in sides]

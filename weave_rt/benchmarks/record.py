"""The record of a benchmark: conditions, cases, samples. Format ``weave-bench``, version 1.

A case is one arm of one question with all its samples; arms of a question are measured
alternately in one run, so only their ratio means anything on a shared machine. A value that was
not measured is absent.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weave_rt._core import Device
from weave_rt.conditions import host_conditions

__all__ = ["Case", "conditions", "quantile", "record"]


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample at ``share`` (0 to 1) of the sorted samples, interpolated."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass
class Case:
    """One arm of one question. Sizes in bytes, times in seconds."""

    name: str
    arm: str
    params: dict[str, Any]
    bytes_out: int
    bytes_in: int
    limit_s: float | None = None  # what the calibrated link allows
    headline: bool = False
    samples_s: list[float] = field(default_factory=list)
    more: dict[str, float] = field(default_factory=dict)  # further medians, beside the fixed keys

    def as_dict(self) -> dict[str, Any]:
        median = statistics.median(self.samples_s)
        case: dict[str, Any] = {
            "name": self.name,
            "arm": self.arm,
            "params": self.params,
            "n": len(self.samples_s),
            "samples_s": self.samples_s,
            "p50_s": median,
            "p95_s": quantile(self.samples_s, 0.95),
            "bytes_out": self.bytes_out,
            "bytes_in": self.bytes_in,
            "headline": self.headline,
        }
        if self.limit_s is not None:
            case["limit_s"] = self.limit_s
            case["efficiency"] = self.limit_s / median
        return {**case, **self.more}


def conditions(device: Device) -> dict[str, Any]:
    """Under what conditions the numbers were taken (design of the outputs, ``conditions``)."""
    block: dict[str, Any] = {
        "device": device.kind,
        "device_name": device.name,
        "spec": device.spec,
        **host_conditions(),
        "host_limited": device.host_limited,
    }
    if device.driver_version:
        block["driver"] = device.driver_version
    return block


def record(device: Device, cases: Sequence[Case], **more: object) -> dict[str, Any]:
    """The whole record; ``more`` goes beside ``cases``."""
    return {
        "format": "weave-bench",
        "version": 1,
        "conditions": conditions(device),
        "cases": [case.as_dict() for case in cases],
        **more,
    }

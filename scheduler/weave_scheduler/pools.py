"""Pools and nodes: how many GPUs, what they cost, how much memory; frozen and checked.

Memory is bytes, prices are money per GPU-hour. ValueError names the field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from weave_scheduler.gpus import Gpu

__all__ = ["POOLS", "Node", "PoolModel", "check_number", "check_unique", "node_name"]

POOLS: tuple[str, ...] = ("rollout", "train")


def node_name(pool: str, node: int) -> str:
    """``rollout:0``: the name of a node in events and in mathematics."""
    return f"{pool}:{node}"


def check_number(value: float, field: str, least: float = 0.0, most: float = float("inf")) -> None:
    """Raise ValueError unless ``value`` is finite and from ``least`` to ``most``."""
    if not (math.isfinite(value) and least <= value <= most):
        allowed = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
        raise ValueError(f"{field}: {value!r} is out of range; allowed: {allowed}")


def check_unique(values: Iterable[object], field: str) -> None:
    """Raise ValueError where a value comes twice."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{field}: {value!r} is given twice")
        seen.add(value)


@dataclass(frozen=True, slots=True)
class Node:
    """What one node of a pool is. ``price`` is money per GPU-hour; only ratios mean anything.
    ``gpu``: each of its GPUs, where it is known; residency is planned then."""

    gpus: int
    price: float
    host_bytes: int
    device_bytes: int = 0
    gpu: Gpu | None = None

    def __post_init__(self) -> None:
        check_number(self.gpus, "gpus", 1)
        for field in ("price", "host_bytes", "device_bytes"):
            check_number(getattr(self, field), field)

    @property
    def cost_per_h(self) -> float:
        return self.gpus * self.price


@dataclass(frozen=True, slots=True)
class PoolModel:
    """All nodes of one pool; they are alike. ``count`` None: as many as asked for."""

    pool: str
    node: Node
    count: int | None = None

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise ValueError(f"pool: {self.pool!r} is not known")
        if self.count is not None:
            check_number(self.count, "count", 1)

"""Did sharing change anything? A job together with others against the same job alone.

Losses are compared bit for bit, iteration by iteration, then rewards, then the digests. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weave_scheduler.records import JobRecord

__all__ = ["comparable", "first_difference"]


def comparable(solo: JobRecord, together: JobRecord) -> bool:
    """Whether both ran to their end."""
    return not any(job.error is not None or job.stopped for job in (solo, together))


def first_difference(solo: JobRecord, together: JobRecord) -> str | None:
    """What differs first, in words that name the iteration; None when nothing does."""
    for what, alone, shared in (
        ("loss", solo.losses, together.losses),
        ("mean reward", solo.rewards, together.rewards),
    ):
        step = _first_step(alone, shared)
        if step is not None:
            return f"{what} of iteration {step} is {_at(shared, step)}, alone {_at(alone, step)}"
    if solo.loss_digest != together.loss_digest:
        return "the digests of the losses differ"
    if solo.weights_digest != together.weights_digest:
        last = max(solo.iterations, together.iterations) - 1
        return f"final weights after iteration {last} differ, all losses are equal"
    return None


def _first_step(one: Sequence[float], other: Sequence[float]) -> int | None:
    for step, (mine, yours) in enumerate(zip(one, other, strict=False)):
        if struct.pack("<d", mine) != struct.pack("<d", yours):
            return step
    return min(len(one), len(other)) if len(one) != len(other) else None


def _at(values: Sequence[float], step: int) -> str:
    return repr(values[step]) if step < len(values) else "absent"

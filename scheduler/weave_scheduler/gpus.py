"""What a plan knows of a GPU that nobody has opened: memory, blocks, link. Frozen and checked.

Bytes and rates are those of the real device: an emulated one is multiplied by its scale again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weave_rt.overlay import Link, Unmanaged, Usable, blocks_of, usable_frames

__all__ = ["Gpu"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node.

    Attributes:
        name: as the spec spells it.
        unmanaged_bytes: what others have there, whoever runs.
        d2h, h2d: bytes per second of one direction alone.
        duplex: the share of them that is left while both directions run.
    """

    name: str
    capacity_bytes: int
    block_bytes: int
    context_bytes: int
    d2h: float
    h2d: float
    duplex: float
    unmanaged_bytes: int = 0

    def __post_init__(self) -> None:
        for field in ("capacity_bytes", "block_bytes", "d2h", "h2d", "duplex"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{self.name}: {field}: {value!r}; allowed: more than 0")

    @property
    def link(self) -> Link:
        return Link(self.d2h, self.h2d, self.d2h * self.duplex, self.h2d * self.duplex)

    def blocks(self, parts: Sequence[int], gpus: int) -> list[int]:
        """Whole blocks on one of a node's GPUs for parts that the node has, in bytes."""
        return [blocks_of(blocks_of(part, gpus), self.block_bytes) for part in parts]

    def usable(self, unmanaged: Sequence[Unmanaged] = ()) -> Usable:
        """F beside what the jobs take outside regions. Raises DoesNotFit."""
        taken = self.context_bytes + self.unmanaged_bytes
        return usable_frames(self.capacity_bytes, self.block_bytes, taken, unmanaged)

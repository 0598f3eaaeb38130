"""What the residency planner is told: tenants in blocks, the frames of a device, its link.

A *frame* is a place for one block on the device. Everything is checked when it is made; UsageError
names the field. Pure: no clock, no device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weave_rt.errors import DoesNotFit, UsageError

__all__ = ["Link", "TenantBlocks", "Unmanaged", "Usable", "blocks_of", "tenth", "usable_frames"]

RESERVE_SHARE = 0.02  # of the capacity, for what nobody accounts for


@dataclass(frozen=True, slots=True)
class TenantBlocks:
    """One tenant as the planner sees it. Sizes in blocks.

    Attributes:
        keep: blocks whose device copy is the truth: out and in again when they move.
        clean: blocks with a valid host copy, or `reload`: only in when they move.
        discard: blocks whose bytes do not survive a suspend: they move for nothing.
        turns: how often it runs in one cycle of the device.
        phase_s: how long a turn takes at least nearly always: the 10 % quantile of its seconds.
    """

    name: str
    keep: int = 0
    clean: int = 0
    discard: int = 0
    turns: int = 1
    phase_s: float = 0.0

    def __post_init__(self) -> None:
        for field, least in (("keep", 0), ("clean", 0), ("discard", 0), ("turns", 1)):
            value = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise UsageError(
                    f"tenant {self.name}: {field}: {value!r}; allowed: {least} or more"
                )
        _seconds(self.phase_s, f"tenant {self.name}: phase_s")

    @property
    def blocks(self) -> int:
        """All of it: what must be on the device while it runs."""
        return self.keep + self.clean + self.discard

    @property
    def stored(self) -> int:
        """What must be copied in if it is not there: everything but `discard`."""
        return self.keep + self.clean

    def cost(self, moving: int) -> int:
        """Block copies per turn if `moving` blocks leave and return each time, cheapest first."""
        paid = max(0, moving - self.discard)
        return paid + max(0, paid - self.clean)


@dataclass(frozen=True, slots=True)
class Link:
    """Rates of the link in bytes per second, as `Device.calibrate` measures them.

    Attributes:
        d2h, h2d: one direction alone.
        d2h_duplex, h2d_duplex: both at once.
        background_share: part of the duplex rates that copies behind a phase reach.
    """

    d2h: float
    h2d: float
    d2h_duplex: float
    h2d_duplex: float
    background_share: float = 1.0

    def __post_init__(self) -> None:
        for field in ("d2h", "h2d", "d2h_duplex", "h2d_duplex", "background_share"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"link: {field}: {value!r}; allowed: more than 0")

    @classmethod
    def of(cls, rates: Mapping[str, float], background_share: float = 1.0) -> Link:
        """From what `Device.calibrate` returns."""
        return cls(
            rates["d2h"],
            rates["h2d"],
            rates["d2h_duplex"],
            rates["h2d_duplex"],
            background_share,
        )

    def limit_s(self, bytes_out: float, bytes_in: float) -> float:
        """The least time for so many bytes each way, both at once or one after the other; the
        formula of the switch report's limit."""
        both = min(bytes_out / self.d2h_duplex, bytes_in / self.h2d_duplex)
        rest = max(
            (bytes_out - both * self.d2h_duplex) / self.d2h,
            (bytes_in - both * self.h2d_duplex) / self.h2d,
        )
        in_turn = bytes_out / self.d2h + bytes_in / self.h2d
        return min(both + max(rest, 0.0), in_turn)

    def background_blocks(self, seconds: float, block_bytes: int) -> tuple[int, int]:
        """How many whole blocks can go out and in behind a phase of that length."""
        share = seconds * self.background_share / block_bytes
        return int(share * self.d2h_duplex), int(share * self.h2d_duplex)


@dataclass(frozen=True, slots=True)
class Unmanaged:
    """Device memory that one job's process takes outside regions, in bytes: at the peak of its
    phase (`running`, the A of the formula) and while it sleeps (`sleeping`, its R)."""

    name: str
    running: int = 0
    sleeping: int = 0

    def __post_init__(self) -> None:
        for field in ("running", "sleeping"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 0:
                raise UsageError(f"unmanaged bytes of {self.name}: {field}: {value!r} is below 0")


@dataclass(frozen=True, slots=True)
class Usable:
    """F and where it comes from; bytes but for `frames`.

    Attributes:
        worst: the job whose phase leaves the least; empty where nothing is unmanaged.
    """

    capacity: int
    context: int
    unmanaged: int
    reserve: int
    worst: str
    block_bytes: int

    @property
    def bytes(self) -> int:
        return self.capacity - self.context - self.unmanaged - self.reserve

    @property
    def frames(self) -> int:
        return self.bytes // self.block_bytes


def usable_frames(
    capacity: int, block_bytes: int, context: int = 0, unmanaged: Sequence[Unmanaged] = ()
) -> Usable:
    """F = capacity - context - max over i of (A_i + sum of the others' R_j) - 2 % of capacity.

    Raises DoesNotFit where nothing is left, UsageError for a size that is none."""
    if block_bytes < 1 or capacity < 1 or context < 0:
        raise UsageError(f"capacity {capacity}, block {block_bytes}, context {context}: no sizes")
    asleep = sum(one.sleeping for one in unmanaged)
    taken, worst = max(
        ((one.running + asleep - one.sleeping, one.name) for one in unmanaged), default=(0, "")
    )
    found = Usable(
        capacity, context, taken, math.ceil(RESERVE_SHARE * capacity), worst, block_bytes
    )
    if found.frames < 1:
        whose = f" at the peak of {worst}" if worst else ""
        raise DoesNotFit(
            f"nothing is left of {capacity} bytes for tenants: context {context}, outside regions"
            f" {taken}{whose}, reserve {found.reserve}",
            tenant=worst,
            blocks_needed=1,
            frames=0,
        )
    return found


def blocks_of(nbytes: int, block_bytes: int) -> int:
    """Whole blocks for so many bytes."""
    return -(-nbytes // block_bytes)


def tenth(samples: Iterable[float]) -> float:
    """The 10 % quantile of measured seconds, interpolated; 0 without any (nothing is hidden)."""
    ordered = sorted(samples)
    if not ordered:
        return 0.0
    place = 0.1 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _seconds(value: float, field: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{field}: {value!r}; allowed: 0 s or more")

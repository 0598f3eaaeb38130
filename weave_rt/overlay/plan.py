"""The plan of one device: which blocks may move, when, and what every switch will cost.

Three plans: `fewest-bytes` moves as little as can be, all of it at the switch; `least-stall` moves
ahead of the switch, behind the phase that runs; `auto` takes the one that makes the device wait
less over a cycle (by the link's limit, phases as short as their 10 % quantile), and of equals the
one with fewer bytes. A plan sets targets: blocks follow at the next switch or behind a phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weave_rt.errors import UsageError
from weave_rt.overlay.cycle import Switch, Turn, cyclic_order, run_cycle
from weave_rt.overlay.fewest import check_feasible, moving_blocks
from weave_rt.overlay.model import Link, TenantBlocks

__all__ = ["KINDS", "Plan", "make_plan"]

KINDS = ("auto", "fewest-bytes", "least-stall")


@dataclass(frozen=True)
class Plan:
    """The targets for one device, and what a cycle costs under them. Sizes in blocks.

    Attributes:
        kind: `fewest-bytes` or `least-stall`.
        movable: of each tenant, how many blocks may leave while it is idle.
        order: the turns of one cycle.
        switches: of a cycle that repeats itself.
        others: kind and (foreground seconds, blocks) per cycle of the plans not taken.
    """

    kind: str
    tenants: tuple[TenantBlocks, ...]
    frames: int
    block_bytes: int
    movable: tuple[int, ...]
    order: tuple[Turn, ...]
    switches: tuple[Switch, ...]
    others: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def foreground_s(self) -> float:
        """For how long the device waits in a cycle, at least."""
        return sum(one.modelled_s for one in self.switches)

    @property
    def blocks_per_cycle(self) -> float:
        """Block copies, out and in, foreground and background."""
        return sum(
            moved.out + moved.into
            for one in self.switches
            for moved in (one.foreground, one.background)
        )

    @property
    def excess(self) -> int:
        """By how much the tenants exceed the device together."""
        return max(0, sum(one.blocks for one in self.tenants) - self.frames)


def make_plan(
    tenants: Sequence[TenantBlocks],
    frames: int,
    block_bytes: int,
    link: Link,
    kind: str = "auto",
    *,
    background: bool = True,
    order: Sequence[Turn] | None = None,
) -> Plan:
    """Plan one device.

    Args:
        kind: `auto`, `fewest-bytes` or `least-stall`.
        background: whether copies behind a phase are allowed; without them it is fewest-bytes.
        order: one cycle of turns in the place of the tenants' `turns` and `phase_s`, which are
            spread evenly otherwise.

    Raises DoesNotFit for a tenant larger than the device, UsageError."""
    if kind not in KINDS:
        raise UsageError(f"plan {kind!r} is not one of {', '.join(KINDS)}")
    if len({one.name for one in tenants}) < len(tenants):
        raise UsageError("two tenants of one device have the same name")
    check_feasible(tenants, frames)
    turns = cyclic_order(tenants) if order is None else list(order)
    if {at for at, _ in turns} != set(range(len(tenants))):
        raise UsageError(f"order {turns!r} must have every tenant from 0 to {len(tenants) - 1}")

    def planned(of: str) -> Plan:
        moving = moving_blocks(tenants, frames) if of == "fewest-bytes" else None
        switches = run_cycle(tenants, frames, block_bytes, link, turns, moving)
        excess = sum(one.blocks for one in tenants) > frames
        movable = moving or [one.blocks if excess else 0 for one in tenants]
        return Plan(
            of, tuple(tenants), frames, block_bytes, tuple(movable), tuple(turns), tuple(switches)
        )

    if not background or kind == "fewest-bytes":
        return planned("fewest-bytes")
    if kind == "least-stall":
        return planned("least-stall")
    few, quick = planned("fewest-bytes"), planned("least-stall")
    best, other = (few, quick) if _rank(few) <= _rank(quick) else (quick, few)
    best.others[other.kind] = (other.foreground_s, other.blocks_per_cycle)
    return best


def _rank(plan: Plan) -> tuple[float, float]:
    return round(plan.foreground_s, 9), plan.blocks_per_cycle

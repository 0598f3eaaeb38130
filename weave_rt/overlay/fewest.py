"""Fewest bytes: how many blocks of each tenant leave at a switch, so that the least is copied.

A block *moves* if another tenant uses its frame. What is copied depends only on which blocks move,
not on who shares with whom, and m_i moving blocks per tenant fit in max m_i frames (one level above
the other). So a plan is the numbers m_i with sum(N_i - m_i) + max m_i <= F. For a given window
w = max m_i the cheapest blocks go first, within the caps m_i <= w; that is exact, since the caps
are nested in one another (a laminar matroid). The least cost is convex in w, being the value of a
linear program whose right-hand side is linear in w, so a bisection finds the best window: O(n log n
+ n log F) instead of a walk over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weave_rt.errors import DoesNotFit
from weave_rt.overlay.model import TenantBlocks

__all__ = ["check_feasible", "closed_form_window", "moving_blocks"]


def check_feasible(tenants: Sequence[TenantBlocks], frames: int) -> None:
    """Raise DoesNotFit for the first tenant that is larger than the device."""
    for one in tenants:
        if one.blocks > frames:
            raise DoesNotFit(
                f"tenant {one.name} has {one.blocks} blocks and the device {frames} frames; make"
                " the tenant smaller or take a larger device",
                tenant=one.name,
                blocks_needed=one.blocks,
                frames=frames,
            )


def moving_blocks(tenants: Sequence[TenantBlocks], frames: int) -> list[int]:
    """m_i for each tenant, in the order given; all 0 where everything fits.

    Within a tenant `discard` goes first, then clean, then keep. Exact for one turn each per cycle;
    otherwise what is copied per cycle is at most sum(turns_i * cost_i(m_i)).
    Raises DoesNotFit."""
    check_feasible(tenants, frames)
    if sum(one.blocks for one in tenants) <= frames:
        return [0] * len(tenants)
    search = _Search(tenants, frames)
    return search.quotas(search.best_window())


class _Search:
    """The costs of all windows of one instance."""

    def __init__(self, tenants: Sequence[TenantBlocks], frames: int) -> None:
        self.tenants = tenants
        self.stored = sum(one.stored for one in tenants)
        self.frames = frames
        # One entry per tenant and kind of block: price, tenant, blocks. Cheapest first.
        kinds = [
            entry
            for at, one in enumerate(tenants)
            for entry in ((one.turns, at, one.clean), (2 * one.turns, at, one.keep))
            if entry[2]
        ]
        self.kinds = sorted(kinds)

    def best_window(self) -> int:
        """The smallest window of least cost. Every window from the largest tenant on is possible,
        so the impossible ones lie below the possible ones."""
        low = max(one.discard for one in self.tenants)
        high = max(one.blocks for one in self.tenants)
        while low < high:
            middle = (low + high) // 2
            here = self.cost(middle)
            if here < math.inf and here <= self.cost(middle + 1):
                high = middle
            else:
                low = middle + 1
        return low

    def cost(self, window: int) -> float:
        """Block copies per cycle with that window, infinite where it does not suffice."""
        left = self.stored + window - self.frames
        caps = [window - one.discard for one in self.tenants]
        total = 0
        for price, at, blocks in self.kinds:
            if left <= 0:
                break
            taken = min(blocks, caps[at], left)
            caps[at] -= taken
            left -= taken
            total += price * taken
        return math.inf if left > 0 else total

    def quotas(self, window: int) -> list[int]:
        left = self.stored + window - self.frames
        moving = [one.discard for one in self.tenants]
        for _, at, blocks in self.kinds:
            taken = max(0, min(blocks, window - moving[at], left))
            moving[at] += taken
            left -= taken
        return moving


def closed_form_window(sizes: Sequence[int], frames: int) -> int:
    """The window of `keep`-only tenants of these sizes: min { w : sum min(N_i, w) - w >= E }, with
    E = sum N_i - F. It is ceil(E / (n - 1)) where no tenant is smaller than that."""
    excess = sum(sizes) - frames
    if excess <= 0:
        return 0
    low, high = 0, max(sizes)
    while low < high:
        middle = (low + high) // 2
        if sum(min(size, middle) for size in sizes) - middle >= excess:
            high = middle
        else:
            low = middle + 1
    return low

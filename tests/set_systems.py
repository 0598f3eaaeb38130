"""The optimum of fewest-bytes by brute force: over every way to put blocks into frames.

Independent of the planner's argument (a plan is only how many blocks move): each frame is a set of
blocks of different tenants, every block is in one frame, blocks that share a frame are copied, and
a block alone is not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache

from weave_rt.overlay import TenantBlocks

PRICES = (2, 1, 0)  # block copies per turn: keep, clean, discard


def least_copies(tenants: Sequence[TenantBlocks], frames: int) -> float:
    """Block copies per cycle at one turn each; infinite where nothing fits."""

    @cache
    def best(left: tuple[tuple[int, int, int], ...], frames: int) -> float:
        left = tuple(sorted(one for one in left if any(one)))
        if not left:
            return 0
        if max(map(sum, left)) > frames:
            return math.inf
        if sum(map(sum, left)) <= frames:
            return 0
        # The next frame holds the first block that is left, and any others of other tenants.
        first, *others = left
        kind = next(kind for kind in range(3) if first[kind])
        least = math.inf
        choices = [[None, *(k for k in range(3) if one[k])] for one in others]
        for chosen in itertools.product(*choices):
            shared = [k for k in chosen if k is not None]
            price = PRICES[kind] + sum(PRICES[k] for k in shared) if shared else 0
            if price >= least:
                continue
            rest = (_without(first, kind), *map(_without, others, chosen))
            least = min(least, price + best(rest, frames - 1))
        return least

    return best(tuple((one.keep, one.clean, one.discard) for one in tenants), frames)


def _without(blocks: tuple[int, int, int], kind: int | None) -> tuple[int, int, int]:
    return tuple(count - (at == kind) for at, count in enumerate(blocks))  # type: ignore[return-value]

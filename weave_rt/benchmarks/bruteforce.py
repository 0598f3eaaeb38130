"""The optimum of fewest-bytes by brute force: over every way to put blocks into frames.

Independent of the planner's argument (a plan is only how many blocks move): each frame is a set of
blocks of different tenants, every block is in one frame, blocks that share a frame are copied, and
a block alone is not. For tests and for `weave bench overlay`; a few blocks per tenant at most.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from functools import cache

from weave_rt.overlay import TenantBlocks

__all__ = ["LARGEST", "least_copies", "random_instance"]

#: By number of tenants: blocks per tenant that are done in a moment.
LARGEST = {2: 12, 3: 7, 4: 5, 5: 3}

_Blocks = tuple[int, int, int]
PRICES = (2, 1, 0)  # block copies per turn: keep, clean, discard


def least_copies(tenants: Sequence[TenantBlocks], frames: int) -> float:
    """Block copies per cycle at one turn each; infinite where nothing fits."""

    @cache
    def best(left: tuple[_Blocks, ...], frames: int) -> float:
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
        choices: list[list[int | None]] = [
            [None, *(k for k in range(3) if one[k])] for one in others
        ]
        for chosen in itertools.product(*choices):
            shared = [k for k in chosen if k is not None]
            price = PRICES[kind] + sum(PRICES[k] for k in shared) if shared else 0
            if price >= least:
                continue
            rest = (_without(first, kind), *map(_without, others, chosen))
            least = min(least, price + best(rest, frames - 1))
        return least

    return best(tuple((one.keep, one.clean, one.discard) for one in tenants), frames)


def _without(blocks: _Blocks, kind: int | None) -> _Blocks:
    keep, clean, discard = blocks
    return keep - (kind == 0), clean - (kind == 1), discard - (kind == 2)


def random_instance(
    rng: random.Random, largest: Mapping[int, int], turns: int = 1
) -> tuple[list[TenantBlocks], int]:
    """Tenants of unequal sizes and mixed policies, and frames that hold each of them alone.

    Args:
        largest: by number of tenants, the most blocks of one.
        turns: the most turns of one."""
    count = rng.choice(list(largest))
    tenants = []
    for at in range(count):
        size = rng.randint(1, largest[count])
        low, high = sorted(rng.choices(range(size + 1), k=2))
        parts = (low, high - low, size - high)
        tenants.append(TenantBlocks(str(at), *parts, rng.randint(1, turns), 1e6))
    sizes = [one.blocks for one in tenants]
    return tenants, rng.randint(max(sizes), sum(sizes))

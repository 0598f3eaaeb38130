"""least-stall against exhaustive search: every number of blocks of every idle tenant that may lie
on the device when a phase ends, whatever policy brought them there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from weave_rt.benchmarks.bruteforce import random_instance
from weave_rt.overlay import Link, TenantBlocks, make_plan

LINK = Link(55e9, 55e9, 0.75 * 55e9, 0.75 * 55e9)
GB = 10**9


def least_foreground(
    tenants: Sequence[TenantBlocks], frames: int, outgoing: int, incoming: int
) -> tuple[int, int]:
    """The fewest blocks (out, in) between two phases, each over all residencies at the end of the
    first, which may have been as long as it takes: idle blocks on the device have host copies."""
    x, y = tenants[outgoing], tenants[incoming]
    room = frames - x.blocks
    best_out = best_in = frames
    others = [one for at, one in enumerate(tenants) if at not in (outgoing, incoming)]
    idle = itertools.product(
        range(y.stored + 1), range(y.discard + 1), *(range(one.blocks + 1) for one in others)
    )
    for stored, discarded, *rest in idle:
        held = stored + discarded + sum(rest)
        if held > room:
            continue
        # Frames for y: those that are free, those of idle blocks, and then those of x.
        taken_from_x = max(0, y.blocks - stored - discarded - (room - held) - sum(rest))
        best_in = min(best_in, y.stored - stored)
        best_out = min(best_out, max(0, taken_from_x - x.discard - x.clean))
    return best_out, best_in


def test_least_stall_is_the_best_of_all_residencies() -> None:
    rng = random.Random(18)
    stalls = 0
    for _ in range(500):
        tenants, frames = random_instance(rng, {2: 6, 3: 5, 4: 3, 5: 2})
        plan = make_plan(tenants, frames, GB, LINK, "least-stall")
        for one in plan.switches:
            least = least_foreground(tenants, frames, one.outgoing, one.incoming)
            assert (one.foreground.out, one.foreground.into) == least, (tenants, frames, one)
            stalls += least != (0, 0)
    assert stalls > 100

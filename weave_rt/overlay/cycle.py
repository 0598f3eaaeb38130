"""What one cycle of turns costs under a plan, switch by switch, once it repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weave_rt.overlay.map import Moved, ResidencyMap
from weave_rt.overlay.model import Link, TenantBlocks

__all__ = ["Switch", "Turn", "cyclic_order", "run_cycle"]

#: A turn of a cycle: the tenant's number, and how many seconds it takes at least nearly always.
Turn = tuple[int, float]

MOST_CYCLES = 6  # until the map repeats itself; two are the rule


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch of the cycle; blocks. Means, where the map repeats itself only after several.

    Attributes:
        outgoing, incoming: tenants by number.
        foreground: copied while the device waits for it.
        background: copied before, behind the turn of `outgoing`.
        modelled_s: the least time that the link needs for the foreground copies.
    """

    outgoing: int
    incoming: int
    foreground: Moved
    background: Moved
    modelled_s: float


def cyclic_order(tenants: Sequence[TenantBlocks]) -> list[Turn]:
    """One cycle: each tenant as often as it has turns, spread evenly, ties in the order given."""
    slots = [
        ((turn + 0.5) / one.turns, at)
        for at, one in enumerate(tenants)
        for turn in range(one.turns)
    ]
    return [(at, tenants[at].phase_s) for _, at in sorted(slots)]


def run_cycle(
    tenants: Sequence[TenantBlocks],
    frames: int,
    block_bytes: int,
    link: Link,
    turns: Sequence[Turn],
    movable: Sequence[int] | None,
) -> list[Switch]:
    """The switches of a cycle that repeats itself, the first one into that of `turns[0]`.

    Args:
        movable: blocks of each tenant that may leave, moved in the foreground; None: any block, and
            background copies go on behind every turn."""
    there = ResidencyMap(tenants, frames, movable)
    order = [at for at, _ in turns]
    # From each place of the cycle: the other tenants, the one whose next use is farthest first.
    farthest = [
        [at for at in dict.fromkeys([*order[place + 1 :], *order[:place]]) if at != order[place]]
        for place in range(len(order))
    ]
    for others in farthest:
        others.reverse()
    idle = [others[:-1] for others in farthest]  # without the next one
    budgets = [link.background_blocks(seconds, block_bytes) for _, seconds in turns]
    rounds: list[list[tuple[Moved, Moved]]] = []
    nothing = Moved()
    seen: dict[object, int] = {}
    for at in range(MOST_CYCLES):
        moves = []
        for place, incoming in enumerate(order):
            background = nothing
            if movable is None and there.running not in (None, incoming):
                background = there.prefetch(incoming, idle[place - 1], budgets[place - 1])
            moves.append((there.switch(incoming, farthest[place]), background))
        rounds.append(moves)
        first = seen.setdefault(there.state(), at)
        if first < at:
            rounds = rounds[first + 1 :]
            break
    else:
        rounds = rounds[MOST_CYCLES // 2 :]
    return [
        _mean(order[place - 1], incoming, [one[place] for one in rounds], link, block_bytes)
        for place, incoming in enumerate(order)
        if incoming != order[place - 1]
    ]


def _mean(
    outgoing: int,
    incoming: int,
    moves: Sequence[tuple[Moved, Moved]],
    link: Link,
    block_bytes: int,
) -> Switch:
    count = len(moves)
    foreground, background = (
        Moved(sum(one.out for one in part) / count, sum(one.into for one in part) / count)
        for part in zip(*moves, strict=True)
    )
    seconds = sum(link.limit_s(one.out * block_bytes, one.into * block_bytes) for one, _ in moves)
    return Switch(outgoing, incoming, foreground, background, seconds / count)

"""The dynamic map, by counts: how many blocks of each tenant are on the device, and of what kind.

This is the rule by which frames change hands, without bytes: a plan sets targets, the map follows
them, and an arrival that nobody expected costs bytes, never correctness. The planner runs it to
say what a cycle will cost. Victims are, among idle tenants: `discard` first, then what has a valid
host copy, then `keep`; within a kind in the order given by the caller: whose next use is farthest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weave_rt.overlay.model import TenantBlocks

__all__ = ["Moved", "ResidencyMap"]


@dataclass(frozen=True, slots=True)
class Moved:
    """Blocks that were copied out and in; means have fractions."""

    out: float = 0
    into: float = 0


class ResidencyMap:
    """What is on a device of `frames` frames; tenants are numbered as in `tenants`.

    Args:
        movable: blocks of each tenant that may leave while it is idle; None: all of them.

    Nothing is on the device at first, and nobody runs."""

    def __init__(
        self,
        tenants: Sequence[TenantBlocks],
        frames: int,
        movable: Sequence[int] | None = None,
    ) -> None:
        count = len(tenants)
        self.frames = frames
        self.free = frames
        self.running: int | None = None
        self._keep = [one.keep for one in tenants]
        self._clean = [one.clean for one in tenants]
        self._discard = [one.discard for one in tenants]
        if movable is None:
            self._stays = [0] * count
        else:
            self._stays = [one.blocks - quota for one, quota in zip(tenants, movable, strict=True)]
        # On the device: `discard`, always clean, and `keep` with and without a valid host copy;
        # and all of each tenant together. Lists, because this runs for every switch of a plan.
        self._d = [0] * count
        self._c = [0] * count
        self._copied = [0] * count
        self._dirty = [0] * count
        self._there = [0] * count

    def resident(self, tenant: int) -> int:
        """Its blocks on the device."""
        return self._there[tenant]

    def stored(self, tenant: int) -> int:
        """Those of them that would have to be copied in if they were not there."""
        return self._there[tenant] - self._d[tenant]

    def state(self) -> tuple[object, ...]:
        """Equal for equal maps."""
        return (self.running, *map(tuple, self._kinds()))

    def _kinds(self) -> tuple[list[int], ...]:
        return self._d, self._c, self._copied, self._dirty, self._there

    def switch(self, incoming: int, farthest: Sequence[int]) -> Moved:
        """Hand the device to `incoming`: what is missing comes in, and only the excess leaves.

        Args:
            farthest: the other tenants in the order in which they are victims of a kind.

        Raises ValueError where they may not give enough; nothing was changed then."""
        stored = self._keep[incoming] + self._clean[incoming]
        missing = stored + self._discard[incoming] - self._there[incoming]
        into = stored - self.stored(incoming)
        out = self._take(missing - self.free, farthest) if missing > self.free else 0
        self._d[incoming] = self._discard[incoming]
        self._c[incoming] = self._clean[incoming]
        self._copied[incoming], self._dirty[incoming] = 0, self._keep[incoming]
        self._there[incoming] += missing
        self.free -= missing
        self.running = incoming
        return Moved(out, into)

    def _take(self, frames: int, victims: Sequence[int]) -> int:
        """Free that many frames of idle tenants; how many blocks had to be copied out."""
        free, before = self.free, [kind[:] for kind in self._kinds()]
        got, out = self._evict(frames, victims, self._stays, frames)
        if got < frames:
            self.free = free
            self._d, self._c, self._copied, self._dirty, self._there = before
            raise ValueError(f"idle tenants may not give {frames} frames, only {got}")
        return out

    def _evict(
        self, frames: int, victims: Sequence[int], floor: Sequence[int], most_out: int
    ) -> tuple[int, int]:
        """Free up to that many frames, cheapest kind first; no tenant falls below its floor, and at
        most `most_out` blocks are copied out. Frames freed, blocks copied out."""
        left = frames
        there = self._there
        for kind in (self._d, self._c, self._copied, self._dirty):
            if kind is self._dirty:
                held_back = max(0, left - most_out)
                left -= held_back
                paid = left
            if left == 0 or not any(kind):
                continue
            for at in victims:
                if kind[at]:
                    dropped = min(kind[at], left, there[at] - floor[at])
                    if dropped > 0:
                        kind[at] -= dropped
                        there[at] -= dropped
                        left -= dropped
                        if left == 0:
                            break
        freed = frames - held_back - left
        self.free += freed
        return freed, paid - left

    def prefetch(self, following: int, farthest: Sequence[int], budget: tuple[int, int]) -> Moved:
        """What background copies do while a tenant runs, so that the next one waits the least.

        As much of the next tenant as fits beside the running one comes in, and frames become free
        for what it needs without copying, unless the running one will leave them. Frames that the
        next one does not need stay with whom they are: the victims of a kind are those that will be
        used last, so what is left belongs to the tenants after it.

        Args:
            following: who is next.
            farthest: the others but the running one, in the order in which they are victims.
            budget: most blocks out and in, what fits behind the phase."""
        running = self.running
        assert running is not None
        beside = self.frames - self._there[running]
        stored = self._keep[following] + self._clean[following]
        goal = min(stored, beside)
        leaves = self._discard[running] + self._clean[running]
        spare = min(beside - goal, max(0, stored - goal + self._discard[following] - leaves))
        missing = max(0, goal - self.stored(following))
        most_out, most_in = budget
        out = 0
        if missing + spare > self.free:
            # Its own `discard` holds frames that it will want again: nothing to gain there.
            spare -= min(spare, self._d[following])
            wanted = missing + spare - self.free
            _, out = self._evict(wanted, farthest, self._stays, most_out)
        into = min(missing, self.free, most_in)
        clean = min(into, self._clean[following] - self._c[following])
        self._c[following] += clean
        self._copied[following] += into - clean
        self._there[following] += into
        self.free -= into
        return Moved(out, into)

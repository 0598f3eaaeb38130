"""Weight versions of a job: whether a rollout may run on what the engine has.

Called by phases. A clean ``train`` phase makes a new policy version, a clean ``weight_sync``
commits it to the engine. One lock, held for a few assignments, and one that is held while the
engines of a job come in or get a version that was published, so that they all have the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from weave_rt.errors import StaleWeights

if TYPE_CHECKING:
    from weave_rt.local_job import LocalJob
    from weave_rt.local_phase import Active

__all__ = ["Versions"]

_READERS = ("rollout", "eval")
_CONTENTS = ("weights", "buffers")  # losing other discarded tags does not make weights stale


class Versions:
    """policy: clean train phases so far. engine: the policy version that the engine has."""

    def __init__(self, job: LocalJob) -> None:
        self._job = job
        self._lock = threading.Lock()
        self.policy = 0
        self.engine = 0
        self.changing = threading.Lock()
        self._half_published = False
        self._published: dict[str, int] = {}  # by tenant: the policy version that it was given last
        self._generations: dict[tuple[str, str], int] = {}

    def check(self, active: Active) -> None:
        """Raise StaleWeights if a rollout would use weights that are too old or half written."""
        if active.result.name not in _READERS or self._job.is_inside("init", "weight_sync"):
            return
        limit = self._job.config.max_staleness
        if limit is None and self._job.has_modules_in_both_pools():
            limit = 0
        with self._lock:
            behind, half = self.policy - self.engine, self._half_published
        if half:
            raise StaleWeights(
                f"job {self._job.job_id!r}: the last weight_sync did not finish, so the engine's "
                "weights are a mixture; run a clean `with job.phase('weight_sync')` first"
            )
        if limit is not None and behind > limit:
            how = "copy the weights in `with job.phase('weight_sync')`"
            if self._job.publishes():
                how = (
                    "call `sync.publish(engine, policy)` in `with job.phase('weight_sync') as sync`"
                )
            raise StaleWeights(
                f"job {self._job.job_id!r}: the engine is {behind} train phases behind the policy "
                f"({limit} allowed); {how}, or set max_staleness"
            )

    def check_contents(self, active: Active) -> None:
        """Raise StaleWeights if a rollout's weights were discarded and not written since."""
        if active.result.name not in _READERS or self._job.is_inside("init", "weight_sync"):
            return
        for key, generation in self._discardable():
            if generation != self._generations.get(key, 0):
                raise StaleWeights(
                    f"job {self._job.job_id!r}: the {key[1]} of tenant {key[0]!r} were discarded; "
                    "write them in `with job.phase('weight_sync')` first"
                )

    def entered(self, active: Active) -> None:
        if active.result.name == "weight_sync" and not self._job.publishes():
            with self._lock:
                self._half_published = True  # until it ends cleanly; publishing is all or nothing

    def committed(self, active: Active, published: Iterable[str] = ()) -> None:
        """A phase ended cleanly; its pools are still held.

        published: the tenants that got a version by publishing. The engine is as old as the oldest
        of those that ever got one; one that never did is a model that is not trained."""
        name = active.result.name
        if name == "train":
            if self._job.is_inside("train"):  # one policy version, made when the outer one ends
                return
            with self._lock:
                self.policy += 1
        elif name == "weight_sync":
            publishing = [t.name for t in self._job.tenants_in("rollout") if t.publishes]
            with self._lock:
                self._published.update(dict.fromkeys(published, self.policy))
                given = [self._published[n] for n in publishing if n in self._published]
                self.engine = min(given, default=self.policy)
                self._half_published = False
        if name in ("weight_sync", "init"):
            self.written()

    def written(self) -> None:
        """What the rollout tenants hold now is good."""
        self._generations.update(self._discardable())

    def _discardable(self) -> list[tuple[tuple[str, str], int]]:
        return [
            ((tenant.name, region.tag), region.generation)
            for tenant in self._job.tenants_in("rollout")
            for region in tenant.regions
            if region.tag in _CONTENTS and region.policy == "discard"
        ]

"""What a `weight_sync` phase is given: a way to hand the policy's weights to the engine.

An engine whose weights are managed as ``reload`` gets them into a second set of host extents, while
another job may own the rollout GPU; they count when the phase ends cleanly. Any other engine is
resident in the phase, and its weights are copied there and then. Used by the thread of the phase.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weave_rt._core import Publication, commit_together
from weave_rt.errors import UsageError
from weave_rt.phases import PlainSync, bytes_to_publish
from weave_rt.tenant import Buffer

if TYPE_CHECKING:
    from weave_rt.local_job import LocalJob
    from weave_rt.tenant import Tenant

__all__ = ["Sync", "tensors_of"]


@dataclass(slots=True)
class Sync(PlainSync):
    """See `PhaseResult.publish`."""

    job: LocalJob | None = None
    failed: bool = False
    published: dict[str, Publication] = field(default_factory=dict)  # by name of the tenant

    def publish(self, engine: Any, source: Any) -> None:
        assert self.job is not None
        tenant = self._tenant_of(engine)
        if not tenant.publishes:
            PlainSync.publish(self, engine, source)
            return
        with self._next_version(tenant) as publication:
            adapter = importlib.import_module("weave_rt.adapters.publish")
            adapter.publish(publication, tenant, engine, source)

    def publish_bytes(
        self, target: Any, source: Any, offset: int = 0, nbytes: int | None = None
    ) -> None:
        tenant = self._tenant_of(target.tenant)
        region, at = target.span.region, target.span.offset + offset
        if region.policy != "reload":
            PlainSync.publish_bytes(self, target, source, offset, nbytes)
            return
        count = bytes_to_publish(target, source, offset, nbytes)
        if not count:  # a version that is opened has to be written whole
            return
        with self._next_version(tenant) as publication:
            if isinstance(source, Buffer):
                publication.copy(region, at, source.span.region, source.span.offset, count)
            else:
                publication.write(region, at, memoryview(source).cast("B")[:count])

    def conclude(self, ok: bool) -> BaseException | None:
        """End of the phase: all engines get their new version, or none does. Never raises; what it
        returns may be a KeyboardInterrupt."""
        publications, self.published = list(self.published.values()), {}
        problem: BaseException | None = None
        if publications and ok and not self.failed:
            assert self.job is not None
            try:
                # Not in the midst of a rollout that comes in: one engine would be newer.
                with self.job.versions.changing:
                    commit_together(publications)
                return None
            except BaseException as error:  # the lock may be waited for, and Ctrl-C ends that
                problem = error
        for publication in publications:
            publication.abort()
        return problem

    @property
    def commits(self) -> frozenset[str]:
        """The tenants, by name, that have something to commit."""
        return frozenset(() if self.failed else self.published)

    @contextmanager
    def _next_version(self, tenant: Tenant) -> Iterator[Publication]:
        """What the tenant gets in this phase. An exception inside drops it all."""
        try:
            if tenant.name not in self.published:
                self.published[tenant.name] = tenant.core.publish()
            yield self.published[tenant.name]
        except BaseException:
            self.failed = True
            raise

    def _tenant_of(self, engine: Any) -> Tenant:
        assert self.job is not None
        for tenant in self.job.tenants_in("rollout"):
            if tenant is engine or tenant.manages(engine):
                return tenant
        kind = type(engine).__name__
        raise UsageError(
            f"this {kind} is not managed by job {self.job.job_id!r} in pool 'rollout'; "
            "job.manage() it there first"
        )


def tensors_of(source: Any) -> Mapping[str, Any] | None:
    """Name to tensor of a torch module or a state dict; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.nn.Module):
        parameters = dict(source.named_parameters(remove_duplicate=False))
        return {**parameters, **dict(source.named_buffers(remove_duplicate=False))}
    return source if isinstance(source, Mapping) else None

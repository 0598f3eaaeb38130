"""`init` and what it returns: the job, as a trainer sees it, on or off.

One variable decides: with ``WEAVE`` unset or ``off`` a job manages nothing and its phases do
nothing, with ``local`` it runs on devices of this process. A trainer script is the same in both.
"""

from __future__ import annotations

import abc
import importlib
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from weave_rt.device import POOLS
from weave_rt.errors import UsageError
from weave_rt.local import LocalRuntime
from weave_rt.phases import Phase

if TYPE_CHECKING:
    from weave_rt.off import PlainTenant
    from weave_rt.tenant import Tenant

__all__ = ["Config", "Job", "init", "managed_already"]


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of a job. None means: from the environment, else the default.

    mode: ``off`` or ``local`` (``WEAVE``; off). With a `runtime` given it is local.
    job_id: name of the job, unique in its runtime (``WEAVE_JOB_ID``; made up).
    rollout, train: indices of the job's devices in the pool; default the first.
    rollout_device, train_device: specs of the devices of this process, several separated by commas
        (``WEAVE_ROLLOUT``, ``WEAVE_TRAIN``; ``auto``). Ignored when `runtime` is given.
    runtime: a LocalRuntime to join.
    acquire_timeout_s: how long a phase waits for its permit; None is for ever.
    nested: ``error``, or ``switch`` to hand the outer phase's pools back first.
    metrics_prefix: put before the names of phases in `pop_metrics`.
    verify: ``off``; ``ptr`` to compare addresses at each phase entry; ``checksum`` to compare also
        whatever a switch copies. That is slow, and it is a setting of the devices: all jobs there
        have it, also when this one has closed, and nothing is prefetched there.
    max_staleness: how many clean train phases the engine's weights may be behind in a rollout;
        None is 0 if modules are managed in both pools, else unlimited.
    unmanaged: bytes of each device of a pool that the job takes outside regions at the peak of its
        phase, and those of them that it keeps while others run, by pool: ``{"rollout": {"running":
        3_000_000_000, "sleeping": 600_000_000}}``. A pool that is left out is measured in ``init``
        and the first iteration.
    pin_ahead: bytes of pinned host memory to take for the job, by pool, for each of its devices
        there: ``{"train": 30_000_000_000}``. It grows in the background from `init` on, while the
        model is being built (``weave/pinned_bytes`` of `pop_metrics` shows how far it is), and
        is cancelled when the job closes. Without it memory is pinned when tensors need it."""

    mode: str | None = None
    job_id: str | None = None
    rollout: Sequence[int] | None = None
    train: Sequence[int] | None = None
    rollout_device: str | None = None
    train_device: str | None = None
    runtime: LocalRuntime | None = None
    acquire_timeout_s: float | None = None
    nested: str = "error"
    metrics_prefix: str = "timing_s/"
    verify: str = "off"
    max_staleness: int | None = None
    unmanaged: Mapping[str, Mapping[str, int]] | None = None
    pin_ahead: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.job_id, str | None):
            raise UsageError(f"job_id is a text, not {self.job_id!r:.80}; settings are `config`")
        if self.nested not in ("error", "switch"):
            raise UsageError(f"nested={self.nested!r} is not 'error' or 'switch'")
        if self.verify not in ("off", "ptr", "checksum"):
            raise UsageError(f"verify={self.verify!r} is not 'off', 'ptr' or 'checksum'")
        if self.max_staleness is not None and (
            type(self.max_staleness) is not int or self.max_staleness < 0
        ):
            raise UsageError("max_staleness is a number of train phases, 0 or more")
        for pool in POOLS:
            places = getattr(self, pool)
            if places is not None and (
                isinstance(places, str)
                or not isinstance(places, Sequence)
                or not all(isinstance(place, int) for place in places)
            ):
                raise UsageError(f"{pool} is a list of indices of devices, not {places!r}")
        limit = self.acquire_timeout_s
        if limit is not None and not isinstance(limit, (int, float)):
            raise UsageError(f"acquire_timeout_s is a number of seconds or None, not {limit!r}")
        ahead = {} if self.pin_ahead is None else self.pin_ahead
        if not isinstance(ahead, Mapping):
            raise UsageError(f"pin_ahead is a number of bytes by pool, not {ahead!r}")
        for pool, nbytes in ahead.items():
            if pool not in POOLS or type(nbytes) is not int or nbytes < 0:
                raise UsageError(
                    f"pin_ahead is a number of bytes by pool ({' or '.join(POOLS)}), not"
                    f" {{{pool!r}: {nbytes!r}}}"
                )
        if self.mode not in (None, "off", "local"):
            if self.mode == "observe" or str(self.mode).startswith("unix:"):
                raise UsageError(f"WEAVE={self.mode} is not in this version; use off or local")
            raise UsageError(f"WEAVE={self.mode} is not off or local")


class Job(abc.ABC):
    """One RL job. Made by :func:`init`; a context manager that closes it.

    Phases may be entered by several threads; all other methods belong to one of them."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.job_id = config.job_id or ""

    def __enter__(self) -> Job:
        return self

    @abc.abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None: ...

    @property
    @abc.abstractmethod
    def active(self) -> bool:
        """False where nothing is managed and a phase does nothing."""

    @abc.abstractmethod
    def manage(
        self,
        name: str,
        *objects: object,
        pool: str,
        tags: Mapping[str, str] | None = None,
        device: int = 0,
    ) -> Tenant | PlainTenant:
        """Keep the state of `objects` (torch modules, optimizers, tensors; none is fine) in a
        tenant called `name` on a device of `pool`, resident in the phases that hold that pool.

        Again with the same name: adds to it; objects it has are skipped. Outside a phase this
        waits for the pool like a phase does. Values, Parameter objects, views and ties stay.

        Args:
            pool: ``rollout`` or ``train``.
            tags: policy by tag where the default does not fit: ``{"kv_cache": "keep"}``.
            device: which of the job's devices in that pool, by position.

        Raises UsageError (unknown type, state that somebody else uses, with its name),
        GrowthRefused, HostMemoryError; then nothing has moved."""

    @abc.abstractmethod
    def phase(
        self,
        name: str,
        step: int | None = None,
        timeout_s: float | None = None,
        pool: str | Sequence[str] | None = None,
        nested: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> Phase:
        """A phase to enter by `with`, `async with`, or as a decorator. On entry it waits for the
        permit of its pools and brings the job's tenants there in; at the end they are released,
        and leave the device when another job needs the place.

        Args:
            name: ``init``, ``rollout``, ``reward``, ``train``, ``weight_sync``, ``eval``,
                ``save``, or an alias of one.
            timeout_s: for the permit; default `Config.acquire_timeout_s`.
            pool: other pools than the phase's own: ``rollout``, ``train`` or ``both``.
            nested: overrides `Config.nested`.
            tags: of each tenant only these of its tags come in, by default all: ``["weights"]`` to
                sync without optimizer and KV cache. A tenant that has none of them stays out.
                Touching another tag raises NotResident. What else a phase inside this one needs,
                it brings in, and it stays to the end of this one.

        Entering raises PermitTimeout, PhaseNesting, StaleWeights, and what a switch raises
        (ResumeFailed, DrainTimeout, DriverError, TenantFailed); the permit is free then."""

    @abc.abstractmethod
    def pop_metrics(self) -> dict[str, float]:
        """Sums since the last call: seconds per phase, ``permit_wait``, ``resume``, and
        ``weave/...`` counts and bytes. What was not measured is absent. Not sums are
        ``weave/weight_version``, ``weave/pinned_bytes``, and, by pool,
        ``weave/unmanaged_running_bytes/POOL`` and ``weave/unmanaged_sleeping_bytes/POOL``: what the
        job takes of a device outside regions, as recorded (`weave_rt.unmanaged`);
        ``weave/unmanaged_excesses`` counts the phases that took more."""

    @abc.abstractmethod
    def progress(self, done: int, total: int) -> None:
        """Say how far the phase is: `done` of `total` responses."""

    def keep(self, value: Any) -> Any:
        """Tensors that outlive their phase: a copy in ordinary memory, without graph, also where
        the job is off. Takes a tensor, or lists, tuples and dicts of them; anything else is
        returned as it is."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return importlib.import_module("weave_rt.adapters.torch").keep(value)
        if isinstance(value, dict):
            return {key: self.keep(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.keep(item) for item in value))
        if isinstance(value, (list, tuple)):
            return type(value)(self.keep(item) for item in value)
        return value

    @abc.abstractmethod
    def close(self) -> None:
        """End the job; managed tensors hold the same values in ordinary memory. Waits for phases
        of other threads, however long they take. Twice is fine. Raises UsageError inside a phase
        or beside one of this thread, TenantFailed when bytes were lost."""


def init(job_id: str | None = None, config: Config | Mapping[str, Any] | None = None) -> Job:
    """Start a job. `config`: a :class:`Config`, or a mapping of its fields; what it leaves out
    comes from the environment, then from the defaults.

    Raises UsageError (unknown key, bad value, job_id in use), DeviceNotFound, DriverError, and
    HostMemoryError where `pin_ahead` is more than the host has or its budget allows."""
    settled = _settle(job_id, config)
    if settled.mode == "off":
        from weave_rt.off import OffJob

        return OffJob(settled)
    from weave_rt.local_job import LocalJob

    return LocalJob(settled)


def managed_already(name: str, pool: str) -> UsageError:
    """What `manage` raises for a name with another pool or with tags again."""
    return UsageError(f"{name!r} is managed already, in pool {pool!r}; add to it there")


_numbers = itertools.count()


def _settle(job_id: str | None, config: Config | Mapping[str, Any] | None) -> Config:
    """Defaults under the environment under what was given."""
    given = config if isinstance(config, Config) else _from_mapping(config or {})
    env = os.environ.get
    mode = given.mode
    if mode is None:
        mode = "local" if given.runtime is not None else (env("WEAVE") or "off").strip()
    return replace(
        given,
        mode=mode,
        job_id=job_id or given.job_id or env("WEAVE_JOB_ID") or f"job-{next(_numbers)}",
        rollout_device=given.rollout_device or env("WEAVE_ROLLOUT") or "auto",
        train_device=given.train_device or env("WEAVE_TRAIN") or "auto",
    )


def _from_mapping(values: Mapping[str, Any]) -> Config:
    known = [f.name for f in fields(Config)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise UsageError(f"config has no key {unknown[0]!r}; there are {', '.join(known)}")
    return Config(**values)

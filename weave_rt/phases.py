"""Phases: their names, the pools they need, and how they are written in a trainer.

A `Phase` is a context manager and a decorator, sync and async; what happens on entry and exit is
up to its subclass (`NullPhase` here, `LocalPhase` in `local_phase`). Phase objects hold no state
of a run, so one may be reused, nested, and shared between threads.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from weave_rt.device import POOLS
from weave_rt.errors import UsageError, WeaveError

__all__ = [
    "PHASES",
    "NullPhase",
    "Phase",
    "PhaseResult",
    "PlainSync",
    "bytes_to_publish",
    "canonical_name",
    "pools_of",
]

PHASES: dict[str, tuple[str, ...]] = {
    "init": ("train", "rollout"),
    "rollout": ("rollout",),
    "reward": (),
    "train": ("train",),
    "weight_sync": ("train", "rollout"),
    "eval": ("rollout",),
    "save": ("train",),
}

_ALIASES = {
    **dict.fromkeys(("gen", "generate", "generation"), "rollout"),
    **dict.fromkeys(("update_actor", "fit", "train_step", "ppo_train"), "train"),
    **dict.fromkeys(
        ("update_weights", "refit", "sync_weights", "broadcast", "model_update"), "weight_sync"
    ),
    **dict.fromkeys(("validate", "testing"), "eval"),
    "save_checkpoint": "save",
}

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(slots=True)
class PhaseResult:
    """What entering a phase took. warm: all tenants it brought in had run before, so their state
    came from the device or host memory. All zero and warm where nothing was needed."""

    name: str
    step: int | None = None
    waited_s: float = 0.0
    resumed_s: float = 0.0
    resumed_bytes: int = 0
    warm: bool = True

    def publish(self, engine: Any, source: Any) -> None:
        """In `weight_sync`: make the tensors of `source` (a torch module, or a mapping of names to
        tensors) the weights of `engine`, a module that the job manages in the rollout pool, or the
        tenant of one module. Tensors of another dtype are converted as by ``torch.Tensor.copy_``.

        An engine whose weights are managed as ``reload`` gets them when the phase has ended
        cleanly, whoever owns the rollout GPU meanwhile; else the old version stays. Another engine
        is resident in the phase and gets them at once.

        Raises UsageError for names that only one side has, or other shapes; HostMemoryError."""
        raise UsageError(f"publish belongs into a weight_sync phase, not {self.name!r}")

    def publish_bytes(
        self, target: Any, source: Any, offset: int = 0, nbytes: int | None = None
    ) -> None:
        """In `weight_sync`, for an engine of plain bytes: make the first `nbytes` (default: all) of
        `source` the bytes of `target` from `offset` on. When they count is as for :meth:`publish`;
        of a ``reload`` tag every byte in use has to be published in the phase.

        target: a buffer of a tenant that the job manages in the rollout pool. source: a buffer of a
        tenant that runs in this phase, or contiguous bytes.

        Raises UsageError for bytes outside either, NotResident, HostMemoryError, DriverError."""
        raise UsageError(f"publish_bytes belongs into a weight_sync phase, not {self.name!r}")

    def conclude(self, ok: bool) -> BaseException | None:
        """The phase ends. Never raises."""
        return None


@dataclass(slots=True)
class PlainSync(PhaseResult):
    """A weight_sync whose engine is in memory: weights are copied by torch."""

    def publish(self, engine: Any, source: Any) -> None:
        if hasattr(engine, "module_of"):  # a tenant, also one of a job that is off
            engine = engine.module_of(engine)
        state = source if isinstance(source, Mapping) else source.state_dict()
        try:
            engine.load_state_dict(state)
        except (RuntimeError, KeyError) as error:  # what torch raises for names and shapes
            if isinstance(error, WeaveError):
                raise
            raise UsageError(f"the weights do not fit the engine: {error}") from error

    def publish_bytes(
        self, target: Any, source: Any, offset: int = 0, nbytes: int | None = None
    ) -> None:
        count = bytes_to_publish(target, source, offset, nbytes)
        with memoryview(source.view() if hasattr(source, "view") else source) as data:
            target.view()[offset : offset + count] = data.cast("B")[:count]


def bytes_to_publish(target: Any, source: Any, offset: int, nbytes: int | None) -> int:
    """How many bytes `publish_bytes` moves. Raises UsageError where they do not fit."""
    there = source.nbytes if hasattr(source, "nbytes") else len(source)
    count = there if nbytes is None else nbytes
    if not 0 <= count <= there:
        raise UsageError(f"{count} bytes of a source of {there} cannot be published")
    if not 0 <= offset <= target.nbytes - count:
        raise UsageError(
            f"bytes {offset} to {offset + count} are outside a buffer of {target.nbytes} bytes"
        )
    return count


def canonical_name(name: str) -> str:
    """The phase that `name` (or an alias in use elsewhere) means. Raises UsageError."""
    known = _ALIASES.get(name, name)
    if known not in PHASES:
        raise UsageError(f"phase {name!r} is not one of {', '.join(PHASES)} or their aliases")
    return known


def pools_of(name: str, pool: str | Sequence[str] | None = None) -> tuple[str, ...]:
    """The pools that a phase takes, in the order in which they are taken: train first.

    pool: overrides the default; ``rollout``, ``train``, ``both`` or a sequence of pools."""
    if pool is None:
        return PHASES[name]
    asked = POOLS if pool == "both" else ((pool,) if isinstance(pool, str) else pool)
    if not isinstance(asked, Sequence) or not all(one in POOLS for one in asked):
        raise UsageError(f"pool {pool!r} is not rollout, train or both")
    return tuple(p for p in POOLS if p in asked)


class Phase(abc.ABC):
    """``with job.phase("train"):``, ``async with``, ``@job.phase("train")`` on a function or a
    coroutine function. Entering returns a :class:`PhaseResult`."""

    @abc.abstractmethod
    def __enter__(self) -> PhaseResult: ...

    @abc.abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None: ...

    @abc.abstractmethod
    async def __aenter__(self) -> PhaseResult: ...

    @abc.abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: object
    ) -> None: ...

    def __call__(self, function: _F) -> _F:
        """Wrap each call in the phase. Raises UsageError for a generator function, whose body
        would run after the phase has ended."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError("a phase cannot decorate a generator; use `with` inside it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]


class NullPhase(Phase):
    """A phase of a job that is off."""

    def __init__(self, name: str, step: int | None) -> None:
        kind = PlainSync if name == "weight_sync" else PhaseResult
        self._result = kind(name, step)

    def __enter__(self) -> PhaseResult:
        return self._result

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        return None

    async def __aenter__(self) -> PhaseResult:
        return self._result

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: object
    ) -> None:
        return None

    def __call__(self, function: _F) -> _F:
        return function

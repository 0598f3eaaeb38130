"""``kind: synthetic``: a job without torch that occupies, checks and rewrites its bytes.

Every phase checks a pattern over all ``keep`` bytes of the pools that it holds, rewrites it from
(seed, iteration), and then waits on the device clock until its modelled time has passed; the time
of checking counts. ``reload`` bytes are checked and not rewritten: of those in the rollout pool
``weight_sync`` publishes the next version, as a trainer does, and the phases after it look for the
pattern of that version and no other. No phase follows the last ``weight_sync``, so nobody looks at
what that one has published, and it is not in the digest: one more rollout would be in the times
that a run reports. Bytes are those of the real job divided by the devices' scale, times those of
the real job divided by their speed. It measures and proves; it stands in for no real job.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from weave_rt.errors import StateChanged, UsageError
from weave_scheduler.jobphases import pools_held, tag_policy, turn_phases
from weave_scheduler.jobs.kind import Iteration, JobResult, Setting, Stopped
from weave_scheduler.jobs.pattern import WORD_BYTES, find_wrong, pattern_key, pieces, renew, write
from weave_scheduler.laws import draw
from weave_scheduler.spec import POOLS, State

if TYPE_CHECKING:
    import weave_rt
    from weave_scheduler.spec import JobSpec

__all__ = ["SyntheticKind", "scaled_bytes"]

_NAP_NS = 50_000_000  # how long an interrupt may go unnoticed


class Buffer(Protocol):
    """Plain bytes of a tenant."""

    @property
    def nbytes(self) -> int: ...
    def view(self) -> memoryview: ...


class Room(Protocol):
    """A tenant, as far as this file needs one."""

    def buffer(self, nbytes: int, tag: str, policy: str | None) -> Buffer: ...


def scaled_bytes(count: int, scale: float) -> int:
    """Bytes on a device of that scale, in whole words; 0 stays 0."""
    return -(-math.ceil(count / scale) // WORD_BYTES) * WORD_BYTES


@dataclass(slots=True)
class _Kept:
    """One buffer whose bytes must survive, and the key of what it should hold now."""

    pool: str
    tag: str
    policy: str  # keep or reload
    buffer: Buffer
    key: int


class SyntheticKind:
    """Runs modelled jobs in one setting; holds no state of its own."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def prepare(self, job: JobSpec) -> None:
        if not self._setting.readable:
            raise UsageError(
                "kind synthetic reads device bytes by the CPU and runs on emulated devices only"
            )

    def run(
        self,
        rt_job: weave_rt.Job,
        spec_job: JobSpec,
        seed: int,
        iterations: int,
        on_iteration: Callable[[Iteration], None],
    ) -> JobResult:
        return _Run(self._setting, rt_job, spec_job, seed).to_end(iterations, on_iteration)


class _Run:
    """One modelled job on its way."""

    def __init__(
        self, setting: Setting, rt_job: weave_rt.Job, spec_job: JobSpec, seed: int
    ) -> None:
        self._setting = setting
        self._job = rt_job
        self._spec = spec_job
        self._seed = seed
        self._kept: list[_Kept] = []
        self._sizes: dict[str, dict[str, int]] = {}

    def to_end(self, iterations: int, on_iteration: Callable[[Iteration], None]) -> JobResult:
        turn = {phase: pools_held(self._spec, phase) for phase in turn_phases(self._spec)}
        last_of = {pool: phase for phase, pools in turn.items() for pool in pools}
        digests: dict[str, str] = {}
        self._init()
        for step in range(iterations):
            for phase, pools in turn.items():
                with self._job.phase(phase, step=step) as entered:
                    start_ns = self._setting.clock.now_ns()
                    for kept in self._kept:
                        if kept.pool in pools:
                            self._look(kept, step, phase)
                    published = self._publish(entered, step) if phase == "weight_sync" else []
                    if step == iterations - 1:
                        for pool in pools:
                            if last_of[pool] == phase:
                                digests[pool] = self._digest(pool)
                    self._wait(start_ns, step, phase)
                for kept, key in published:  # they count from the end of the phase on
                    kept.key = key
            on_iteration(Iteration(step))
        both = "".join(f"{pool}={digests[pool]};" for pool in sorted(digests))
        return JobResult(
            weights_digest=hashlib.sha256(both.encode()).hexdigest(), state_bytes=self._sizes
        )

    def _init(self) -> None:
        state = self._spec.state or State()
        with self._job.phase("init"):
            start_ns = self._setting.clock.now_ns()
            for pool in reversed(POOLS):  # train first, as the phase takes them
                tenant = self._job.manage(pool, pool=pool)  # the core prefixes the job
                for tag, count in getattr(state, pool).items():
                    size = scaled_bytes(count, self._setting.scale)
                    if size:
                        self._add(tenant, pool, tag, size)
            if self._spec.phases and self._spec.phases.init is not None:
                self._wait(start_ns, 0, "init")

    def _add(self, tenant: Room, pool: str, tag: str, size: int) -> None:
        policy = tag_policy(self._spec, pool, tag)
        buffer = tenant.buffer(size, tag=tag, policy=policy)
        self._sizes.setdefault(pool, {})[tag] = size
        if policy != "discard":
            kept = _Kept(pool, tag, policy, buffer, self._key(pool, tag, 0, "init"))
            with buffer.view() as view:
                write(view, kept.key)
            self._kept.append(kept)

    def _look(self, kept: _Kept, step: int, phase: str) -> None:
        """Check the bytes; what the device has the truth of is written anew."""
        next_key = kept.key
        with kept.buffer.view() as view:
            if kept.policy == "reload":
                wrong = find_wrong(view, kept.key)
            else:
                next_key = self._key(kept.pool, kept.tag, step, phase)
                wrong = renew(view, kept.key, next_key)
        if wrong is not None:
            raise StateChanged(
                f"{self._spec.name}: {kept.tag} of the {kept.pool} pool changed while others ran:"
                f" wrong byte at offset {wrong}, seen in {phase} of iteration {step}"
            )
        kept.key = next_key

    def _publish(self, sync: weave_rt.PhaseResult, step: int) -> list[tuple[_Kept, int]]:
        """The next version of what is reloaded in the rollout pool: the first bytes of the tag of
        that name in the training pool, which its engine copies; of a tag that is not trained, bytes
        from ordinary memory. Returns the keys that hold once the phase has ended."""
        trained = {kept.tag: kept for kept in self._kept if kept.pool == "train"}
        published = []
        for kept in self._kept:
            if kept.pool != "rollout" or kept.policy != "reload":
                continue
            source = trained.get(kept.tag)
            if source is not None:  # as large at least, says the check of the spec
                key = source.key
                sync.publish_bytes(kept.buffer, source.buffer, nbytes=kept.buffer.nbytes)
            else:
                key = self._key(kept.pool, kept.tag, step, "weight_sync")
                for offset, piece in pieces(kept.buffer.nbytes, key):
                    sync.publish_bytes(kept.buffer, piece, offset)
            published.append((kept, key))
        return published

    def _digest(self, pool: str) -> str:
        digest = hashlib.sha256()
        for kept in self._kept:
            if kept.pool == pool:
                digest.update(kept.tag.encode())
                with kept.buffer.view() as view:
                    digest.update(view)
        return digest.hexdigest()

    def _key(self, pool: str, tag: str, step: int, phase: str) -> int:
        return pattern_key(self._spec.name, self._seed, pool, tag, step, phase)

    def _wait(self, start_ns: int, step: int, phase: str) -> None:
        """Until the phase's modelled time has passed since ``start_ns``; in naps, so that an
        interrupt is noticed."""
        law = getattr(self._spec.phases, phase)
        clock = self._setting.clock
        seconds = draw(law, self._seed, step, phase) / self._setting.speed
        end_ns = start_ns + round(seconds * 1e9)
        while (now_ns := clock.now_ns()) < end_ns:
            if self._setting.stopped():
                raise Stopped(f"interrupted in {phase} of iteration {step}")
            clock.sleep_until_ns(min(end_ns, now_ns + _NAP_NS))

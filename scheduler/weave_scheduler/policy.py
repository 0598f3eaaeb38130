"""The state machine as the policy of a runtime in this process: who may run, asked by weave_rt.

The runtime calls one method at a time. Knows the shapes of ``weave_rt.permits`` and imports none
of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weave_scheduler.events import (
    Event,
    JobJoined,
    JobLeft,
    PhaseCancelled,
    PhaseDone,
    PhaseRequested,
)
from weave_scheduler.state import GroupState

__all__ = ["GroupPolicy", "Request"]


class Request(Protocol):
    """``weave_rt.permits.Request``: a job asks for a phase on all of ``devices``."""

    @property
    def serial(self) -> int: ...
    @property
    def job(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def devices(self) -> tuple[str, ...]: ...


class GroupPolicy:
    """One group in the mode of its machine; the methods return the serials granted by the call."""

    def __init__(self, state: GroupState | None = None) -> None:
        self._state = GroupState() if state is None else state

    def joined(self, job: str, devices: tuple[str, ...]) -> None:
        self._handle(JobJoined(job, devices))

    def left(self, job: str) -> Sequence[int]:
        return self._handle(JobLeft(job))

    def requested(self, request: Request) -> Sequence[int]:
        return self._handle(
            PhaseRequested(request.job, request.phase, request.devices, request.serial)
        )

    def released(self, serial: int) -> Sequence[int]:
        return self._handle(PhaseDone(serial))

    def cancelled(self, serial: int) -> Sequence[int]:
        return self._handle(PhaseCancelled(serial))

    def _handle(self, event: Event) -> list[int]:
        return [grant.serial for grant in self._state.handle(event)]

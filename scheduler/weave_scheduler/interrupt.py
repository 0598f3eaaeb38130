"""Ctrl-C and SIGTERM as a flag: the first one asks everything to end, the second one kills.

Entered once, by the main thread, around a run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType

__all__ = ["Interrupt"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Whether the run was asked to end; callbacks are told once, from the signal handler."""

    def __init__(self) -> None:
        self._stopped = False
        self._callbacks: list[Callable[[], None]] = []
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupt:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def stopped(self) -> bool:
        return self._stopped

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when asked to end, at once if that was already."""
        self._callbacks.append(callback)
        if self._stopped:
            callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` no more."""
        self._callbacks.remove(callback)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stopped:  # the second time, or a run that does not end: as if unhandled
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._stopped = True
        for callback in self._callbacks:
            callback()

"""Ctrl-C, SIGTERM and SIGHUP as a flag: the first one asks everything to end in order.

People press Ctrl-C twice, and a terminal that closes sends more than one signal: repeats are
ignored for two seconds. A later one ends the process at once. Entered once, by the main thread,
around a run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

__all__ = ["Interrupt", "terminating"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEATS_IGNORED_S = 2.0
_SHOW_CURSOR = b"\x1b[?25h"  # a moving bar hides it


@contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM ends the work inside as Ctrl-C does: by KeyboardInterrupt. Main thread only."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupt:
    """Whether the run was asked to end.

    Callbacks are told from the signal handler: those of ``on_stop`` once, at the first signal,
    those of ``at_once`` before the process ends without another word.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._stopped_at_s: float | None = None
        self._on_stop: list[Callable[[], None]] = []
        self._at_once: list[Callable[[], object]] = []
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupt:
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.stopped():
            return  # the process is about to end, and repeats may still come
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def stopped(self) -> bool:
        return self._stopped_at_s is not None

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when asked to end, at once if that was already."""
        self._on_stop.append(callback)
        if self.stopped():
            callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` no more."""
        self._on_stop.remove(callback)

    def at_once(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` where the process ends at once; it must not wait for anything."""
        self._at_once.append(callback)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stopped_at_s is None:
            self._stopped_at_s = self._now_s()
            for callback in self._on_stop:
                callback()
        elif self._now_s() - self._stopped_at_s > _REPEATS_IGNORED_S:
            self._end()

    def _end(self) -> None:
        for callback in self._at_once:
            with suppress(Exception):
                callback()
        with suppress(OSError):
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            os.write(2, b"weave: interrupted at once; nothing more was written\n")
        os._exit(130)

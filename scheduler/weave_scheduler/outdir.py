"""The folder that a run writes to: held by one live run at a time, files written whole.

A file appears under its name only when it is complete (temporary file, then rename), so a reader
never sees half of one. The lock is the kernel's and ends with the process, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from weave_rt.errors import UsageError

__all__ = ["OutDir", "WriteFailed", "check_target", "write_whole"]

_LOCK = ".weave-lock"


class WriteFailed(OSError):
    """A file could not be written; one line that names it and says what to do."""


class OutDir:
    """A folder to write to, locked while entered.

    Attributes:
        written: the files written so far, in order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: list[Path] = []
        self._lock: int | None = None
        self._writing = ""

    def __enter__(self) -> OutDir:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire()
        except FileExistsError:
            raise UsageError(f"--out {self.path}: is a file; give a folder") from None
        except OSError as error:
            raise UsageError(f"--out {self.path}: cannot be used: {error.strerror}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Leave the folder at once; a file that is half written goes. Harmless when repeated."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        with suppress(OSError):
            for half in self.path.glob(f".{self._writing}.*") if self._writing else ():
                half.unlink()
            (self.path / _LOCK).unlink()
        os.close(lock)

    def write(self, name: str, text: str) -> Path:
        """Write one file whole. Raises WriteFailed."""
        path = self.path / name
        self._writing = name
        write_whole(path, text)
        self._writing = ""
        self.written.append(path)
        return path

    def _acquire(self) -> int:
        path = self.path / _LOCK
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
                os.close(lock)
                who = f" (process {holder})" if holder else ""
                raise UsageError(
                    f"--out {self.path}: another weave run{who} writes there;"
                    " give another folder or wait"
                ) from None
            if _is_still(path, lock):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
                return lock
            os.close(lock)  # its holder removed it between open and flock


def check_target(path: Path, option: str = "--out", *, read: Iterable[Path | None] = ()) -> None:
    """Whether a file can be made there, before long work, and is none of those that are ``read``.
    Raises UsageError."""
    if not path.name:
        raise UsageError(f"{option} {path}: names no file; give the name of a file")
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder; give the name of a file")
    if path.exists() and any(
        one is not None and one.exists() and path.samefile(one) for one in read
    ):
        raise UsageError(f"{option} {path}: is the file that is read; give another")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UsageError(
            f"{option} {path}: nothing can be written in {path.parent}: {error.strerror};"
            " make the folder or give another"
        ) from None


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name beside it, then rename it. Raises WriteFailed."""
    try:
        _write(path, text)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "make room or write it elsewhere" if full else "write it elsewhere"
        raise WriteFailed(f"{path} cannot be written: {error.strerror}; {advice}") from error


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)  # mkstemp made it private
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _is_still(path: Path, lock: int) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    held = os.fstat(lock)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

"""Compiles and runs the C++ tests in tests/cpp against the sources of csrc, without any Python.

WEAVE_SANITIZE=address or =thread builds everything with that sanitizer. Objects are kept in
build/cpp-FLAVOUR under the hash of what went into them, so a second session compiles only what
changed. CXX and WEAVE_CXX_JOBS (2) are honoured.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc"
TESTS = ROOT / "tests" / "cpp"
LAYERS = ("driver", "emu", "core")

COMPILER = os.environ.get("CXX", "g++")
JOBS = int(os.environ.get("WEAVE_CXX_JOBS", "2"))
TIMEOUT_S = 600
FLAGS = ["-std=c++20", "-g", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Wshadow"]
FLAVOURS = {
    "": ("plain", ["-O2"]),
    "address": ("address", ["-O1", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]),
    "thread": ("thread", ["-O1", "-fsanitize=thread"]),
}
# An undefined-behaviour report is a failure like any other.
SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
# What ThreadSanitizer says where the kernel's address randomisation leaves it no room.
NO_ROOM = "unexpected memory mapping"

pytestmark = [
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C++ compiler ({COMPILER})"),
    pytest.mark.timeout(3600),  # the first test also compiles everything
]


class Builder:
    """Compiles sources of this checkout once, for one flavour."""

    def __init__(self) -> None:
        wanted = os.environ.get("WEAVE_SANITIZE", "")
        if wanted not in FLAVOURS:
            raise pytest.UsageError(f"WEAVE_SANITIZE={wanted}: allowed are address and thread")
        name, flags = FLAVOURS[wanted]
        self.flags = FLAGS + flags
        self.folder = ROOT / "build" / f"cpp-{name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.version = subprocess.run(
            [COMPILER, "--version"], capture_output=True, text=True, check=True
        ).stdout

    def included(self, source: Path, seen: dict[Path, bytes]) -> dict[Path, bytes]:
        """The source and, transitively, every file of ours that it includes, with their bytes."""
        if source in seen:
            return seen
        seen[source] = source.read_bytes()
        for name in re.findall(rb'^\s*#\s*include\s+"([^"]+)"', seen[source], re.MULTILINE):
            for folder in (source.parent, SOURCES):
                path = folder / name.decode()
                if path.is_file():
                    self.included(path, seen)
                    break
        return seen

    def compile(self, source: Path) -> Path:
        digest = hashlib.sha256("\0".join([self.version, COMPILER, *self.flags]).encode())
        for path, content in sorted(self.included(source, {}).items()):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + content)
        path = self.folder / f"{source.parent.name}-{source.stem}-{digest.hexdigest()[:16]}.o"
        if path.exists():
            return path
        for stale in self.folder.glob(f"{source.parent.name}-{source.stem}-{'?' * 16}.o"):
            stale.unlink(missing_ok=True)
        # Another session may build the same object: only a whole one gets the name.
        partial = path.with_suffix(f".{os.getpid()}.partial")
        includes = [f"-I{SOURCES}", f"-I{TESTS}"]
        run([COMPILER, *self.flags, *includes, "-c", str(source), "-o", str(partial)])
        partial.replace(path)
        return path

    def compile_all(self, sources: list[Path]) -> list[Path]:
        with ThreadPoolExecutor(JOBS) as pool:
            return list(pool.map(self.compile, sources))

    def link(self, objects: list[Path], program: Path) -> Path:
        run([COMPILER, *self.flags, *map(str, objects), "-ldl", "-o", str(program)])
        return program


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def execute(program: Path) -> subprocess.CompletedProcess[str]:
    environment = {**SANITIZER_ENVIRONMENT, **os.environ}

    def once(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env=environment,
        )

    done = once([str(program)])
    if done.returncode != 0 and NO_ROOM in done.stderr and shutil.which("setarch"):
        done = once(["setarch", platform.machine(), "-R", str(program)])
    return done


def library_sources() -> list[Path]:
    return sorted(path for layer in LAYERS for path in (SOURCES / layer).glob("*.cpp"))


@pytest.fixture(scope="session")
def builder() -> Builder:
    return Builder()


@pytest.fixture(scope="session")
def library(builder: Builder) -> list[Path]:
    # The programs' own sources in the same go, so that both jobs are busy.
    builder.compile_all(library_sources() + sorted(TESTS.glob("test_*.cpp")))
    return [builder.compile(source) for source in library_sources()]


@pytest.mark.parametrize("source", sorted(TESTS.glob("test_*.cpp")), ids=lambda path: path.stem)
def test_program(source: Path, builder: Builder, library: list[Path], tmp_path: Path) -> None:
    program = builder.link([builder.compile(source), *library], tmp_path / source.stem)
    done = execute(program)
    if done.returncode != 0:
        pytest.fail(
            f"{source.name} exited with {done.returncode}\n{done.stdout}{done.stderr}",
            pytrace=False,
        )


def cuda_headers() -> list[Path]:
    folders = [
        Path(home, "include") for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home
    ]
    return [folder for folder in folders if (folder / "cuda.h").is_file()]


def test_abi_matches_cuda_h(builder: Builder) -> None:
    headers = cuda_headers()
    if not headers:
        pytest.skip("no cuda.h under $CUDA_HOME/include or /usr/local/cuda/include")
    includes = [f"-I{SOURCES}", f"-isystem{headers[0]}"]
    run([COMPILER, *FLAGS, "-fsyntax-only", *includes, str(TESTS / "abi_check.cpp")])

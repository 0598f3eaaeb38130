"""Compiles and runs the C++ tests in tests/cpp against the sources of csrc, without any Python.

WEAVE_SANITIZE=address or =thread builds everything with that sanitizer. Objects are kept in
build/cpp-FLAVOUR under the hash of what went into them, so a second session compiles only what
changed. CXX and WEAVE_CXX_JOBS (2) are honoured.

The programs stay there too: build/cpp-plain/test_core_switch TEST --seed 7 replays what failed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
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
# -g1: lines for reports, at two thirds of the time that -g takes to compile.
FLAGS = ["-std=c++20", "-g1", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Wshadow"]
FLAVOURS = {
    "": ("plain", ["-O2"]),
    "address": ("address", ["-O1", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]),
    "thread": ("thread", ["-O1", "-fsanitize=thread"]),
}
# Half the time to compile; what runs long is in csrc.
OF_TESTS = ["-O0"]
# Begun first, so that no worker is left alone with one at the end.
SLOW = {
    *("test_core_sweep", "test_core_background_sweep", "test_core_background"),
    *("test_core_policies", "test_core_spill", "test_core_pipeline"),
}
# An undefined-behaviour report is a failure like any other.
SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
# Programs whose devices can be stepped (check.hpp): run once more for each of these seeds.
STEPPED = {
    "test_core_switch": range(1, 21),
    "test_core_sweep": range(1, 3),
    "test_core_background": range(1, 5),
}
SOAKED = {
    "test_core_switch": range(21, 501),
    "test_core_sweep": range(3, 61),
    "test_core_background": range(5, 61),
}

# Under a sanitizer these stay out of a session's budget: stepped runs have one thread and are many,
# and sweeps of failing calls race nobody. `pytest -m soak` with WEAVE_SANITIZE runs them too.
SANITIZER = os.environ.get("WEAVE_SANITIZE", "")
ONE_THREAD = {"test_core_sweep", "test_core_background_sweep"} if SANITIZER == "thread" else set()
if SANITIZER:
    SOAKED = {name: range(1, seeds.stop) for name, seeds in SOAKED.items()}
    STEPPED = {"test_core_switch": range(1, 4)}

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
        flags = self.flags + OF_TESTS if source.parent == TESTS else self.flags
        digest = hashlib.sha256("\0".join([self.version, COMPILER, *flags]).encode())
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
        run([COMPILER, *flags, *includes, "-c", str(source), "-o", str(partial)])
        partial.replace(path)
        return path

    def compile_all(self, sources: list[Path]) -> list[Path]:
        with ThreadPoolExecutor(JOBS) as pool:
            return list(pool.map(self.compile, sources))

    def link(self, objects: list[Path], name: str) -> Path:
        """The program of these objects, in the folder under the name of the test; a copy under the
        hash of the objects is what runs, so that sessions do not disturb each other."""
        digest = hashlib.sha256("\0".join(path.name for path in objects).encode()).hexdigest()
        program = self.folder / f"{name}-{digest[:16]}"
        if not program.exists():
            for stale in self.folder.glob(f"{name}-{'?' * 16}"):
                stale.unlink(missing_ok=True)
            partial = program.with_suffix(f".{os.getpid()}.partial")
            run([COMPILER, *self.flags, *map(str, objects), "-ldl", "-o", str(partial)])
            partial.replace(program)
            (self.folder / name).unlink(missing_ok=True)
            with contextlib.suppress(FileExistsError):
                (self.folder / name).symlink_to(program.name)
        return program

    def program(self, source: Path, library: list[Path]) -> Path:
        # The library first: of an inline function that both have, its optimized one is taken.
        return self.link([*library, self.compile(source)], source.stem)


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def execute(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
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

    whole = [str(program), *arguments]
    done = once(whole)
    if done.returncode != 0 and NO_ROOM in done.stderr and shutil.which("setarch"):
        done = once(["setarch", platform.machine(), "-R", *whole])
    return done


def check_passes(program: Path, *arguments: str) -> None:
    done = execute(program, *arguments)
    if done.returncode != 0:
        command = " ".join([str(program.relative_to(ROOT)), *arguments])
        pytest.fail(
            f"{command} exited with {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False
        )


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


def programs() -> list[pytest.ParameterSet]:
    return [
        pytest.param(
            source, id=source.stem, marks=[pytest.mark.soak] if source.stem in ONE_THREAD else []
        )
        for source in sorted(
            TESTS.glob("test_*.cpp"), key=lambda path: (path.stem not in SLOW, path)
        )
    ]


@pytest.mark.parametrize("source", programs())
def test_program(source: Path, builder: Builder, library: list[Path]) -> None:
    check_passes(builder.program(source, library))


def seeded(programs: dict[str, range]) -> list[tuple[str, int]]:
    return [(name, seed) for name, seeds in programs.items() for seed in seeds]


@pytest.mark.parametrize(("name", "seed"), seeded(STEPPED))
def test_stepped(name: str, seed: int, builder: Builder, library: list[Path]) -> None:
    """The stepper instead of engine threads: a failure prints the command that replays it."""
    check_passes(builder.program(TESTS / f"{name}.cpp", library), "--seed", str(seed))


@pytest.mark.soak
@pytest.mark.parametrize(("name", "seed"), seeded(SOAKED))
def test_stepped_soak(name: str, seed: int, builder: Builder, library: list[Path]) -> None:
    check_passes(builder.program(TESTS / f"{name}.cpp", library), "--seed", str(seed))


def header_of_wheel(distribution: str) -> Path:
    """The folder of the cuda.h that a runtime wheel installed; skips where there is none."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "cuda.h":
            return Path(str(file.locate())).parent
    pytest.skip(f"no cuda.h: the package {distribution} (extra `test`) is not installed")


def check_abi(folder: Path) -> None:
    includes = [f"-I{SOURCES}", f"-isystem{folder}"]
    run([COMPILER, *FLAGS, "-Werror", "-fsyntax-only", *includes, str(TESTS / "abi_check.cpp")])


@pytest.mark.parametrize(
    ("distribution", "major"), [("nvidia-cuda-runtime-cu12", 12), ("nvidia-cuda-runtime", 13)]
)
def test_abi_matches_cuda_h_of(distribution: str, major: int) -> None:
    folder = header_of_wheel(distribution)
    version = re.search(r"#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text())
    assert version is not None
    assert int(version[1]) // 1000 == major
    check_abi(folder)


def test_abi_matches_the_installed_cuda_h() -> None:
    homes = [home for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    folders = [Path(home, "include") for home in homes]
    found = [folder for folder in folders if (folder / "cuda.h").is_file()]
    if not found:
        pytest.skip("no cuda.h under $CUDA_HOME/include or /usr/local/cuda/include")
    check_abi(found[0])

"""The layers, as a test: who may include or import whom, what lies where, how long files are.

Reads files as text; needs no compiler, no GPU and no torch.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TOP_LEVEL = {
    ".ci", ".clang-format", ".gitignore", "ARCHITECTURE.md", "CONTRIBUTING.md", "LICENSE",
    "README.md", "bench", "constraints.txt", "csrc", "docs", "examples", "pyproject.toml",
    "scheduler", "setup.py", "tests", "weave_rt",
}  # fmt: skip

# What a file of each folder of csrc/ may include, by folder or by file.
INCLUDES = {
    "driver": {"driver/"},
    "emu": {"emu/", "driver/abi.hpp", "driver/table.hpp", "driver/clock.hpp", "driver/status.hpp",
            "driver/calls.def"},
    "core": {"core/", "driver/abi.hpp", "driver/table.hpp", "driver/status.hpp"},
    "bindings": {"bindings/", "core/", "emu/emulator.hpp", "driver/"},
}  # fmt: skip

# Modules of the scheduler that decide: pure, so that live and simulated runs share them.
DECIDING = (
    "barrierstate", "chainkernel", "commands", "cycleratio", "devicetables", "document",
    "eventkernel", "events", "gpus", "groupdriver", "groupmath", "groupsim", "intervals", "intra",
    "laws", "lengths", "liveorder", "model", "montecarlo", "plan", "plandrawing", "planinput",
    "plantables", "pools", "recursion", "residency", "samples", "simrecord", "simtables",
    "simulator", "spec", "specfile", "state", "strictorder", "strictstate", "units",
)  # fmt: skip
DECIDING_FOLDERS = ("exact", "policies")
DECIDING_RUNTIME = ("weave_rt.errors", "weave_rt.overlay")  # what they may have of the runtime
# The only places that may import torch when they are imported.
TORCH = ("weave_rt/adapters/", "scheduler/weave_scheduler/jobs/grpo/")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("needs a git checkout")
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def imports(path: Path, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in tree.body if top_level_only else ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_top_level_is_what_the_readme_says() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} == TOP_LEVEL


@pytest.mark.parametrize("folder", sorted(INCLUDES))
def test_includes_point_down(folder: str) -> None:
    files = [*(ROOT / "csrc" / folder).glob("*.?pp")]
    assert files
    for path in files:
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            assert any(name.startswith(allowed) for allowed in INCLUDES[folder]), f"{path}: {name}"


def test_python_is_seen_in_bindings_only_and_libcuda_is_linked_nowhere() -> None:
    for path in (ROOT / "csrc").rglob("*.?pp"):
        if path.parent.name != "bindings":
            assert not re.search(r"pybind11|Python\.h", path.read_text()), path
        assert "cuda.h" not in re.findall(r'#include [<"]([^>"]+)', path.read_text()), path
    assert '"cuda"' not in (ROOT / "setup.py").read_text()


def test_the_core_cannot_tell_an_emulated_device() -> None:
    for path in (ROOT / "csrc" / "core").glob("*.?pp"):
        code = re.sub(r"//.*", "", path.read_text())
        assert not re.search(r"emu::|is_emulated|emulated", code), path


def test_runtime_never_imports_the_scheduler() -> None:
    for path in (ROOT / "weave_rt").rglob("*.py"):
        assert not any(name.startswith("weave_scheduler") for name in imports(path)), path


def test_deciding_parts_are_pure() -> None:
    package = ROOT / "scheduler" / "weave_scheduler"
    folders = [path for name in DECIDING_FOLDERS for path in (package / name).glob("*.py")]
    for path in [*(package / f"{name}.py" for name in DECIDING), *folders]:
        for imported in imports(path):
            root = imported.split(".")[0]
            assert root not in ("torch", "time", "random", "threading", "asyncio", "ray"), path
            assert root != "weave_rt" or imported in DECIDING_RUNTIME, f"{path}: {imported}"


def test_the_residency_planner_is_pure() -> None:
    allowed = {"__future__", "collections.abc", "dataclasses", "math", "weave_rt.errors"}
    for path in (ROOT / "weave_rt" / "overlay").glob("*.py"):
        for name in imports(path):
            assert name in allowed or name.startswith("weave_rt.overlay"), f"{path}: {name}"


def test_torch_is_imported_late() -> None:
    for path in [*(ROOT / "weave_rt").rglob("*.py"), *(ROOT / "scheduler").rglob("*.py")]:
        if str(path.relative_to(ROOT)).startswith(TORCH):
            continue
        for name in imports(path, top_level_only=True):
            assert name.split(".")[0] not in ("torch", "reasoning_gym", "cupy"), path


def test_compiled_code_calls_no_compiled_code_of_another_file() -> None:
    """Numba's cache would go on with what that file contained before it was changed."""
    for path in (ROOT / "scheduler").rglob("*.py"):
        tree = ast.parse(path.read_text())
        foreign = {
            name.asname or name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weave_")
            for name in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "njit" in "".join(
                ast.unparse(one) for one in node.decorator_list
            ):
                names = {
                    one.id
                    for statement in node.body
                    for one in ast.walk(statement)
                    if isinstance(one, ast.Name)
                }
                assert not names & foreign, f"{path}: {node.name}: {names & foreign}"


def test_files_and_functions_stay_short() -> None:
    for path in tracked("*.py", "*.cpp", "*.hpp"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 400 or path.parts[-2] in ("cpp", "tests"), (
            f"{path}: {len(lines)} lines"
        )
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{path}: {node.name}"


def test_names_say_what_is_inside() -> None:
    for path in tracked("*.py", "*.cpp", "*.hpp"):
        assert path.stem not in ("utils", "util", "common", "helpers", "misc", "manager", "base")

"""The wheel: built here, installed into an empty environment without torch, and the doctor runs."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tracked files, so that nothing left in the tree helps."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    source = tmp_path_factory.mktemp("source")
    listed = run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), ".", cwd=source)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.timeout(900)
def test_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "weave_rt/_core.pyi" in names
    assert "weave_scheduler/report.html.jinja" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "csrc/"))]

    venv.create(tmp_path / "empty", with_pip=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    constraints = str(ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", "-q", "-c", constraints, str(wheel), cwd=tmp_path)
    assert "torch" not in run(python, "-m", "pip", "list", cwd=tmp_path).lower()

    weave = str(tmp_path / "empty" / "bin" / "weave")
    doctor = json.loads(run(weave, "doctor", "--json", cwd=tmp_path))
    assert doctor["format"] == "weave-doctor"
    libraries = run("ldd", *map(str, (tmp_path / "empty").rglob("_core*.so")), cwd=tmp_path)
    assert "libcuda" not in libraries

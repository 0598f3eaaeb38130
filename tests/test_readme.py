"""What the README shows runs as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_two_tenants_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (example,) = [block for block in blocks if "open_device" in block]
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert "'bytes_out'" in capsys.readouterr().out
    for name in ("x", "y", "a", "b"):
        names.pop(name)
    names.pop("device").close()  # type: ignore[attr-defined]


def test_linked_files_exist() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (root / target).exists(), target

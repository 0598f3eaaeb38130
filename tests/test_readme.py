"""What the README shows runs as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weave_rt.phases import _ALIASES, PHASES

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_two_tenants_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (example,) = [block for block in blocks if "open_device" in block]
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert "'bytes_out'" in capsys.readouterr().out
    for name in ("x", "y", "a", "b"):
        names.pop(name)
    names.pop("device").close()  # type: ignore[attr-defined]


def test_the_trainer_guide_is_one_program_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (ROOT / "docs" / "trainer.md").read_text()
    program = "".join(re.findall(r"```python\n(.*?)```", guide, re.DOTALL))
    exec(compile(program, "docs/trainer.md", "exec"), {})
    assert "weave/weight_version" in capsys.readouterr().out


def test_the_table_of_phases_is_that_of_the_code() -> None:
    guide = (ROOT / "docs" / "trainer.md").read_text().partition("## Phases\n")[2]
    rows = [line.split("|")[1:4] for line in guide.partition("\n\n")[0].split("\n")]
    names = {row[0].strip(" `"): re.findall(r"`(\w+)`", row[2]) for row in rows if len(row) == 3}
    assert [name for name in names if name in PHASES] == list(PHASES)
    assert {alias: name for name, found in names.items() for alias in found} == _ALIASES


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target

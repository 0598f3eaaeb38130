"""tests/cases.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_is_named_exists() -> None:
    source = "\n".join(path.read_text() for path in [*HERE.rglob("*.py"), *HERE.rglob("*.cpp")])
    tests = set(re.findall(r"(?:def |TEST\()(\w+)\(?", source))
    files = {path.name for path in HERE.rglob("*.*")} | {"contract/test_memory.py"}
    for line in (HERE / "cases.md").read_text().splitlines():
        for name in re.findall(r"`([\w./]+)`", line):
            if name.endswith((".py", ".cpp")):
                assert name in files, line
            elif "_" in name and not name.isupper():
                assert name in tests, line


def test_rows_have_an_answer() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", (HERE / "cases.md").read_text(), re.M)
    numbers = [int(number) for number, _, _ in rows]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == len(re.findall(r"^\| \d", (HERE / "cases.md").read_text(), re.M))

"""Replays the corpus of the fuzz targets, and tries a few hundred inputs made from it by a seed."""

from __future__ import annotations

import pytest
from test_cpp import ROOT, Builder, execute, library_sources, pytestmark  # noqa: F401

FUZZ = ROOT / "tests" / "fuzz"


@pytest.mark.parametrize("target", ["spec", "calls"])
def test_corpus(target: str) -> None:
    builder = Builder()
    sources = [FUZZ / f"fuzz_{target}.cpp", FUZZ / "replay.cpp", *library_sources()]
    program = builder.link(builder.compile_all(sources), f"fuzz-{target}")
    corpus = sorted(str(path) for path in (FUZZ / "corpus" / target).iterdir())
    done = execute(program, "--random", "300", "1", *corpus)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(corpus)} files, 300 random inputs" in done.stdout

"""The stub of the core says what the core has: same names, same members, nothing more."""

from __future__ import annotations

import ast
from pathlib import Path

import weave_rt
from weave_rt import _core

STUB = Path(weave_rt.__file__).parent / "_core.pyi"


def stubbed() -> dict[str, set[str]]:
    """Public names of the stub; for classes with their members."""
    names: dict[str, set[str]] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ClassDef):
            members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            names[node.name] = {name for name in members if not name.startswith("__")}
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = set()
    return names


def test_names_agree() -> None:
    public = {name for name in vars(_core) if not name.startswith("_")}
    assert public == set(stubbed())


def test_members_agree() -> None:
    for name, members in stubbed().items():
        if members:
            found = {item for item in vars(getattr(_core, name)) if not item.startswith("_")}
            assert found == members, name


def test_everything_public_has_a_docstring() -> None:
    for name in weave_rt.__all__:
        if name == "__version__":
            continue
        documented = getattr(weave_rt, name).__doc__
        stub = f"class {name}:" in STUB.read_text()
        assert documented or stub, name

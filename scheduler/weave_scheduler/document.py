"""A YAML file as plain data that remembers on which line each value stands.

``Document.place(path)`` turns the path of a mistake, as pydantic reports it, into
``FILE:LINE: path.to.key``. Keys given twice, values that contain themselves, tags that would build
objects and more than one document in a file are refused with one line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["Document", "SpecError", "is_trace", "read_document"]

_BYTES_MAX = 4 * 2**20  # a spec is a page of text; this refuses a model or log given by mistake


class SpecError(ValueError):
    """What is wrong with a file, as one line: ``FILE:LINE: path.to.key: what is wrong``.

    Attributes:
        more: how many further mistakes the file has; the text says so.
    """

    def __init__(self, message: str, *, more: int = 0) -> None:
        super().__init__(f"{message} (and {more} more)" if more else message)
        self.more = more


@dataclass(frozen=True)
class Document:
    """What a YAML file holds, and where."""

    file: str
    data: object
    root: yaml.Node

    def line(self, path: Sequence[str | int]) -> int:
        """The line, from 1, of the value at ``path``; of the nearest one around it if absent."""
        return self._follow(path)[0]

    def place(self, path: Sequence[str | int]) -> str:
        """``FILE:LINE: path.to.key``; names that are not in the file may end the path."""
        line, names = self._follow(path)
        return f"{self.file}:{line}: " + (".".join(names) if names else "the file")

    def _follow(self, path: Sequence[str | int]) -> tuple[int, list[str]]:
        node, line, names = self.root, self.root.start_mark.line + 1, []
        inside = True
        for step in path:
            if step == "[key]":  # pydantic's mark for a wrong key, which stands before it
                continue
            names.append(str(step))
            found = _child(node, step) if inside else None
            if found is None:
                inside = False
            else:
                node, line = found
        return line, names


def read_document(path: Path) -> Document:
    """Read one YAML file. Raises SpecError with one line."""
    try:
        if path.is_dir():
            raise SpecError(f"{path}: is a folder; give a YAML file")
        if path.stat().st_size > _BYTES_MAX:
            raise SpecError(f"{path}: is larger than 4 MiB; give a YAML spec")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file; give the path of a YAML file") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: is not UTF-8 text; give a YAML file") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    if is_trace(text):
        raise SpecError(
            f"{path}: is a trace, which names no devices; give a spec, or use weave simulate"
        )
    return parse_document(text, str(path))


def is_trace(text: str) -> bool:
    """Whether the text of a file begins as a trace does."""
    try:
        head = json.loads(text.split("\n", 1)[0])
    except ValueError:
        return False
    return isinstance(head, dict) and head.get("format") == "weave-trace"


def parse_document(text: str, file: str) -> Document:
    """Parse YAML text; ``file`` is its name in messages. Raises SpecError with one line."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise SpecError(f"{file}:1: the file is empty; a spec needs version and jobs")
        _refuse_repeats(root, file)
        return Document(file, loader.construct_document(root), root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = " ".join(str(error.problem or error.context).split())
        raise SpecError(f"{file}:{line}: is not valid YAML: {what}") from None
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        raise SpecError(f"{file}: is not valid YAML: {what}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{file}: is not valid YAML: {error}") from None


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        if 0 <= step < len(node.value):
            item = node.value[step]
            return item, item.start_mark.line + 1
    elif isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # keys of a merge come first, own ones win
            if key.value == str(step):
                return value, key.start_mark.line + 1
    return None


def _refuse_repeats(root: yaml.Node, file: str) -> None:
    for node in _nodes(root, file):
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise SpecError(f"{file}:{line}: a key must be a word, not a list or mapping")
            if key.value in lines and key.value != "<<":
                first = lines[key.value]
                raise SpecError(
                    f"{file}:{line}: {key.value}: is given twice (first on line {first});"
                    " keep one of them"
                )
            lines[key.value] = line


def _nodes(root: yaml.Node, file: str) -> Iterator[yaml.Node]:
    """Every node once, parents first; aliases are followed, a node inside itself is refused."""
    seen: set[int] = set()
    stack: list[tuple[yaml.Node, frozenset[int]]] = [(root, frozenset())]
    while stack:
        node, above = stack.pop()
        if id(node) in above:
            line = node.start_mark.line + 1
            raise SpecError(f"{file}:{line}: a value contains itself; remove the alias")
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        yield node
        children = [
            child
            for pair in node.value
            for child in (pair if isinstance(node, yaml.MappingNode) else (pair,))
        ]
        stack.extend((child, above | {id(node)}) for child in children)

"""Reading records of benchmarks: whatever the file is, either a record or one line why not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from weave_rt.errors import UsageError

__all__ = ["key_of", "label_of", "read"]

FORMAT, VERSION = "weave-bench", 1


def read(path: Path) -> dict[str, Any]:
    """The record in a file, with samples in every case.

    Raises UsageError, with the file's name: no such file, not JSON, another format or version, no
    cases, a case without finite samples."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not text; give a record of weave bench") from None
    if not text.strip():
        raise UsageError(f"{path}: is empty")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON: {' '.join(str(error).split())[:200]}") from None
    problem = _problem(record)
    if problem:
        raise UsageError(f"{path}: {problem}")
    assert isinstance(record, dict)
    return record


def _problem(record: object) -> str:
    if not isinstance(record, dict) or "format" not in record:
        return "is not a record of weave bench (no format)"
    if record["format"] != FORMAT:
        return f"has format {str(record['format'])[:40]!r}; expected {FORMAT!r}"
    if record.get("version") != VERSION:
        return f"has version {str(record.get('version'))[:40]}; this is for version {VERSION}"
    if not isinstance(record.get("conditions"), dict):
        return "has no conditions"
    cases = record.get("cases")
    if not isinstance(cases, list) or not cases:
        return "has no cases"
    for number, case in enumerate(cases, 1):
        problem = _problem_of_case(case)
        if problem:
            return f"case {number} {problem}"
    return ""


def _problem_of_case(case: object) -> str:
    if not isinstance(case, dict):
        return "is not an object"
    for key in ("name", "arm"):
        if not isinstance(case.get(key), str):
            return f"has no {key}"
    if not isinstance(case.get("params", {}), dict):
        return "has params that are not an object"
    samples = case.get("samples_s")
    if not isinstance(samples, list) or not samples:
        return f"({case['name']}) has no samples"
    for sample in samples:
        fine = isinstance(sample, (int, float)) and not isinstance(sample, bool)
        if not fine or not math.isfinite(sample) or sample < 0:
            return f"({case['name']}) has a sample that is no time: {str(sample)[:40]}"
    return ""


def key_of(case: dict[str, Any]) -> tuple[str, str, str]:
    """What makes two cases the same one: name, arm, parameters."""
    return case["name"], case["arm"], json.dumps(case.get("params", {}), sort_keys=True)


def label_of(params: dict[str, Any]) -> str:
    """The parameters in short, for tables and file names."""
    parts = []
    if "preset" in params:
        parts.append(str(params["preset"]))
    elif "tenant_bytes" in params:
        parts.append(f"{params['tenant_bytes'] / 1e6:.0f} MB")
    shown = {"preset", "tenant_bytes", "block_bytes", "load"}
    parts += [f"{key} {value}" for key, value in params.items() if key not in shown]
    if "load" in params:
        parts.append("under load")
    return ", ".join(parts)

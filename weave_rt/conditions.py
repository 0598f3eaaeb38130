"""What the numbers of a record depend on besides the device: versions, cores, the time of day.

The host's part of the ``conditions`` block that starts every JSON file. Imports neither torch nor
anything else that is heavy; versions come from what is installed.
"""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import weave_rt

__all__ = ["host_conditions", "installed_version", "now_utc"]


def host_conditions(started_at: str = "") -> dict[str, Any]:
    """Keys weave, python, torch (where installed), cores (that this process may use), started_at
    (UTC, ISO 8601; now unless given)."""
    block: dict[str, Any] = {"weave": weave_rt.__version__, "python": platform.python_version()}
    torch = installed_version("torch")
    if torch is not None:
        block["torch"] = torch
    block["cores"] = len(os.sched_getaffinity(0))
    block["started_at"] = started_at or now_utc()
    return block


def now_utc() -> str:
    """The time of day, UTC, ISO 8601, whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def installed_version(distribution: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

"""``python -m weave_rt``: versions, the CUDA driver, and the devices that this machine has."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

from weave_rt import __version__, _core
from weave_rt.device import resolve_spec


def main() -> int:
    """Print, one fact a line. Opens no device and imports no torch."""
    driver: dict[str, Any] = _core.cuda_driver()
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not installed"
    print(f"weave_rt {__version__}, python {platform.python_version()}, torch {torch}")
    if driver["available"]:
        print(f"driver {driver['driver_version']} ({driver['library']})")
    else:
        print(f"driver none: {driver['reason']}")
    for gpu in driver["devices"]:
        print(f"cuda:{gpu['ordinal']} {gpu['name']} {gpu['total_bytes']} bytes {gpu['uuid']}")
    for pool in ("rollout", "train"):
        print(f"auto, {pool}: {resolve_spec('auto', pool)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

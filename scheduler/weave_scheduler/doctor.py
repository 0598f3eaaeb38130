"""``weave doctor``: what is installed, which devices there are, what the host allows.

Runs without torch and without a GPU.
"""

from __future__ import annotations

import platform
import re
import warnings
from dataclasses import asdict
from typing import Any

from weave_rt.conditions import installed_version
from weave_scheduler.conditions import conditions
from weave_scheduler.host import host_limits
from weave_scheduler.records import DeviceRecord
from weave_scheduler.tables import Table
from weave_scheduler.units import format_bytes

__all__ = ["doctor_tables", "examine"]


def examine(device_spec: str) -> dict[str, Any]:
    """The weave-doctor record. Raises UsageError, DriverError where the device does not open."""
    import weave_rt
    from weave_rt import _core
    from weave_scheduler.devices import describe

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        device = weave_rt.open_device(device_spec)
    try:
        record = describe(device, "rollout", 0)
    finally:
        device.close()
    versions = {"weave": weave_rt.__version__, "python": platform.python_version()}
    versions |= {
        name: version
        for name in ("torch", "numpy", "reasoning-gym")
        if (version := installed_version(name)) is not None
    }
    return {
        "format": "weave-doctor",
        "version": 1,
        "conditions": conditions([record]),
        "versions": versions,
        "system": {"kernel": platform.release(), "machine": platform.machine()},
        "cuda": dict(_core.cuda_driver()),
        "devices": [_device(record)],
        "limits": {**host_limits(), "pinnable_bytes": _core.host_bytes_available()},
        "notes": [str(warning.message) for warning in caught],
    }


def doctor_tables(record: dict[str, Any]) -> list[Table]:
    """The record for people."""
    cuda = record["cuda"]
    found = cuda.get("devices") or []
    reason = re.sub(r"(\S+: )\1", r"\1", str(cuda.get("reason", "")))  # the loader repeats the name
    driver = [["found", "yes" if cuda.get("available") else f"no: {reason}"]]
    driver += [[key, str(cuda[key])] for key in ("library", "driver_version") if cuda.get(key)]
    driver += [
        [f"cuda:{gpu['ordinal']}", f"{gpu['name']}, {format_bytes(gpu['total_bytes'])}"]
        for gpu in found
    ]
    return [
        Table("Versions", ["what", "version"], [[*pair] for pair in record["versions"].items()]),
        Table("CUDA driver", ["what", "value"], driver),
        *(
            Table(f"Device {one['spec']}", ["what", "value"], _lines(one))
            for one in record["devices"]
        ),
        Table("Host limits", ["what", "value"], _lines(record["limits"])),
    ]


def _device(record: DeviceRecord) -> dict[str, Any]:
    shown = asdict(record)
    del shown["pool"], shown["node"]
    return shown


def _lines(values: dict[str, Any]) -> list[list[str]]:
    lines = []
    for key, value in values.items():
        if key == "driver" and not value:  # an emulated device has none
            continue
        name = _NAMES.get(key, key.removesuffix("_bytes"))
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, int) and key.endswith("_bytes"):
            shown = format_bytes(value)
        else:
            shown = str(value)
        lines.append([name, shown])
    return lines


_NAMES = {"pinnable_bytes": "pinnable memory"}

"""``weave doctor``: what is installed, what the device and the host allow, what the link does.

`examine` opens one device, measures its link by plain pinned copies, and looks at the host; the
rates are remembered for later runs. What it all means is in :mod:`weave_rt.verdicts`. Runs without
torch and without a GPU.
"""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import weave_rt
from weave_rt import _core
from weave_rt._core import Device
from weave_rt.benchmarks.record import conditions
from weave_rt.calibration import RATES, SLOWDOWN, calibrated, is_disturbed, remember
from weave_rt.conditions import host_conditions, installed_version
from weave_rt.device import open_device
from weave_rt.errors import DriverError, HostMemoryError, UsageError
from weave_rt.host import host_limits, numa_nodes, pci_node
from weave_rt.pages import page_kinds
from weave_rt.verdicts import checks

__all__ = ["examine"]


def examine(device_spec: str = "auto") -> dict[str, Any]:
    """The weave-doctor record. A device that the driver refuses is in it, as a problem.

    Raises UsageError and DeviceNotFound for a spec that names no device here."""
    record: dict[str, Any] = {
        "format": "weave-doctor",
        "version": 1,
        "conditions": host_conditions(),
        "versions": _versions(),
        "system": {"kernel": platform.release(), "machine": platform.machine()},
        "cuda": dict(_core.cuda_driver()),
        "devices": [],
        "limits": {**host_limits(), "pinnable_bytes": _core.host_bytes_available()},
        "pages": page_kinds(),
        "numa": {"nodes": numa_nodes()},
        "notes": [],
    }
    if (mps := _mps_pipe()) is not None:
        record["system"]["mps_pipe"] = mps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            device = open_device(device_spec)
        except DriverError as error:
            record["failed"] = {"what": "open", "error": str(error)}
            device = None
    record["notes"] = [str(warning.message) for warning in caught]
    if device is not None:
        try:
            _look_at(device, record)
        finally:
            device.close()
    record["checks"] = [asdict(check) for check in checks(record)]
    return record


def _look_at(device: Device, record: dict[str, Any]) -> None:
    attributes = device.attributes()
    record["conditions"] = conditions(device)
    record["devices"] = [
        {
            "spec": device.spec,
            "kind": device.kind,
            "name": device.name,
            "uuid": device.uuid,
            "driver": device.driver_version,
            "capacity_bytes": device.capacity_bytes,
            "usable_bytes": device.usable_bytes,
            "block_bytes": device.block_bytes,
            "scale": device.scale,
            "speed": device.speed,
            "host_limited": device.host_limited,
            "attributes": attributes,
        }
    ]
    if (node := _node_of(attributes)) is not None:
        record["numa"]["device_node"] = node
    record["memory"] = device.memory()
    try:
        rates = calibrated(device, anew=True)
        slowdown = device.slowdown()
    except (DriverError, HostMemoryError, UsageError) as error:
        record["failed"] = {"what": "link", "error": str(error)}
        return
    if slowdown is not None:
        if device.kind != "emulated":
            rates[SLOWDOWN] = slowdown
            remember(device, rates)
        record["background"] = {"slowdown": slowdown, "allowed": not is_disturbed(rates)}
    record["link"] = _link(device, rates)


def _link(device: Device, rates: dict[str, Any]) -> dict[str, Any]:
    link: dict[str, Any] = {f"{name}_bytes_per_s": rates[name] for name in RATES}
    link["mode"] = "sequential" if rates.get("sequential") else "duplex"
    if "chunks" in rates:
        link["chunks"] = rates["chunks"]
    link["duplex_share"] = min(
        rates["h2d_duplex"] / rates["h2d"], rates["d2h_duplex"] / rates["d2h"]
    )
    if device.kind == "emulated":  # ratios only: how much of its model this host delivers
        model = _core.parse_emulated(device.spec)
        for name in ("h2d", "d2h"):
            link[f"{name}_model_share"] = rates[name] / float(str(model[f"{name}_bytes_per_s"]))
    stats = device.stats()
    if "pageable_copies" in stats:
        link["pageable_copies"] = stats["pageable_copies"]
    return link


def _node_of(attributes: dict[str, int]) -> int | None:
    """The NUMA node that the device hangs on, as far as driver or system say."""
    if attributes.get("host_numa_id", -1) >= 0:
        return attributes["host_numa_id"]
    if "pci_bus" not in attributes:
        return None
    return pci_node(
        attributes.get("pci_domain", 0), attributes["pci_bus"], attributes.get("pci_device", 0)
    )


def _versions() -> dict[str, str]:
    versions = {"weave": weave_rt.__version__, "python": platform.python_version()}
    return versions | {
        name: version
        for name in ("torch", "numpy", "reasoning-gym")
        if (version := installed_version(name)) is not None
    }


def _mps_pipe() -> str | None:
    """Where a control daemon of CUDA MPS listens, if one does."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    return str(folder) if (folder / "control").exists() else None

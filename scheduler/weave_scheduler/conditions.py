"""Under what conditions numbers were taken: the ``conditions`` block of every JSON file.

Does not import torch; its version comes from what is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weave_rt.conditions import host_conditions
from weave_scheduler.records import DeviceRecord

__all__ = ["conditions"]


def conditions(devices: Sequence[DeviceRecord], started_at: str = "") -> dict[str, Any]:
    """The block for a run on these devices.

    ``device``, ``device_name``, ``driver`` and ``spec`` map each pool to a list with an entry for
    every device; with one device only they are its values.
    """
    block: dict[str, Any] = {}
    for key, attribute in (
        ("device", "kind"), ("device_name", "name"), ("driver", "driver"), ("spec", "spec")
    ):  # fmt: skip
        by_pool: dict[str, list[Any]] = {}
        for device in devices:
            value = getattr(device, attribute)
            if value:  # an emulated device has no driver
                by_pool.setdefault(device.pool, []).append(value)
        if by_pool:
            block[key] = by_pool if len(devices) > 1 else getattr(devices[0], attribute)
    block.update(host_conditions(started_at))
    block["host_limited"] = any(device.host_limited for device in devices)
    return block

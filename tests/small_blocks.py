"""Devices with blocks of a page, so that tests count in blocks; used by several files."""

from __future__ import annotations

import os
from typing import Any

import weave_rt
from weave_rt import Device, Tenant

BLOCK = 4096
TINY = "emulated:h20?scale=4096&speed=100&block=4KiB&granularity=4KiB&context=4KiB"


def filled(tenant: Tenant, blocks: int, value: int, tag: str = "weights") -> weave_rt.Buffer:
    buffer = tenant.buffer(blocks * BLOCK, tag)
    buffer.view()[:] = bytes([value]) * buffer.nbytes
    return buffer


def running(device: Device, name: str, **settings: Any) -> Tenant:
    tenant = Tenant(device, name, **settings)
    tenant.resume()
    return tenant


def shared(name: str, blocks: int = 48) -> str:
    return f"{TINY}&capacity={(blocks + 4) * 4}KiB&id={name}-{os.getpid()}"

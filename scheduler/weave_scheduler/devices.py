"""Opening the devices that a spec lists, all or none, and what is known about them.

The devices of one run share one scale and one speed, and those of one kind one pinned host pool.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress

import weave_rt
from weave_rt._core import cuda_driver, parse_emulated
from weave_rt.device import open_beside, resolve_spec
from weave_rt.errors import UsageError
from weave_rt.overlay import Unmanaged
from weave_scheduler.document import SpecError
from weave_scheduler.gpus import Gpu
from weave_scheduler.records import DeviceRecord
from weave_scheduler.spec import POOLS, Devices, JobSpec
from weave_scheduler.specfile import SpecFile

__all__ = [
    "OpenDevices",
    "check_spill",
    "describe",
    "listed_gpus",
    "open_devices",
    "own_host_memory",
    "pinned_bytes",
]

# Of a GPU that was not measured: block, context, one-way rates and duplex of the named models.
_LIKE_EMULATED = (64 << 20, 500_000_000, 55e9, 55e9, 0.75)


class OpenDevices:
    """The open devices of a run by pool, in the order of the spec; closes all of them."""

    def __init__(self) -> None:
        self.pools: dict[str, list[weave_rt.Device]] = {pool: [] for pool in POOLS}

    @property
    def first(self) -> weave_rt.Device:
        return self.pools["rollout"][0]

    @property
    def all(self) -> list[weave_rt.Device]:
        """Every device once."""
        return list({id(one): one for pool in POOLS for one in self.pools[pool]}.values())

    def records(self) -> list[DeviceRecord]:
        return [
            describe(device, pool, index)
            for pool in POOLS
            for index, device in enumerate(self.pools[pool])
        ]

    def node_names(self) -> dict[str, list[str]]:
        """What the runtime calls each device; one in both pools has its first name in both."""
        names: dict[int, str] = {}
        return {
            pool: [names.setdefault(id(device), f"{pool}:{at}") for at, device in enumerate(own)]
            for pool, own in self.pools.items()
        }

    def close(self) -> None:
        """Close every device; a failure is raised after all were tried."""
        with ExitStack() as stack:
            for device in self.all:
                stack.callback(device.close)


def open_devices(loaded: SpecFile, note: Callable[[str], None]) -> OpenDevices:
    """Open what the spec lists. Raises SpecError with the line of the entry, DriverError.

    ``note`` is called with what the reader should know, such as a host that is too slow.
    """
    listed = loaded.spec.devices or Devices()
    check_spill(loaded)
    opened = OpenDevices()
    try:
        for pool in POOLS:
            for index, text in enumerate(getattr(listed, pool)):
                try:
                    device = _open(
                        loaded, opened, text, pool, note, usable_bytes(loaded, pool, index)
                    )
                except UsageError as error:
                    raise _wrong_device(loaded, pool, index, str(error)) from None
                opened.pools[pool].append(device)
                _same_pace(loaded, opened, pool, index)
    except BaseException:
        with suppress(Exception):
            opened.close()
        raise
    return opened


def _open(
    loaded: SpecFile,
    opened: OpenDevices,
    text: str,
    pool: str,
    note: Callable[[str], None],
    usable: int,
) -> weave_rt.Device:
    spec = resolve_spec(text, pool)
    memory = own_host_memory(loaded, pool)
    budget = loaded.spec.host.budget if memory is None else memory
    # A node with a limit of its own shares no pinned memory; one that is listed twice is one.
    others = [
        one
        for of in POOLS
        for one in opened.pools[of]
        if (memory is None and own_host_memory(loaded, of) is None)
        or (one.kind == "cuda" and one.spec == spec)
    ]
    scaled = 0 if budget is None else int(budget / _scale(spec))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        device = open_beside(
            others,
            spec,
            pool=pool,
            host_budget_bytes=scaled,
            usable_bytes=usable,
            spill_directory=loaded.spec.host.spill or "",
        )
    for warning in caught:
        note(str(warning.message))
    return device


def own_host_memory(loaded: SpecFile, pool: str) -> int | None:
    """What each node of the pool may pin, where its ``host_memory`` is less than ``host.budget``;
    None: all nodes without share that budget."""
    budget, memory = loaded.spec.host.budget, getattr(loaded.spec.nodes, pool).host_memory
    if memory is None or (budget is not None and budget <= memory):
        return None
    return int(memory)


def check_spill(loaded: SpecFile, *, make: bool = True) -> None:
    """The directory is there and can be written, or is made (could be, without ``make``); else the
    user's mistake. Raises SpecError with the line."""
    directory = loaded.spec.host.spill
    if directory is None:
        return
    try:
        if make:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        there = os.path.abspath(directory)
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        os.stat(os.path.join(there, ""))  # not a directory
    except OSError as error:
        raise loaded.error(f"{directory}: {error.strerror}", "host", "spill") from None
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        raise loaded.error(f"{directory}: cannot be written", "host", "spill")


def _scale(spec: str) -> float:
    if not spec.startswith("emulated:"):
        return 1.0
    scale = parse_emulated(spec)["scale"]
    return float(scale) if isinstance(scale, int | float) else 1.0


def _same_pace(loaded: SpecFile, opened: OpenDevices, pool: str, index: int) -> None:
    first, device = opened.first, opened.pools[pool][index]
    for name in ("scale", "speed"):
        mine, other = getattr(device, name), getattr(first, name)
        if mine != other:
            wrong = f"has {name} {mine:g}, the first device {other:g}; give all devices the same"
            raise _wrong_device(loaded, pool, index, wrong)


def _wrong_device(loaded: SpecFile, pool: str, index: int, wrong: str) -> SpecError:
    """A mistake in one entry, or what follows from a pool that the spec does not list."""
    listed = loaded.spec.devices
    missing = [one for one in POOLS if listed is not None and one not in listed.model_fields_set]
    if not missing:
        return loaded.error(wrong, "devices", pool, index)
    return loaded.error(
        f"is missing, so auto was used; {pool} device {index} {wrong.rstrip('.')};"
        f" write both keys, devices: {{rollout: [..], train: [..]}}",
        *("devices", missing[0]),
    )


def describe(device: weave_rt.Device, pool: str, index: int) -> DeviceRecord:
    """What is known about an open device, device ``index`` of its pool."""
    return DeviceRecord(
        pool=pool,
        node=f"{pool}:{index}",
        spec=device.spec,
        kind=device.kind,
        name=device.name,
        uuid=device.uuid,
        driver=device.driver_version,
        capacity_bytes=device.capacity_bytes,
        usable_bytes=device.usable_bytes,
        block_bytes=device.block_bytes,
        scale=device.scale,
        speed=device.speed,
        host_limited=device.host_limited,
    )


def usable_bytes(loaded: SpecFile, pool: str, index: int) -> int:
    """What device ``index`` of the pool has for jobs where the spec says what they take outside
    regions, in bytes of the device; 0 where it does not: all that is free. Raises DoesNotFit."""
    unmanaged = []
    for job in loaded.spec.jobs:
        outside = getattr(job.unmanaged, pool) if job.unmanaged else None
        asked: int | tuple[int, ...] = getattr(job, pool)
        if outside is not None and (isinstance(asked, int) or index in asked):
            unmanaged.append(Unmanaged(job.name, outside.running, outside.sleeping))
    text = getattr(loaded.spec.devices or Devices(), pool)[index]
    gpu = _gpu(text, pool) if any(one.running for one in unmanaged) else None
    if gpu is None:
        return 0
    return int(gpu.usable(unmanaged).bytes / _scale(resolve_spec(text, pool)))


def pinned_bytes(job: JobSpec, scale: float) -> dict[str, dict[str, int]]:
    """What the spec says that a job takes outside regions, as a job is told: by pool, in bytes of
    devices of that scale. A pool that the spec leaves out is measured."""
    given = job.unmanaged
    return {
        pool: {
            "running": int(getattr(given, pool).running / scale),
            "sleeping": int(getattr(given, pool).sleeping / scale),
        }
        for pool in POOLS
        if given is not None and pool in given.model_fields_set
    }


def listed_gpus(loaded: SpecFile) -> dict[str, Gpu]:
    """The GPU of each pool that the spec lists devices for, without opening any: the first one,
    since all of a pool are alike. Raises SpecError with the line of an entry that is none."""
    found: dict[str, Gpu] = {}
    if loaded.spec.devices is None:
        return found
    for pool in POOLS:
        for index, text in enumerate(getattr(loaded.spec.devices, pool)):
            try:
                gpu = _gpu(text, pool)
            except UsageError as error:
                raise _wrong_device(loaded, pool, index, str(error)) from None
            if gpu is not None:
                found.setdefault(pool, gpu)
    return found


def _gpu(text: str, pool: str) -> Gpu | None:
    spec = resolve_spec(text, pool)
    if not spec.startswith("emulated:"):
        ordinal = int(spec.partition(":")[2])
        listed = cuda_driver()["devices"]
        for one in listed if isinstance(listed, list) else []:
            if one["ordinal"] == ordinal:
                return Gpu(spec, one["total_bytes"], *_LIKE_EMULATED)
        return None
    known = parse_emulated(spec)
    of = {key: float(value) for key, value in known.items() if isinstance(value, int | float)}
    scale, pace = of["scale"], of["scale"] / of["speed"]
    return Gpu(
        text,
        round(of["capacity_bytes"] * scale),
        round(of["block_bytes"] * scale),
        round(of["context_bytes"] * scale),
        of["d2h_bytes_per_s"] * pace,
        of["h2d_bytes_per_s"] * pace,
        of["duplex"],
        round(of["unmanaged_bytes"] * scale),
    )

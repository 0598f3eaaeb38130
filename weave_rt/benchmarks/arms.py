"""The arms of ``weave bench switch``: the same state of one GPU, moved out and in in five ways.

``weave`` is the engine: two tenants, draining and mapping included. ``plain`` is asynchronous
pinned copies of the same bytes and nothing else. The naive arms take device memory when tensors
come, give it back when they went, and copy one tensor at a time: ``per_tensor_pageable`` into
ordinary memory, ``per_tensor_pinned_now`` into memory pinned on the spot; ``cold`` loads weights
from a safetensors file and rebuilds the rest. On an emulated device they ask its driver for what
torch would ask a GPU (`_core.TensorCopies`); on a GPU they are torch's own calls.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weave_rt import _core
from weave_rt.benchmarks.presets import TensorSize, pack
from weave_rt.errors import StateChanged, UsageError

__all__ = [
    "BenchTenant",
    "CopiedTensors",
    "TorchTensors",
    "WeavePair",
    "blocks_of",
    "open_plain",
    "roomy",
    "write_checkpoint",
]

Words = np.ndarray[Any, np.dtype[np.uint64]]


def blocks_of(state: Sequence[TensorSize], block_bytes: int) -> dict[tuple[str, str], int]:
    """Bytes of whole blocks by (tag, policy)."""
    sums: dict[tuple[str, str], int] = {}
    for tensor in state:
        key = tensor.tag, tensor.policy
        sums[key] = sums.get(key, 0) + tensor.nbytes
    return {key: -(-nbytes // block_bytes) * block_bytes for key, nbytes in sums.items()}


def roomy(spec: str, needed: int) -> str:
    """The same emulated device with `needed` bytes for tenants at least; a GPU is what it is."""
    if not spec.startswith("emulated:"):
        return spec
    values = _core.parse_emulated(spec)
    wanted = int(needed * 1.05) + int(str(values["context_bytes"])) + (1 << 20)
    if int(str(values["capacity_bytes"])) >= wanted:
        return spec
    name, _, keys = str(values["spec"]).partition("?")
    kept = [key for key in keys.split("&") if key and not key.startswith("capacity=")]
    return f"{name}?{'&'.join([*kept, f'capacity={wanted}B'])}"


def open_plain(
    spec: str, keep_bytes: int, beside: _core.Device, said: Callable[[str], None], what: str = ""
) -> _core.Device | None:
    """A device with place for plain copies of so many bytes both ways at once, which it has made
    once, to take its memory; None, said why, where it has no place. It pins like `beside`."""
    needed = 2 * keep_bytes
    plain = None
    try:
        plain = _core.Device.open(
            roomy(spec, needed), host_pool=beside.host_pool, usable_bytes=needed
        )
        if plain.usable_bytes < needed:
            raise UsageError(f"plain copies need {needed / 1e6:.0f} MB")
        plain.plain_copy(keep_bytes, keep_bytes)
    except BaseException as error:
        if plain is not None:
            plain.close()
        if not isinstance(error, UsageError):
            raise
        said(f"{what}without the arm plain: {error}")
        return None
    return plain


def _pattern(seed: int, words: int) -> Words:
    words_of: Words = np.arange(seed, seed + words, dtype=np.uint64)
    words_of *= np.uint64(0x9E3779B97F4A7C15)
    return words_of


class BenchTenant:
    """A tenant with a region per tag; what is kept has a pattern where the CPU can write it."""

    def __init__(
        self, device: _core.Device, name: str, sizes: dict[tuple[str, str], int], seed: int
    ) -> None:
        self.core = device.add_tenant(name, "bench")
        self.core.resume()
        self.spans = {
            (tag, policy): self.core.region(tag, policy).allocate(nbytes)
            for (tag, policy), nbytes in sizes.items()
        }
        self.patterns: dict[tuple[str, str], Words] = {}
        if device.kind == "emulated":
            for key, span in self.spans.items():
                if key[1] == "keep":
                    self.patterns[key] = _pattern(seed, span.bytes // 8)
                    np.frombuffer(memoryview(span), dtype=np.uint64)[:] = self.patterns[key]

    def check(self) -> None:
        for key, pattern in self.patterns.items():
            view = np.frombuffer(memoryview(self.spans[key]), dtype=np.uint64)
            wrong = np.flatnonzero(view != pattern)
            if wrong.size:
                raise StateChanged(
                    f"tenant {self.core.name}: {wrong.size} words of {key[0]} differ after the "
                    f"benchmark, the first at offset {int(wrong[0]) * 8}"
                )


class WeavePair:
    """Two tenants of the same sizes that do not fit together."""

    def __init__(self, device: _core.Device, sizes: dict[tuple[str, str], int]) -> None:
        self.device = device
        first = BenchTenant(device, "a", sizes, 1)
        first.core.suspend()
        self.running, self.waiting = BenchTenant(device, "b", sizes, 1 << 40), first
        self.moved: dict[str, tuple[int, int]] = {}  # case -> bytes out, bytes in

    def _net(self, case: str, report: _core.SwitchReport) -> float:
        drain_s = report.as_dict()["drain_s"]
        assert isinstance(drain_s, float)
        self.moved[case] = report.bytes_out, report.bytes_in
        return report.seconds - drain_s

    def suspend(self) -> float:
        return self._net("one_way_out", self.running.core.suspend())

    def resume(self) -> float:
        return self._net("one_way_in", self.running.core.resume())

    def swap(self) -> float:
        seconds = self._net("duplex", self.device.switch(self.running.core, self.waiting.core))
        self.running, self.waiting = self.waiting, self.running
        return seconds

    def check(self) -> None:
        """Raise StateChanged if a kept byte of either is not what was written."""
        for tenant in (self.running, self.waiting):
            if not tenant.core.running:
                self.device.switch(self.running.core, tenant.core)
            tenant.check()


def _contents(index: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return _pattern(index << 32, -(-nbytes // 8)).view(np.uint8)[:nbytes]


def write_checkpoint(state: Sequence[TensorSize], path: Path) -> None:
    """The weights of `state`, each with a pattern of its own, as a safetensors file.

    Raises ImportError where safetensors is not installed, OSError."""
    writer = importlib.import_module("safetensors.numpy")
    weights = {
        tensor.name: _contents(index, tensor.nbytes)
        for index, tensor in enumerate(state)
        if tensor.tag == "weights"
    }
    writer.save_file(weights, str(path))


class CopiedTensors:
    """The naive arms on an emulated device, which gives them the driver calls of torch on a GPU."""

    def __init__(
        self, device: _core.Device, state: Sequence[TensorSize], factor: float, checkpoint: Path
    ) -> None:
        segments, places = pack(state, factor)
        self._device, self._state, self._checkpoint = device, state, checkpoint
        self._tensors = _core.TensorCopies(device, segments, places)
        self._tensors.allocate()
        for index, tensor in enumerate(state):
            if tensor.policy == "keep":
                self._tensors.load(index, _contents(index, tensor.nbytes))

    def move_out(self, pinned: bool) -> float:
        return self._tensors.move_out(pinned)

    def move_in(self) -> float:
        return self._tensors.move_in()

    def cold(self) -> float:
        reader = importlib.import_module("safetensors")
        self._tensors.drop()  # the process that had it is gone
        started = self._device.now_ns()
        self._tensors.allocate()
        with reader.safe_open(str(self._checkpoint), framework="numpy") as file:
            for index, tensor in enumerate(self._state):
                if tensor.tag == "weights":
                    self._tensors.load(index, file.get_tensor(tensor.name))
                else:
                    self._tensors.fill(index, 0)
        return (self._device.now_ns() - started) / 1e9

    def check(self) -> None:
        """Raise StateChanged if weights are not what was loaded. Leaves the tensors on the host."""
        self._tensors.move_out(False)
        for index, tensor in enumerate(self._state):
            if tensor.tag == "weights" and (
                self._tensors.host_copy(index) != _contents(index, tensor.nbytes).tobytes()
            ):
                raise StateChanged(f"{tensor.name} differs after the benchmark of naive copies")

    def close(self) -> None:
        self._tensors.close()


class TorchTensors:
    """The naive arms on a GPU: torch's own calls. `place` is a torch device, as text."""

    def __init__(self, place: str, state: Sequence[TensorSize], checkpoint: Path) -> None:
        self._torch = importlib.import_module("torch")
        self._place, self._state, self._checkpoint = place, state, checkpoint
        self._host: list[Any] = []
        self._device = [
            self._torch.zeros(tensor.nbytes, dtype=self._torch.uint8, device=place)
            for tensor in state
        ]
        self._settle()

    def _settle(self) -> None:
        if self._torch.device(self._place).type == "cuda":
            self._torch.cuda.synchronize(self._place)
            self._torch.cuda.empty_cache()  # so that another job can have the memory

    def _forget_pinned(self) -> None:
        # torch would keep pinned memory for the next time, which would not be pinned now
        forget = getattr(self._torch._C, "_host_emptyCache", None)
        if forget is not None and self._torch.device(self._place).type == "cuda":
            forget()

    def move_out(self, pinned: bool) -> float:
        self._forget_pinned()
        started = time.perf_counter()
        for tensor, size in zip(self._device, self._state, strict=True):
            if size.policy != "keep":
                self._host.append(None)
            elif pinned:
                fresh = self._torch.empty(size.nbytes, dtype=tensor.dtype, pin_memory=True)
                self._host.append(fresh.copy_(tensor))
            else:
                self._host.append(tensor.to("cpu"))
        del tensor
        self._device.clear()
        self._settle()
        return time.perf_counter() - started

    def move_in(self) -> float:
        started = time.perf_counter()
        for tensor, size in zip(self._host, self._state, strict=True):
            self._device.append(
                self._torch.empty(size.nbytes, dtype=self._torch.uint8, device=self._place)
                if tensor is None
                else tensor.to(self._place)
            )
        del tensor
        self._host.clear()
        self._settle()
        self._forget_pinned()
        return time.perf_counter() - started

    def cold(self) -> float:
        reader = importlib.import_module("safetensors.torch")
        self._device.clear()
        self._settle()
        started = time.perf_counter()
        weights = reader.load_file(str(self._checkpoint), device=self._place)
        for size in self._state:
            self._device.append(
                weights.pop(size.name)
                if size.tag == "weights"
                else self._torch.zeros(size.nbytes, dtype=self._torch.uint8, device=self._place)
            )
        self._settle()
        return time.perf_counter() - started

    def check(self) -> None:
        """Raise StateChanged if weights are not what was loaded by `cold`."""
        for index, (tensor, size) in enumerate(zip(self._device, self._state, strict=True)):
            wanted = self._torch.from_numpy(_contents(index, size.nbytes))
            if size.tag == "weights" and not self._torch.equal(tensor.cpu(), wanted):
                raise StateChanged(f"{size.name} differs after the benchmark of naive copies")

    def close(self) -> None:
        self._device.clear()
        self._host.clear()
        self._settle()

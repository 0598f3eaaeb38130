"""How long does it take to move a tenant out, in, or to swap two; and what do others need for it?

Two tenants that each fill the device, so every byte moves. Cases ``one_way_out`` (suspend),
``one_way_in`` (resume) and ``duplex`` (switch), in the arms of `weave_rt.benchmarks.arms`; a naive
switch is out and then in. ``look_ahead`` (`weave_rt.benchmarks.lookahead`) is a switch to a tenant
that came in the background. ``many_tensors`` and ``one_tensor`` (`weave_rt.benchmarks.tensors`,
only with ``full``) ask what the number of tensors costs. Efficiency is the calibrated limit of the
link over the median time. On an emulated device only ratios mean anything; the bytes of both
tenants and of the naive arms are compared at the end there.

Run alone: ``python -m weave_rt.benchmarks.switch --help``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weave_rt import _core
from weave_rt.benchmarks import lookahead
from weave_rt.benchmarks.arms import (
    CopiedTensors,
    TorchTensors,
    WeavePair,
    blocks_of,
    roomy,
    write_checkpoint,
)
from weave_rt.benchmarks.load import busy_cores
from weave_rt.benchmarks.presets import PRESETS, TensorSize, default_state, preset, scaled
from weave_rt.benchmarks.record import Case, record
from weave_rt.device import resolve_spec
from weave_rt.errors import UsageError, WeaveError
from weave_rt.overlay import Link

__all__ = ["ARMS", "run"]

SEVEN_B_BYTES = 15_200_000_000  # weights of a 7B rollout per GPU, the default tenant
ARMS = ("weave", "plain", "per_tensor_pageable", "per_tensor_pinned_now", "cold")
NAIVE = frozenset(ARMS) - {"weave", "plain"}
CASES = ("one_way_out", "one_way_in", "duplex")

Progress = Callable[[str], None]
# One measurement: what it took, by case.
Step = tuple[str, Callable[[], dict[str, float]]]


@dataclass(frozen=True, slots=True)
class _Question:
    """What is measured in one go: a state of one GPU, how much smaller than real, its label."""

    state: Sequence[TensorSize]
    factor: float
    params: dict[str, Any]
    arms: Sequence[str] = ARMS


class _Measuring:
    """Opens the devices of one question, measures its rounds, compares the bytes."""

    def __init__(self, spec: str, question: _Question, progress: Progress) -> None:
        self._question, self._progress = question, progress
        probe = _core.Device.open(spec)
        self.sizes = sizes = blocks_of(question.state, probe.block_bytes)
        nbytes, usable = sum(sizes.values()), probe.usable_bytes
        probe.close()
        if nbytes > usable:
            raise UsageError(
                f"a tenant of {nbytes / 1e6:.0f} MB needs a device that has as much for tenants; "
                f"this one has {usable / 1e6:.0f} MB"
            )
        self.keep_bytes = sum(n for (_, policy), n in sizes.items() if policy == "keep")
        self.tenant_bytes = nbytes
        self.device = _core.Device.open(spec, usable_bytes=nbytes)
        self._plain: _core.Device | None = None
        self._naive: CopiedTensors | TorchTensors | None = None
        self._has_checkpoint = False
        self._folder = tempfile.TemporaryDirectory(prefix="weave-bench-")
        try:
            self.rates = _best_rates(self.device)
            self._pair = WeavePair(self.device, sizes)
            if "plain" in question.arms:
                self._open_yardstick(spec)
            if NAIVE & set(question.arms):
                self._open_naive(spec)
        except BaseException:
            self.close()
            raise

    def _open_yardstick(self, spec: str) -> None:
        """Plain copies need place for both directions at once."""
        needed = 2 * self.keep_bytes
        pool = self.device.host_pool
        try:
            self._plain = _core.Device.open(
                roomy(spec, needed), host_pool=pool, usable_bytes=needed
            )
            if self._plain.usable_bytes < needed:
                raise UsageError(f"plain copies need {needed / 1e6:.0f} MB")
            self._plain.plain_copy(self.keep_bytes, self.keep_bytes)  # takes its memory
        except UsageError as error:
            self._progress(f"without the arm plain: {error}")
            if self._plain is not None:
                self._plain.close()
                self._plain = None

    def _open_naive(self, spec: str) -> None:
        state, factor = self._question.state, self._question.factor
        checkpoint = Path(self._folder.name) / "weights.safetensors"
        if importlib.util.find_spec("safetensors") is None:
            self._progress("without the arm cold: safetensors is not installed")
        else:
            write_checkpoint(state, checkpoint)
        self._has_checkpoint = checkpoint.exists()
        if self.device.kind == "emulated":
            room = roomy(spec, sum(tensor.nbytes for tensor in state) * 5 // 4)
            device = _core.Device.open(room, usable_bytes=self.device.block_bytes)
            self._naive = CopiedTensors(device, state, factor, checkpoint)
            self._naive_device = device
        elif importlib.util.find_spec("torch") is None:
            self._progress("without the naive arms: torch is not installed")
        else:
            try:
                self._naive = TorchTensors(spec, state, checkpoint)
            except RuntimeError as error:  # torch's for a GPU that is full
                told = str(error).splitlines()[0]
                self._progress(f"without the naive arms: {told}")

    @property
    def params(self) -> dict[str, Any]:
        own = {"tenant_bytes": self.tenant_bytes, "block_bytes": self.device.block_bytes}
        return {**own, **self._question.params}

    def cases(self) -> dict[tuple[str, str], Case]:
        """What every round will measure, without samples, by case and arm."""
        kept, rates = self.keep_bytes, self.rates
        limits = {
            "one_way_out": (kept, 0, kept / rates["d2h"]),
            "one_way_in": (0, kept, kept / rates["h2d"]),
            "duplex": (kept, kept, Link.of(rates).limit_s(kept, kept)),
        }
        missing = set(ARMS) - set(self._question.arms)
        missing |= set() if self._plain is not None else {"plain"}
        missing |= {"per_tensor_pageable", "per_tensor_pinned_now"} if not self._naive else set()
        missing |= {"cold"} if not (self._naive and self._has_checkpoint) else set()
        return {
            (name, arm): Case(name, arm, self.params, *limits[name], headline=arm == "weave")
            for name in CASES
            for arm in ARMS
            if arm not in missing and (arm != "cold" or name == "one_way_in")
        }

    def steps(self) -> list[list[Step]]:
        """Groups of measurements: the groups in order, what is in one in alternating order."""
        pair, plain, kept = self._pair, self._plain, self.keep_bytes
        weave = {"one_way_out": pair.suspend, "one_way_in": pair.resume, "duplex": pair.swap}
        plainly = {"one_way_out": (kept, 0), "one_way_in": (0, kept), "duplex": (kept, kept)}
        groups: list[list[Step]] = []
        for name in CASES:
            group: list[Step] = [("weave", lambda name=name: {name: weave[name]()})]  # type: ignore[misc]
            if plain is not None:
                group.append(
                    ("plain", lambda name=name: {name: plain.plain_copy(*plainly[name])})  # type: ignore[misc]
                )
            groups.append(group)
        naive = self._naive
        if naive is not None:
            groups.append(
                [
                    ("per_tensor_pageable", lambda: _out_and_in(naive, False)),
                    ("per_tensor_pinned_now", lambda: _out_and_in(naive, True)),
                    ("cold", lambda: {"one_way_in": naive.cold()}),
                ]
            )
        wanted = {arm for _, arm in self.cases()}
        return [[step for step in group if step[0] in wanted] for group in groups]

    def check(self) -> None:
        self._pair.check()
        if isinstance(self._naive, CopiedTensors) or (self._naive and self._has_checkpoint):
            self._naive.check()

    def close(self) -> None:
        if self._naive is not None:
            self._naive.close()
            if isinstance(self._naive, CopiedTensors):
                self._naive_device.close()
        if self._plain is not None:
            self._plain.close()
        self.device.close()
        self._folder.cleanup()


def _best_rates(device: _core.Device) -> dict[str, float]:
    """Of a few calibrations: what disturbs a copy makes it slower, never faster."""
    rates = [device.calibrate() for _ in range(3)]
    return {key: max(one[key] for one in rates) for key in rates[0]}


def _out_and_in(naive: CopiedTensors | TorchTensors, pinned: bool) -> dict[str, float]:
    """A naive switch is one after the other: the memory must be free before it is taken."""
    out = naive.move_out(pinned)
    into = naive.move_in()
    return {"one_way_out": out, "one_way_in": into, "duplex": out + into}


def _measure(
    spec: str, question: _Question, repeats: int, load: bool, progress: Progress
) -> tuple[list[Case], dict[str, Any]]:
    measuring = _Measuring(spec, question, progress)
    try:
        cases = measuring.cases()
        label = question.params.get("preset", "weights")
        progress(
            f"{label}: {measuring.tenant_bytes / 1e6:.0f} MB per tenant, "
            f"{measuring.keep_bytes / 1e6:.0f} of them to keep, {repeats} rounds"
        )
        with busy_cores(load):
            steps = measuring.steps()
            for index in range(1 + repeats):  # the first round warms up
                for group in steps:
                    for arm, measure in group if index % 2 == 0 else reversed(group):
                        for name, seconds in measure().items():
                            if index > 0:
                                cases[name, arm].samples_s.append(seconds)
        measuring.check()
        pool = measuring.device.host_pool.stats()
        for case in cases.values():
            case.more["host_huge_share"] = int(str(pool["bytes_huge"])) / max(
                1, int(str(pool["bytes_registered"]))
            )
        result = record(measuring.device, [])  # its cases come later, the device goes now
    finally:
        measuring.close()
    more = lookahead.measure(
        roomy(spec, int(lookahead.PLACES * measuring.tenant_bytes)),
        measuring.sizes,
        measuring.params,
        repeats,
        load,
        progress,
        "plain" in question.arms,
    )
    return [*cases.values(), *more], result


def _questions(
    spec: str, full: bool, sizes_bytes: Sequence[int], names: Sequence[str], load: bool
) -> list[_Question]:
    emulated = spec.startswith("emulated:")
    scale = float(str(_core.parse_emulated(spec)["scale"])) if emulated else 1.0
    loaded: dict[str, Any] = {"load": "torch"} if load else {}
    if names:
        if sizes_bytes:
            raise UsageError("give sizes or a preset, not both")
        return [
            _Question(scaled(preset(name), 1 / scale), 1 / scale, {"preset": name, **loaded})
            for name in names
        ]
    share = int(SEVEN_B_BYTES / scale)
    sizes = list(sizes_bytes) or ([share // 8, share // 2, share] if full else [share])
    if min(sizes) <= 0:
        raise UsageError(f"a tenant of {min(sizes)} bytes: sizes are at least one byte")
    return [_Question(*default_state(size), dict(loaded)) for size in sizes]


def run(
    device_spec: str = "auto",
    full: bool = False,
    progress: Progress = lambda text: None,
    *,
    sizes_bytes: Sequence[int] = (),
    repeats: int = 0,
    preset_name: str = "",
    load: bool = False,
    arms: Sequence[str] = ARMS,
    many_tensors: bool = False,
) -> dict[str, Any]:
    """Measure and return a record.

    Args:
        device_spec: as `open_device` takes it; an emulated one is opened three times.
        full: more rounds (31 instead of 9), three sizes instead of one, and the cases of many
            tensors.
        progress: called with one line of text now and then.
        sizes_bytes: bytes per tenant; by default a 7B model's weights, scaled like the device.
        repeats: rounds, 0 for the default.
        preset_name: a state of `presets.PRESETS`, or ``all`` of them, instead of sizes.
        load: keep every core busy with torch matrix products meanwhile.
        arms: of `ARMS`; ``weave`` is always measured.
        many_tensors: 10,000 tensors against one, too; by default only with `full`.

    Raises DeviceNotFound, UsageError (a size that the device cannot hold), StateChanged."""
    spec = resolve_spec(device_spec)
    rounds = repeats or (31 if full else 9)
    if unknown := set(arms) - set(ARMS):
        raise UsageError(f"arm {min(unknown)!r} is not one of {', '.join(ARMS)}")
    names = list(PRESETS) if preset_name == "all" else [preset_name] if preset_name else []
    cases: list[Case] = []
    result: dict[str, Any] = {}
    for question in _questions(spec, full and not names, sizes_bytes, names, load):
        question = replace(question, arms=["weave", *arms])
        found, result = _measure(spec, question, rounds, load, progress)
        cases += found
    if many_tensors or (full and not names):
        from weave_rt.benchmarks import tensors

        cases += tensors.measure(spec, max(rounds, 15), load, progress)
    result["cases"] = [case.as_dict() for case in cases]
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line for device_check.sh, which runs without the scheduler's dependencies."""
    parser = argparse.ArgumentParser(prog="python -m weave_rt.benchmarks.switch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--bytes", type=int, nargs="*", default=[], help="per tenant")
    parser.add_argument("--preset", default="", help="rollout-7b, train-32b, ... or all")
    parser.add_argument("--load", action="store_true", help="with every core busy")
    parser.add_argument("--arms", default=",".join(ARMS), help="weave,plain for those two")
    parser.add_argument("--tensors", action="store_true", help="10,000 tensors against one")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path, required=True, help="file for the record")
    options = parser.parse_args(arguments)
    try:
        result = run(
            options.device,
            options.full,
            lambda text: print(text, file=sys.stderr, flush=True),
            sizes_bytes=options.bytes,
            repeats=options.repeats,
            preset_name=options.preset,
            load=options.load,
            arms=options.arms.split(","),
            many_tensors=options.tensors,
        )
    except WeaveError as error:
        print(f"switch: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for case in result["cases"]:
        print(
            f"{case['name']:<12} {case['arm']:<21} {case['bytes_out'] / 1e9:8.3f} GB out"
            f" {case['bytes_in'] / 1e9:8.3f} in"
            f"  p50 {case['p50_s'] * 1e3:9.2f} ms"
            + (f"  of the limit {case['efficiency']:.3f}" if "efficiency" in case else "")
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

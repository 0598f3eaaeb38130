"""Random legal and illegal sequences of the public operations against a reference model.

The model knows what each tenant must hold, at which addresses, and which refusals are due; the
machine runs both side by side, with driver calls failing once, from some point on, by name, by a
seed or by a lost context, on engine threads and on the stepper. After a failed operation the model
takes over who runs (the design allows more than one end) and nothing else: contents, addresses and
sums stay checked. Default runs are short; ``pytest -m soak tests/test_model.py`` runs campaigns.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from weave_rt import (
    DriverError,
    GrowthRefused,
    NotResident,
    ResumeFailed,
    TenantFailed,
    UsageError,
    WeaveError,
    _core,
    open_device,
)
from weave_rt.testing import check_accounts, check_nothing_left, check_states

BLOCK = 4096
BLOCKS = 16
SPEC = (
    "emulated:h20?scale=4096&speed=1000&capacity=72KiB&granularity=4KiB&block=4KiB&context=4KiB"
    "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns"
)
TAGS = {"weights": "keep", "optimizer": "keep", "kv_cache": "discard"}
CALLS = sorted(_core.call_counts("emulated"))

names = st.sampled_from("abc")
tags = st.sampled_from(sorted(TAGS))
sizes = st.one_of(st.integers(1, 3).map(lambda n: n * BLOCK), st.integers(1, 2 * BLOCK))
picks = st.integers(0, 1 << 16)
faults = st.one_of(
    st.none(),
    st.builds(dict, nth=st.integers(1, 60), from_then_on=st.booleans()),
    st.builds(dict, nth=st.integers(1, 4), only=st.sampled_from(CALLS), from_then_on=st.booleans()),
    st.builds(dict, probability=st.sampled_from([0.02, 0.1, 0.4]), seed=st.integers(1, 99)),
    st.builds(
        dict, nth=st.integers(1, 20), status=st.sampled_from([214, 700, 719]), sticky=st.just(True)
    ),
)


@dataclass(eq=False)
class Piece:
    """A span and the bytes it must have; None: nobody can say."""

    span: _core.Span
    address: int
    content: bytes | None = None
    generation: int = 0


@dataclass(eq=False)
class Model:
    """What one tenant must be like."""

    core: _core.Tenant
    running: bool = False
    addresses: dict[str, int] = field(default_factory=dict)
    pieces: list[tuple[str, Piece]] = field(default_factory=list)

    def region(self, tag: str) -> _core.Region:
        return next(r for r in self.core.regions if r.tag == tag)


class Machine(RuleBasedStateMachine):
    runner = "threads"

    def __init__(self) -> None:
        super().__init__()
        self.tenants: dict[str, Model] = {}
        self.fault: dict[str, Any] | None = None
        self.counter = 0

    @initialize(seed=st.integers(1, 1 << 20))
    def open(self, seed: int) -> None:
        self.device = open_device(f"{SPEC}&engine={self.runner}&seed={seed}",
                                  host_budget_bytes=1 << 22)  # fmt: skip
        assert self.device.usable_bytes == BLOCKS * BLOCK

    # One operation on both sides.

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Arm the fault for the operation inside. Afterwards, if a call failed, the model follows
        the device in who runs; an error that nothing explains goes on."""
        before = {name: m.core.state for name, m in self.tenants.items()}
        plan, self.fault = self.fault, None
        failed = 0
        error: WeaveError | None = None
        with _core.FaultScope(**(plan or {})) as scope:
            try:
                yield
            except (DriverError, TenantFailed, GrowthRefused, ResumeFailed) as raised:
                error = raised
            failed = scope.calls_failed
        healthy = failed == 0 and "FAILED" not in before.values()
        if error is not None and healthy:
            raise error
        self.follow(may_change=not healthy)
        if healthy:
            check_accounts(self.device)

    def follow(self, may_change: bool) -> None:
        for name, model in self.tenants.items():
            if may_change:
                model.running = model.core.running
            assert model.core.running == model.running, name

    def refused(self, kind: type[WeaveError], action: Callable[[], object]) -> None:
        """The refusal is due; nothing may change. Under a fault a driver error may come first."""
        before = {name: m.core.running for name, m in self.tenants.items()}
        with self.disturbed(), pytest.raises((kind, DriverError, TenantFailed)) as raised:
            action()
        if isinstance(raised.value, kind):
            assert {name: m.core.running for name, m in self.tenants.items()} == before

    def others_hold(self, *leaving: Model) -> int:
        return sum(m.core.bytes for m in self.tenants.values() if m.running and m not in leaving)

    # Rules.

    @rule(plan=faults)
    def arm(self, plan: dict[str, Any] | None) -> None:
        self.fault = plan

    @rule(name=names)
    def add(self, name: str) -> None:
        if name in self.tenants:
            with pytest.raises(UsageError, match="exists"):
                self.device.add_tenant(name, "job")
            return
        self.tenants[name] = Model(self.device.add_tenant(name, "job"))

    def pick(self, name: str) -> Model:
        if name not in self.tenants:
            self.tenants[name] = Model(self.device.add_tenant(name, "job"))
        return self.tenants[name]

    @rule(name=names, tag=tags)
    def region(self, name: str, tag: str) -> None:
        model = self.pick(name)
        with self.disturbed():
            model.addresses[tag] = model.core.region(tag, TAGS[tag]).address
        other = "discard" if TAGS[tag] == "keep" else "keep"
        if tag in model.addresses and model.core.state != "FAILED":
            with pytest.raises(UsageError, match="another policy"):
                model.core.region(tag, other)

    @rule(name=names, tag=tags, nbytes=sizes)
    def allocate(self, name: str, tag: str, nbytes: int) -> None:
        model = self.pick(name)
        if tag not in model.addresses:
            self.region(name, tag)
            return
        region = model.region(tag)
        if not model.running:
            self.refused(NotResident, lambda: region.allocate(nbytes))
            return
        room = BLOCKS * BLOCK - self.others_hold(model)
        with self.disturbed():
            try:
                span = region.allocate(nbytes)
            except GrowthRefused as refusal:
                self.check_growth(refusal, model.core.bytes + nbytes + BLOCK, room)
                return
            assert span.bytes == nbytes
            assert span.offset % 512 == 0
            model.pieces.append((tag, Piece(span, span.address)))

    def check_growth(self, refusal: GrowthRefused, wanted: int, room: int) -> None:
        assert refusal.bytes_needed > refusal.bytes_available
        assert wanted > min(room, refusal.bytes_available)  # failed tenants hold their blocks too

    @rule(name=names, which=picks)
    def free(self, name: str, which: int) -> None:
        model = self.pick(name)
        if model.pieces:
            model.pieces.pop(which % len(model.pieces))

    @rule(name=names, which=picks)
    def write(self, name: str, which: int) -> None:
        model = self.pick(name)
        if not model.pieces:
            return
        tag, piece = model.pieces[which % len(model.pieces)]
        if not model.running:
            with pytest.raises(BufferError):
                memoryview(piece.span)
            return
        self.counter += 1
        seed = self.counter
        piece.content = bytes((i * 31 + i // 255 + seed) & 255 for i in range(piece.span.bytes))
        memoryview(piece.span)[:] = piece.content
        piece.generation = model.region(tag).generation

    @rule(name=names)
    def resume(self, name: str) -> None:
        model = self.pick(name)
        if not model.running and model.core.bytes + self.others_hold(model) > BLOCKS * BLOCK:
            self.refused(ResumeFailed, model.core.resume)
            return
        with self.disturbed():
            model.core.resume()
            model.running = True

    @rule(name=names)
    def suspend(self, name: str) -> None:
        model = self.pick(name)
        with self.disturbed():
            model.core.suspend()
            model.running = False
            assert model.core.bytes_resident == 0

    @rule(name=names)
    def release(self, name: str) -> None:
        model = self.pick(name)
        with self.disturbed():
            model.core.release()
            model.running = False

    @rule(name=names, to=names)
    def switch(self, name: str, to: str) -> None:
        outgoing, incoming = self.pick(name), self.pick(to)
        if outgoing is incoming:
            self.refused(UsageError, lambda: self.device.switch(outgoing.core, incoming.core))
            return
        need = incoming.core.bytes + self.others_hold(outgoing, incoming)
        if need > BLOCKS * BLOCK and not (incoming.running and not outgoing.running):
            self.refused(ResumeFailed, lambda: self.device.switch(outgoing.core, incoming.core))
            return
        was_running = incoming.running and not outgoing.running
        with self.disturbed():
            self.device.switch(outgoing.core, incoming.core)
            incoming.running = True
            if not was_running:
                outgoing.running = False

    @rule(name=names)
    def rescue(self, name: str) -> None:
        model = self.pick(name)
        with self.disturbed():
            self.compare_rescued(model, model.core.rescue())

    @precondition(lambda self: len(self.tenants) > 1)
    @rule(name=names)
    def close(self, name: str) -> None:
        if name not in self.tenants:
            return
        model = self.tenants[name]
        with self.disturbed():
            model.core.close()
            assert model.core.state == "CLOSED"
            model.core.close()  # twice is fine
            del self.tenants[name]
        with pytest.raises(UsageError, match="closed"):
            model.core.resume()
        for _, piece in model.pieces:
            with pytest.raises(BufferError):
                memoryview(piece.span)

    # What must hold.

    def compare_rescued(self, model: Model, saved: dict[str, bytes]) -> None:
        for tag, piece in model.pieces:
            if tag in saved and piece.content is not None:
                begin = piece.span.offset
                assert saved[tag][begin : begin + piece.span.bytes] == piece.content, tag

    def compare(self, model: Model) -> None:
        taken: list[tuple[int, int]] = []
        for tag, piece in model.pieces:
            region = model.region(tag)
            assert region.address == model.addresses[tag]
            assert piece.span.address == piece.address
            taken.append((piece.address, piece.address + piece.span.bytes))
            if TAGS[tag] == "discard" and piece.generation != region.generation:
                piece.content = None
            if model.running and piece.content is not None:
                assert bytes(memoryview(piece.span)) == piece.content, tag
        taken.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(taken))

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "device"):
            return
        check_states(self.device)
        for model in self.tenants.values():
            if model.core.state != "FAILED":
                self.compare(model)

    def teardown(self) -> None:
        if not hasattr(self, "device"):
            return
        try:
            self.settle()
        finally:
            self.device.close()
            self.tenants.clear()
        gc.collect()  # a refusal that was caught keeps its frames, and so spans, until then
        check_nothing_left(self.device)
        assert self.device.host_pool.bytes_used == 0

    def settle(self) -> None:
        """Without faults every tenant comes back, whole."""
        for model in self.tenants.values():
            for other in self.tenants.values():
                other.core.release()
                other.running = False
            model.core.resume()
            model.running = True
            assert model.core.state == "RESIDENT"
            self.compare(model)
            saved = model.core.rescue()
            assert {r.tag for r in model.core.regions if r.policy == "keep"} == set(saved)
            self.compare_rescued(model, saved)
        if self.tenants:
            check_accounts(self.device)


class Stepped(Machine):
    runner = "stepped"


def campaign(machine: type[Machine], examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.mark.parametrize("machine", [Machine, Stepped])
def test_model(machine: type[Machine]) -> None:
    campaign(machine, 60, 30)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("machine", [Machine, Stepped])
def test_model_for_long(machine: type[Machine]) -> None:
    campaign(machine, 5000, 60)

"""Publishing: new weights reach an engine while another job owns the rollout GPU, as a whole or not
at all, and a rollout runs on the committed version."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from weave_rt import (
    Device,
    HostMemoryError,
    LocalRuntime,
    NotResident,
    StaleWeights,
    Tenant,
    UsageError,
    init,
)
from weave_rt.job import Job
from weave_rt.phases import PlainSync

RELOAD = {"weights": "reload", "buffers": "reload"}


class Net(torch.nn.Module):
    """Ties, a buffer in no state dict, and running statistics."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(16, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.head = torch.nn.Linear(32, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((), 0.5 + seed), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(x))) * self.scale


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


class Pair:
    """A job with policy and engine, and one that takes the whole rollout GPU."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self.runtime = runtime
        self.job: Job = init("a", {"runtime": runtime})
        self.other: Job = init("b", {"runtime": runtime})
        self.policy, self.engine = Net(1), Net(2)
        with self.job.phase("init"):
            self.job.manage("policy", self.policy, pool="train")
            self.tenant = self.job.manage("engine", self.engine, pool="rollout", tags=RELOAD)
        self.addresses = [p.data_ptr() for p in self.engine.parameters()]

    @property
    def rollout(self) -> Device:
        assert isinstance(self.tenant, Tenant)
        return self.tenant.device

    def train(self) -> dict[str, torch.Tensor]:
        with self.job.phase("train"), torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.add_(torch.randn_like(parameter))
            self.policy.norm.running_mean.add_(1)
            return state_of(self.policy)

    def rolled_out(self) -> dict[str, torch.Tensor]:
        with self.job.phase("rollout"):
            return state_of(self.engine)

    def close(self) -> None:
        self.job.close()
        self.other.close()


@pytest.fixture
def pair(runtime: LocalRuntime) -> Iterator[Pair]:
    made = Pair(runtime)
    yield made
    made.close()


def test_the_rollout_pool_is_not_needed_to_publish(pair: Pair) -> None:
    with pair.other.phase("rollout"):
        noise = pair.other.manage("noise", pool="rollout")
        taken = noise.buffer(pair.rollout.usable_bytes, "scratch")
    for _ in range(3):
        expected = pair.train()
        with pytest.raises(StaleWeights):
            pair.rolled_out()
        with pair.other.phase("rollout"):  # somebody else's, and full of other bytes
            taken.view()[:] = b"\x5a" * taken.nbytes
            with pair.job.phase("weight_sync") as sync:
                sync.publish(pair.engine, pair.policy)
        assert equal(pair.rolled_out(), expected)
        assert [p.data_ptr() for p in pair.engine.parameters()] == pair.addresses


def test_steady_state_publishing_allocates_nothing(pair: Pair) -> None:
    registered = []
    for _ in range(4):
        expected = pair.train()
        with pair.job.phase("weight_sync") as sync:
            sync.publish(pair.engine, pair.policy)
        registered.append(pair.rollout.host_pool.bytes_registered)
        assert equal(pair.rolled_out(), expected)
    assert len(set(registered)) == 1


def test_weights_leave_the_rollout_gpu_once_and_never_again(pair: Pair) -> None:
    assert isinstance(pair.tenant, Tenant)
    pair.tenant.suspend()
    for _ in range(2):
        pair.train()
        with pair.job.phase("weight_sync") as sync:
            sync.publish(pair.engine, pair.policy)
        pair.rolled_out()
        assert pair.tenant.suspend().bytes_out == 0


def test_an_exception_leaves_the_old_version(pair: Pair) -> None:
    old = state_of(pair.engine)
    with pair.job.phase("rollout"):
        old = state_of(pair.engine)
    pair.train()

    def fail_half_way() -> None:
        with pair.job.phase("weight_sync") as sync:
            sync.publish(pair.engine, pair.policy)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    with pytest.raises(StaleWeights, match="1 train phases behind"):
        pair.rolled_out()
    assert isinstance(pair.tenant, Tenant)
    pair.tenant.resume()
    assert equal(state_of(pair.engine), old)
    pair.tenant.release()
    expected = None
    with pair.job.phase("weight_sync") as sync:
        expected = state_of(pair.policy)
        sync.publish(pair.engine, pair.policy)
    assert equal(pair.rolled_out(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("embed.weight"), "1 names are missing: embed.weight"),
        (lambda s: s.update(extra=torch.ones(1)), "1 names are unknown to the engine: extra"),
        (lambda s: s.update({"norm.bias": torch.ones(3)}), r"norm.bias has shape \(3,\)"),
        (lambda s: s.update({"head.weight": torch.ones(16, 32)}), "tied in the engine"),
    ],
)
def test_names_and_shapes_must_match(pair: Pair, change: object, message: str) -> None:
    pair.train()
    assert callable(change)
    with pair.job.phase("weight_sync") as sync:
        source = {
            **dict(pair.policy.named_parameters(remove_duplicate=False)),
            **dict(pair.policy.named_buffers()),
        }
        change(source)
        with pytest.raises(UsageError, match=message):
            sync.publish(pair.engine, source)
    # even where the trainer goes on: nothing was committed
    with pytest.raises(StaleWeights):
        pair.rolled_out()


def test_a_sync_that_publishes_nothing_commits_nothing(pair: Pair) -> None:
    pair.train()
    with pair.job.phase("weight_sync"):
        pass
    with pytest.raises(StaleWeights):
        pair.rolled_out()
    with (
        pair.job.phase("train") as phase,
        pytest.raises(UsageError, match="belongs into a weight_sync"),
    ):
        phase.publish(pair.engine, pair.policy)


def test_a_rollout_that_runs_keeps_its_version(runtime: LocalRuntime) -> None:
    pair = Pair(runtime)
    try:
        assert isinstance(pair.tenant, Tenant)
        core = pair.tenant.core
        with pair.job.phase("rollout"):
            before = state_of(pair.engine)
            publication = core.publish()
            with pytest.raises(UsageError, match="is being published already"):
                core.publish()
            region = next(r for r in core.regions if r.tag == "weights")
            buffers = next(r for r in core.regions if r.tag == "buffers")
            publication.write(buffers, 0, bytes(buffers.bytes_allocated))
            with pytest.raises(UsageError, match=r"of region weights .* were not published"):
                publication.commit()
            with pytest.raises(UsageError, match="outside region weights"):
                publication.write(region, region.bytes, b"x")
            publication.write(region, 0, bytes(region.bytes_allocated))
            publication.commit()
            assert equal(state_of(pair.engine), before)
            with pytest.raises(UsageError, match="newer version waiting"):
                pair.tenant.buffer(64, "weights")
            with pytest.raises(UsageError, match="already"):
                publication.commit()
        assert all(not t.any() for t in pair.rolled_out().values())
    finally:
        pair.close()


def test_bytes_that_have_not_arrived_are_not_committed(pair: Pair) -> None:
    assert isinstance(pair.tenant, Tenant)
    with pair.job.phase("train"):
        source = pair.job.manage("more", pool="train")
        assert isinstance(source, Tenant)
        source.buffer(64, "weights")
    publication = pair.tenant.core.publish()
    for region in pair.tenant.core.regions:
        with pytest.raises(NotResident):  # the phase is over
            publication.copy(region, 0, source.region_of("weights"), 0, region.bytes_allocated)
    with pytest.raises(UsageError, match="were not published; the old version stays"):
        publication.commit()
    publication.abort()


def test_too_little_pinned_memory_for_a_second_version(runtime: LocalRuntime) -> None:
    from weave_rt import open_device

    device = open_device(
        "emulated:h20?scale=4096&speed=50&capacity=2MiB", host_budget_bytes=3 * 16384
    )
    tenant = Tenant(device, "engine", tags=RELOAD)
    tenant.resume()
    buffer = tenant.buffer(2 * device.block_bytes, "weights")
    budget = device.host_pool.budget_bytes
    assert budget < 2 * tenant.bytes
    with pytest.raises(HostMemoryError):
        tenant.core.publish()
    assert tenant.state == "RESIDENT"
    buffer.view()[:] = b"\x07" * buffer.nbytes
    tenant.suspend()
    tenant.resume()
    assert set(buffer.view()) == {7}
    del buffer
    tenant.close()
    device.close()


def test_publishing_into_an_engine_that_is_kept_copies_at_once(runtime: LocalRuntime) -> None:
    with init("c", {"runtime": runtime}) as job:
        policy, engine = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        with job.phase("init"):
            job.manage("policy", policy, pool="train")
            job.manage("engine", engine, pool="rollout")
        with job.phase("train"), torch.no_grad():
            policy.weight.fill_(3)
        with job.phase("weight_sync") as sync:
            sync.publish(engine, policy)
        with job.phase("rollout"):
            assert torch.equal(engine.weight, torch.full((4, 4), 3.0))


class TwoEngines:
    """A job whose engine is on two rollout GPUs, published from one policy."""

    def __init__(self) -> None:
        from weave_rt import open_device

        rollouts = [open_device("emulated:h20?scale=4096&speed=50&capacity=2MiB") for _ in range(2)]
        train = open_device("emulated:h800?scale=4096&speed=50&capacity=2MiB")
        self.runtime = LocalRuntime({"rollout": rollouts, "train": [train]})
        self.job: Job = init("a", {"runtime": self.runtime, "rollout": [0, 1], "max_staleness": 9})
        self.policy, self.engines = Net(1), [Net(2), Net(2)]
        with self.job.phase("init"):
            self.job.manage("policy", self.policy, pool="train")
            for at, engine in enumerate(self.engines):
                self.job.manage(f"e{at}", engine, pool="rollout", tags=RELOAD, device=at)

    def __enter__(self) -> TwoEngines:
        return self

    def __exit__(self, *exc: object) -> None:
        self.job.close()
        self.runtime.close()

    def rolled_out(self) -> list[dict[str, torch.Tensor]]:
        with self.job.phase("rollout"):
            return [state_of(engine) for engine in self.engines]

    def sync(self) -> dict[str, torch.Tensor]:
        with self.job.phase("weight_sync") as sync:
            for engine in self.engines:
                sync.publish(engine, self.policy)
            return state_of(self.policy)


def test_several_engines_get_a_version_all_or_none() -> None:
    with TwoEngines() as made:
        old = made.rolled_out()

        def forget_one() -> None:
            with made.job.phase("weight_sync") as sync:
                sync.publish(made.engines[0], made.policy)
                other = made.job.tenants_in("rollout")[1]  # type: ignore[attr-defined]
                sync.published["e1"] = other.core.publish()  # type: ignore[attr-defined]

        with pytest.raises(UsageError, match="were not published; the old version stays"):
            forget_one()
        assert all(equal(one, two) for one, two in zip(made.rolled_out(), old, strict=True))
        expected = made.sync()
        assert all(equal(one, expected) for one in made.rolled_out())


def test_a_rollout_that_comes_in_does_not_get_one_engine_newer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sync of another thread ends between the switches of the two engines."""
    with TwoEngines() as made:
        old = made.rolled_out()
        job: Any = made.job
        at_the_end = threading.Event()

        class Watched:
            def __enter__(self) -> None:
                at_the_end.set()
                lock.acquire()

            def __exit__(self, *exc: object) -> None:
                lock.release()

        lock = threading.Lock()
        job.versions.changing = Watched()
        syncing = threading.Thread(target=made.sync)
        bring_in = made.runtime.bring_in

        def between(grant: Any, name: str, tenant: Any, tags: Any) -> None:
            if tenant.name == "e1" and not syncing.ident:
                at_the_end.clear()
                syncing.start()
                at_the_end.wait(60)  # it wants to commit, and may not before both are in
                if lock.acquire(blocking=False):  # nobody holds it up: let it
                    lock.release()
                    syncing.join()
            bring_in(grant, name, tenant, tags)

        monkeypatch.setattr(made.runtime, "bring_in", between)
        assert all(equal(one, two) for one, two in zip(made.rolled_out(), old, strict=True))
        syncing.join()
        assert all(equal(one, state_of(made.policy)) for one in made.rolled_out())


@pytest.mark.parametrize("policy", ["reload", "keep"])
def test_plain_bytes_are_published_too(runtime: LocalRuntime, policy: str) -> None:
    with init("c", {"runtime": runtime}) as job:
        with job.phase("init"):
            engine = job.manage("engine", pool="rollout").buffer(5000, "weights", policy)
            source = job.manage("policy", pool="train").buffer(3000, "weights")
            source.view()[:] = b"\x01" * 3000
        for version in range(2, 4):
            with job.phase("train"):
                source.view()[:] = bytes([version]) * 3000
            with job.phase("weight_sync") as sync:
                with pytest.raises(UsageError, match="outside a buffer of 5000 bytes"):
                    PlainSync("weight_sync").publish_bytes(engine, source, 4000)
                with pytest.raises(UsageError, match="3001 bytes of a source of 3000"):
                    PlainSync("weight_sync").publish_bytes(engine, source, nbytes=3001)
                sync.publish_bytes(engine, source)
                sync.publish_bytes(engine, bytes([version + 10]) * 2000, 3000)
            with job.phase("rollout"):
                data = bytes(engine.view())
            assert data == bytes([version]) * 3000 + bytes([version + 10]) * 2000
        with (
            job.phase("train") as phase,
            pytest.raises(UsageError, match="belongs into a weight_sync"),
        ):
            phase.publish_bytes(engine, source)


def test_reload_weights_are_not_loaded_where_that_would_be_lost(pair: Pair) -> None:
    ones = {name: torch.ones_like(t) for name, t in Net(3).state_dict().items()}
    old = pair.rolled_out()
    with pair.job.phase("rollout"):
        for module in (pair.engine, pair.engine.norm):
            state = {name: torch.ones_like(t) for name, t in module.state_dict().items()}
            with pytest.raises(UsageError, match=r"sync\.publish") as caught:
                module.load_state_dict(state)
            assert "\n" not in str(caught.value)
        copied = copy.deepcopy(pair.engine)  # nobody's, so it may
        pickled = pickle.loads(pickle.dumps(pair.engine))
        for net in (copied, pickled):
            net.load_state_dict(ones)
            assert torch.equal(net.embed.weight, ones["embed.weight"])
        assert equal(state_of(pair.engine), old)
    with pair.job.phase("weight_sync") as sync:
        sync.publish(pair.engine, copied)
    assert torch.equal(pair.rolled_out()["embed.weight"], ones["embed.weight"])
    pair.job.close()
    pair.engine.load_state_dict(ones)
    assert all(not m._load_state_dict_pre_hooks for m in pair.engine.modules())


def test_an_engine_is_loaded_in_the_phase_where_it_is_managed(runtime: LocalRuntime) -> None:
    with init("e", {"runtime": runtime}) as job:
        engine, state = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).state_dict()
        with job.phase("init"):
            tenant = job.manage("engine", engine, pool="rollout", tags={"weights": "reload"})
            engine.load_state_dict(state)
        tenant.suspend()
        with job.phase("rollout"):
            assert torch.equal(engine.weight, state["weight"])


def test_buffers_alone_that_are_reload_are_not_loaded_either(runtime: LocalRuntime) -> None:
    with init("e", {"runtime": runtime}) as job:
        engine = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        job.manage("engine", engine, pool="rollout", tags={"buffers": "reload"})
        with job.phase("rollout"):
            with pytest.raises(UsageError, match="the buffers of tenant 'engine'"):
                engine.load_state_dict(engine.state_dict())
            engine[0].load_state_dict(engine[0].state_dict())  # it has none


def test_what_is_older_says_to_publish(pair: Pair) -> None:
    pair.train()
    with pair.job.phase("weight_sync"):
        pass
    with pytest.raises(StaleWeights, match=r"call `sync.publish\(engine, policy\)`"):
        pair.rolled_out()


def test_off_it_is_the_same_script() -> None:
    with init("d", {"mode": "off"}) as job:
        policy, engine = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        job.manage("engine", engine, pool="rollout", tags=RELOAD)
        with job.phase("weight_sync") as sync:
            sync.publish(engine, policy)
        assert torch.equal(engine.weight, policy.weight)
        with job.phase("weight_sync") as sync, pytest.raises(UsageError, match="do not fit"):
            sync.publish(engine, {"weight": torch.ones(2)})

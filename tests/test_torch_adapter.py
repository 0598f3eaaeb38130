"""Torch state in regions: training is bit-identical to an undisturbed run, whatever comes between.

Between all steps another tenant takes the device and overwrites it, so a byte that was not saved,
or not brought back, shows."""

from __future__ import annotations

import copy
import gc
import io
import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import ROLLOUT

import weave_rt
from weave_rt import Device, NotResident, StateChanged, Tenant, UsageError
from weave_rt.adapters import storage


class Net(torch.nn.Module):
    """Ties, a buffer in no state dict, running statistics, a parameter that is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(16, 32)
        self.flat = torch.zeros(32 * 32 + 32)
        self.inner = torch.nn.Linear(32, 32)
        with torch.no_grad():
            self.flat[: 32 * 32].copy_(self.inner.weight.flatten())
            self.flat[32 * 32 :].copy_(self.inner.bias)
        self.inner.weight.data = self.flat[: 32 * 32].view(32, 32)
        self.inner.bias.data = self.flat[32 * 32 :]
        self.norm = torch.nn.BatchNorm1d(32)
        self.head = torch.nn.Linear(32, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((), 0.5), persistent=False)
        self.empty = torch.nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.inner(self.embed(x)).relu())) * self.scale


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def make(optimizer: str = "adamw") -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = Net()
    return net, OPTIMIZERS[optimizer](net.parameters())


def step(net: Net, opt: torch.optim.Optimizer, number: int, zero: bool = True) -> float:
    draw = torch.Generator().manual_seed(number)
    x = torch.randint(0, 16, (24,), generator=draw)
    loss = torch.nn.functional.cross_entropy(net(x), (x * 7 + number) % 16)
    if zero:
        opt.zero_grad()
    loss.backward()
    opt.step()
    return float(loss.item())


def state_of(net: Net, opt: torch.optim.Optimizer) -> list[torch.Tensor]:
    tensors = [*net.parameters(), *net.buffers(), net.flat]
    tensors += [p.grad for p in net.parameters() if p.grad is not None]
    for state in opt.state.values():
        tensors += [v for v in state.values() if isinstance(v, torch.Tensor)]
    return [t.detach().clone() for t in tensors]


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, two, strict=True)
    )


@pytest.fixture
def emulated(open_checked: Callable[[str], Device]) -> Device:
    return open_checked(ROLLOUT)


class Pair:
    """A tenant under test and a neighbour that takes nearly the whole device and overwrites it."""

    def __init__(self, device: Device) -> None:
        self.tenant = Tenant(device, "job", job="a", pool="train")
        self.other = Tenant(device, "other")
        self.other.resume()
        self.noise = self.other.buffer(device.usable_bytes, "weights")  # all there is
        self.other.switch(self.tenant)
        self.turn = 0

    def disturb(self) -> None:
        self.tenant.switch(self.other)
        self.turn += 1
        self.noise.view()[:] = bytes([self.turn]) * self.noise.nbytes
        used = sum(region.bytes_allocated for region in self.tenant.regions)
        assert used <= self.other.switch(self.tenant).bytes_in <= self.tenant.bytes

    def close(self) -> None:
        self.tenant.close()
        del self.noise
        self.other.close()


@pytest.fixture
def pair(emulated: Device) -> Iterator[Pair]:
    made = Pair(emulated)
    yield made
    made.close()


@pytest.fixture(params=["swap", "repoint"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of moving a storage, where this torch has both."""
    if request.param == "repoint":
        monkeypatch.setattr(storage, "SWAPS", False)
    elif not storage.SWAPS:
        pytest.skip("this torch has no _swap_data_ptr_")
    return str(request.param)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("zero", [True, False], ids=["new-grads", "accumulated"])
def test_training_is_bit_identical(pair: Pair, optimizer: str, zero: bool) -> None:
    net, opt = make(optimizer)
    expected = [step(net, opt, n, zero) for n in range(6)]
    final = state_of(net, opt)

    net, opt = make(optimizer)
    pair.tenant.adopt(net, opt)
    losses = []
    for number in range(6):
        pair.disturb()  # before the first step too, when there is no optimizer state
        losses.append(step(net, opt, number, zero))
        pair.disturb()
    assert losses == expected
    assert equal(state_of(net, opt), final)
    assert {"weights", "buffers", "grads", "optimizer"} == {r.tag for r in pair.tenant.regions}


def test_both_ways_of_moving(pair: Pair, way: str) -> None:
    net, opt = make()
    del net.flat  # an alias that only swapping can follow
    expected = [step(net, opt, n) for n in range(3)]
    net, opt = make()
    del net.flat
    identities = list(net.parameters())
    pair.tenant.adopt(net, opt)
    losses = []
    for number in range(3):
        losses.append(step(net, opt, number))
        pair.disturb()
    pair.tenant.close()
    assert losses == expected
    assert all(a is b for a, b in zip(identities, net.parameters(), strict=True))
    assert net.head.weight is net.embed.weight
    assert net.inner.weight.untyped_storage()._cdata == net.inner.bias.untyped_storage()._cdata
    step(net, opt, 3)


def test_repointing_refuses_what_it_cannot_follow(pair: Pair, monkeypatch: Any) -> None:
    monkeypatch.setattr(storage, "SWAPS", False)
    net, opt = make()  # net.flat is an alias that no walk finds
    with pytest.raises(UsageError, match=r"inner\.(weight|bias) .*a view"):
        pair.tenant.adopt(net, opt)
    plain = torch.nn.Linear(4, 4)
    loss = (plain(torch.ones(4)) ** 2).sum()
    with pytest.raises(UsageError, match="autograd graph"):
        pair.tenant.adopt(plain)
    del loss
    pair.tenant.adopt(plain)


def test_negative_control(pair: Pair) -> None:
    """The comparison sees a missing copy: with weights discarded training differs."""
    net, opt = make()
    for number in range(3):
        step(net, opt, number)
    final = state_of(net, opt)
    net, opt = make()
    tenant = Tenant(pair.tenant.device, "careless", tags={"weights": "discard"})
    pair.tenant.switch(tenant)
    tenant.adopt(net, opt)
    for number in range(3):
        step(net, opt, number)
        tenant.switch(pair.other)
        pair.noise.view()[:] = b"\x01" * pair.noise.nbytes
        pair.other.switch(tenant)
    assert not equal(state_of(net, opt), final)
    tenant.close()


def test_views_addresses_and_versions(pair: Pair) -> None:
    net, opt = make()
    view = net.embed.weight.detach()[3:5]
    pair.tenant.adopt(net, opt)
    step(net, opt, 0)
    pair.tenant.scan()
    addresses = [p.data_ptr() for p in net.parameters()]
    saved = view.clone()
    pair.disturb()
    assert torch.equal(view, saved)
    assert view.data_ptr() == net.embed.weight[3:5].data_ptr()
    assert [p.data_ptr() for p in net.parameters()] == addresses
    assert pair.tenant.scan() == 0
    pair.tenant.verify_addresses()
    net.inner.weight.untyped_storage()._swap_data_ptr_(torch.UntypedStorage(net.flat.nbytes))
    with pytest.raises(StateChanged, match="inner"):
        pair.tenant.verify_addresses()


def test_a_live_graph_follows(pair: Pair) -> None:
    net, opt = make()
    pair.tenant.adopt(net, opt)
    x = torch.arange(16)
    loss = net(x).sum()
    pair.disturb()
    loss.backward()
    got = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net, opt = make()
    net(x).sum().backward()
    assert equal(got, [p.grad for p in net.parameters() if p.grad is not None])


def test_what_leaves_the_region_is_adopted_again(pair: Pair) -> None:
    net, opt = make("adamw-foreach")
    step(net, opt, 0)
    saved = copy.deepcopy(opt.state_dict())
    pair.tenant.adopt(net, opt)
    used = {r.tag: r.bytes_allocated for r in pair.tenant.regions}
    opt.load_state_dict(copy.deepcopy(saved))
    net.double()
    assert pair.tenant.scan() > 0
    assert pair.tenant.scan() == 0
    grown = {r.tag: r.bytes_allocated for r in pair.tenant.regions}
    assert grown["weights"] > used["weights"]  # doubles; the singles are freed
    assert grown["optimizer"] == used["optimizer"]
    for _ in range(5):
        opt.load_state_dict(copy.deepcopy(saved))  # doubles now
        pair.disturb()
    gc.collect()  # load_state_dict leaves the old state to the collector
    after = {r.tag: r.bytes_allocated for r in pair.tenant.regions}
    assert after == {**grown, "optimizer": after["optimizer"]}
    assert after["optimizer"] <= 2 * grown["optimizer"]


def test_copies_while_resident(pair: Pair) -> None:
    net, opt = make()
    step(net, opt, 0)
    pair.tenant.adopt(net, opt)
    twin = copy.deepcopy(net)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    assert file.tell() < 4 * 4 * sum(p.numel() for p in net.parameters()) + 20_000  # no bloat
    file.seek(0)
    loaded = torch.load(file)
    pair.tenant.suspend()
    assert torch.equal(twin.embed.weight, loaded["net"]["embed.weight"])
    twin(torch.arange(16))  # a copy made while resident is ordinary and unguarded
    pair.tenant.resume()
    assert torch.equal(twin.embed.weight, net.embed.weight)
    assert twin.embed.weight.data_ptr() != net.embed.weight.data_ptr()


def test_refused_outside_its_phase_before_memory_is_touched(pair: Pair) -> None:
    net, opt = make()
    pair.tenant.adopt(net, opt)
    step(net, opt, 0)
    seen: list[str] = []
    net.register_forward_pre_hook(lambda *args: seen.append("hook"))
    attributes = [list(vars(one)) for one in (*net.modules(), opt)]
    pair.tenant.switch(pair.other)
    calls: dict[str, Callable[[], object]] = {
        "weights": lambda: net(torch.arange(4)),
        "submodule": lambda: net.inner(torch.ones(1, 32)),
        "load": lambda: net.load_state_dict({}),
        "save": net.state_dict,
        "save optimizer": opt.state_dict,
        "optimizer": opt.step,
        "copy": lambda: copy.deepcopy(net),
        "copy optimizer": lambda: copy.deepcopy(opt),
        "pickle": lambda: torch.save({"net": net, "opt": opt}, io.BytesIO()),
        "pickle submodule": lambda: pickle.dumps(net.inner),
        "convert": net.half,
        "convert submodule": lambda: net.inner.to(torch.float64),
    }
    for call in calls.values():
        with pytest.raises(NotResident, match=r"with job.phase\('train'\)") as caught:
            call()
        assert (caught.value.job, caught.value.tenant) == ("a", "job")
        assert caught.value.tag in ("weights", "optimizer")
    assert seen == []
    pair.other.switch(pair.tenant)
    assert all(not m._load_state_dict_pre_hooks for m in net.modules())
    assert all(not m._state_dict_pre_hooks for m in net.modules())
    assert all(not m._forward_pre_hooks for m in net.modules() if m is not net)
    assert [list(vars(one)) for one in (*net.modules(), opt)] == attributes
    step(net, opt, 1)
    pickle.loads(pickle.dumps((net.inner, opt)))
    net.half()


def test_close_returns_values_and_frees_regions(pair: Pair) -> None:
    net, opt = make()
    extra = pair.tenant.empty((4, 5), torch.float32, "kv_cache").fill_(2.0)
    pair.tenant.adopt(net, opt)
    step(net, opt, 0)
    identities = [*net.parameters(), *net.buffers()]
    pair.tenant.scan()
    before = state_of(net, opt)
    pair.tenant.switch(pair.other)  # closed while suspended: nothing needs the device
    pair.tenant.close()
    pair.tenant.close()
    assert equal(state_of(net, opt), before)
    assert all(a is b for a, b in zip(identities, [*net.parameters(), *net.buffers()], strict=True))
    assert torch.equal(extra, torch.zeros(4, 5))  # discarded, but not a dangling pointer
    step(net, opt, 1)
    assert pair.tenant.state == "CLOSED"
    with pytest.raises(NotResident):
        pair.tenant.empty(3, "float32")


def test_region_mode(pair: Pair) -> None:
    outside = torch.ones(8)
    ordinary = outside.data_ptr()
    with pair.tenant.region("other"):
        a = torch.arange(6.0).view(2, 3)
        b = a + outside[:3]
        c = torch.tensor([1.5, 2.5])
        outside.mul_(2)
        linear = torch.nn.Linear(3, 3)
        with torch.inference_mode():
            d = a.to(torch.float64)
            e = a.t().contiguous()
        linear(a).sum().backward()
    (region,) = pair.tenant.regions
    inside = [a, b, c, d, e, linear.weight, linear.weight.grad]
    for tensor in inside:
        assert region.address <= tensor.data_ptr() < region.address + region.bytes_reserved
    assert outside.data_ptr() == ordinary
    values = [t.clone() for t in inside]
    pair.disturb()
    assert equal([t.detach() for t in inside], [v.detach() for v in values])
    allocated = region.bytes_allocated
    del a, b, c, d, e, linear, inside, tensor
    assert region.bytes_allocated < allocated


def test_managing_twice(pair: Pair, emulated: Device) -> None:
    net, opt = make()
    pair.tenant.adopt(net)
    moved = pair.tenant.bytes
    pair.tenant.adopt(net, opt)
    assert pair.tenant.bytes == moved
    second = Tenant(emulated, "second", job="b")
    pair.tenant.release()
    second.resume()
    with pytest.raises(UsageError, match="Net is managed by tenant 'job' of job 'a'"):
        second.adopt(net)
    sharing = torch.nn.Linear(32, 16, bias=False)
    sharing.weight = net.embed.weight
    with pytest.raises(UsageError, match=r"weight .*managed by tenant 'job' of job 'a'"):
        second.adopt(sharing)
    second.close()
    pair.tenant.resume()


def test_what_cannot_be_managed_is_named(pair: Pair) -> None:
    for thing, words in [(object(), "builtins.object"), ([1], "builtins.list")]:
        with pytest.raises(UsageError, match=words):
            pair.tenant.adopt(thing)
    shared = torch.nn.Linear(4, 4)
    shared.bias.data.share_memory_()
    with pytest.raises(UsageError, match=r"bias .*shared with other processes"):
        pair.tenant.adopt(shared)
    assert pair.tenant.bytes == 0  # nothing moved, the weight neither
    array = torch.zeros(4).numpy()
    with pytest.raises(UsageError, match="numpy"):
        pair.tenant.adopt(torch.from_numpy(array))
    with pytest.raises(UsageError, match="tag 'wieghts'"):
        pair.tenant.empty(3, "float32", tag="wieghts")
    with pytest.raises(UsageError, match="not a torch dtype"):
        pair.tenant.empty(3, "float33")
    for shape, said in (((-3,), "negative"), ((2.5,), "integers"), ("ab", "integers"), (-1, "neg")):
        with pytest.raises(UsageError, match=f"shape .*{said}"):
            pair.tenant.empty(shape, "float32")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not keep, reload or discard"):
        Tenant(pair.tenant.device, "x", tags={"weights": "forget"})


def test_too_big_leaves_everything_in_place(pair: Pair) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(10)))
    before = [p.data_ptr() for p in net.parameters()]
    values = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(weave_rt.GrowthRefused) as caught:
        pair.tenant.adopt(net)
    assert caught.value.bytes_needed > caught.value.bytes_usable
    assert equal([p.detach() for p in net.parameters()], values)
    assert all(r.bytes_allocated == 0 for r in pair.tenant.regions)
    assert len(before) == 20


def test_rescue_writes_safetensors(pair: Pair, tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    net, opt = make()
    pair.tenant.adopt(net, opt)
    pair.tenant.switch(pair.other)
    assert "weights" in pair.tenant.rescue(tmp_path / "state.safetensors")
    data = safetensors.load_file(tmp_path / "state.safetensors")
    with safetensors.safe_open(tmp_path / "state.safetensors", "pt") as file:
        index = json.loads(file.metadata()["tensors"])
    entry = index["weights/embed.weight"]
    found = data["weights"][entry["offset"] :][: entry["nbytes"]].view(torch.float32)
    pair.other.switch(pair.tenant)
    assert torch.equal(found.view(entry["shape"]), net.embed.weight)


def test_memory_is_freed_with_the_objects(pair: Pair) -> None:
    net, opt = make()
    pair.tenant.adopt(net, opt)
    gone = weakref.ref(net)
    pair.tenant.close()
    del net, opt
    assert gone() is None  # a closed tenant keeps nothing alive


def test_200_cycles_leave_no_trace(pair: Pair) -> None:
    net, opt = make()
    pair.tenant.adopt(net, opt)
    step(net, opt, 0)
    pair.disturb()
    stats = pair.tenant.device.stats()
    bytes_held = pair.tenant.bytes
    pool = pair.tenant.device.host_pool.bytes_registered
    for number in range(20):
        step(net, opt, number)
        for _ in range(10):
            pair.disturb()
    assert pair.tenant.bytes == bytes_held
    assert pair.tenant.device.stats()["blocks_created"] == stats["blocks_created"]
    assert pair.tenant.device.host_pool.bytes_registered == pool


def test_what_does_not_fit_is_refused_before_any_region_grows(pair: Pair) -> None:
    """Each of the two tags would fit alone."""
    usable = pair.tenant.device.usable_bytes
    net = torch.nn.Linear(usable // 4 // 256, 160, bias=False)
    net.register_buffer("table", torch.zeros(usable // 4 * 5 // 8))
    sizes = [t.nbytes for t in (net.weight, net.table)]
    assert max(sizes) < usable < sum(sizes)
    with pytest.raises(weave_rt.GrowthRefused, match="would have") as caught:
        pair.tenant.adopt(net)
    assert caught.value.bytes_needed > caught.value.bytes_usable >= caught.value.bytes_available
    assert all(region.bytes == 0 for region in pair.tenant.regions)
    assert pair.tenant.adopt(torch.nn.Linear(8, 8)) is None  # goes on


def test_growth_is_judged_beside_what_runs(pair: Pair) -> None:
    usable = pair.tenant.device.usable_bytes
    pair.tenant.adopt(torch.zeros(usable // 4 // 2))
    other = Tenant(pair.tenant.device, "beside")
    other.resume()
    held = other.bytes
    before = pair.tenant.bytes
    other.adopt(torch.zeros(usable // 4 // 4))
    with pytest.raises(weave_rt.GrowthRefused, match="run beside it") as caught:
        other.adopt(torch.zeros(usable // 4 // 3))
    assert caught.value.bytes_available == caught.value.bytes_usable - before
    assert held == 0
    other.close()


def test_what_an_optimizer_has_just_made_goes_out_early(join: Callable[..., weave_rt.Job]) -> None:
    job = join("a")
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    tenant = job.manage("policy", model, optimizer, pool="train")
    with job.phase("train"):
        with pytest.raises(UsageError, match="nothing was put in tag 'optimizer' of tenant"):
            tenant.write_back("optimizer")
        with pytest.raises(UsageError, match="tag 'optimiser' is not one of"):
            tenant.write_back("optimiser")
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        state = optimizer.state[model.weight]["exp_avg"]
        expected = state.clone()
        assert tenant.write_back("optimizer").wait(60)
        (region,) = [r for r in tenant.regions if r.tag == "optimizer"]
        assert 0 <= state.data_ptr() - region.address < region.bytes
    tenant.suspend()
    with job.phase("train"):
        assert torch.equal(state, expected)

"""The quick look of a scan says yes only where a walk finds nothing to move."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from conftest import ROLLOUT

from weave_rt import Device, Tenant
from weave_rt.adapters.walk import lie_within


class World:
    """A module with a shared part, an absent parameter and buffers; an optimizer; a tensor."""

    def __init__(self, device: Device) -> None:
        self.tenant = Tenant(device, "job")
        self.tenant.resume()
        self.tenant.adopt(*self.make())

    def make(self) -> tuple[object, ...]:
        shared = torch.nn.Linear(8, 8)
        self.net = torch.nn.Sequential(shared, torch.nn.BatchNorm1d(8), shared)
        self.net.register_parameter("absent", None)
        self.net.register_buffer("nothing", None)
        self.net.empty = torch.nn.Parameter(torch.empty(0))
        self.opt = torch.optim.AdamW([p for p in self.net.parameters() if p.numel()], lr=0.1)
        self.extra = torch.ones(4, requires_grad=True)
        return self.net, self.opt, self.extra

    def step(self) -> None:
        (self.net(torch.ones(4, 8)).sum() + self.extra.sum()).backward()
        self.opt.step()

    def settled(self) -> bool:
        book = self.tenant.torch_book()
        return lie_within(book._ranges_by_tag(), book._modules, book._optimizers, book._tensors)

    def found(self) -> int:
        book = self.tenant.torch_book()
        from weave_rt.adapters.walk import walk

        return len(book._groups(walk(book._modules, book._optimizers, book._tensors)))


@pytest.fixture
def world(open_checked: Callable[[str], Device]) -> Iterator[World]:
    world = World(open_checked(ROLLOUT))
    world.step()
    world.tenant.scan()
    yield world
    world.tenant.close()


def test_nothing_changed_needs_no_walk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.settled()
    assert world.found() == 0
    monkeypatch.setattr("weave_rt.adapters.torch.walk", None)  # must not be called
    assert world.tenant.scan() == 0


def replace_parameter(world: World) -> None:
    world.net[0].weight = torch.nn.Parameter(torch.ones(8, 8))


def replace_buffer(world: World) -> None:
    world.net[1].running_mean = torch.ones(8)


def new_gradient(world: World) -> None:
    world.net[0].weight.grad = torch.ones(8, 8)


def new_gradient_of_a_tensor(world: World) -> None:
    world.extra.grad = torch.ones(4)


def new_state(world: World) -> None:
    next(iter(world.opt.state.values()))["exp_avg"] = torch.ones(8, 8)


def nested_state(world: World) -> None:
    next(iter(world.opt.state.values()))["more"] = {"deep": [torch.ones(8)]}


def new_group(world: World) -> None:
    world.opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(8))]})


def new_module(world: World) -> None:
    world.net.append(torch.nn.Linear(8, 8))


def changed_data(world: World) -> None:
    world.net[2].bias.data = torch.ones(8)


@pytest.mark.parametrize(
    "change",
    [replace_parameter, replace_buffer, new_gradient, new_gradient_of_a_tensor, new_state,
     nested_state, new_group, new_module, changed_data],
)  # fmt: skip
def test_every_change_is_seen_and_moved(world: World, change: Callable[[World], None]) -> None:
    change(world)
    assert not world.settled()
    expected = world.found()
    assert expected > 0
    assert world.tenant.scan() == expected
    assert world.found() == 0


def test_a_step_counter_stays_in_ordinary_memory(world: World) -> None:
    next(iter(world.opt.state.values()))["step"] = torch.zeros(())
    next(iter(world.opt.state.values()))["lr"] = 0.5
    assert world.settled()
    assert world.found() == 0


def test_groups_that_count_differently_are_walked(world: World) -> None:
    world.opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(8))], "capturable": True})
    world.tenant.scan()
    assert not world.settled()
    assert world.tenant.scan() == 0


def test_sparse_gradients_stay_where_they_are(open_checked: Callable[[str], Device]) -> None:
    tenant = Tenant(open_checked(ROLLOUT), "job")
    tenant.resume()
    net = torch.nn.Embedding(8, 8, sparse=True)
    tenant.adopt(net)
    net(torch.tensor([1])).sum().backward()
    grad = net.weight.grad
    assert tenant.scan() == 0
    assert net.weight.grad is grad
    tenant.close()

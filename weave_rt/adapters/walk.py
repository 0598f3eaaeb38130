"""Finding every tensor of modules and optimizers, cheaply enough to do it after each phase.

Called by `adapters.torch`. A tensor is yielded with its tag and its name in two parts, which are
joined only when somebody wants to read it. Ties come out once per name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

__all__ = ["PLAIN_TYPES", "Entry", "label_of", "lie_within", "plain_tensors", "walk"]

# tensor, tag, and its name in parts: see label_of
Entry = tuple[torch.Tensor, str, str, object]

PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


_NUMBERS = frozenset({int, float, bool, type(None)})  # beside tensors in an optimizer's state

# Address ranges by tag: first byte, one behind the last.
Ranges = Mapping[str, tuple[int, int]]


def lie_within(
    ranges: Ranges,
    modules: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Sequence[torch.Tensor] = (),
) -> bool:
    """Whether every tensor that `walk` would yield is a plain one with its bytes in the range of
    its tag. May say no where the answer is yes; then `walk` says what is what.

    The common case after each phase, so everything per tensor is done by builtins over whole lists:
    about half the time of a walk."""
    weights: list[Any] = []
    buffers: list[Any] = []
    _collect(modules, weights, buffers)
    states: list[Any] = []
    known = set(map(id, weights)) if optimizers else set()
    for optimizer in optimizers:
        moves = {_step_moves(group) for group in optimizer.param_groups}
        if len(moves) > 1:
            return False
        for group in optimizer.param_groups:
            weights += [p for p in group["params"] if id(p) not in known]
        skipped = None if True in moves else "step"
        entries = [
            value
            for state in optimizer.state.values()
            for key, value in state.items()
            if key != skipped
        ]
        kinds = set(map(type, entries))
        if kinds <= _NUMBERS:
            continue
        states += [v for v in entries if type(v) not in _NUMBERS] if kinds & _NUMBERS else entries
    grads = [grad for p in weights if (grad := p.grad) is not None]
    grads += [grad for t in tensors if t.is_leaf and (grad := t.grad) is not None]
    return (
        _in_range(weights, ranges.get("weights"))
        and _in_range(grads, ranges.get("grads"))
        and _in_range(buffers, ranges.get("buffers"))
        and _in_range(states, ranges.get("optimizer"))
        and _in_range(tensors, ranges.get("other"))
    )


def _collect(modules: Sequence[torch.nn.Module], weights: list[Any], buffers: list[Any]) -> None:
    known: set[int] = set()
    stack: list[Any] = list(modules)
    while stack:
        module = stack.pop()
        if id(module) in known or module is None:
            continue
        known.add(id(module))
        if module._parameters:
            weights += module._parameters.values()
        if module._buffers:
            buffers += module._buffers.values()
        if module._modules:
            stack += module._modules.values()
    weights[:] = [p for p in weights if p is not None]
    buffers[:] = [b for b in buffers if isinstance(b, torch.Tensor)]


def _in_range(tensors: Sequence[torch.Tensor], own: tuple[int, int] | None) -> bool:
    if not tensors:
        return True
    if own is None or not PLAIN_TYPES.issuperset(map(type, tensors)):
        return False
    try:
        # an empty tensor is at 0 and has nothing to lose
        addresses = list(filter(None, map(torch.Tensor.data_ptr, tensors)))
    except RuntimeError:  # not strided
        return False
    return not addresses or (own[0] <= min(addresses) and max(addresses) < own[1])


def walk(
    modules: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Sequence[torch.Tensor] = (),
) -> Iterator[Entry]:
    """Parameters, gradients, buffers (persistent or not), optimizer state, given tensors."""
    known: set[int] = set()
    for root in modules:
        yield from _of_module(root, known)
    for optimizer in optimizers:
        yield from _of_optimizer(optimizer, known)
    for number, tensor in enumerate(tensors):
        yield tensor, "other", "", f"tensor{number}"
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad, "grads", "", f"tensor{number}"


def _of_module(root: torch.nn.Module, known: set[int]) -> Iterator[Entry]:
    stack = [("", root)]
    while stack:
        prefix, module = stack.pop()
        if id(module) in known:
            continue
        known.add(id(module))
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in known:
                known.add(id(parameter))
                yield parameter, "weights", prefix, key
                grad = parameter.grad
                if grad is not None:
                    yield grad, "grads", prefix, key
        for key, buffer in module._buffers.items():
            if isinstance(buffer, torch.Tensor):
                yield buffer, "buffers", prefix, key
        for key, child in reversed(module._modules.items()):  # so that they come off in order
            if child is not None:
                stack.append((f"{prefix}{key}.", child))


def _of_optimizer(optimizer: torch.optim.Optimizer, known: set[int]) -> Iterator[Entry]:
    for number, group in enumerate(optimizer.param_groups):
        prefix = f"group{number}."
        step_moves = _step_moves(group)
        for position, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                known.add(id(parameter))
                yield parameter, "weights", prefix, position
                if parameter.grad is not None:
                    yield parameter.grad, "grads", prefix, position
            for key, value in optimizer.state.get(parameter, {}).items():
                if key == "step" and not step_moves:
                    continue
                if type(value) is torch.Tensor:
                    yield value, "optimizer", prefix, (position, key)
                else:
                    yield from _of_value(value, prefix, (position, key))


def _step_moves(group: Mapping[str, Any]) -> bool:
    """AdamW and others count steps in a CPU scalar, on every device, unless told otherwise."""
    return bool(group.get("capturable") or group.get("fused"))


def _of_value(value: Any, prefix: str, key: tuple[object, ...]) -> Iterator[Entry]:
    if isinstance(value, torch.Tensor):
        yield value, "optimizer", prefix, key
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _of_value(item, prefix, (*key, name))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _of_value(item, prefix, (*key, number))


def label_of(prefix: str, key: object) -> str:
    """The name of an entry, for people."""
    parts = key if isinstance(key, tuple) else (key,)
    return prefix + ".".join(str(part) for part in parts)


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage of their own behind `tensor`: itself, or the inner ones of a
    wrapper such as DTensor. None for one that is not materialised."""
    if type(tensor) in PLAIN_TYPES:
        yield tensor
    elif torch.nn.parameter.is_lazy(tensor):
        return
    elif hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
    else:
        yield tensor

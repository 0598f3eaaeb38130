"""Refusing to run a managed module or optimizer while its memory may belong to another job.

Called by `adapters.torch`, in the thread that runs the job's phases. The hooks are there only
while something they need is not resident, so a running phase pays nothing; the work at each change
is a few dictionary entries per module: before forward, before state_dict and load_state_dict, and
instead of copying, pickling and converting.

One hook stays: a module whose weights or buffers are ``reload`` refuses ``load_state_dict`` once it
has left the device, since from then on the host copy counts and not what is written there.

A tenant may be resident in part. A forward may touch anything but gradients and optimizer state: an
engine that was given its weights, and not yet its KV cache, takes new weights and runs no batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from weave_rt.errors import NotResident, UsageError

__all__ = ["Guard"]


class _Refusal:
    """Raises NotResident when it is called, as a hook or as a method."""

    def __init__(self, error: Callable[[str], NotResident], tag: str) -> None:
        self._error = error
        self.tag = tag

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._error(self.tag)


class _LoadRefusal:
    """Raises UsageError as a hook of ``load_state_dict``."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(self._message)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the module is nobody's and may be loaded: its hook takes anything and does
        # nothing, and a file with the module can be read without this library.
        return getattr, ("", "format")


# What each kind of use needs, the tag to name first where several are away.
_FORWARD = ("weights", "buffers", "kv_cache", "cuda_graph", "scratch", "other")
_STATE = ("weights", "buffers")
_STEP = ("optimizer", "weights", "grads")

# Methods that read everything and have no hook: copying, torch.save, and .to(), .half() and others.
_METHODS = ("__deepcopy__", "__reduce_ex__", "_apply")


def _first(needed: Sequence[str], away: Set[str]) -> str | None:
    return next((tag for tag in needed if tag in away), None)


def _is_loaded(module: torch.nn.Module, tags: Set[str]) -> bool:
    """Whether ``load_state_dict`` writes to one of `tags` in the module itself."""
    fleeting = module._non_persistent_buffers_set
    return ("weights" in tags and any(p is not None for p in module._parameters.values())) or (
        "buffers" in tags
        and any(b is not None and n not in fleeting for n, b in module._buffers.items())
    )


class Guard:
    """One switch over all modules and optimizers of a tenant."""

    def __init__(self, error: Callable[[str], NotResident]) -> None:
        self._error = error
        # one identity for all modules, from torch's own counter, so that it is nobody else's
        self._key = RemovableHandle(OrderedDict()).id
        self._guarded: list[torch.nn.Module] = []
        self._handles: list[RemovableHandle] = []
        self._shadowed: list[torch.nn.Module | torch.optim.Optimizer] = []
        self._refused: tuple[str | None, str | None, str | None] = (None, None, None)
        self._load_key = RemovableHandle(OrderedDict()).id
        self._loads: list[torch.nn.Module] = []
        self._reloaded: tuple[Set[str], int] = (frozenset(), 0)

    def set(
        self,
        away: Set[str],
        modules: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        """Refuse on the given roots (all submodules they have now) what needs a tag that is away,
        and nothing else. Idempotent."""
        refused = (_first(_FORWARD, away), _first(_STATE, away), _first(_STEP, away))
        if refused == self._refused:
            return
        self._remove()
        self._refused = refused
        forward, state, step = (_Refusal(self._error, tag) if tag else None for tag in refused)
        if forward is not None:
            seen: dict[int, torch.nn.Module] = {}
            stack = list(modules)
            while stack:
                module = stack.pop()
                if id(module) not in seen:
                    seen[id(module)] = module
                    stack.extend(m for m in module._modules.values() if m is not None)
            self._guarded = list(seen.values())
            for module in self._guarded:
                self._first_of(module._forward_pre_hooks, forward)
                if state is not None:
                    self._shadow(module, state)
                    self._first_of(module._state_dict_pre_hooks, state)
                    self._first_of(module._load_state_dict_pre_hooks, state)
        if step is not None:
            self._handles = [o.register_step_pre_hook(step) for o in optimizers]
            self._handles += [o.register_state_dict_pre_hook(step) for o in optimizers]
            for optimizer in optimizers:
                self._shadow(optimizer, step)

    def refuse_loads(
        self, reloaded: Set[str], modules: Sequence[torch.nn.Module], message: str
    ) -> None:
        """Refuse ``load_state_dict`` from now on where it would write to one of the tags
        `reloaded`, on the given roots and all submodules they have now. Idempotent."""
        if (reloaded, len(modules)) == self._reloaded:
            return
        for module in self._loads:
            module._load_state_dict_pre_hooks.pop(self._load_key, None)
        self._reloaded = (reloaded, len(modules))
        everything = dict.fromkeys(m for root in modules for m in root.modules())
        self._loads = [m for m in everything if any(_is_loaded(s, reloaded) for s in m.modules())]
        refusal = _LoadRefusal(message)
        for module in self._loads:
            module._load_state_dict_pre_hooks[self._load_key] = refusal

    def _first_of(self, hooks: dict[int, Any], refusal: _Refusal) -> None:
        hooks[self._key] = refusal
        if isinstance(hooks, OrderedDict):
            hooks.move_to_end(self._key, last=False)  # before the user's own

    def _shadow(self, item: torch.nn.Module | torch.optim.Optimizer, refusal: _Refusal) -> None:
        self._shadowed.append(item)
        for name in _METHODS:
            item.__dict__.setdefault(name, refusal)

    def _remove(self) -> None:
        for item in self._shadowed:
            for name in _METHODS:
                if isinstance(item.__dict__.get(name), _Refusal):
                    del item.__dict__[name]
        for module in self._guarded:
            for hooks in (
                module._forward_pre_hooks,
                module._state_dict_pre_hooks,
                module._load_state_dict_pre_hooks,
            ):
                hooks.pop(self._key, None)
        for handle in self._handles:
            handle.remove()
        self._guarded, self._handles, self._shadowed = [], [], []

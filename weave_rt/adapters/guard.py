"""Refusing to run a managed module or optimizer while its memory may belong to another job.

Called by `adapters.torch`, in the thread that runs the job's phases. The hooks are there only
while the tenant is not resident, so a running phase pays nothing; the work at each change is four
dictionary entries per module: before forward, before state_dict and load_state_dict, and instead of
copying.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from weave_rt.errors import NotResident

__all__ = ["Guard"]


class _Refusal:
    """Raises NotResident for whatever is done to it: called as a hook, copied, or pickled."""

    def __init__(self, error: Callable[[], NotResident]) -> None:
        self._error = error

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._error()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise self._error()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise self._error()


class Guard:
    """One switch over all modules and optimizers of a tenant."""

    def __init__(self, error: Callable[[str], NotResident]) -> None:
        self._weights = _Refusal(lambda: error("weights"))
        self._optimizer = _Refusal(lambda: error("optimizer"))
        # one identity for all modules, from torch's own counter, so that it is nobody else's
        self._key = RemovableHandle(OrderedDict()).id
        self._guarded: list[torch.nn.Module] = []
        self._handles: list[RemovableHandle] = []
        self.on = False

    def set(
        self,
        on: bool,
        modules: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        """Install on the given roots (all submodules they have now), or remove. Idempotent."""
        if on == self.on:
            return
        self.on = on
        if on:
            seen: dict[int, torch.nn.Module] = {}
            stack = list(modules)
            while stack:
                module = stack.pop()
                if id(module) not in seen:
                    seen[id(module)] = module
                    stack.extend(m for m in module._modules.values() if m is not None)
            self._guarded = list(seen.values())
            for module in self._guarded:
                module.__dict__.setdefault("__deepcopy__", self._weights)
                for hooks in self._hooks_of(module):
                    hooks[self._key] = self._weights
                    if isinstance(hooks, OrderedDict):
                        hooks.move_to_end(self._key, last=False)  # before the user's own
            self._handles = [o.register_step_pre_hook(self._optimizer) for o in optimizers]
            self._handles += [o.register_state_dict_pre_hook(self._optimizer) for o in optimizers]
        else:
            for module in self._guarded:
                if module.__dict__.get("__deepcopy__") is self._weights:
                    del module.__dict__["__deepcopy__"]
                for hooks in self._hooks_of(module):
                    hooks.pop(self._key, None)
            for handle in self._handles:
                handle.remove()
            self._guarded, self._handles = [], []

    @staticmethod
    def _hooks_of(module: torch.nn.Module) -> tuple[dict[int, Any], ...]:
        return (
            module._forward_pre_hooks,
            module._state_dict_pre_hooks,
            module._load_state_dict_pre_hooks,
        )

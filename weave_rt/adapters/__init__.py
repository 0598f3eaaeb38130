"""Adapters: how the state of foreign objects gets into a tenant, chosen by type.

Asked by `Tenant.adopt`. Nothing is imported for an object's sake: if a library is not loaded yet,
no object can be of its types.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weave_rt.errors import UsageError

if TYPE_CHECKING:
    from weave_rt.tenant import Tenant

__all__ = ["adopt", "check"]


def check(objects: Sequence[object]) -> None:
    """Raise UsageError, naming the type, for an object that no adapter takes."""
    torch = sys.modules.get("torch")
    for item in objects:
        if torch is None or not isinstance(
            item, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
        ):
            kind = f"{type(item).__module__}.{type(item).__qualname__}"
            raise UsageError(
                f"cannot manage an object of type {kind}; pass a torch Module, Optimizer or Tensor"
            )


def adopt(tenant: Tenant, objects: Sequence[object]) -> None:
    """Move the state of `objects` into regions of `tenant`. Raises like `Tenant.adopt`."""
    check(objects)
    tenant.torch_book().add(objects)

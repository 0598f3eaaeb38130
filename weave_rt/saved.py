"""The bytes of a tenant that closes, read region by region. Called by `weave_rt.tenant`."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Iterator, MutableMapping

from weave_rt._core import Tenant as CoreTenant

__all__ = ["Saved"]

log = logging.getLogger("weave_rt")


class Saved(MutableMapping[str, builtins.bytes]):
    """What can be read of a tenant's regions, by tag: read when it is taken, so that no more than
    one tag is held besides what it is copied to. Empty where reading fails."""

    def __init__(self, core: CoreTenant, label: str) -> None:
        self._core, self._label = core, label
        try:
            self._tags = dict.fromkeys(core.rescuable())
        except Exception as error:
            self._failed(error)
            self._tags = {}

    def _failed(self, error: Exception) -> None:
        log.error("%s: nothing can be saved: %s", self._label, error)

    def __getitem__(self, tag: str) -> builtins.bytes:
        if tag not in self._tags:
            raise KeyError(tag)
        try:
            return self._core.rescue(tag)[tag]
        except KeyError:
            raise
        except Exception as error:
            self._failed(error)
            raise KeyError(tag) from error

    def __setitem__(self, tag: str, data: builtins.bytes) -> None:
        raise TypeError("what a tenant has is read, not set")

    def __delitem__(self, tag: str) -> None:
        del self._tags[tag]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tags)

    def __len__(self) -> int:
        return len(self._tags)

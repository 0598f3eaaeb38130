"""What the intra-group state machine asks for: frozen values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Command", "Grant"]


@dataclass(frozen=True, slots=True)
class Grant:
    """The phase of this request may run now, on all its nodes."""

    serial: int


Command = Grant

"""What a GRPO job reports: one record per iteration and one result at the end. No torch here."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["GrpoResult", "IterationRecord", "digest_losses", "float_bits"]


def float_bits(value: float) -> str:
    """The bits of ``value`` as a float32, in eight hexadecimal digits."""
    return struct.pack(">f", value).hex()


def digest_losses(losses: Iterable[float]) -> str:
    """SHA-256 over the losses as little-endian float32, in order."""
    return hashlib.sha256(b"".join(struct.pack("<f", loss) for loss in losses)).hexdigest()


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One iteration of one job."""

    step: int
    reward_mean: float
    """Mean of the verifier's rewards over the batch, 0 to 1."""
    n_correct: int
    """Answers in the batch with reward 1."""
    loss: float
    """Mean over the iteration's optimiser steps, a float32."""
    lengths: tuple[int, ...] = ()
    """Tokens of each answer sampled, the mark that ends it included."""

    @property
    def loss_bits(self) -> str:
        """The loss as eight hexadecimal digits, to compare runs to the bit."""
        return float_bits(self.loss)


@dataclass(frozen=True, slots=True)
class GrpoResult:
    """A finished job."""

    rewards: list[float]
    """``reward_mean`` of every iteration."""
    losses: list[float]
    """``loss`` of every iteration."""
    loss_digest: str
    """SHA-256 over ``losses`` as little-endian float32."""
    weights_digest: str
    """SHA-256 over the policy's parameters as they lie in memory, in the order of their names."""
    state_bytes: dict[str, dict[str, int]]
    """Bytes of managed state by pool and tag, as measured."""

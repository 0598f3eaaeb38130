"""How the inter-group policies decide: one frozen table, from the spec's ``scheduler`` keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weave_scheduler.model import Intra

__all__ = ["Backfill", "Mode", "Settings"]

Mode = Literal["worst-case", "quantile"]
Backfill = Literal["packing", "none", "any"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a policy.

    Attributes:
        intra: the order inside groups, the very one that will run.
        mode: ``worst-case`` plans with every law at its max, ``quantile`` with joint draws.
        quantile, confidence: of the slowdown, in mode ``quantile``.
        replications: joint draws of a test in mode ``quantile``; odds of refusing a good group
            fall with it, those of admitting a bad one do not depend on it.
        max_group: most jobs of a group.
        prune_saturated: skip groups whose load reaches their longest solo iteration before the job
            joins (paper, Algorithm 1).
        require_unsaturated_after: refuse placements whose group is over-saturated afterwards.
        equal_memory: whether a need that is exactly what is left fits; the paper says no.
        backfill: what may overtake a waiting job: ``packing`` a job that needs no free node,
            ``none`` nothing, ``any`` whatever fits.
    """

    intra: Intra = "fifo"
    mode: Mode = "worst-case"
    quantile: float = 0.99
    confidence: float = 0.95
    replications: int = 500
    max_group: int = 5
    prune_saturated: bool = False
    require_unsaturated_after: bool = False
    equal_memory: bool = True
    backfill: Backfill = "packing"

    def __post_init__(self) -> None:
        if not (0 < self.quantile < 1 and 0 < self.confidence < 1):
            raise ValueError("quantile and confidence: allowed: more than 0 and less than 1")
        if self.max_group < 1 or self.replications < 1:
            raise ValueError("max_group and replications: allowed: 1 or more")

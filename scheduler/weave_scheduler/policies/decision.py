"""What a policy answers, and why: the candidates with their prices and the tests they met."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from weave_scheduler.model import Placement

__all__ = ["Candidate", "Decision", "Kind", "Verdict"]

Kind = Literal["direct packing", "rollout scaling", "isolated"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a group keeps the limits of its members, and which test said so.

    Attributes:
        by: ``closed form``, ``lower bound``, ``upper bound``, ``cycle ratio``, ``simulation``,
            ``quantile``, or what else refused it: ``memory``, ``capacity``, ``saturated``.
        period_s: seconds between iterations of the slowest member; of every member where the order
            makes all equal.
        binds: the term of the period that binds.
        slack: least of (limit - planned iteration) / limit over the members with a limit.
        iterations_s: planned seconds of an iteration, per member.
        slowdowns: against what the mode measures the SLO by, per member.
        order: strict order that was chosen.
    """

    admitted: bool
    by: str
    reason: str = ""
    period_s: float | None = None
    binds: str = ""
    slack: float | None = None
    iterations_s: tuple[float, ...] = ()
    slowdowns: tuple[float, ...] = ()
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to place a job.

    Attributes:
        group: id of the group it would join; None: a new one.
        delta: price per hour that it adds.
        new_nodes: ids of the nodes it adds, per pool.
        verdict: None where a cheaper one was found before it was tried.
    """

    kind: Kind
    group: int | None
    placement: Placement
    delta: float
    new_nodes: Placement
    verdict: Verdict | None = None

    @property
    def admitted(self) -> bool:
        return self.verdict is not None and self.verdict.admitted

    def judged(self, verdict: Verdict) -> Candidate:
        return replace(self, verdict=verdict)


@dataclass(slots=True)
class Decision:
    """The answer for one job.

    Attributes:
        chosen: None: the job waits, for ``reason``.
        candidates: those looked at, in the order in which they were; all of them where the
            decision was asked to explain itself.
        ruled_out: how many groups a bound excluded at once, per reason.
        never: the job can never be placed, whoever leaves.
    """

    job: str
    policy: str
    chosen: Candidate | None
    reason: str = ""
    candidates: list[Candidate] = field(default_factory=list)
    ruled_out: dict[str, int] = field(default_factory=dict)
    never: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what was not computed is absent."""
        return {
            "job": self.job,
            "policy": self.policy,
            "chosen": None if self.chosen is None else _plain(self.chosen),
            "reason": self.reason,
            "candidates": [_plain(one) for one in self.candidates],
            "ruled_out": self.ruled_out,
        }


def _plain(candidate: Candidate) -> dict[str, Any]:
    made = asdict(candidate)
    verdict = made.pop("verdict")
    if verdict is not None:
        made["verdict"] = {
            key: value
            for key, value in verdict.items()
            if value not in (None, "", ()) and not _endless(value)
        }
    return made


def _endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)

"""The inter-group policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weave_scheduler.model import PoolModel
from weave_scheduler.policies.desk import Policy
from weave_scheduler.policies.packing import MostIdlePolicy, RandomPolicy, SoloPolicy
from weave_scheduler.policies.paper import PaperPolicy
from weave_scheduler.policies.residency import residency_of
from weave_scheduler.policies.settings import Settings
from weave_scheduler.policies.weave import WeavePolicy

__all__ = ["POLICIES", "policy_of"]

POLICIES: dict[str, Callable[[Settings], Policy]] = {
    "weave": WeavePolicy,
    "paper": PaperPolicy,
    "random": RandomPolicy,
    "most-idle": MostIdlePolicy,
    "solo": SoloPolicy,
}


def policy_of(
    name: str, settings: Settings, pools: Mapping[str, PoolModel] | None = None
) -> Policy:
    """Ours tests memory by the planned residency where the GPUs of ``pools`` are known.

    Raises ValueError for an unknown name."""
    if name not in POLICIES:
        raise ValueError(f"policy {name!r} is not known; allowed: {', '.join(POLICIES)}")
    if name == "weave" and pools is not None:
        return WeavePolicy(settings, residency_of(pools))
    return POLICIES[name](settings)

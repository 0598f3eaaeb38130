"""Which jobs share which nodes: the inter-group policies and the cluster they decide about."""

from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.decision import Candidate, Decision, Verdict
from weave_scheduler.policies.paper import PaperPolicy
from weave_scheduler.policies.settings import Settings
from weave_scheduler.policies.weave import WeavePolicy

__all__ = [
    "Candidate",
    "Cluster",
    "Decision",
    "PaperPolicy",
    "Resident",
    "Settings",
    "Verdict",
    "WeavePolicy",
]

"""Which jobs share which nodes: the inter-group policies and the cluster they decide about."""

from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.decision import Candidate, Decision, Verdict
from weave_scheduler.policies.desk import Desk, Policy
from weave_scheduler.policies.names import POLICIES, policy_of
from weave_scheduler.policies.paper import PaperPolicy
from weave_scheduler.policies.settings import Settings
from weave_scheduler.policies.weave import WeavePolicy

__all__ = [
    "POLICIES",
    "Candidate",
    "Cluster",
    "Decision",
    "Desk",
    "PaperPolicy",
    "Policy",
    "Resident",
    "Settings",
    "Verdict",
    "WeavePolicy",
    "policy_of",
]

"""The exact offline optimum of one instant: which jobs share a group, at the least hourly price.

``columns`` enumerates the feasible groups, ``partition`` chooses among them by subset dynamic
programming, HiGHS or CP-SAT. For jobs of one rollout node each.
"""

from weave_scheduler.exact.columns import Columns, Instance, feasible_groups
from weave_scheduler.exact.partition import Optimum, by_cpsat, by_milp, by_subsets

__all__ = [
    "Columns",
    "Instance",
    "Optimum",
    "by_cpsat",
    "by_milp",
    "by_subsets",
    "feasible_groups",
]

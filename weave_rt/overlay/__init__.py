"""The residency planner: what stays on a device, what moves, and whether the device waits for it.

Pure Python without devices, clocks or threads, so that the runtime, `weave plan` and the simulator
ask the same thing. Sizes are in blocks, times in seconds. ARCHITECTURE.md has the idea; `fewest`
and `map` the two rules, `plan` the choice between them, `members` who may come and grow.
"""

from weave_rt.overlay.cycle import Switch, Turn, cyclic_order, run_cycle
from weave_rt.overlay.fewest import check_feasible, closed_form_window, moving_blocks
from weave_rt.overlay.live import RegionBlocks, quotas, tenant_blocks
from weave_rt.overlay.map import Moved, ResidencyMap
from weave_rt.overlay.members import Planner, admit
from weave_rt.overlay.model import (
    Link,
    TenantBlocks,
    Unmanaged,
    Usable,
    blocks_of,
    tenth,
    usable_frames,
)
from weave_rt.overlay.plan import KINDS, Plan, make_plan

__all__ = [
    "KINDS",
    "Link",
    "Moved",
    "Plan",
    "Planner",
    "RegionBlocks",
    "ResidencyMap",
    "Switch",
    "TenantBlocks",
    "Turn",
    "Unmanaged",
    "Usable",
    "admit",
    "blocks_of",
    "check_feasible",
    "closed_form_window",
    "cyclic_order",
    "make_plan",
    "moving_blocks",
    "quotas",
    "run_cycle",
    "tenant_blocks",
    "tenth",
    "usable_frames",
]

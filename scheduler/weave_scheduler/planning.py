"""The commands around a plan: a spec is planned, a snapshot of a decision is replayed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weave_rt.conditions import now_utc
from weave_rt.errors import UsageError
from weave_scheduler.conditions import conditions
from weave_scheduler.devices import check_spill, listed_gpus, own_host_memory
from weave_scheduler.document import SpecError, is_trace
from weave_scheduler.outdir import check_target, write_whole
from weave_scheduler.plan import Plan, make_plan, one_group
from weave_scheduler.plandrawing import draw_group
from weave_scheduler.planinput import (
    check_quantile,
    job_model,
    job_models,
    pool_models,
    settings_of,
)
from weave_scheduler.plantables import decision_table, plan_tables, short_plan
from weave_scheduler.policies.regroup import regroup
from weave_scheduler.policies.snapshot import replay
from weave_scheduler.profile import read_profile, with_profile
from weave_scheduler.spec import POOLS, SchedulerSpec
from weave_scheduler.specfile import SpecFile, load_spec
from weave_scheduler.support import Placement
from weave_scheduler.tables import Table
from weave_scheduler.units import format_bytes, format_duration, format_money

__all__ = ["Shown", "plan_file", "run_order", "run_plan"]


_DRAWN = 20  # groups, at most


@dataclass(slots=True)
class Shown:
    """What a command has to show.

    Attributes:
        lines: drawings and remarks, after the tables.
        code: 1 where a replayed decision came out differently, or a plan places no job.
        complaint: why, where the tables and lines do not say it.
    """

    record: dict[str, Any]
    tables: list[Table]
    lines: list[str] = field(default_factory=list)
    code: int = 0
    complaint: str = ""


def plan_file(
    path: Path, why: str | None, snapshot: Path | None, profile: Path | None = None
) -> Shown:
    """Plan a spec, or replay a decision. ``profile``: measured laws for the spec.

    Raises SpecError or UsageError for a mistake.
    """
    content = _decision_in(path)
    if content is None:
        return _plan_spec(path, why, snapshot, profile)
    if why is not None or snapshot is not None or profile is not None:
        raise UsageError(f"{path}: is a decision; --why, --snapshot, --profile belong to a spec")
    try:
        again = replay(content)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    decision = again.decision.as_dict()
    record = {
        "format": "weave-decision",
        "version": 1,
        "conditions": conditions([], now_utc()),
        "same": again.same,
        "decision": decision,
    }
    where = _where(decision)
    said = "the same answer" if again.same else "a different answer than the recorded one"
    return Shown(record, [decision_table(decision)], [f"{where}; {said}"], int(not again.same))


def _decision_in(path: Path) -> dict[str, Any] | None:
    """The content where the file is JSON with a format of ours; None where it is a spec."""
    try:
        text = path.read_text(encoding="utf-8")
        if is_trace(text):
            raise SpecError(f"{path}: is a trace; weave plan takes a spec or a decision")
        content = json.loads(text)
    except SpecError:
        raise
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "format" in content else None


def _plan_spec(path: Path, why: str | None, snapshot: Path | None, profile: Path | None) -> Shown:
    if snapshot is not None:
        check_target(snapshot, "--snapshot", read=[path, profile])
    loaded = load_spec(path)
    if profile is not None:
        loaded = with_profile(loaded, read_profile(profile))
    check_quantile(loaded)
    check_spill(loaded, make=False)
    settings = settings_of(loaded.spec)
    pools = pool_models(loaded, gpus=listed_gpus(loaded))
    jobs = job_models(loaded)
    try:
        plan = make_plan(jobs, pools, settings, loaded.spec.scheduler.inter, why, loaded.spec.plan)
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
    block = conditions([], now_utc())
    record = {"format": "weave-plan", "version": 1, "conditions": block, **plan.record}
    tables = plan_tables(record)
    lines: list[str] = []
    worst = settings.mode == "worst-case"
    for resident, group in list(zip(plan.residents, plan.record["groups"], strict=True))[:_DRAWN]:
        order = [group["jobs"].index(name) for name in group["order"]] if "order" in group else None
        lines += [f"group {resident.id}, planned durations:"]
        lines += draw_group(resident.group, settings.intra, group["period_s"], order, worst=worst)
        lines.append("")
    if len(plan.residents) > _DRAWN:
        lines += [f"and {len(plan.residents) - _DRAWN} groups more, not drawn", ""]
    if loaded.spec.host.budget is not None:
        record["host"], told = _pinned(loaded, record["groups"])
        lines += told
    if loaded.spec.scheduler.regroup_horizon is not None:
        record["regrouping"], said = _regrouping(loaded.spec.scheduler, plan)
        lines.append(said)
    if plan.explained is not None and why is not None:
        decision = plan.explained.as_dict()
        record["why"] = decision
        tables.append(decision_table(decision))
        lines.append(_where(decision) + _held_back(decision, plan.record["waiting"]))
        lines += [f"{reason}" for reason in plan.explained.ruled_out]
    if snapshot is not None:
        content = {"format": "weave-decision", "version": 1, "conditions": block, **plan.snapshot}
        write_whole(snapshot, json.dumps(content, indent=2) + "\n")
        lines.append(f"written: {snapshot}")
    if plan.residents:
        return Shown(record, tables, lines)
    first = [*record["refused"], *record["waiting"]][0]
    complaint = f"no job was placed; {first['job']}: {first['reason']}"
    return Shown(record, tables, lines, 1, complaint)


def _pinned(
    loaded: SpecFile, groups: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """What the jobs of the plan take of ``host.budget``, and what happens where that is not enough.
    Nodes whose ``host_memory`` is less than the budget have that instead."""
    host = loaded.spec.host
    sharing = [pool for pool in POOLS if own_host_memory(loaded, pool) is None]
    need = sum(
        row["host_bytes"]
        for group in groups
        for row in group["memory"]
        if row["node"].partition(":")[0] in sharing
    )
    record = {"bytes": need, "budget": host.budget, "spill": host.spill is not None}
    if host.budget is None or need <= host.budget:
        return record, []
    over = format_bytes(need - host.budget)
    return record, [
        f"host.budget: the state of the placed jobs takes {format_bytes(need)} of host memory, the"
        f" budget is {format_bytes(host.budget)}: "
        + (
            f"{over} will be in files in {host.spill}"
            if host.spill is not None
            else f"without host.spill weave run has no place for {over}"
        )
    ]


def _regrouping(scheduler: SchedulerSpec, plan: Plan) -> tuple[dict[str, Any], str]:
    """What placing all jobs anew would move, save and cost; the plan itself stays."""
    hours = (scheduler.regroup_horizon or 0.0) / 3600
    found = regroup(
        plan.desk.cluster, plan.desk.policy, horizon_h=hours, migrate_s=scheduler.regroup_migrate
    )
    record = {
        "moved": list(found.moved),
        "saving_per_h": found.saving_per_h,
        "cost": found.cost,
        "horizon_h": hours,
        "worth": found.worth,
    }
    if not found.moved:
        return record, "regrouping: would move nobody"
    return record, (
        f"regrouping: would move {', '.join(found.moved)}; saves"
        f" {format_money(found.saving_per_h)} per hour, costs {format_money(found.cost)} once:"
        f" {'worth it' if found.worth else 'not worth it'} over"
        f" {format_duration(hours * 3600)}"
    )


def _where(decision: dict[str, Any]) -> str:
    chosen = decision["chosen"]
    if chosen is None:
        return f"job {decision['job']} {decision['reason']}"
    group = "a group of its own" if chosen["group"] is None else f"group {chosen['group']}"
    return f"job {decision['job']}: {chosen['kind']}, {group}, by {chosen['verdict']['by']}"


def _held_back(decision: dict[str, Any], waiting: list[dict[str, str]]) -> str:
    """Where the policy has a place, but others are in line before the job."""
    reasons = [one["reason"] for one in waiting if one["job"] == decision["job"]]
    return f"; but it {reasons[0]}" if reasons and decision["chosen"] is not None else ""


def run_plan(
    loaded: SpecFile, placements: dict[str, Placement], profile: Path | None = None
) -> list[str]:
    """What the same mathematics says about the one group that is about to run; never refuses it.
    Raises SpecError for a profile that cannot be read."""
    try:
        return short_plan(_one_group(loaded, placements, profile))
    except ValueError as error:
        if isinstance(error, SpecError) and profile is not None:
            raise
        return [f"no plan: {error}"]


def run_order(
    loaded: SpecFile, placements: dict[str, Placement], profile: Path | None = None
) -> list[str]:
    """Job names in the planned strict order; that of the spec where there is no plan."""
    try:
        record = _one_group(loaded, placements, profile)
    except ValueError:
        record = {}
    return list(record.get("order", [job.name for job in loaded.spec.jobs]))


def _one_group(
    loaded: SpecFile, placements: dict[str, Placement], profile: Path | None
) -> dict[str, Any]:
    """The record of the one group that runs. Raises ValueError where it cannot be planned."""
    if profile is not None:
        loaded = with_profile(loaded, read_profile(profile))
    jobs = [(job_model(job), placements[job.name]) for job in loaded.spec.jobs]
    return one_group(jobs, pool_models(loaded, priced=False), settings_of(loaded.spec))

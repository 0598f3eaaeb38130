"""Tables of a plan and of a decision, from their JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weave_scheduler.devicetables import device_tables
from weave_scheduler.tables import Table
from weave_scheduler.units import format_bytes, format_duration, format_money

__all__ = ["decision_table", "plan_tables", "short_plan"]

Row = Mapping[str, Any]


def plan_tables(record: Row) -> list[Table]:
    """Groups, jobs, memory, who waits, totals; a table without rows is not shown."""
    return [
        _groups(record["groups"]),
        _jobs(record["groups"]),
        _memory(record["groups"]),
        *device_tables(record.get("devices", ())),
        Table(
            "Not placed",
            ["job", "why"],
            [[one["job"], one["reason"]] for one in (*record["waiting"], *record["refused"])],
        ),
        _totals(record["totals"]),
    ]


def _groups(groups: list[Row]) -> Table:
    rows = [
        [
            str(one["id"]),
            ", ".join(one["jobs"]),
            format_duration(one["period_s"]),
            one["binds"],
            _percent(one.get("slack")),
            _percent(_mean(one["bubbles"], "rollout")),
            _percent(_mean(one["bubbles"], "train")),
            format_money(one["cost"]) if "cost" in one else "",
            one["admitted_by"],
        ]
        for one in groups
    ]
    heads = ["group", "jobs", "period", "binds", "slack", "idle rollout", "idle train", "per hour"]
    return Table("Groups", [*heads, "admitted by"], rows)


def _jobs(groups: list[Row]) -> Table:
    rows = [
        [
            job["name"],
            str(group["id"]),
            _nodes(job["rollout"]),
            _nodes(job["train"]),
            format_duration(job["iteration_s"]),
            _ratio(job.get("slowdown_worst")),
            _ratio(job.get("slowdown_mean")),
            _ratio(job.get("slo")),
            format_duration(job["iteration_switched_s"]) if "iteration_switched_s" in job else "",
        ]
        for group in groups
        for job in group["members"]
    ]
    heads = [
        "job",
        "group",
        "rollout",
        "train",
        "iteration",
        "against worst",
        "against mean",
        "SLO",
        "mean, with switches",
    ]
    return Table("Jobs (planned slowdown against the same job alone)", heads, rows)


def _memory(groups: list[Row]) -> Table:
    rows = [
        [
            row["node"],
            format_bytes(row["host_bytes"]),
            format_bytes(row["host_capacity"]) if "host_capacity" in row else "",
        ]
        for group in groups
        for row in group["memory"]
        if row["host_bytes"]
    ]
    return Table("Host memory", ["node", "needed", "there is"], rows)


def _totals(totals: Row) -> Table:
    heads = ["jobs", "groups", "rollout nodes", "train nodes"]
    row = [str(totals[key]) for key in ("jobs", "groups", "rollout_nodes", "train_nodes")]
    if "cost" in totals:
        heads += ["per hour", "alone per hour"]
        row += [format_money(totals["cost"]), format_money(totals["cost_solo"])]
    return Table("Totals", heads, [row])


def decision_table(decision: Row) -> Table:
    """Every candidate of one decision: price, fate, test, reason."""
    chosen = decision["chosen"]
    rows = []
    for one in decision["candidates"]:
        verdict = one.get("verdict", {})
        taken = chosen is not None and _same(one, chosen)
        fate = "chosen" if taken else "dearer or later" if verdict.get("admitted") else "refused"
        rows.append(
            [
                one["kind"],
                "new" if one["group"] is None else str(one["group"]),
                _nodes(one["placement"]["rollout"]),
                _nodes(one["placement"]["train"]),
                format_money(one["delta"]),
                fate if verdict else "not tried",
                verdict.get("by", ""),
                format_duration(verdict["period_s"]) if "period_s" in verdict else "",
                _percent(verdict.get("slack")),
                verdict.get("reason", ""),
            ]
        )
    heads = ["candidate", "group", "rollout", "train", "adds per hour", "fate", "test", "period"]
    return Table(f"Why {decision['job']} went there", [*heads, "slack", "reason"], rows)


def _same(one: Row, other: Row) -> bool:
    return all(one[key] == other[key] for key in ("kind", "group", "placement"))


def short_plan(group: Row) -> list[str]:
    """What ``weave run`` says before it starts: the period, and each job against its limit."""
    jobs = []
    for job in group["members"]:
        slowdown = job.get("slowdown_worst", job.get("slowdown_mean", 0.0))
        limit = f" of {job['slo']:g}" if "slo" in job else ""
        jobs.append(f"{job['name']} {slowdown:.2f}{limit}")
    many = len(group["members"]) > 1
    lines = [
        f"plan: {'a period' if many else 'an iteration'} of {format_duration(group['period_s'])},"
        f" bound by {group['binds']} ({group['admitted_by']});"
        f" slowdown {'each ' if many else ''}against worst case alone: {', '.join(jobs)}"
    ]
    if not group["kept"]:
        lines.append(f"plan: a limit will not be kept: {group['reason']}")
    return lines


def _mean(bubbles: Row, pool: str) -> float | None:
    own = [share for node, share in bubbles.items() if node.startswith(pool)]
    return sum(own) / len(own) if own else None


def _nodes(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"

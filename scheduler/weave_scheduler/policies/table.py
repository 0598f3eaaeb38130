"""All groups of a cluster as arrays, so that one pass rules out those that cannot take a job.

A row is a group. Rollout nodes stand in the order of ``weave_scheduler.policies.candidates`` (load,
then id), so that a candidate is a run of neighbours. Rows are written again when their group
changed. Only groups of common jobs (``weave_scheduler.policies.quick``) are held against bounds
here; others are left to the general tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weave_scheduler.groupmath import longest_phases, mean_phases
from weave_scheduler.model import Group, JobModel, Member, Placement
from weave_scheduler.policies.admission import limit_s, oversaturated
from weave_scheduler.policies.candidates import rollout_loads
from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.components import component_labels
from weave_scheduler.policies.decision import Candidate, Verdict
from weave_scheduler.policies.memory import host_bytes
from weave_scheduler.policies.quick import MOST_NODES, first_admitted
from weave_scheduler.policies.scan import REASONS, scan_groups
from weave_scheduler.policies.settings import Settings

__all__ = ["GroupTable", "Scan", "common_times"]

_NODES = 24  # rollout nodes of a group that the arrays can hold; larger ones are judged generally


def common_times(member: Member, settings: Settings) -> tuple[float, float, float, float] | None:
    """Rollout, its switch, training, its switch in seconds; None for jobs of another kind."""
    job = member.job
    if len(job.phases) != 2:
        return None
    roll, train = job.phases
    common = (
        (roll.pools, train.pools) == (("rollout",), ("train",))
        and train.after == (roll.name,)
        and roll.tail is None
        and train.tail is None
        and not job.switch_rollout.background_s
        and not job.switch_train.background_s
        and train.name not in ("weight_sync", "save")
    )
    if not common:
        return None
    seconds = longest_phases if settings.mode == "worst-case" else mean_phases
    scale = job.train_factor(len(member.placement.train))
    return (
        seconds(member, roll),
        job.switch_rollout.foreground_s,
        seconds(member, train) * scale,
        job.switch_train.foreground_s,
    )


@dataclass(slots=True)
class Scan:
    """What one pass over all groups left.

    Attributes:
        generic: groups whose candidates the general tests have to judge, by id.
        ruled_out: number of groups per reason.
    """

    generic: list[Resident]
    ruled_out: dict[str, int]
    found: Candidate | None = None

    def quick(self) -> Candidate | None:
        """The first candidate that the compiled tests admitted."""
        return self.found


@dataclass(slots=True)
class _Arrays:
    """Columns of the table; the first index is the row."""

    jobs: Any
    nodes: Any
    degree: Any
    plain: Any
    saturated: Any
    times: Any  # [row, job, (rollout, switch, training, switch)]
    limit: Any
    solo: Any
    mask: Any
    load: Any
    span: Any  # [row, node, (limit, trainings, longest solo) of the node's component]
    whole: Any  # [row, (limit, trainings, longest solo, share of the training pool)]
    memory: Any  # [row, node, (host, largest phase beyond its own residue, residues)]
    train_memory: Any

    @classmethod
    def of(cls, rows: int, jobs: int) -> _Arrays:
        whole = np.int64
        return cls(
            np.zeros(rows, whole), np.zeros(rows, whole), np.zeros(rows, whole),
            np.zeros(rows, np.bool_), np.zeros(rows, np.bool_),
            np.zeros((rows, jobs, 4)), np.zeros((rows, jobs)), np.zeros((rows, jobs)),
            np.zeros((rows, jobs), whole), np.zeros((rows, _NODES)),
            np.zeros((rows, _NODES, 3)), np.zeros((rows, 4)), np.zeros((rows, _NODES, 3)),
            np.zeros((rows, 3)),
        )  # fmt: skip

    def columns(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)


@dataclass(slots=True)
class _Rows:
    """Which group is in which row."""

    row: dict[int, int] = field(default_factory=dict)
    spare: list[int] = field(default_factory=list)
    nodes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # in order of load


class GroupTable:
    """Arrays that follow one cluster. ``summed``: needs of memory are the plain sums."""

    def __init__(self, settings: Settings, summed: bool = True) -> None:
        self._settings = settings
        self._summed = summed
        self._cluster: Cluster | None = None
        self._rows = _Rows()
        self._arrays = _Arrays.of(16, settings.max_group)

    def scan(self, job: JobModel, cluster: Cluster, limit: float) -> Scan:
        """Rule groups out, and find the first candidate up to the price ``limit`` where the
        compiled tests can judge it."""
        self._follow(cluster)
        settings = self._settings
        ids = np.array(sorted(self._rows.row), dtype=np.int64)
        rows = np.array([self._rows.row[number] for number in ids.tolist()], dtype=np.int64)
        table = self._arrays.columns()
        asked = self._asked(job, cluster)
        switches = (
            settings.max_group, settings.intra == "fifo", settings.prune_saturated,
            settings.equal_memory, not self._summed,
        )  # fmt: skip
        passing = np.zeros((len(rows), _NODES), dtype=np.bool_)
        reason = scan_groups(rows, table, asked, switches, passing)
        price = cluster.pools["rollout"].node.cost_per_h
        new = (
            job.rollout_nodes if not price else min(job.rollout_nodes, limit / price * (1 + 1e-12))
        )
        free = cluster.free("rollout")
        most = int(new if free is None else min(new, free))
        means = np.zeros(settings.max_group)
        place, added, start, how = first_admitted(
            rows, table, asked, reason, passing, most,
            settings.require_unsaturated_after, settings.intra == "fifo", means,
        )  # fmt: skip
        counts = np.bincount(reason, minlength=len(REASONS)).tolist()
        scan = Scan(
            [cluster.residents[int(ids[at])] for at in np.flatnonzero(reason == 1)],
            {REASONS[code]: count for code, count in enumerate(counts) if code > 1 and count},
        )
        if place >= 0:
            resident = cluster.residents[int(ids[place])]
            scan.found = self._candidate(job, cluster, resident, added, start, how, means)
        return scan

    def _candidate(
        self, job: JobModel, cluster: Cluster, resident: Resident,
        added: int, start: int, how: int, means: Any,
    ) -> Candidate:  # fmt: skip
        group = resident.group
        kept = self._rows.nodes[resident.id][start : start + job.rollout_nodes - added]
        new = cluster.next_nodes("rollout", added)
        members = [*(one.job for one in group.members), job]
        seconds = tuple(means[: len(members)].tolist())
        ratios = tuple(
            one / member.solo_max_s for one, member in zip(seconds, members, strict=True)
        )
        left = [1 - r / one.slo for r, one in zip(ratios, members, strict=True) if one.slo]
        verdict = Verdict(
            True,
            ("closed form", "upper bound", "simulation")[how],
            period_s=max(seconds),
            slack=min(left, default=None),
            iterations_s=seconds,
            slowdowns=ratios,
        )
        return Candidate(
            "rollout scaling" if added else "direct packing",
            resident.id,
            Placement((*sorted(kept), *new), group.train),
            added * cluster.pools["rollout"].node.cost_per_h,
            Placement(new, ()),
            verdict,
        )

    def _asked(self, job: JobModel, cluster: Cluster) -> tuple[Any, ...]:
        """The job as arrays: per number of training nodes, its times, limit and needs."""
        settings = self._settings
        most = max(job.supported())
        times = np.full((most + 1, 4), np.nan)
        memory = np.zeros((most + 1, 3))
        plain = not (job.rollout_pins or job.train_pins)
        plain = plain and job.rollout_nodes <= MOST_NODES - _NODES  # else there are too few bits
        for degree in job.supported():
            nodes = Placement(tuple(range(job.rollout_nodes)), tuple(range(degree)))
            known = common_times(Member(job, nodes), settings)
            plain = plain and known is not None
            times[degree] = known or (0.0, 0.0, 0.0, 0.0)
            memory[degree] = _needs(job, "train", degree)
        rooms = [
            (float(model.node.host_bytes), float(model.node.device_bytes) or math.inf)
            for model in (cluster.pools["rollout"], cluster.pools["train"])
        ]
        return (
            times, memory, np.array(_needs(job, "rollout", job.train_nodes)), plain,
            limit_s(job, settings), job.rollout_nodes, np.array(rooms),
            settings.mode == "worst-case",
        )  # fmt: skip

    def _follow(self, cluster: Cluster) -> None:
        """Write the rows of groups that changed since the last look."""
        if cluster is not self._cluster:
            self._cluster = cluster
            self._rows = _Rows()
            changed = set(cluster.residents)
        else:
            changed = set(cluster.changed)
        cluster.changed.clear()
        for number in changed:
            resident = cluster.residents.get(number)
            if resident is None:
                row = self._rows.row.pop(number, None)
                if row is not None:
                    self._rows.spare.append(row)
                continue
            row = self._rows.row.get(number)
            if row is None:
                row = self._rows.row[number] = self._spare()
            self._write(row, resident)

    def _spare(self) -> int:
        if self._rows.spare:
            return self._rows.spare.pop()
        row = len(self._rows.row)
        if row >= len(self._arrays.jobs):
            larger = _Arrays.of(2 * row, self._settings.max_group)
            for new, old in zip(larger.columns(), self._arrays.columns(), strict=True):
                new[: len(old)] = old
            self._arrays = larger
        return row

    def _write(self, row: int, resident: Resident) -> None:
        group, table = resident.group, self._arrays
        loads = rollout_loads(group)
        nodes = tuple(sorted(group.rollout, key=lambda node: (loads[node], node)))
        self._rows.nodes[resident.id] = nodes
        known = [common_times(member, self._settings) for member in group.members]
        table.jobs[row] = len(group.members)
        table.nodes[row] = len(nodes)
        table.degree[row] = len(group.train)
        table.plain[row] = (
            None not in known
            and not group.pairs
            and len(nodes) <= _NODES
            and len(group.members) <= self._settings.max_group
            and self._settings.intra != "barrier"
        )
        if self._settings.prune_saturated:
            table.saturated[row] = oversaturated(group) >= 0
        if table.plain[row]:
            self._write_common(row, group, nodes, [one for one in known if one is not None])

    def _write_common(
        self, row: int, group: Group, nodes: tuple[int, ...],
        times: list[tuple[float, float, float, float]],
    ) -> None:  # fmt: skip
        table, fifo = self._arrays, self._settings.intra == "fifo"
        local = {node: at for at, node in enumerate(nodes)}
        here = [[local[node] for node in one.placement.rollout] for one in group.members]
        limits = [limit_s(one.job, self._settings) for one in group.members]
        label = component_labels([frozenset(one) for one in here]) if fifo else [0] * len(here)
        table.times[row, : len(times)] = times
        table.limit[row, : len(times)] = limits
        table.solo[row, : len(times)] = [one[0] + one[2] for one in times]
        table.mask[row, : len(times)] = [sum(1 << at for at in one) for one in here]
        table.load[row] = 0.0
        table.memory[row] = 0.0
        table.train_memory[row] = 0.0
        share = 0.0
        for component in set(label):
            inside = [at for at, one in enumerate(label) if one == component]
            span = (
                min(limits[at] for at in inside),
                sum(times[at][2] for at in inside),
                max(times[at][0] + times[at][2] for at in inside),
            )
            share += span[1] / span[0]
            for at in inside:
                table.span[row, here[at]] = span
        table.whole[row] = (
            min(limits), sum(one[2] for one in times), max(one[0] + one[2] for one in times), share
        )  # fmt: skip
        for member, own, places in zip(group.members, times, here, strict=True):
            degree = len(member.placement.train)
            _add(table.train_memory[row : row + 1], _needs(member.job, "train", degree))
            for at in places:
                table.load[row, at] += own[0]
                _add(table.memory[row, at : at + 1], _needs(member.job, "rollout", degree))


def _needs(job: JobModel, pool: str, degree: int) -> tuple[float, float, float]:
    """Host bytes, device bytes beyond what it keeps asleep, device bytes it keeps asleep."""
    need = job.need(pool, degree)
    asleep = float(need.residual_bytes)
    return (
        float(host_bytes(job, pool, degree)),
        float(need.device_bytes + need.running_bytes) - asleep,
        asleep,
    )


def _add(there: Any, need: tuple[float, float, float]) -> None:
    there[0, 0] += need[0]
    there[0, 1] = max(there[0, 1], need[1])
    there[0, 2] += need[2]

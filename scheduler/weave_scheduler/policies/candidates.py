"""The ways to place a job: packing it, scaling the rollout nodes, a group of its own. Pure.

The paper leaves open which subsets of nodes a job of several rollout nodes may take and how much is
"just enough" to scale. Ours: the nodes of a group are put in order of their rollout load (ties: the
smaller id), and a job of m nodes takes any k neighbours in that order and m - k new nodes, for
k = m (direct packing), then m - 1, .. 0 (rollout scaling). For one node that is the paper's list:
every node, then a new one. Neighbours in load are mostly nodes that hold the same jobs, and gangs
that are nested wait least for each other. A job trains on all training nodes of the group, with
their number as its degree; a new group may have any number that the job supports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weave_scheduler.model import Group, JobModel, Member, Node, Placement, PoolModel
from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.decision import Candidate

__all__ = ["grown", "in_group", "isolated", "rollout_loads", "shaped", "too_wide"]


def rollout_loads(group: Group) -> dict[int, float]:
    """Seconds of rollout per iteration on each rollout node: at the max, else at the mean."""
    loads = dict.fromkeys(group.rollout, 0.0)
    for member in group.members:
        seconds = 0.0
        for phase in member.job.phases:
            if "rollout" in phase.pools:
                most = phase.law.max_s
                seconds += phase.law.mean_s if most is None else most
        for node in member.placement.rollout:
            loads[node] += seconds
    return loads


def shaped(group: Group, job: JobModel) -> str | None:
    """Why the job cannot take the group's training nodes; None where it can."""
    if len(group.train) not in job.supported():
        known = ", ".join(map(str, job.supported()))
        return f"trains on {known} nodes, the group has {len(group.train)}"
    if job.train_pins and set(job.train_pins) != set(group.train):
        return "is pinned to other training nodes"
    return None


def in_group(job: JobModel, resident: Resident, cluster: Cluster) -> Iterator[Candidate]:
    """Candidates in this group, fewest new nodes first. pre: ``shaped`` found nothing."""
    group = resident.group
    if job.rollout_pins:
        yield from _pinned(job, resident, cluster)
        return
    loads = rollout_loads(group)
    nodes = sorted(group.rollout, key=lambda node: (loads[node], node))
    price = cluster.pools["rollout"].node.cost_per_h
    free = cluster.free("rollout")
    for new in range(job.rollout_nodes + 1):
        kept = job.rollout_nodes - new
        if kept > len(nodes) or (free is not None and new > free):
            continue
        added = cluster.next_nodes("rollout", new)
        for first in range(len(nodes) - kept + 1 if kept else 1):
            yield Candidate(
                "rollout scaling" if new else "direct packing",
                resident.id,
                Placement((*sorted(nodes[first : first + kept]), *added), group.train),
                new * price,
                Placement(added, ()),
            )


def _pinned(job: JobModel, resident: Resident, cluster: Cluster) -> Iterator[Candidate]:
    group = resident.group
    added = tuple(node for node in job.rollout_pins if node not in group.rollout)
    if any(node in one.group.rollout for node in added for one in cluster.residents.values()):
        return
    yield Candidate(
        "rollout scaling" if added else "direct packing",
        resident.id,
        Placement(job.rollout_pins, group.train),
        len(added) * cluster.pools["rollout"].node.cost_per_h,
        Placement(added, ()),
    )


def too_wide(job: JobModel, cluster: Cluster) -> str | None:
    """Why the job asks for more nodes than a pool has, whoever leaves; None where it does not."""
    for pool, least in (("rollout", job.rollout_nodes), ("train", min(job.supported()))):
        count = cluster.pools[pool].count
        if count is not None and least > count:
            return f"needs {least} {pool} nodes, the pool has {count}"
    return None


def isolated(
    job: JobModel, cluster: Cluster, degrees: tuple[int, ...], *, even_full: bool = False
) -> list[Candidate]:
    """A group of its own, one candidate per number of training nodes, cheapest first.

    ``even_full``: also where too few nodes are free now (ids then only stand for a number).
    """
    free = {pool: None if even_full else cluster.free(pool) for pool in cluster.pools}
    taken = {
        pool: {node for one in cluster.residents.values() for node in one.group.nodes(pool)}
        for pool in ("rollout", "train")
        if job.pins(pool)
    }
    made = []
    for degree in sorted(degrees):
        wanted = {"rollout": job.rollout_nodes, "train": degree}
        if job.train_pins and degree != job.train_nodes:
            continue
        if any(count is not None and wanted[pool] > count for pool, count in free.items()):
            continue
        if any(taken[pool] & set(job.pins(pool)) for pool in taken):
            continue
        nodes = {
            pool: job.pins(pool) or cluster.next_nodes(pool, count)
            for pool, count in wanted.items()
        }
        placement = Placement(nodes["rollout"], nodes["train"])
        made.append(
            Candidate("isolated", None, placement, _price(placement, cluster.pools), placement)
        )
    return made


def _price(placement: Placement, pools: Mapping[str, PoolModel]) -> float:
    nodes: dict[str, Node] = {pool: model.node for pool, model in pools.items()}
    return sum(nodes[pool].cost_per_h * len(placement.of(pool)) for pool in nodes)


def grown(candidate: Candidate, job: JobModel, cluster: Cluster) -> Group:
    """The group as it would be, the job its last member."""
    member = Member(job, candidate.placement)
    new = candidate.new_nodes
    if candidate.group is None:
        return Group((member,), new.rollout, new.train)
    known = cluster.residents[candidate.group].group
    return Group(
        (*known.members, member),
        (*known.rollout, *new.rollout),
        (*known.train, *new.train),
        known.pairs,
    )

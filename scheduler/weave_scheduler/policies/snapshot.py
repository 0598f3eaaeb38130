"""A decision as a file, and its replay: format ``weave-decision``, version 1.

A snapshot holds what the policy looked at (settings, pools, groups, the job) and what it answered,
so that the question "why was this job put there" can be asked later, offline. ``replay`` decides
again, with every candidate judged, and says whether the answer is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from weave_scheduler import laws, lengths, model
from weave_scheduler.model import Group, JobModel, PoolModel
from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.decision import Decision
from weave_scheduler.policies.names import policy_of
from weave_scheduler.policies.settings import Settings

__all__ = ["Replay", "replay", "snapshot"]

#: Every class that may stand in a snapshot; nothing else is ever made from a file.
_KNOWN: dict[str, type[Any]] = {
    one.__name__: one
    for module in (laws, lengths, model)
    for one in vars(module).values()
    if isinstance(one, type) and dataclasses.is_dataclass(one)
}


def snapshot(
    job: JobModel, cluster: Cluster, policy: str, settings: Settings, decision: Decision
) -> dict[str, Any]:
    """The file's content without its ``conditions``; call it before the decision is applied."""
    return {
        "format": "weave-decision",
        "version": 1,
        "policy": policy,
        "settings": dataclasses.asdict(settings),
        "pools": {pool: _plain(one) for pool, one in cluster.pools.items()},
        "groups": [
            {
                "id": one.id,
                "group": _plain(one.group),
                "order": None if one.order is None else list(one.order),
                "admitted_by": one.admitted_by,
            }
            for one in sorted(cluster.residents.values(), key=lambda one: one.id)
        ],
        "job": _plain(job),
        "decision": decision.as_dict(),
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """A decision made again.

    Attributes:
        same: whether the job goes to the same group and nodes, or waits again.
        cluster: as it was before the decision.
    """

    job: JobModel
    decision: Decision
    same: bool
    cluster: Cluster
    settings: Settings


def replay(content: Mapping[str, Any]) -> Replay:
    """Raises ValueError where the file is not such a snapshot."""
    if content.get("format") != "weave-decision":
        raise ValueError(f"format {content.get('format')!r}; allowed: weave-decision")
    if content.get("version") != 1:
        raise ValueError(f"version {content.get('version')!r} is not known; allowed: 1")
    try:
        settings = Settings(**content["settings"])
        pools = {pool: _made(one, PoolModel) for pool, one in content["pools"].items()}
        cluster = Cluster(pools)
        for one in content["groups"]:
            _restore(cluster, one)
        job = _made(content["job"], JobModel)
        policy = policy_of(content["policy"], settings, pools)
        before = content["decision"]["chosen"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a whole snapshot: {error}") from None
    decision = policy.decide(job, cluster, explain=True)
    now = decision.as_dict()["chosen"]
    return Replay(job, decision, _place(now) == _place(before), cluster, settings)


def _place(chosen: Any) -> Any:
    if chosen is None:
        return None
    nodes = {pool: sorted(ids) for pool, ids in chosen["placement"].items()}
    return chosen["group"], chosen["kind"], nodes


def _restore(cluster: Cluster, one: Mapping[str, Any]) -> None:
    group: Group = _made(one["group"], Group)
    order = None if one["order"] is None else tuple(one["order"])
    cluster.restore(Resident(int(one["id"]), group, order, one["admitted_by"]))


def _plain(value: Any) -> Any:
    """A frozen value as JSON; a class by its name, fields at their default left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made: dict[str, Any] = {"is": type(value).__name__}
        for field in dataclasses.fields(value):
            own = getattr(value, field.name)
            if field.default is dataclasses.MISSING or own != field.default:
                made[field.name] = _plain(own)
        return made
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(one) for one in value)
    if not isinstance(value, dict):
        return value
    fields = {key: _value(one) for key, one in value.items() if key != "is"}
    kind = _KNOWN.get(str(value.get("is")))
    if kind is None:
        raise ValueError(f"{value.get('is')!r} is not known in a snapshot")
    return kind(**fields)


def _made(value: Any, kind: type[Any]) -> Any:
    made = _value(value)
    if not isinstance(made, kind):
        raise ValueError(f"expected a {kind.__name__}, found {type(made).__name__}")
    return made

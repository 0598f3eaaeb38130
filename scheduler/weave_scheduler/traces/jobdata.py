"""One job of a trace as plain data and back. Wrong data raises ValueError: ``field: what``."""

from __future__ import annotations

from collections.abc import Mapping

from weave_scheduler.model import Degree, JobModel, Need, Phase, SwitchCost
from weave_scheduler.pools import POOLS
from weave_scheduler.traces.fields import count, known, listed, number, shown, text
from weave_scheduler.traces.lawdata import law_from_data, law_to_data

__all__ = ["job_from_data", "job_to_data"]

_SYNC = {"latency": (), "publish": ("train",), "direct": ("train", "rollout")}
_BYTES = (
    "host_bytes", "device_bytes", "keep_bytes", "residual_bytes", "running_bytes", "spare_bytes",
)  # fmt: skip
_SWITCH = ("foreground_s", "background_s")
_FIELDS = (
    "id", "arrival", "arrival_s", "iterations", "slo", "rollout", "reward", "train", "weight_sync",
    "sync_mode", "rollout_nodes", "train_nodes", "train_degrees", "rollout_pins", "train_pins",
    "seed", "restart",
    *(f"{pool}_{name}" for pool in POOLS for name in _BYTES),
    *(f"{pool}_switch_{name}" for pool in POOLS for name in _SWITCH),
)  # fmt: skip


def job_from_data(row: Mapping[str, object]) -> JobModel:
    """A job from the fields of ``weave_scheduler.traces.trace``. Raises ValueError."""
    known(row, _FIELDS)
    slo = row.get("slo")
    restart = row.get("restart", False)
    if not isinstance(restart, bool):
        raise ValueError(f"restart: {shown(restart)}; allowed: true or false")
    degrees = listed(row["train_degrees"], "train_degrees") if "train_degrees" in row else ()
    pins = {pool: _pins(row.get(f"{pool}_pins"), f"{pool}_pins") for pool in POOLS}
    return JobModel(
        text(row.get("id"), "id"),
        _phases(row),
        slo=None if slo is None else number(slo, "slo", least=1),
        iterations=count(row.get("iterations"), "iterations"),
        arrival_s=number(row.get("arrival_s", 0), "arrival_s", least=0),
        rollout_nodes=count(row.get("rollout_nodes", len(pins["rollout"]) or 1), "rollout_nodes"),
        train_nodes=count(row.get("train_nodes", len(pins["train"]) or 1), "train_nodes"),
        degrees=tuple(Degree(count(one, "train_degrees")) for one in degrees),
        rollout_pins=pins["rollout"],
        train_pins=pins["train"],
        rollout_need=_need(row, "rollout"),
        train_need=_need(row, "train"),
        switch_rollout=_switch(row, "rollout"),
        switch_train=_switch(row, "train"),
        restart=restart,
        seed=count(row.get("seed", 0), "seed", 0, 2**64 - 1),
    )


def _phases(row: Mapping[str, object]) -> tuple[Phase, ...]:
    phases = [Phase("rollout", ("rollout",), law_from_data(row.get("rollout"), "rollout"))]
    if row.get("reward") is not None:
        phases.append(Phase("reward", (), law_from_data(row["reward"], "reward"), ("rollout",)))
    law = law_from_data(row.get("train"), "train")
    phases.append(Phase("train", ("train",), law, (phases[-1].name,)))
    mode = row.get("sync_mode", "direct")
    if not isinstance(mode, str) or mode not in _SYNC:
        raise ValueError(f"sync_mode: {shown(mode)} is not known; allowed: {', '.join(_SYNC)}")
    if row.get("weight_sync") is not None:
        law = law_from_data(row["weight_sync"], "weight_sync")
        phases.append(Phase("weight_sync", _SYNC[mode], law, ("train",)))
    return tuple(phases)


def _pins(value: object, field: str) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(count(one, field, 0) for one in listed(value, field))


def _need(row: Mapping[str, object], pool: str) -> Need:
    fields = [f"{pool}_{name}" for name in _BYTES]
    return Need(*(count(row.get(field, 0), field, 0) for field in fields))


def _switch(row: Mapping[str, object], pool: str) -> SwitchCost:
    fields = [f"{pool}_switch_{name}" for name in _SWITCH]
    return SwitchCost(*(number(row.get(field, 0), field, least=0) for field in fields))


def job_to_data(job: JobModel) -> dict[str, object]:
    """The fields of a job; those at their defaults are left out. Raises ValueError where the job
    has phases that the format does not know."""
    laws = {phase.name: phase for phase in job.phases}
    extra = set(laws) - {"rollout", "reward", "train", "weight_sync"}
    if extra or not {"rollout", "train"} <= set(laws):
        raise ValueError(
            f"job {job.name}: the trace format has rollout, reward, train and weight_sync"
        )
    data: dict[str, object] = {
        "id": job.name,
        "arrival_s": job.arrival_s,
        "iterations": job.iterations,
        "rollout": law_to_data(laws["rollout"].law),
        "train": law_to_data(laws["train"].law),
    }
    if job.slo is not None:
        data["slo"] = job.slo
    if "reward" in laws:
        data["reward"] = law_to_data(laws["reward"].law)
    if "weight_sync" in laws:
        pools = laws["weight_sync"].pools
        data["weight_sync"] = law_to_data(laws["weight_sync"].law)
        data["sync_mode"] = next(mode for mode, held in _SYNC.items() if set(held) == set(pools))
    for pool in POOLS:
        _put(data, f"{pool}_nodes", job.nodes(pool), 1)
        _put(data, f"{pool}_pins", list(job.pins(pool)), [])
        for name in _BYTES:
            _put(data, f"{pool}_{name}", getattr(job.need(pool), name), 0)
        for name in _SWITCH:
            _put(data, f"{pool}_switch_{name}", getattr(job.switch(pool), name), 0)
    _put(data, "train_degrees", [degree.nodes for degree in job.degrees], [])
    _put(data, "restart", job.restart, False)
    _put(data, "seed", job.seed, 0)
    return data


def _put(data: dict[str, object], field: str, value: object, default: object) -> None:
    if value != default:
        data[field] = value

"""SPEC.yaml, version 1: every key that a spec may have, and what each may hold.

Only the shapes, as frozen models; ``weave_scheduler.specfile`` reads them and names the line of a
mistake. Bytes are integers, times seconds, both those of the real job (not divided by a device's
scale or speed). A wrong value raises ValueError with one line that says what is allowed.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from weave_scheduler.laws import PHASES, Constant, DurationLaw, Lognormal
from weave_scheduler.units import parse_bytes, parse_duration, parse_price

__all__ = ["POOLS", "TAGS", "Devices", "JobSpec", "NodeSpec", "Spec", "State"]

Pool = Literal["rollout", "train"]
Tag = Literal[
    "weights", "grads", "optimizer", "kv_cache", "cuda_graph", "buffers", "scratch", "other"
]
POOLS: tuple[Pool, ...] = ("rollout", "train")
TAGS: tuple[Tag, ...] = Tag.__args__  # type: ignore[attr-defined]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_DEVICE = re.compile(r"auto|cuda:\d{1,3}|emulated:[A-Za-z0-9_.-]+(\?\S*)?", re.ASCII)


class Strict(BaseModel):
    """Base of all tables of a spec: frozen, no conversions, unknown keys refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: object) -> object:
        known = list(cls.model_fields)
        if not isinstance(data, dict):
            raise ValueError(f"must be a mapping; keys: {', '.join(known)}")
        unknown: list[InitErrorDetails] = []
        for key in (key for key in data if key not in known):
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}" if near else f"allowed: {', '.join(known)}"
            error = PydanticCustomError("unknown_key", "unknown key; {hint}", {"hint": hint})
            unknown.append(InitErrorDetails(type=error, loc=(str(key),), input=data[key]))
        if unknown:
            raise ValidationError.from_exception_data(cls.__name__, unknown)
        return data


class LawTable(Strict):
    """``{law: lognormal, mean, cv, max}`` as written."""

    law: Literal["lognormal"]
    mean: Annotated[float, BeforeValidator(parse_duration)]
    cv: Annotated[float, Field(ge=0, le=10)]
    max: Annotated[float, BeforeValidator(parse_duration)] | None = None

    @model_validator(mode="after")
    def _mean_below_max(self) -> LawTable:
        if self.mean <= 0:
            raise ValueError("mean must be more than 0s")
        if self.max is not None and self.max < self.mean:
            raise ValueError("max is below mean; give a max of at least the mean")
        return self


def _law(value: object) -> DurationLaw:
    if isinstance(value, dict):
        table = LawTable.model_validate(value)
        return Lognormal(table.mean, table.cv, table.max)
    return Constant(parse_duration(value))


def _device(value: object) -> str:
    if not isinstance(value, str) or _DEVICE.fullmatch(value) is None:
        raise ValueError(
            f"{value!r} is not a device; allowed: auto, cuda:0, emulated:h20?scale=64 (quoted)"
        )
    return value


def _placement(value: object) -> tuple[int, ...] | int:
    if isinstance(value, int) and value is not True and value >= 1:
        return value
    nodes = value if isinstance(value, list) else []
    if nodes and all(type(node) is int and node >= 0 for node in nodes):
        if len(set(nodes)) < len(nodes):
            raise ValueError("names a node twice; give each node id once")
        return tuple(nodes)
    raise ValueError(f"{value!r} is no placement; allowed: a list of node ids like [0], or a count")


def _job_name(value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(
            f"{value!r} is not a job name; allowed: 1 to 64 letters, digits, '.', '_' or '-'"
        )
    return value


def _kind(value: object) -> object:
    if value not in ("grpo", "synthetic", "command"):  # the last is not run yet; see support
        raise ValueError(f"{value!r} is not known; allowed: 'grpo' or 'synthetic'")
    return value


def _listed(value: object) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list")
    if not value:
        raise ValueError("is empty; give at least one")
    return tuple(value)


def _command(value: object) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if isinstance(words, list) and words and all(isinstance(word, str) and word for word in words):
        return tuple(words)
    raise ValueError("must be a command line, or a list of words")


def _config(value: object) -> dict[str, Any] | str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise ValueError("must be a mapping, or the path of a YAML file beside the spec")


def _tail(value: object) -> float | None:
    if value is False or value == "off":
        return None
    if isinstance(value, int | float) and value is not True and 0 < value <= 1:
        return float(value)
    raise ValueError(f"{value!r} is no threshold; allowed: off, or a share like 0.8")


def _more_than_nothing(value: object) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError(f"{value!r} is too short; allowed: more than 0s")
    return seconds


def _drift(value: object) -> object:
    return "off" if value is False else value  # YAML reads off as false


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Price = Annotated[float, BeforeValidator(parse_price)]
Law = Annotated[Any, BeforeValidator(_law)]
Placement = Annotated[Any, BeforeValidator(_placement)]
DeviceText = Annotated[str, BeforeValidator(_device)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
Listed = BeforeValidator(_listed)


class Devices(Strict):
    """The devices of each pool, one entry a device of its own."""

    rollout: Annotated[tuple[DeviceText, ...], Listed] = ("auto",)
    train: Annotated[tuple[DeviceText, ...], Listed] = ("auto",)


class State(Strict):
    """Bytes of the job per pool and tag."""

    rollout: dict[Tag, Bytes] = {}
    train: dict[Tag, Bytes] = {}


class Outside(Strict):
    """Device memory that a job takes outside regions, per node: at the peak of its phase, and what
    its process keeps while it sleeps."""

    running: Bytes = 0
    sleeping: Bytes = 0

    @model_validator(mode="after")
    def _sleeps_within(self) -> Outside:
        if self.sleeping > self.running:
            raise ValueError("sleeping is more than running; running includes what stays asleep")
        return self


class Unmanaged(Strict):
    rollout: Outside = Outside()
    train: Outside = Outside()


class Phases(Strict):
    """The duration law of each phase that a job has; the order of a turn is that of PHASES."""

    init: Law = None
    rollout: Law = None
    reward: Law = None
    train: Law = None
    weight_sync: Law = None
    eval: Law = None
    save: Law = None

    def given(self) -> dict[str, DurationLaw]:
        """Name and law of the phases that the spec gives, in the order in which they run."""
        laws = ((name, getattr(self, name)) for name in PHASES)
        return {name: law for name, law in laws if law is not None}


class JobSpec(Strict):
    """One job. ``config`` is a mapping, or the path of a YAML file beside the spec."""

    name: Annotated[str, BeforeValidator(_job_name)]
    kind: Annotated[Literal["grpo", "synthetic", "command"], BeforeValidator(_kind)]
    command: Annotated[tuple[str, ...] | None, BeforeValidator(_command)] = None
    config: Annotated[Any, BeforeValidator(_config)] = None
    iterations: Count
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    slo: Annotated[float, Field(ge=1)] | None = None
    rollout: Placement = 1
    train: Placement = 1
    state: State | None = None
    policy: dict[Tag, Literal["keep", "reload", "discard"]] = {}
    unmanaged: Unmanaged | None = None
    phases: Phases | None = None
    arrival: Seconds = 0.0
    ranks: Count = 1
    train_nodes: Annotated[tuple[Count, ...], Listed] | None = None
    restart_every: Annotated[int, Field(ge=0)] = 0


class NodeSpec(Strict):
    """What one node of a pool has. ``price`` is per GPU-hour."""

    gpus: Count = 1
    price: Price | None = None
    host_memory: Bytes | None = None
    count: Count | None = None


class Nodes(Strict):
    rollout: NodeSpec = NodeSpec()
    train: NodeSpec = NodeSpec()


class SchedulerSpec(Strict):
    intra: Literal["fifo", "strict", "barrier"] = "fifo"
    inter: Literal["weave", "paper"] = "weave"
    mode: Literal["worst-case", "quantile"] = "worst-case"
    quantile: Share = 0.99
    confidence: Share = 0.95
    max_group: Count = 5
    require_unsaturated_after: bool = False
    tail: Annotated[float | None, BeforeValidator(_tail)] = None
    regroup_horizon: Annotated[float, BeforeValidator(_more_than_nothing)] | None = None
    regroup_migrate: Seconds = 300.0
    drift: Annotated[Literal["off", "report", "resubmit"], BeforeValidator(_drift)] = "report"
    drift_window: Annotated[int, Field(ge=2, le=10_000)] = 20
    drift_tolerance: Annotated[float, Field(gt=0, le=10)] = 0.15


class HostSpec(Strict):
    budget: Bytes | None = None
    spill: str | None = None


class Spec(Strict):
    """A whole spec. ``devices`` absent means ``auto`` for both pools."""

    version: Literal[1]
    devices: Devices | None = None
    jobs: Annotated[tuple[JobSpec, ...], Listed]
    nodes: Nodes = Nodes()
    scheduler: SchedulerSpec = SchedulerSpec()
    host: HostSpec = HostSpec()
    plan: Literal["auto", "fewest-bytes", "least-stall"] = "auto"

    def job(self, name: str) -> JobSpec:
        """The job of that name. Raises KeyError."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise KeyError(name)

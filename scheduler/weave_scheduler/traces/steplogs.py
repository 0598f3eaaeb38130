"""Phase times from the step logs of verl, NeMo-RL and ROLL.

Formats, as these projects print them:
  verl     one line per step, ``step:3 - timing_s/gen:31.3 - timing_s/update_actor:8.1 - ...``
           (verl/utils/tracking.py and verl/trainer/ppo/metric_utils.py, verl-project/verl)
  NeMo-RL  a block per step, ``Total step time: 192.31s`` then ``generation: 56.20s (21.8%)`` and so
           on, one to a line (nemo_rl/algorithms/grpo.py, NVIDIA-NeMo/RL)
  ROLL     one JSON object per logged step with keys ``time/step_generate``, ``time/step_train``
           (roll/pipeline/rlvr/rlvr_pipeline.py, alibaba/ROLL)
A phase is the sum of the parts that hold its pool; log-probabilities are computed by the trainer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from weave_scheduler.document import SpecError
from weave_scheduler.laws import Empirical
from weave_scheduler.model import JobModel, Phase

__all__ = ["FRAMEWORKS", "StepTimes", "job_from_steps", "read_step_log"]

Row = tuple[int, int | None, dict[str, float]]  # line, step if the log says it, numbers by name


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One iteration of a logged run, in seconds; None where the log does not say."""

    step: int
    rollout_s: float
    train_s: float
    reward_s: float | None = None
    weight_sync_s: float | None = None
    mean_tokens: float | None = None
    max_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class _Names:
    """Which numbers of a log make a phase; of ``a|b`` the first that is there counts."""

    rollout: tuple[str, ...]
    train: tuple[str, ...]
    reward: tuple[str, ...]
    sync: tuple[str, ...]
    mean_tokens: str = ""
    max_tokens: str = ""


_NAMES = {
    "verl": _Names(
        ("timing_s/gen",),
        ("timing_s/update_actor", "timing_s/update_critic", "timing_s/old_log_prob",
         "timing_s/ref", "timing_s/values"),
        ("timing_s/reward",),
        ("timing_s/update_weights",),
        "response_length/mean",
        "response_length/max",
    ),
    "nemo-rl": _Names(
        ("generation",),
        ("policy_training", "policy_and_reference_logprobs", "training_prep",
         "logprob_inference_prep"),
        ("reward_calculation",),
        ("prepare_for_generation/total|prepare_for_generation",),
        "Mean Generation Length",
    ),
    "roll": _Names(
        ("time/step_generate",),
        ("time/step_train", "time/ref_log_probs_values", "time/old_log_probs_values"),
        (),
        ("time/step_model_update",),
    ),
}  # fmt: skip

FRAMEWORKS = tuple(_NAMES)

_VERL_STEP = re.compile(r"\bstep:(\d+) - ")
_VERL_PAIR = re.compile(
    r"([\w./@-]+):(?:np\.float64\()?(-?[\d.]+(?:e[+-]?\d+)?|nan|inf)\)?(?=\s|$)", re.I
)
_NEMO_PAIR = re.compile(r"[•-]\s*([\w /]+?):\s*(-?[\d.]+|nan|inf)s?\b", re.I)
_ROLL_STEP = re.compile(r"pipeline step (\d+) start")


def read_step_log(lines: Iterable[str], framework: str, file: str = "log") -> tuple[StepTimes, ...]:
    """The steps of a log, in its order; lines that are no step are passed over.

    A step without rollout or training (validation before the first one) is passed over too. Raises
    SpecError ``FILE:LINE: name`` for a time that is negative, zero or NaN, and for a log without
    any step.
    """
    names, rows = _NAMES.get(framework), _ROWS.get(framework)
    if names is None or rows is None:
        raise SpecError(f"{framework!r} is not known; allowed: {', '.join(FRAMEWORKS)}")
    steps: list[StepTimes] = []
    for line, step, numbers in rows(lines):
        rollout_s = _sum(numbers, names.rollout, f"{file}:{line}")
        train_s = _sum(numbers, names.train, f"{file}:{line}")
        if rollout_s is None or train_s is None:
            continue
        steps.append(
            StepTimes(
                len(steps) + 1 if step is None else step,
                rollout_s,
                train_s,
                _sum(numbers, names.reward, f"{file}:{line}"),
                _sum(numbers, names.sync, f"{file}:{line}"),
                numbers.get(names.mean_tokens),
                numbers.get(names.max_tokens),
            )
        )
    if not steps:
        raise SpecError(f"{file}: has no step of {framework}; looked for {names.rollout[0]}")
    return tuple(steps)


def job_from_steps(
    name: str,
    steps: Sequence[StepTimes],
    *,
    skip: int = 1,
    rollout_limit_s: float | None = None,
    train_limit_s: float | None = None,
    sync_pools: tuple[str, ...] = ("train", "rollout"),
    slo: float | None = None,
) -> JobModel:
    """A job whose laws are what was logged, without the first ``skip`` steps (warm-up).

    A log shows no worst case: without the limits (from ``weave profile``) mode worst-case refuses
    the job. Raises ValueError where no step is left.
    """
    used = steps[skip:]
    if not used:
        raise ValueError(f"{name}: {len(steps)} steps, the first {skip} are left out")
    phases = [
        Phase("rollout", ("rollout",), Empirical.of([s.rollout_s for s in used], rollout_limit_s)),
        Phase("train", ("train",), Empirical.of([s.train_s for s in used], train_limit_s),
              ("rollout",)),
    ]  # fmt: skip
    reward = [s.reward_s for s in used if s.reward_s]
    sync = [s.weight_sync_s for s in used if s.weight_sync_s]
    if len(reward) == len(used):
        phases.insert(1, Phase("reward", (), Empirical.of(reward, max(reward)), ("rollout",)))
        phases[2] = Phase("train", ("train",), phases[2].law, ("reward",))
    if len(sync) == len(used):
        law = Empirical.of(sync, max(sync))
        phases.append(Phase("weight_sync", sync_pools, law, ("train",)))
    return JobModel(name, tuple(phases), slo=slo, iterations=len(steps))


def _sum(numbers: dict[str, float], names: Sequence[str], at: str) -> float | None:
    """The sum of the parts that are there; None where there is none."""
    total: float | None = None
    for choice in names:
        name = next((one for one in choice.split("|") if one in numbers), None)
        if name is None:
            continue
        value = numbers[name]
        if not (math.isfinite(value) and value >= 0):
            raise SpecError(f"{at}: {name}: {value} is no time; allowed: seconds, 0 or more")
        total = (total or 0.0) + value
    if total == 0 and names and names[0] in numbers and not _may_be_zero(names):
        raise SpecError(f"{at}: {names[0]}: 0 s; allowed: more than 0")
    return total


def _may_be_zero(names: Sequence[str]) -> bool:
    return "reward" in names[0] or "update" in names[0] or "prepare" in names[0]


def _verl_rows(lines: Iterable[str]) -> Iterator[Row]:
    for at, line in enumerate(lines, start=1):
        step = _VERL_STEP.search(line)
        if step is not None:
            pairs = _VERL_PAIR.findall(line[step.end() :])
            yield at, int(step[1]), {name: float(value) for name, value in pairs}


def _nemo_rows(lines: Iterable[str]) -> Iterator[Row]:
    """A block ends where the next one's total begins; lengths stand before their total."""
    begun: int | None = None
    numbers: dict[str, float] = {}
    before: dict[str, float] = {}
    for at, line in enumerate(lines, start=1):
        pair = _NEMO_PAIR.search(line)
        if pair is None:
            continue
        name, value = pair[1].strip(), float(pair[2])
        if name == "Mean Generation Length":
            before[name] = value
        elif name == "Total step time":
            if begun is not None:
                yield begun, None, numbers
            begun, numbers, before = at, dict(before), {}
        elif begun is not None:
            numbers[name] = value
    if begun is not None:
        yield begun, None, numbers


def _roll_rows(lines: Iterable[str]) -> Iterator[Row]:
    step: int | None = None
    for at, line in enumerate(lines, start=1):
        begun = _ROLL_STEP.search(line)
        if begun is not None:
            step = int(begun[1])
        start = line.find("{")
        if start < 0 or "time/step_" not in line:
            continue
        try:
            found = json.loads(line[start:])
        except ValueError:
            continue
        yield (
            at,
            step,
            {
                str(name): float(value)
                for name, value in found.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            },
        )


_ROWS: dict[str, Callable[[Iterable[str]], Iterator[Row]]] = {
    "verl": _verl_rows,
    "nemo-rl": _nemo_rows,
    "roll": _roll_rows,
}

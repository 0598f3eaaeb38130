"""``weave trace import``: jobs from files of other projects, written as a ``weave-trace``.

``philly`` reads the cluster trace's CSV (a job per row), the trainers' names read one step log per
job. Called by the console command; the formats are in ``philly`` and ``steplogs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from weave_scheduler.document import SpecError
from weave_scheduler.model import JobModel
from weave_scheduler.traces.philly import read_philly
from weave_scheduler.traces.steplogs import FRAMEWORKS, job_from_steps, read_step_log

__all__ = ["KINDS", "Imported", "LogOptions", "import_jobs"]

_T = TypeVar("_T")

KINDS = ("philly", *FRAMEWORKS)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a step log does not say.

    Attributes:
        skip: steps at the start that are warm-up.
        rollout_limit_s, train_limit_s: the phases at their token limit; without them mode
            worst-case refuses the job.
    """

    skip: int = 1
    rollout_limit_s: float | None = None
    train_limit_s: float | None = None
    slo: float | None = None


@dataclass(frozen=True)
class Imported:
    """Jobs in order of arrival, and what was left out: how many, by reason."""

    jobs: tuple[JobModel, ...]
    left_out: dict[str, int]


def import_jobs(
    kind: str,
    files: Sequence[Path],
    *,
    seed: int = 0,
    limit: int | None = None,
    options: LogOptions | None = None,
) -> Imported:
    """Read the files. Raises SpecError ``FILE:LINE: what`` for the first mistake."""
    if kind not in KINDS:
        raise SpecError(f"{kind!r} is not known; allowed: {', '.join(KINDS)}")
    if kind == "philly":
        if len(files) != 1:
            raise SpecError("philly takes one file")
        jobs, skipped = _opened(files[0], lambda lines: read_philly(
            lines, seed=seed, limit=limit, file=str(files[0])
        ))  # fmt: skip
        if not jobs:
            raise SpecError(f"{files[0]}: no row became a job: {_counted(skipped.reasons)}")
        return Imported(jobs, {why: count for why, count in skipped.reasons.items() if count})
    made: list[JobModel] = []
    for file in files[:limit]:
        made.append(_job_of_log(kind, file, options or LogOptions()))
        if made[-1].name in {job.name for job in made[:-1]}:
            raise SpecError(f"{file}: two logs would make job {made[-1].name}; rename one of them")
        made[-1] = replace(made[-1], seed=seed + len(made) - 1)
    rest = len(files) - len(made)
    return Imported(tuple(made), {"over the limit": rest} if rest else {})


def _job_of_log(kind: str, file: Path, options: LogOptions) -> JobModel:
    steps = _opened(file, lambda lines: read_step_log(lines, kind, str(file)))
    for pool, limit_s in (("rollout", options.rollout_limit_s), ("train", options.train_limit_s)):
        longest_s = max((getattr(step, f"{pool}_s") for step in steps[options.skip :]), default=0.0)
        if limit_s is not None and limit_s < longest_s:
            raise SpecError(
                f"{file}: --{pool}-limit {limit_s:g}s is below the longest {pool} in it,"
                f" {longest_s:g} s"
            )
    try:
        return job_from_steps(
            file.stem,
            steps,
            skip=options.skip,
            rollout_limit_s=options.rollout_limit_s,
            train_limit_s=options.train_limit_s,
            slo=options.slo,
        )
    except ValueError as error:
        raise SpecError(f"{file}: {error}") from None


def _opened(path: Path, read: Callable[[Iterable[str]], _T]) -> _T:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return read(lines)
    except UnicodeDecodeError:
        raise SpecError(f"{path}: is not UTF-8 text") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def _counted(reasons: dict[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in reasons.items()) or "it has none"

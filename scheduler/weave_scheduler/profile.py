"""Format ``weave-profile`` version 1: measured laws and sizes of jobs, and their use in a plan.

Times are seconds and bytes those of the real job. A profile names jobs as the spec does; a job that
it does not name keeps what the spec says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weave_scheduler.document import SpecError
from weave_scheduler.laws import PHASES, DurationLaw
from weave_scheduler.pools import POOLS
from weave_scheduler.spec import TAGS, JobSpec, Outside, Phases, State, Unmanaged
from weave_scheduler.specfile import SpecFile
from weave_scheduler.traces.fields import count, shown
from weave_scheduler.traces.lawdata import law_from_data

__all__ = ["FORMAT", "VERSION", "JobProfile", "parse_profile", "read_profile", "with_profile"]

FORMAT, VERSION = "weave-profile", 1


@dataclass(frozen=True)
class JobProfile:
    """What was measured of one job: the law of each phase, bytes per pool and tag, and by pool what
    it takes outside regions."""

    name: str
    laws: Mapping[str, DurationLaw]
    sizes: Mapping[str, Mapping[str, int]]
    outside: Mapping[str, Outside] = field(default_factory=dict)


def read_profile(path: Path) -> dict[str, JobProfile]:
    """Read a profile. Raises SpecError with one line."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise SpecError(f"{path}: is not JSON; give what weave profile wrote") from None
    return parse_profile(content, str(path))


def parse_profile(content: object, file: str = "profile") -> dict[str, JobProfile]:
    """The jobs of a profile by name. Raises SpecError ``FILE: field: what is wrong``."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise SpecError(f"{file}: is no profile; give what weave profile wrote")
    if content.get("version") != VERSION or isinstance(content.get("version"), bool):
        raise SpecError(f"{file}: version: {content.get('version')!r} is not known; allowed: 1")
    jobs = content.get("jobs")
    try:
        if not isinstance(jobs, list):
            raise ValueError("jobs: must be a list")
        read = [_job(job, f"jobs.{at}") for at, job in enumerate(jobs)]
        names = [job.name for job in read]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise ValueError(f"jobs.{at}.name: {name!r} is that of jobs.{names.index(name)}")
        if not read:
            raise ValueError("jobs: is empty; give what weave profile wrote")
    except ValueError as error:
        raise SpecError(f"{file}: {error}") from None
    return {job.name: job for job in read}


def _job(data: Any, at: str) -> JobProfile:
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise ValueError(f"{at}.name: is missing")
    phases, sizes = data.get("phases", {}), data.get("bytes", {})
    if not isinstance(phases, dict) or not isinstance(sizes, dict):
        raise ValueError(f"{at}: phases and bytes must be mappings")
    laws = {}
    for phase, measured in phases.items():
        if phase not in PHASES or not isinstance(measured, dict):
            raise ValueError(f"{at}.phases.{phase}: {shown(measured)} is no measured phase")
        laws[phase] = law_from_data(measured.get("law"), f"{at}.phases.{phase}.law")
    found: dict[str, dict[str, int]] = {}
    for pool, tags in sizes.items():
        if pool not in POOLS or not isinstance(tags, dict):
            raise ValueError(f"{at}.bytes.{pool}: is no pool; allowed: {', '.join(POOLS)}")
        for tag, size in tags.items():
            if tag not in TAGS:
                raise ValueError(f"{at}.bytes.{pool}.{tag}: is no tag")
            found.setdefault(pool, {})[tag] = count(size, f"{at}.bytes.{pool}.{tag}", 0)
    return JobProfile(data["name"], laws, found, _outside(data.get("unmanaged", {}), at))


def _outside(data: Any, at: str) -> dict[str, Outside]:
    if not isinstance(data, dict):
        raise ValueError(f"{at}.unmanaged: must be a mapping")
    found = {}
    for pool, sizes in data.items():
        here = f"{at}.unmanaged.{pool}"
        if pool not in POOLS or not isinstance(sizes, dict):
            raise ValueError(f"{here}: is no pool; allowed: {', '.join(POOLS)}")
        running, sleeping = (
            count(sizes.get(when), f"{here}.{when}", 0) for when in ("running", "sleeping")
        )
        if sleeping > running:
            raise ValueError(f"{here}: sleeping is more than running, which includes it")
        found[pool] = Outside.model_construct(None, running=running, sleeping=sleeping)
    return found


def with_profile(loaded: SpecFile, profile: Mapping[str, JobProfile]) -> SpecFile:
    """The spec with measured laws and sizes in place of those that it gives.

    For planning only: a job runs as the spec says. Raises SpecError where no job of the spec is in
    the profile.
    """
    jobs = [_measured(job, profile.get(job.name)) for job in loaded.spec.jobs]
    if profile and not any(job.name in profile for job in loaded.spec.jobs):
        raise loaded.error(f"none of them is in the profile ({', '.join(sorted(profile))})", "jobs")
    return replace(loaded, spec=loaded.spec.model_copy(update={"jobs": tuple(jobs)}))


def _measured(job: JobSpec, found: JobProfile | None) -> JobSpec:
    if found is None:
        return job
    given = job.phases.given() if job.phases else {}
    laws = {name: law for name, law in (given | dict(found.laws)).items() if name in PHASES}
    update: dict[str, object] = {"phases": Phases.model_construct(None, **laws)}
    if found.sizes:
        sizes = {pool: dict(tags) for pool, tags in found.sizes.items()}
        update["state"] = State.model_construct(
            None, **{pool: sizes.get(pool, {}) for pool in POOLS}
        )
    if found.outside:
        given_outside = {pool: getattr(job.unmanaged, pool) for pool in POOLS if job.unmanaged}
        update["unmanaged"] = Unmanaged.model_construct(None, **{**given_outside, **found.outside})
    return job.model_copy(update=update)

"""``weave run`` from the spec to the files: alone, together, compared, written.

Returns what to say and the exit code; prints nothing itself but progress.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from weave_scheduler.compare import comparable, first_difference
from weave_scheduler.conditions import conditions
from weave_scheduler.driftplan import drift_desk
from weave_scheduler.interrupt import Interrupt
from weave_scheduler.live import check_jobs, run_jobs
from weave_scheduler.nodememory import check_device_memory, check_host_memory
from weave_scheduler.outdir import OutDir, WriteFailed
from weave_scheduler.planning import run_order, run_plan
from weave_scheduler.progress import Screen
from weave_scheduler.report import report_page
from weave_scheduler.solo import run_solo
from weave_scheduler.specfile import load_spec
from weave_scheduler.summary import Runs, learning, summarise
from weave_scheduler.support import notes
from weave_scheduler.timeline import timeline

__all__ = ["Mode", "Outcome", "run_spec"]

Mode = Literal["together", "solo", "compare"]


@dataclass(slots=True)
class Outcome:
    """The end of a run.

    Attributes:
        complaints: why the code is not 0, one line each.
        notes: what else the reader should know, one line each.
    """

    code: int
    summary: dict[str, Any]
    complaints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)


def run_spec(
    path: Path, out: Path | None, mode: Mode, screen: Screen, profile: Path | None = None
) -> Outcome:
    """Run a spec; ``profile`` holds measured laws for its plan.

    Raises SpecError, UsageError, SoloFailed or WeaveError where nothing can run.
    """
    loaded = load_spec(path)
    placements = check_jobs(loaded)
    check_device_memory(loaded, placements)
    names = [job.name for job in loaded.spec.jobs]
    for together in [names] if mode != "solo" else [[name] for name in names]:
        check_host_memory(loaded, placements, together)
    strict = loaded.spec.scheduler.intra == "strict"
    order = run_order(loaded, placements, profile) if strict and mode != "solo" else None
    drift = drift_desk(loaded, placements, profile, order or ()) if mode != "solo" else None
    runs = Runs(loaded.spec)
    with ExitStack() as stack:
        folder = stack.enter_context(OutDir(out)) if out is not None else None
        interrupt = stack.enter_context(Interrupt())
        if folder is not None:
            interrupt.at_once(folder.abandon)
        with screen:
            for note in notes(loaded):
                screen.note(note)
            for line in run_plan(loaded, placements, profile) if mode != "solo" else ():
                screen.stage(line)
            for job in loaded.spec.jobs if mode != "together" else ():
                if not interrupt.stopped():
                    screen.stage(f"{job.name} alone")
                    runs.solo[job.name] = run_solo(path, job.name, screen, interrupt)
            broken = any(run.failed for run in runs.all)  # then there is nothing to compare with
            if mode != "solo" and not broken and not interrupt.stopped():
                screen.stage(f"{', '.join(names)} together" if len(names) > 1 else names[0])
                runs.together = run_jobs(loaded, names, screen, interrupt.stopped, order, drift)
        outcome = _outcome(runs, interrupt.stopped())
        if folder is not None and runs.all:
            _write(folder, runs, outcome, path.name)
        return outcome


def _outcome(runs: Runs, interrupted: bool) -> Outcome:
    first = next(iter(runs.all), None)
    block = conditions(first.devices if first else [], first.started_at if first else "")
    outcome = Outcome(0, summarise(runs, block))
    outcome.complaints = _failures(runs)
    outcome.notes = [note for job in runs.spec.jobs if (note := _learning_note(runs, job.name))]
    failed = [job for run in runs.all for job in run.failed]
    if failed:
        outcome.code = 2 if all(job.users_mistake for job in failed) else 1
    differences = _differences(runs)
    if differences:
        outcome.code = outcome.code or 1
        outcome.complaints += differences
    if interrupted:
        outcome.code = 130
        outcome.summary["interrupted"] = True  # also where it came between two runs
    return outcome


def _failures(runs: Runs) -> list[str]:
    lines: list[str] = []
    for run in runs.all:
        alone = ", alone," if run is not runs.together else ""
        lines += [f"job {job.name}{alone} {job.error}" for job in run.failed]
    return lines


def _differences(runs: Runs) -> list[str]:
    lines = []
    for job in runs.spec.jobs:
        alone, shared = runs.job(job.name)
        if alone is None or shared is None or not comparable(alone, shared):
            continue
        found = first_difference(alone, shared)
        if found is not None:
            lines.append(f"job {job.name} differs from the same job alone: {found}")
    return lines


def _learning_note(runs: Runs, name: str) -> str | None:
    """Said where the rise of the reward is less than three standard errors."""
    alone, shared = runs.job(name)
    record = shared or alone
    if record is None or record.error is not None or record.stopped:
        return None
    learned = learning(record.rewards)
    if learned is None:
        return None
    first, last, error = learned
    if error is None:
        return (
            f"job {name}: {len(record.rewards)} iterations are too few to tell whether it learned"
            " (20 or more are needed)"
        )
    if last - first >= 3 * error:
        return None
    return (
        f"job {name}: the mean reward rose by {last - first:.3f}, less than three standard errors"
        f" ({3 * error:.3f}); it may not have learned"
    )


def _write(folder: OutDir, runs: Runs, outcome: Outcome, spec: str) -> None:
    summary = outcome.summary
    page = report_page(runs, summary, outcome.complaints, outcome.notes, spec)
    try:
        folder.write("summary.json", json.dumps(summary, indent=2) + "\n")
        folder.write("timeline.json", json.dumps(timeline(runs, summary["conditions"])) + "\n")
        folder.write("report.html", page)
    except WriteFailed as error:  # what was measured is still shown
        outcome.complaints.append(str(error))
        outcome.code = outcome.code or 1
    outcome.written = list(folder.written)

"""``weave trace``: the commands around traces of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weave_rt.errors import UsageError
from weave_scheduler.document import SpecError
from weave_scheduler.units import parse_duration

__all__ = ["trace_app"]

trace_app = typer.Typer(help="Traces of jobs.", rich_markup_mode=None, cls=TyperGroup)


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if seconds <= 0:
        raise typer.BadParameter(f"{text}; allowed: more than 0s")
    return seconds


def _limit(phase: str, example: str) -> Any:
    return typer.Option(
        f"--{phase}-limit",
        parser=_seconds,
        metavar="TIME",
        help=f"Step logs: how long {phase} takes at the token limit, like {example} or 2min.",
    )


@trace_app.callback()
def _group() -> None:
    pass


@trace_app.command(
    name="import",
    epilog="Examples: weave trace import philly philly.csv --seed 1 --limit 300 --out jobs.jsonl;"
    " weave trace import verl run.log --rollout-limit 120s --train-limit 40s --out jobs.jsonl",
)
def import_(
    kind: Annotated[str, typer.Argument(help="philly, verl, nemo-rl or roll.")],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="The Philly CSV, or one step log per job."),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Trace to write: CSV where it ends in .csv, else JSONL.")
    ],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most that many jobs.")
    ] = None,
    skip: Annotated[
        int, typer.Option("--skip", min=0, help="Step logs: warm-up steps that do not count.")
    ] = 1,
    rollout_limit: Annotated[float | None, _limit("rollout", "120s")] = None,
    train_limit: Annotated[float | None, _limit("train", "40s")] = None,
    slo: Annotated[
        float | None, typer.Option("--slo", min=1, help="Step logs: tolerated slowdown.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Jobs from the Philly CSV, or from step logs of trainers, as a trace."""
    from weave_scheduler.outdir import check_target, write_whole
    from weave_scheduler.traces import LogOptions, import_jobs, trace_text

    check_target(out, read=files)
    logs = {"--skip": skip != 1, "--rollout-limit": rollout_limit, "--train-limit": train_limit}
    given = [option for option, value in {**logs, "--slo": slo}.items() if value]
    if kind == "philly" and given:
        raise UsageError(f"{', '.join(given)}: for step logs only; philly has its own")
    options = LogOptions(skip, rollout_limit, train_limit, slo)
    found = import_jobs(kind, files, seed=seed, limit=limit, options=options)
    try:
        text = trace_text(found.jobs, as_csv=out.suffix == ".csv")
    except ValueError as error:
        raise SpecError(str(error)) from None
    write_whole(out, text)
    left = ", ".join(f"{count} {why}" for why, count in sorted(found.left_out.items()))
    count = f"{len(found.jobs)} job{'' if len(found.jobs) == 1 else 's'}"
    print(f"written: {out} ({count}{f'; left out: {left}' if left else ''})")
    if kind != "philly" and None in (rollout_limit, train_limit):
        print(
            "note: without --rollout-limit and --train-limit the longest phases are not known;"
            " weave simulate needs --mode quantile"
        )
    return 0

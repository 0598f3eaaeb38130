"""``weave simulate``: reads its arguments and prints; ``weave_scheduler.simulating`` does it.

``weave_scheduler.cli`` adds it; it prints through it, which must have finished importing by then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weave_rt.errors import UsageError

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: weave simulate examples/two_modelled_jobs.yaml --out out;"
        " weave simulate jobs.jsonl --policy weave --policy solo --seeds 5"
    )(simulate)


def simulate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A spec or a trace.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="weave, paper, solo, random or most-idle; several are compared over the same"
            " draws. Default: the spec's inter; of a trace: weave.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Draws; means with 95 % intervals from 2 on.")
    ] = 1,
    intra: Annotated[
        str | None,
        typer.Option("--intra", help="fifo, strict or barrier instead of what the file says."),
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", help="Plan by worst-case or quantile instead.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Laws and sizes that weave profile measured.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Folder for simulation.json and timeline.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Jobs that arrive, share nodes and leave, over modelled time: how fast, at what price."""
    from weave_scheduler.cli import _say, _show
    from weave_scheduler.interrupt import terminating
    from weave_scheduler.progress import Screen
    from weave_scheduler.simulating import Choices, simulate_file

    if out == "":
        raise UsageError("--out is empty; give a folder")
    choices = Choices(tuple(policy or ()), seeds, profile, intra, mode)
    folder = None if out is None else Path(out)
    with terminating():
        done = simulate_file(file, choices, folder, Screen(debug=debug))
    _show(done.record, done.tables, as_json)
    for line in done.lines:
        _say(line, as_json)
    if done.written:
        _say(f"written: {', '.join(map(str, done.written))}", as_json)
    return 0

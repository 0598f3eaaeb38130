"""The console command ``weave``: reads arguments, prints results, chooses the exit code.

0 done, 1 the run failed or a comparison differed, 2 the user's mistake, 130 interrupted. A mistake
is one plain line on stderr; tracebacks only with ``--debug``.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table as RichTable
from typer.core import TyperGroup

import weave_rt
from weave_rt.errors import UsageError, WeaveError
from weave_scheduler import benchcommands, simcommand
from weave_scheduler.document import SpecError
from weave_scheduler.outdir import check_target, write_whole
from weave_scheduler.tables import (
    Table,
    bench_table,
    drift_table,
    excess_table,
    job_table,
    pool_table,
    profile_table,
    total_table,
)
from weave_scheduler.tracecommand import trace_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="weave",
    help="Weave RT: several RL jobs on one pair of GPU pools.",
    epilog="Examples: weave doctor; weave run SPEC.yaml --out out; weave bench switch",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench_app = typer.Typer(help="Microbenchmarks.", rich_markup_mode=None, cls=TyperGroup)
app.add_typer(bench_app, name="bench")
app.add_typer(trace_app, name="trace")
benchcommands.add_to(bench_app)
simcommand.add_to(app)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Device = Annotated[
    str, typer.Option("--device", help="auto, cuda:0, or like 'emulated:h20?scale=64'.")
]
Profile = Annotated[
    Path | None, typer.Option("--profile", help="Plan with what weave profile measured.")
]


def main() -> NoReturn:
    """The entry point of the console command; exits the process."""
    sys.exit(_code_of(sys.argv[1:]))


def _code_of(arguments: list[str]) -> int:
    try:
        code = _invoke(arguments)
        _print("")  # what --help left in the buffer
        return code
    except (SpecError, UsageError) as error:
        return _failed(error, 2)
    except WeaveError as error:
        mistake = getattr(error, "users_mistake", None)  # of the process of a solo run
        if mistake is None:
            return _failed(error, 1, type(error).__name__)
        return _failed(error, 2 if mistake else 1)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output is gone; say nothing more
        _abandon_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _failed(error, 1)
    except Exception as error:
        told = getattr(error, "format_message", None)  # a wrong option or argument
        if told is not None:
            return _failed(f"{told()} (see weave --help)", getattr(error, "exit_code", 2))
        return _failed(error, 1, f"internal error, {type(error).__name__}")


def _invoke(arguments: list[str]) -> int:
    """What typer's own ``main`` does, but it hides Ctrl-C and broken pipes from us."""
    command = typer.main.get_command(app)
    try:
        with _typers_own_output(), command.make_context("weave", list(arguments)) as context:
            code = command.invoke(context)
    except typer.Exit as end:
        code = end.exit_code
    return code if isinstance(code, int) else 0


@contextmanager
def _typers_own_output() -> Iterator[None]:
    """Help is printed by typer, not by us."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename:
            raise
        with _stdout_failures():
            raise


def _print(text: str) -> None:
    """All results go through here. Raises BrokenPipeError, and OSError of one line."""
    with _stdout_failures():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def _stdout_failures() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon_stdout()
        raise OSError(
            f"stdout cannot be written: {error.strerror}; make room or send the output elsewhere"
        ) from error


def _abandon_stdout() -> None:
    """So that what is still in the buffer fails nowhere, not even at the end of the process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _failed(error: Exception | str, code: int, prefix: str = "") -> int:
    if "--debug" in sys.argv and isinstance(error, Exception):
        traceback.print_exception(error)
    text = " ".join(str(error).split())
    _complain(f"{prefix}: {text}" if prefix else text)
    return code


def _complain(line: str) -> None:
    with suppress(OSError):  # a terminal that is gone
        print(f"weave: {line}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        _print(f"weave {weave_rt.__version__}\n")
        raise typer.Exit(0)


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Example: weave run examples/two_modelled_jobs.yaml --compare-solo --out out",
)
def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="What to run.")],
    out: Annotated[
        str | None,
        typer.Option("--out", help="Folder for summary.json, timeline.json, report.html."),
    ] = None,
    solo: Annotated[
        bool, typer.Option("--solo", help="Run each job alone, in a process of its own.")
    ] = False,
    compare_solo: Annotated[
        bool,
        typer.Option("--compare-solo", help="Run each job alone, then all together; compare."),
    ] = False,
    profile: Profile = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Run the jobs of a spec together and show what came of it."""
    from weave_scheduler.progress import Screen
    from weave_scheduler.session import run_spec

    if solo and compare_solo:
        raise UsageError("give --solo or --compare-solo, not both")
    mode = "solo" if solo else "compare" if compare_solo else "together"
    if out == "":
        raise UsageError("--out is empty; give a folder")
    folder = None if out is None else Path(out)
    outcome = run_spec(spec, folder, mode, Screen(debug=debug), profile)  # type: ignore[arg-type]
    summary = outcome.summary
    tables = [job_table, pool_table, excess_table, drift_table, total_table]
    _show(summary, [make(summary) for make in tables], as_json)
    for note in outcome.notes:
        _say(f"note: {note}", as_json)
    for complaint in outcome.complaints:
        _complain(complaint)
    written = ", ".join(str(path) for path in outcome.written)
    if outcome.code == 130:
        _complain(f"interrupted; written: {written}" if written else "interrupted; nothing written")
    elif written:
        _say(f"written: {written}", as_json)
    elif folder is None:
        _say(_NOTHING_KEPT, as_json)
    return outcome.code


_NOTHING_KEPT = "nothing kept; --out DIR writes summary.json, timeline.json and report.html"


@app.command(epilog="Example: weave plan examples/two_modelled_jobs.yaml --why code")
def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A spec, or a decision to replay.")],
    why: Annotated[
        str | None, typer.Option("--why", metavar="JOB", help="Every candidate of one job.")
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--snapshot",
            metavar="DECISION.json",
            help="File for the decision about --why (default: the last job).",
        ),
    ] = None,
    profile: Profile = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Which jobs would share which nodes, how fast, at what price, and why."""
    from weave_scheduler.planning import plan_file

    shown = plan_file(file, why, snapshot, profile)
    _show(shown.record, shown.tables, as_json)
    for line in shown.lines:
        _say(line, as_json)
    if shown.complaint:
        _complain(shown.complaint)
    return shown.code


@app.command(
    name="profile",
    epilog="Example: weave profile examples/two_modelled_jobs.yaml --out profile.json",
)
def profile_command(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="Whose jobs to measure.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write.")] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", "-k", help="Iterations as they come, per job.")
    ] = 10,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Run each job alone, at its token limit and as it comes; write laws and sizes."""
    from weave_scheduler.interrupt import Interrupt
    from weave_scheduler.profiling import profile_spec
    from weave_scheduler.progress import Screen

    if out is not None:
        check_target(out, read=[spec])
    with Interrupt() as interrupt, Screen(debug=debug) as screen:
        record = profile_spec(spec, iterations, screen, interrupt.stopped)
    if out is not None:
        write_whole(out, json.dumps(record, indent=2) + "\n")
    _show(record, [profile_table(record)], as_json)
    if out is not None:
        _say(f"written: {out}", as_json)
    return 0


@app.command(epilog="Example: weave doctor --device 'emulated:h800?scale=64'")
def doctor(device: Device = "auto", as_json: Json = False, debug: Debug = False) -> int:
    """What this machine has: driver, device, link, memory, with a verdict and what to do."""
    from weave_rt.doctor import examine
    from weave_scheduler.doctor import doctor_tables, has_problem

    record = examine(device)
    _show(record, doctor_tables(record), as_json)
    for note in record["notes"]:
        _say(f"note: {note}", as_json)
    return int(has_problem(record))


@bench_app.command(epilog="Example: weave bench sched --full --out sched.json")
def sched(
    full: Annotated[bool, typer.Option("--full", help="10,000 jobs, 80 jobs exactly.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="File to write the record to.")] = None,
    debug: Debug = False,
) -> int:
    """How long a decision takes, and the exact optimum."""
    from weave_scheduler.benchmarks.sched import run as measure

    if out is not None:
        check_target(out)
    record = measure(full, _to_stderr)
    return _keep(record, out, as_json, [bench_table(record)])


@app.command(hidden=True)
def solo_job(
    spec: Path,
    job: str,
    result_fd: Annotated[int, typer.Option("--result-fd")],
) -> int:
    """One job alone, for the parent that started us."""
    from weave_scheduler.solo import serve_solo

    return serve_solo(spec, job, result_fd)


def _keep(
    record: dict[str, Any],
    out: Path | None,
    as_json: bool,
    tables: list[Table],
    lines: Sequence[str] = (),
) -> int:
    """Write and print the record of a benchmark."""
    if out is not None:
        write_whole(out, json.dumps(record, indent=2) + "\n")
    _show(record, tables, as_json)
    for line in lines:
        _say(line, as_json)
    if out is not None:
        _say(f"written: {out}", as_json)
    return 0


def _show(record: dict[str, Any], tables: list[Table], as_json: bool) -> None:
    if as_json:
        _print(json.dumps(record, indent=2) + "\n")
        return
    text = StringIO()
    on_terminal = sys.stdout.isatty()
    console = Console(file=text, force_terminal=on_terminal, highlight=False, markup=False)
    if not on_terminal:
        console.width = 240  # never cut what a pipe or a file reads
    for table in tables:
        if table.rows:
            console.print(_rich(table))
            console.print()
    _print(text.getvalue())


def _rich(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if index == 0 or table.prose else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _say(line: str, as_json: bool) -> None:
    if as_json:
        _to_stderr(line)
    else:
        _print(line + "\n")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

"""``weave bench switch``, ``pool``, ``overlay``; ``report`` and ``compare`` say what records hold.

`weave_scheduler.cli` adds them to its group ``bench``; they print through it, which it must have
finished importing by then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weave_rt.errors import UsageError
from weave_scheduler.benchtables import comparison_tables, record_tables
from weave_scheduler.outdir import check_target
from weave_scheduler.tables import bench_table

__all__ = ["add_to"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def add_to(group: typer.Typer) -> None:
    group.command(
        epilog="Examples: weave bench switch --device 'emulated:h20?scale=64';"
        " weave bench switch --preset train-7b --out train.json"
    )(switch)
    group.command(epilog="Example: weave bench pool --full --out pool.json")(pool)
    group.command(epilog="Example: weave bench overlay --out overlay.json")(overlay)
    group.command(epilog="Example: weave bench report bench/records/switch_emulated_h20.json")(
        report
    )
    group.command(epilog="Example: weave bench compare old.json new.json --fail-above 1.1")(compare)


def switch(
    device: Annotated[
        str, typer.Option("--device", help="auto, cuda:0, or like 'emulated:h20?scale=64'.")
    ] = "auto",
    preset: Annotated[
        str, typer.Option("--preset", help="rollout-7b, train-32b, ... or all; see bench/README.md")
    ] = "",
    arms: Annotated[
        str | None, typer.Option("--arms", help="Only these, like weave,plain (default: all).")
    ] = None,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="10,000 tensors against one, too; part of --full.")
    ] = False,
    load: Annotated[
        bool, typer.Option("--load", help="Keep every core busy with torch meanwhile.")
    ] = False,
    repeats: Annotated[int, typer.Option("--repeats", min=0, help="Rounds; 0: default.")] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="More sizes, more samples, --tensors.")
    ] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="File to write the record to.")] = None,
    debug: Debug = False,
) -> int:
    """How long a switch takes against the limit of the link and against naive ways."""
    import importlib

    from weave_scheduler.cli import _keep, _to_stderr

    if out is not None:
        check_target(out)
    benchmark = importlib.import_module("weave_rt.benchmarks.switch")
    options: dict[str, Any] = {"repeats": repeats, "preset_name": preset, "load": load}
    if tensors:
        options["many_tensors"] = True
    if arms is not None:
        options["arms"] = arms.split(",")
    record: dict[str, Any] = benchmark.run(device, full, _to_stderr, **options)
    return _keep(record, out, as_json, record_tables(record))


def pool(
    device: Annotated[
        str, typer.Option("--device", help="auto, cuda:0, or like 'emulated:h20?scale=64'.")
    ] = "auto",
    full: Annotated[bool, typer.Option("--full", help="8 GiB instead of 2, more rounds.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="File to write the record to.")] = None,
    debug: Debug = False,
) -> int:
    """How pinned memory grows, what it costs, and what spilling to a file costs."""
    import importlib

    from weave_scheduler.cli import _keep, _to_stderr

    if out is not None:
        check_target(out)
    benchmark = importlib.import_module("weave_rt.benchmarks.pool")
    record: dict[str, Any] = benchmark.run(device, full, _to_stderr)
    return _keep(record, out, as_json, [bench_table(record)], benchmark.lines(record))


def overlay(
    device: Annotated[
        str, typer.Option("--device", help="auto, cuda:0, or like 'emulated:h20?scale=64'.")
    ] = "emulated:h20?scale=64",
    full: Annotated[bool, typer.Option("--full", help="More rounds and instances.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="File to write the record to.")] = None,
    debug: Debug = False,
) -> int:
    """How long planning of residency takes, and whether the plan is the best one."""
    from weave_rt.benchmarks.overlay import run as measure
    from weave_scheduler.cli import _keep, _to_stderr

    if out is not None:
        check_target(out)
    record = measure(device, full, _to_stderr)
    return _keep(record, out, as_json, record_tables(record))


def report(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORD...", help="Files that weave bench wrote.")
    ],
    plots: Annotated[
        Path | None,
        typer.Option("--plots", help="Folder for a PNG per record and parameters (matplotlib)."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Tables and plots of records: medians, factors between arms, efficiency."""
    from weave_rt.benchmarks.plots import draw
    from weave_rt.benchmarks.reading import read
    from weave_rt.benchmarks.report import factors, rows
    from weave_scheduler.cli import _say, _show

    found = [(path, read(path)) for path in records]
    if plots is not None:
        _make(plots)
    entries: list[dict[str, Any]] = []
    written: list[Path] = []
    tables = []
    for number, (path, record) in enumerate(found, 1):
        entries.append(
            {
                "file": str(path),
                "conditions": record["conditions"],
                "rows": rows(record),
                "factors": factors(record),
            }
        )
        tables += record_tables(record, path.name)
        if plots is not None:
            double = sum(other.stem == path.stem for other, _ in found) > 1
            written += draw(record, f"{path.stem}-{number}" if double else path.stem, plots)
    result = {
        "format": "weave-bench",
        "version": 1,
        "conditions": found[-1][1]["conditions"],
        "reports": entries,
    }
    _show(result, tables, as_json)
    for file in written:
        _say(f"written: {file}", as_json)
    return 0


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--plots {folder}: cannot be used: {error.strerror}") from None


def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="An earlier record.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A later one of the same benchmark.")],
    fail_above: Annotated[
        float | None,
        typer.Option(
            "--fail-above",
            metavar="FACTOR",
            help="Exit 1 when the whole interval of a headline's change (new over old) lies above"
            " it: 1.1 allows a tenth more time, 0.9 asks for a tenth less.",
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """What became faster or slower from one record to the next, with an interval."""
    from weave_rt.benchmarks.compare import compare as compare_records
    from weave_rt.benchmarks.reading import read
    from weave_scheduler.cli import _complain, _say, _show

    before, after = read(old), read(new)
    comparison = compare_records(before, after, fail_above)
    result = {
        "format": "weave-bench",
        "version": 1,
        "conditions": after["conditions"],
        "comparison": comparison,
    }
    _show(result, comparison_tables(comparison), as_json)
    for side in ("old", "new"):
        if comparison[f"only_{side}"]:
            _say(f"only in the {side} one: {', '.join(comparison[f'only_{side}'])}", as_json)
    if comparison["regressed"]:
        found = ", ".join(comparison["regressed"])
        _complain(f"takes more than {fail_above} times as long as before: {found}")
        return 1
    return 0

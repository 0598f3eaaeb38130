"""Format ``weave-trace`` version 1: jobs with arrivals, as JSONL or CSV.

The first line is ``{"format": "weave-trace", "version": 1}``, optionally with ``nodes`` (per pool
gpus, price per GPU-hour, host_bytes, device_bytes, count). JSONL then has one job per line, CSV a
line of column names and one job per line; a cell holds a number, a text, or JSON for a law. A job:

    id, iterations, rollout, train      required; rollout and train are laws (seconds or a mapping)
    arrival_s or arrival                seconds, or a date and time, all in one zone
    slo, rollout_nodes, train_nodes, train_degrees, rollout_pins, train_pins, seed, restart
    reward                              a law; between rollout and train, holds no pool
    weight_sync, sync_mode              a law, and latency | publish | direct (default direct)
    POOL_host_bytes, POOL_device_bytes, POOL_keep_bytes, POOL_residual_bytes, POOL_running_bytes,
    POOL_spare_bytes
    POOL_switch_foreground_s, POOL_switch_background_s          POOL: rollout or train

Another version, an unknown field and a wrong value are refused: ``FILE:LINE: field: what``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

from weave_scheduler.document import SpecError
from weave_scheduler.model import JobModel
from weave_scheduler.pools import POOLS, Node, PoolModel
from weave_scheduler.traces import jobdata
from weave_scheduler.traces.fields import count, known, number, seconds_between, timestamp

__all__ = [
    "FORMAT",
    "VERSION",
    "Trace",
    "TraceError",
    "parse_trace",
    "read_trace",
    "trace_text",
    "write_trace",
]

FORMAT, VERSION = "weave-trace", 1
_TEXTS = ("id", "arrival", "sync_mode")  # columns whose cells are never read as JSON


class TraceError(SpecError):
    """A mistake in a trace, as one line: ``FILE:LINE: field: what is wrong``."""


@dataclass(frozen=True)
class Trace:
    """The jobs of a trace, in the order of the file, and its pools if it gives them."""

    jobs: tuple[JobModel, ...]
    pools: Mapping[str, PoolModel] | None = None


def read_trace(path: Path) -> Trace:
    """Read a trace file. Raises TraceError with one line."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return parse_trace(lines, str(path))
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is not UTF-8 text; give a trace") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def parse_trace(lines: Iterable[str], file: str = "trace") -> Trace:
    """The trace in these lines. Raises TraceError for its first mistake, saying how many follow."""
    whole = iter(lines)
    reader = _Reader(_header(next(whole, ""), file))
    mistakes: list[str] = []
    for line, row in _rows(whole, file):
        mistake = reader.take(line, row)
        if mistake is not None:
            mistakes.append(f"{file}:{line}: {mistake}")
    if mistakes:
        raise TraceError(mistakes[0], more=len(mistakes) - 1)
    if not reader.jobs:
        raise TraceError(f"{file}: has no jobs")
    return Trace(tuple(reader.jobs), reader.pools)


class _Reader:
    """Rows become jobs, one after the other."""

    def __init__(self, pools: Mapping[str, PoolModel] | None) -> None:
        self.pools = pools
        self.jobs: list[JobModel] = []
        self._seen: dict[str, int] = {}
        self._origin: datetime | None = None

    def take(self, line: int, row: dict[str, object] | str) -> str | None:
        """Add the job of a row; what is wrong with the row, if anything."""
        if isinstance(row, str):
            return row
        try:
            if "arrival" in row:
                row["arrival_s"] = self._arrival(row)
                del row["arrival"]
            job = jobdata.job_from_data(row)
            if job.name in self._seen:
                raise ValueError(f"id: {job.name!r} is that of line {self._seen[job.name]}")
            _fits(job, self.pools)
        except ValueError as error:
            return str(error)
        self._seen[job.name] = line
        self.jobs.append(job)
        return None

    def _arrival(self, row: Mapping[str, object]) -> float:
        if "arrival_s" in row:
            raise ValueError("arrival: stands beside arrival_s; give one of them")
        time = timestamp(row["arrival"], "arrival")
        self._origin = self._origin or time
        seconds = seconds_between(self._origin, time, "arrival")
        if seconds < 0:
            raise ValueError("arrival: lies before that of the first row; sort the rows by time")
        return seconds


def _header(line: str, file: str) -> Mapping[str, PoolModel] | None:
    try:
        head = json.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise TraceError(
            f'{file}:1: is no trace; the first line must be {{"format": "{FORMAT}", "version": 1}}'
        )
    if head.get("version") != VERSION or isinstance(head.get("version"), bool):
        raise TraceError(f"{file}:1: version: {head.get('version')!r} is not known; allowed: 1")
    try:
        known(head, ("format", "version", "nodes"))
        return None if "nodes" not in head else _pools(head["nodes"])
    except ValueError as error:
        raise TraceError(f"{file}:1: {error}") from None


def _pools(data: object) -> dict[str, PoolModel]:
    if not isinstance(data, dict):
        raise ValueError("nodes: must be a mapping of pools")
    known(data, POOLS, "nodes")
    pools = {}
    for pool in POOLS:
        own, at = data.get(pool), f"nodes.{pool}"
        if not isinstance(own, dict):
            raise ValueError(f"{at}: is missing; give gpus, price and host_bytes")
        known(own, ("gpus", "price", "host_bytes", "device_bytes", "count"), at)
        node = Node(
            count(own.get("gpus"), f"{at}.gpus"),
            number(own.get("price"), f"{at}.price", least=0),
            count(own.get("host_bytes"), f"{at}.host_bytes", 0),
            count(own.get("device_bytes", 0), f"{at}.device_bytes", 0),
        )
        limit = own.get("count")
        pools[pool] = PoolModel(pool, node, None if limit is None else count(limit, f"{at}.count"))
    return pools


def _fits(job: JobModel, pools: Mapping[str, PoolModel] | None) -> None:
    """Refuse a job that no node can ever hold, at any degree it supports."""
    for pool, model in (pools or {}).items():
        need = min(job.need(pool, degree).host_bytes for degree in job.supported())
        if need > model.node.host_bytes:
            raise ValueError(
                f"{pool}_host_bytes: needs {need} on a node, but every {pool} node has"
                f" {model.node.host_bytes}"
            )


def _rows(lines: Iterator[str], file: str) -> Iterator[tuple[int, dict[str, object] | str]]:
    """Line number and fields of each job; a text says what is wrong with the line."""
    first = next(lines, "")
    if first.lstrip()[:1] in ("{", ""):
        for at, line in enumerate(chain([first], lines), start=2):
            if line.strip():
                yield at, _json_row(line)
        return
    reader = csv.reader(chain([first], lines))
    names = [name.strip() for name in next(reader)]
    if len(set(names)) < len(names):
        raise TraceError(f"{file}:2: a column is given twice")
    for cells in reader:
        at = reader.line_num + 1
        if len(cells) != len(names):
            yield at, f"has {len(cells)} cells for {len(names)} columns"
        else:
            yield (
                at,
                {
                    name: cell if name in _TEXTS else _cell(cell)
                    for name, cell in zip(names, cells, strict=True)
                    if cell
                },
            )


def _json_row(line: str) -> dict[str, object] | str:
    try:
        row = json.loads(line, object_pairs_hook=_once)
    except _Twice as twice:
        return f"{twice}: is given twice"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    return row if isinstance(row, dict) else "is no JSON object"


class _Twice(Exception):
    pass


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return row


def _cell(cell: str) -> object:
    try:
        return json.loads(cell)
    except ValueError:
        return float("nan") if cell.strip().lower() == "nan" else cell


def write_trace(
    path: Path, jobs: Sequence[JobModel], pools: Mapping[str, PoolModel] | None = None
) -> None:
    """Write a trace; CSV where the name ends in ``.csv``, else JSONL."""
    path.write_text(trace_text(jobs, pools, as_csv=path.suffix == ".csv"), encoding="utf-8")


def trace_text(
    jobs: Sequence[JobModel],
    pools: Mapping[str, PoolModel] | None = None,
    *,
    as_csv: bool = False,
) -> str:
    """A whole trace, as JSONL or CSV. Raises ValueError for a job that the format cannot hold."""
    head: dict[str, object] = {"format": FORMAT, "version": VERSION}
    if pools is not None:
        head["nodes"] = {pool: _pool_data(pools[pool]) for pool in POOLS}
    rows = [jobdata.job_to_data(job) for job in jobs]
    out = io.StringIO()
    out.write(json.dumps(head) + "\n")
    if as_csv:
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(
            [row[name] if isinstance(row.get(name, ""), str) and name in row
             else json.dumps(row[name]) if name in row else "" for name in names]
            for row in rows
        )  # fmt: skip
    else:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    return out.getvalue()


def _pool_data(pool: PoolModel) -> dict[str, object]:
    node = pool.node
    data: dict[str, object] = {
        "gpus": node.gpus,
        "price": node.price,
        "host_bytes": node.host_bytes,
        "device_bytes": node.device_bytes,
    }
    return data if pool.count is None else data | {"count": pool.count}

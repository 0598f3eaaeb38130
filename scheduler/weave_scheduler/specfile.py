"""Reading a spec: checks its form as a whole and names the line of the first mistake.

Form is keys, units, ranges, names and node ids; what this version can run is decided
in ``weave_scheduler.support``. A mistake is one SpecError of one line:
``FILE:LINE: path.to.key: what is wrong; what is allowed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from weave_scheduler.document import Document, SpecError, parse_document, read_document
from weave_scheduler.jobphases import pools_held, turn_phases
from weave_scheduler.spec import POOLS, JobSpec, NodeSpec, Spec, State, Tag
from weave_scheduler.units import format_bytes

__all__ = ["SpecFile", "load_spec", "parse_spec"]


@dataclass(frozen=True)
class SpecFile:
    """A valid spec and the file it came from."""

    spec: Spec
    document: Document

    def error(self, message: str, *path: str | int) -> SpecError:
        """A SpecError that names the line of ``path``."""
        return SpecError(f"{self.document.place(path)}: {message}")

    def missing_beside(self, neighbour: str, key: str, message: str) -> SpecError:
        """A SpecError about a key of the top level that the file has not, at the line of one that
        it has."""
        line = self.document.line((neighbour,))
        return SpecError(f"{self.document.file}:{line}: {key}: {message}")


def load_spec(path: Path) -> SpecFile:
    """Read and check a spec. Raises SpecError with one line."""
    return _checked(read_document(path), path.parent)


def parse_spec(text: str, file: str = "SPEC.yaml", folder: Path = Path()) -> SpecFile:
    """Check a spec given as text. Raises SpecError with one line."""
    return _checked(parse_document(text, file), folder)


def _checked(document: Document, folder: Path) -> SpecFile:
    try:
        loaded = SpecFile(Spec.model_validate(document.data), document)
    except ValidationError as error:
        raise _first(document, error) from None
    for find in (_repeated_names, _kind_mistakes, _node_mistakes):
        for mistake in find(loaded):
            raise mistake
    return _with_spill_folder(_with_config_files(loaded, folder), folder)


def _first(document: Document, error: ValidationError) -> SpecError:
    found = error.errors(include_url=False)
    found.sort(key=lambda detail: document.line(detail["loc"]))
    return SpecError(f"{document.place(found[0]['loc'])}: {_worded(found[0])}", more=len(found) - 1)


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": lambda _: "is missing; give it",
    "literal_error": lambda ctx: f"is not known; allowed: {ctx['expected']}",
    "int_type": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "finite_number": lambda _: "must be a finite number",
    "bool_type": lambda _: "must be true or false",
    "string_type": lambda _: "must be text; put it in quotes",
    "dict_type": lambda _: "must be a mapping",
    "greater_than_equal": lambda ctx: f"is too small; allowed: {ctx['ge']} or more",
    "less_than_equal": lambda ctx: f"is too large; allowed: {ctx['le']} or less",
    "greater_than": lambda ctx: f"is too small; allowed: more than {ctx['gt']}",
    "less_than": lambda ctx: f"is too large; allowed: less than {ctx['lt']}",
}


def _worded(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if "error" in context:  # one of our own ValueErrors
        return str(context["error"])
    words = _WORDS.get(detail["type"])
    return words(context) if words else detail["msg"]


def _repeated_names(loaded: SpecFile) -> Iterator[SpecError]:
    seen: set[str] = set()
    for index, job in enumerate(loaded.spec.jobs):
        if job.name in seen:
            yield loaded.error(
                f"{job.name!r} names two jobs; give each job a name of its own",
                *("jobs", index, "name"),
            )
        seen.add(job.name)


def _kind_mistakes(loaded: SpecFile) -> Iterator[SpecError]:
    for index, job in enumerate(loaded.spec.jobs):
        at = ("jobs", index)
        if job.kind == "command" and job.command is None:
            yield loaded.error("is missing; kind command needs it", *at, "command")
        if job.kind != "command" and job.command is not None:
            yield loaded.error("belongs to kind: command; remove it", *at, "command")
        if job.kind == "synthetic":
            if job.config is not None:
                yield loaded.error("kind synthetic has no config; remove it", *at, "config")
            yield from _synthetic_mistakes(loaded, index, job)


def _synthetic_mistakes(loaded: SpecFile, index: int, job: JobSpec) -> Iterator[SpecError]:
    at = ("jobs", index)
    laws = job.phases.given() if job.phases else {}
    if not set(laws) - {"init"}:
        yield loaded.error("kind synthetic needs at least one, like rollout: 10s", *at, "phases")
    state = job.state or State()
    for pool in POOLS:
        used = any(pool in pools_held(job, phase) for phase in laws)
        if getattr(state, pool) and not used:
            yield loaded.error(f"no phase of the job uses the {pool} pool", *at, "state", pool)
    for tag in job.policy:
        if tag not in state.rollout and tag not in state.train:
            yield loaded.error("the job's state has no such tag", *at, "policy", tag)
        mistake = _policy_mistake(job, state, tag)
        if mistake is not None:
            yield loaded.error(mistake, *at, "policy", tag)


#: Written on the device in every phase that has it, so an old host copy is never what is wanted.
_REWRITTEN = ("kv_cache", "scratch", "grads", "optimizer")
_LEARNED = ("weights", "optimizer")


def _policy_mistake(job: JobSpec, state: State, tag: Tag) -> str | None:
    """Why no job that learns could go on with what that policy leaves of the tag."""
    policy, trained = job.policy[tag], state.train.get(tag, 0)
    if policy == "reload" and tag in _REWRITTEN:
        allowed = "keep" if tag in _LEARNED else "discard, keep"
        return f"reload would bring old bytes back in every turn; allowed for it: {allowed}"
    if policy == "discard" and tag in _LEARNED and trained:
        return (
            f"discard would lose the {format_bytes(trained)} that the train pool has learned at"
            " every turn; allowed for it: " + ("keep, reload" if tag == "weights" else "keep")
        )
    if policy != "reload" or "weight_sync" not in turn_phases(job):
        return None
    rollout = state.rollout.get(tag, 0)
    if rollout and (trained or tag == "weights") and trained < rollout:
        return (
            f"weight_sync publishes {format_bytes(rollout)} of the rollout pool, of which"
            f" state.train has {format_bytes(trained)}; give it at least as many, or keep the tag"
        )
    return None


def _node_mistakes(loaded: SpecFile) -> Iterator[SpecError]:
    spec = loaded.spec
    for pool in POOLS:
        node: NodeSpec = getattr(spec.nodes, pool)
        count = node.count
        if spec.devices is not None:
            devices = len(getattr(spec.devices, pool))
            if devices % node.gpus:
                yield loaded.error(
                    f"has {devices} devices, no whole number of nodes of {node.gpus} GPUs",
                    *("devices", pool),
                )
            if count is not None and count * node.gpus > devices:
                yield loaded.error(
                    f"{count} nodes of {node.gpus} GPUs are more than the {devices} devices listed",
                    *("nodes", pool, "count"),
                )
            count = count or devices // node.gpus
        if count is None:
            continue
        for index, job in enumerate(spec.jobs):
            asked = getattr(job, pool)
            largest = asked - 1 if isinstance(asked, int) else max(asked)
            if largest >= count:
                yield loaded.error(
                    f"{asked if isinstance(asked, int) else list(asked)} is out of range;"
                    f" the {pool} pool has {count} node(s), ids from 0 to {count - 1}",
                    *("jobs", index, pool),
                )


def _with_spill_folder(loaded: SpecFile, folder: Path) -> SpecFile:
    """Like the configs: relative to the spec, wherever it is run from."""
    host = loaded.spec.host
    if host.spill is None:
        return loaded
    host = host.model_copy(update={"spill": str(folder / host.spill)})
    return replace(loaded, spec=loaded.spec.model_copy(update={"host": host}))


def _with_config_files(loaded: SpecFile, folder: Path) -> SpecFile:
    jobs: list[JobSpec] = []
    for index, job in enumerate(loaded.spec.jobs):
        if isinstance(job.config, str):
            try:
                config = read_document(folder / job.config).data
            except SpecError as error:
                raise loaded.error(str(error), "jobs", index, "config") from None
            if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
                raise loaded.error(f"{job.config}: must hold a mapping", "jobs", index, "config")
            job = job.model_copy(update={"config": config})
        jobs.append(job)
    return replace(loaded, spec=loaded.spec.model_copy(update={"jobs": tuple(jobs)}))

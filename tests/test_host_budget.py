"""A ``host.budget`` that the jobs of a run cannot live in is refused before anything is opened, and
one that is refused for a block was too small by that block."""

from __future__ import annotations

from pathlib import Path

import pytest

from weave_scheduler.document import SpecError
from weave_scheduler.live import check_jobs, run_jobs
from weave_scheduler.nodememory import check_host_memory
from weave_scheduler.progress import Screen
from weave_scheduler.specfile import SpecFile, parse_spec

# Both engines get their weights by publishing, so each has two versions in its turn.
SPEC = """
version: 1
devices:
  rollout: ["emulated:h20?capacity=6MB&scale=1024&speed=1000"]
  train: ["emulated:h800?capacity=6MB&scale=1024&speed=1000"]
host: {HOST}
jobs:
  - name: a
    kind: synthetic
    iterations: 3
    state: {rollout: {weights: 1GB, kv_cache: 2GB}, train: {weights: 1GB}}
    policy: {weights: reload}
    phases: {rollout: 20s, reward: 1s, train: 18s, weight_sync: 1s}
  - name: b
    kind: synthetic
    iterations: 3
    state: {rollout: {weights: 0.5GB, kv_cache: 2GB}, train: {weights: 0.5GB, optimizer: 1GB}}
    policy: {weights: reload}
    phases: {rollout: 20s, reward: 1s, train: 18s, weight_sync: 1s}
"""
HALF, ONE = 8, 15  # blocks of 64 MiB for 0.5 and 1 GB


def spec(blocks: int, spill: str | None = None) -> SpecFile:
    host = f"budget: {64 * blocks}MiB" + (f", spill: {spill}" if spill else "")
    return parse_spec(SPEC.replace("HOST", host))


def check(loaded: SpecFile, *names: str) -> None:
    check_host_memory(loaded, check_jobs(loaded), names)


ALL = 2 * ONE + ONE + 2 * HALF + HALF + ONE
# a rolls out while b syncs: its engine, b's trainer, b's next version
PAIR = ONE + (HALF + ONE) + HALF


@pytest.mark.parametrize(
    ("names", "spill", "blocks", "says"),
    [
        (
            "ab",
            None,
            ALL,
            "the jobs would pin 5.64 GB .*, that is 67.1 MB more",
        ),
        ("a", None, 3 * ONE, "the jobs would pin 3.02 GB"),
        ("ab", "files", PAIR, "a in rollout beside b in weight_sync would pin"),
        ("b", "files", HALF + HALF + ONE, "b in init would pin"),
    ],
)
def test_too_little_is_refused(names: str, spill: str | None, blocks: int, says: str) -> None:
    check(spec(blocks, spill), *names)
    with pytest.raises(SpecError, match=says) as caught:
        check(spec(blocks - 1, spill), *names)
    assert "SPEC.yaml:6: host.budget: " in str(caught.value)


def test_a_block_less_is_too_little() -> None:
    failed = [run_jobs(spec(n), ["a", "b"], Screen(), lambda: False).failed for n in (ALL, ALL - 1)]
    assert [bool(one) for one in failed] == [False, True]
    assert "HostMemoryError" in (failed[1][0].error or "")


def test_what_runs_at_once_lives_in_it(tmp_path: Path) -> None:
    run = run_jobs(spec(PAIR, str(tmp_path)), ["a", "b"], Screen(), lambda: False)
    assert not run.failed
    assert run.bytes_spilled > 0


def test_a_node_with_less_of_its_own_is_not_counted() -> None:
    own = SPEC.replace("HOST", "budget: 9GB").replace(
        "jobs:", "nodes: {train: {host_memory: 4GB}}\njobs:"
    )
    check(parse_spec(own), "a", "b")
    with pytest.raises(SpecError, match="the jobs would pin"):
        check(parse_spec(own.replace("9GB", "5GB").replace("4GB", "6GB")), "a", "b")
    check(parse_spec(own.replace("9GB", "5GB")), "a", "b")

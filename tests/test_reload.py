"""``policy: {weights: reload}`` in a spec: plans and runs mean the same by it, ``weight_sync``
publishes without the rollout GPU, and a rollout that sees another than the last is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weave_rt.publishing import Sync
from weave_scheduler.document import SpecError
from weave_scheduler.jobphases import pools_held, published_tags, tag_policy
from weave_scheduler.live import check_jobs, run_jobs
from weave_scheduler.planinput import job_model
from weave_scheduler.progress import Screen
from weave_scheduler.session import run_spec
from weave_scheduler.spec import JobSpec
from weave_scheduler.specfile import SpecFile, parse_spec

# Two jobs that do not fit together. Of a, the engine takes all that is trained; of b, half of it,
# and `other` from ordinary memory; its `buffers` are a frozen model beside.
SPEC = """
version: 1
devices:
  rollout: ["emulated:h20?capacity=6MB&scale=1024&speed=1000"]
  train: ["emulated:h800?capacity=6MB&scale=1024&speed=1000"]
scheduler: {intra: fifo}
jobs:
  - name: a
    kind: synthetic
    iterations: 4
    seed: 1
    state: {rollout: {weights: 2.5GB, kv_cache: 1GB}, train: {weights: 2.5GB, optimizer: 1.5GB}}
    policy: {weights: reload}
    phases: {rollout: 20s, reward: 1s, train: 18s, weight_sync: 1s}
  - name: b
    kind: synthetic
    iterations: 4
    seed: 2
    state: {rollout: {weights: 1.5GB, other: 0.5GB}, train: {weights: 3GB, buffers: 1GB}}
    policy: {weights: reload, other: reload, buffers: reload}
    phases: {rollout: {law: lognormal, mean: 20s, cv: 0.2, max: 40s}, train: 18s, weight_sync: 1s}
"""


def job_of(spec: str = SPEC, index: int = 0) -> JobSpec:
    return parse_spec(spec).spec.jobs[index]


def test_what_is_published_is_kept_where_it_is_trained() -> None:
    a, b = job_of(), job_of(index=1)
    assert published_tags(a) == {"weights"}
    assert published_tags(b) == {"weights", "other"}
    assert [tag_policy(a, pool, "weights") for pool in ("rollout", "train")] == ["reload", "keep"]
    assert [tag_policy(b, pool, "buffers") for pool in ("rollout", "train")] == ["reload", "reload"]
    assert tag_policy(a, "rollout", "kv_cache") == "discard"
    assert pools_held(a, "weight_sync") == ("train",)
    assert pools_held(a, "init") == ("train", "rollout")


@pytest.mark.parametrize(
    "change",
    [(", weight_sync: 1s", ""), ("{weights: reload}", "{}"), ("weights: 2.5GB", "weights: 0B")],
)
def test_without_a_sync_or_a_reload_tag_nothing_is_published(change: tuple[str, str]) -> None:
    job = job_of(SPEC.replace(*change, 1))
    assert published_tags(job) == frozenset()
    assert pools_held(job, "weight_sync") == ("train", "rollout")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{weights: reload}", "{kv_cache: reload}", "kv_cache: reload would bring old bytes back"),
        ("{weights: reload}", "{optimizer: reload}", "allowed for it: keep"),
        ("{weights: reload}", "{weights: discard}", "would lose the 2.5 GB that the train pool"),
        ("{weights: reload}", "{optimizer: discard}", "would lose the 1.5 GB that the train pool"),
        ("train: {weights: 2.5GB, ", "train: {", "publishes 2.5 GB of the rollout pool, of which"
         " state.train has 0 B"),
        ("train: {weights: 2.5GB, ", "train: {weights: 2.4GB, ", "state.train has 2.4 GB; give it"),
    ],
)  # fmt: skip
def test_what_no_job_could_learn_with_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(SpecError, match=r"^SPEC.yaml:13: jobs\.0\.policy\.") as caught:
        parse_spec(SPEC.replace(old, new, 1))
    assert says in str(caught.value)


def test_a_second_place_is_counted_where_there_is_a_second_version() -> None:
    """Of the training pool there is none: b's `buffers` are loaded once."""
    gb = 10**9
    model = job_model(job_of(index=1))
    assert (model.rollout_need.host_bytes, model.rollout_need.spare_bytes) == (2 * gb, 2 * gb)
    assert (model.train_need.host_bytes, model.train_need.spare_bytes) == (4 * gb, 0)
    never = job_model(job_of(SPEC.replace(", weight_sync: 1s", ""), 1))
    assert (never.rollout_need.host_bytes, never.rollout_need.spare_bytes) == (2 * gb, 0)


def test_a_plan_means_the_same() -> None:
    model = job_model(job_of())
    assert {phase.name: phase.pools for phase in model.phases}["weight_sync"] == ("train",)
    gb = 10**9
    assert model.rollout_need.kinds == (0, 2.5 * gb, 1 * gb)
    assert model.train_need.kinds == (4 * gb, 0, 0)


@pytest.mark.parametrize("intra", ["fifo", "strict", "barrier"])
def test_alone_and_together_give_the_same_bytes(tmp_path: Path, intra: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("intra: fifo", f"intra: {intra}"))
    compared = intra == "fifo"
    out = tmp_path / "out"
    outcome = run_spec(path, out, "compare" if compared else "together", Screen())
    assert outcome.code == 0, outcome.complaints
    whole = json.loads((out / "summary.json").read_text())
    assert [job["iterations"] for job in whole["jobs"]] == [4, 4]
    if compared:
        assert [job["identical_to_solo"] for job in whole["jobs"]] == [True, True]
    away = [one for one in whole["switches"] if "rollout:0" in one["devices"]]
    assert sum(one["bytes_in"] for one in away) > 0, "the jobs fit together, so nothing was tried"
    # An iteration copies the weights in and never out: that was once, with the first turn.
    out_bytes = sum(one["bytes_out"] for one in away)
    assert out_bytes < sum(one["bytes_in"] for one in away) / 2
    events = json.loads((out / "timeline.json").read_text())["traceEvents"]
    lanes = {(e["pid"], e["tid"]) for e in events if e["name"] == "a/weight_sync"}
    rollouts = {(e["pid"], e["tid"]) for e in events if e["name"] == "a/rollout"}
    assert lanes
    assert not lanes & rollouts, "a sync held the rollout GPU"


def run_a(loaded: SpecFile) -> Any:
    return run_jobs(loaded, ["a"], Screen(), lambda: False).jobs[0]


def test_a_version_that_never_arrives_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def conclude(self: Sync, ok: bool) -> None:
        for publication in self.published.values():
            publication.abort()

    monkeypatch.setattr(Sync, "conclude", conclude)
    record = run_a(parse_spec(SPEC))
    assert "StateChanged: a: weights of the rollout pool" in record.error
    assert "seen in rollout of iteration 1" in record.error


@pytest.mark.parametrize("offset", [0, 8 * 70_000, 2_441_400])  # first; inside; last
def test_one_wrong_byte_of_a_version_is_found(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    conclude = Sync.conclude

    def spoil(self: Sync, ok: bool) -> Exception | None:
        assert self.job is not None
        if self.step == 1:
            (tenant,) = self.job.tenants_in("rollout")
            region = tenant.region_of("weights", "reload")
            self.published["rollout"].write(region, offset, b"\xee")
        return conclude(self, ok)

    monkeypatch.setattr(Sync, "conclude", spoil)
    record = run_a(parse_spec(SPEC))
    assert f"offset {offset}, seen in rollout of iteration 2" in record.error


def test_a_sync_that_fails_leaves_the_job_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Sync, ok: bool) -> Exception:
        return RuntimeError("no version today")

    monkeypatch.setattr(Sync, "conclude", refuse)
    assert "no version today" in run_a(parse_spec(SPEC)).error


GRPO = """
version: 1
jobs:
  - {name: g, kind: grpo, iterations: 1, policy: {POLICY},
     config: {task: spell_backward, max_new_tokens: 3}}
"""


@pytest.mark.parametrize("policy", ["weights: reload", "kv_cache: keep", "optimizer: keep"])
def test_a_trainer_takes_what_its_engine_can(policy: str) -> None:
    check_jobs(parse_spec(GRPO.replace("POLICY", policy)))


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        ("kv_cache: reload", "discard, keep"),
        ("optimizer: reload", "keep"),
        ("weights: discard", "keep, reload"),
        ("scratch: keep", "discard"),
    ],
)
def test_what_a_trainer_cannot_do_is_refused_and_not_ignored(policy: str, allowed: str) -> None:
    tag, value = policy.split(": ")
    with pytest.raises(SpecError) as caught:
        check_jobs(parse_spec(GRPO.replace("POLICY", policy)))
    assert f"jobs.0.policy.{tag}: {value} does not work for a grpo job; allowed: {allowed}" in str(
        caught.value
    )

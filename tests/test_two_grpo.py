"""The proof that the project promises: two real trainers together, bit for bit as each alone; and
one byte that is wrong is found. The example, shortened, on devices where both do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weave_scheduler import live
from weave_scheduler.document import SpecError
from weave_scheduler.progress import Screen
from weave_scheduler.session import run_spec
from weave_scheduler.specfile import load_spec

torch = pytest.importorskip("torch")
pytest.importorskip("reasoning_gym")

SPEC = """
version: 1
devices:
  rollout: ["emulated:h20?scale=4096&speed=50&capacity=832KiB"]
  train: ["emulated:h800?scale=4096&speed=50&capacity=1536KiB"]
jobs:
  - {name: backward, kind: grpo, iterations: 3, seed: 1, threads: 1, policy: {weights: reload},
     config: {task: spell_backward, task_options: {min_word_len: 3, max_word_len: 3},
              task_size: 64, max_new_tokens: 3, d_model: 48, prompts_per_step: 4,
              group_size: 16, group_keep: 4, minibatches: 2}}
  - {name: sums, kind: grpo, iterations: 3, seed: 2, threads: 1,
     config: {task: chain_sum, task_options: {min_terms: 2, max_terms: 2, max_digits: 1},
              task_size: 64, max_new_tokens: 3, d_model: 48, prompts_per_step: 4,
              group_size: 16, group_keep: 4, minibatches: 2}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "two_grpo.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A run sets the number of torch's threads for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


TASK = "task_options: {min_word_len: 3, max_word_len: 3}"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("chain_sum", "nope", "'nope' not registered"),
        (TASK, "task_options: {colour: red}", "'colour'"),
        (TASK, "task_options: {min_word_len: 5, max_word_len: 3}", "max_word_len must be"),
        (TASK, "task_options: {min_word_len: 500, max_word_len: 600}", "makes no questions"),
    ],
)
def test_a_config_that_only_the_data_set_refuses_is_found_before_any_job_starts(
    spec: Path, old: str, new: str, says: str
) -> None:
    assert old in SPEC
    spec.write_text(SPEC.replace(old, new))
    job, line = ("1", 12) if old == "chain_sum" else ("0", 8)
    for names in (["backward"], ["backward", "sums"]):  # alone and together
        with pytest.raises(SpecError) as caught:
            live.run_jobs(load_spec(spec), names, Started(), lambda: False)
        assert str(caught.value).startswith(f"{spec}:{line}: jobs.{job}.config: grpo config: task")
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


class Started(Screen):
    """A listener before which no job may run."""

    def iteration(self, job: str, iteration: object, total: int) -> None:
        pytest.fail(f"{job} ran")


def test_two_trainers_that_do_not_fit_together_give_the_same_bits(
    spec: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "weave_scheduler", "run", spec, "--compare-solo", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    whole = json.loads((out / "summary.json").read_text())
    for job in whole["jobs"]:
        assert job["identical_to_solo"] is True
        assert job["iterations"] == 3
        assert job["warm_switches"] > 0
    for node in ("rollout:0", "train:0"):
        moved = [one for one in whole["switches"] if node in one["devices"] and one["bytes_in"]]
        assert moved, f"both fit on {node}, so nothing was tried"
    assert whole["totals"]["bytes_out"] > 0


def test_published_weights_and_copied_ones_give_the_same_bits(spec: Path) -> None:
    digests = []
    for text in (SPEC, SPEC.replace("policy: {weights: reload},", "")):
        spec.write_text(text)
        run = live.run_jobs(load_spec(spec), ["backward"], Screen(), lambda: False)
        digests.append((run.jobs[0].weights_digest, run.jobs[0].loss_digest))
        syncs = {s.devices for s in run.slices if (s.kind, s.phase) == ("phase", "weight_sync")}
        assert syncs == {("train:0",) if "reload" in text else ("train:0", "rollout:0")}
    assert digests[0] == digests[1] != (None, None)


def test_one_wrong_bit_is_found_and_named(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of one weight of the engine is flipped in iteration 0 of one job, when it runs beside
    the other; its rollout of iteration 1 is the first that can tell."""
    from weave_scheduler.jobs.grpo import trainer

    def alone(path: Path, job: str, screen: Any, interrupt: Any) -> Any:
        return live.run_jobs(load_spec(path), [job], screen, interrupt.stopped)

    monkeypatch.setattr("weave_scheduler.session.run_solo", alone)
    plain_run, plain_copy = live.run_jobs, trainer.copy_weights
    victims: list[Any] = []

    def copy_weights(policy: Any, engine: Any) -> None:
        plain_copy(policy, engine)
        if not victims and policy.shape.vocabulary < 20:  # digits, not letters
            victims.append(engine)
            engine.head.weight.detach().view(torch.int32)[5] ^= 1 << 20

    def together(*arguments: Any) -> Any:
        monkeypatch.setattr(trainer, "copy_weights", copy_weights)
        return plain_run(*arguments)

    monkeypatch.setattr("weave_scheduler.session.run_jobs", together)
    outcome = run_spec(spec, None, "compare", Screen())
    assert outcome.code == 1
    assert len(victims) == 1
    (complaint,) = outcome.complaints
    assert complaint.startswith("job sums differs from the same job alone: loss of iteration 1 is ")
    assert [job["identical_to_solo"] for job in outcome.summary["jobs"]] == [True, False]

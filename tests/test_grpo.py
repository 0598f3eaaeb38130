"""The GRPO trainer: each part against a plain statement of what it must do, and tiny runs."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from weave_rt.errors import UsageError
from weave_scheduler.jobs import Setting, kind_of
from weave_scheduler.jobs.grpo import GrpoConfig, GrpoResult, IterationRecord, run_grpo
from weave_scheduler.spec import JobSpec

torch = pytest.importorskip("torch")
pytest.importorskip("reasoning_gym")

from weave_scheduler.jobs.grpo.model import (  # noqa: E402
    Decoder,
    DecoderShape,
    build_decoder,
    cache_shape,
    generate,
)
from weave_scheduler.jobs.grpo.records import digest_losses  # noqa: E402
from weave_scheduler.jobs.grpo.tasks import Task, shared_words  # noqa: E402
from weave_scheduler.jobs.grpo.tokenizer import CharTokenizer  # noqa: E402
from weave_scheduler.jobs.grpo.trainer import (  # noqa: E402
    group_advantages,
    most_telling,
    policy_loss,
)

SHAPE = DecoderShape(vocabulary=11, context=9, d_model=32, n_layers=2, n_heads=4)
SMALL: dict[str, Any] = {
    "task": "spell_backward",
    "task_options": {"min_word_len": 3, "max_word_len": 3},
    "task_size": 64,
    "max_new_tokens": 3,
    "d_model": 32,
    "prompts_per_step": 4,
    "group_size": 8,
    "group_keep": 4,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Jobs are threads and run with one torch thread each; the setting is process-wide."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class PlainJob:
    """Stands in for a runtime job; after each rollout it spoils the KV cache, as a switch may."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.cache: Any = None

    @contextlib.contextmanager
    def phase(self, name: str, step: int | None = None) -> Iterator[None]:
        self.phases.append(name)
        yield
        if self.cache is not None:
            self.cache.fill_(float("nan"))

    def manage(self, name: str, *objects: Any, pool: str, tags: Any = None) -> PlainJob:
        return self

    def empty(self, shape: tuple[int, ...], dtype: Any, tag: str) -> Any:
        self.cache = torch.empty(shape, dtype=dtype)
        return self.cache


def run(seed: int = 1, iterations: int = 3, **changes: Any) -> GrpoResult:
    config = GrpoConfig.from_mapping(SMALL | changes)
    return run_grpo(PlainJob(), config, seed, iterations, lambda record: None)  # type: ignore[arg-type]


def decoder(seed: int = 0, shape: DecoderShape = SHAPE) -> Decoder:
    return build_decoder(shape, torch.Generator().manual_seed(seed))


def sample(model: Decoder, fill: float) -> tuple[Any, Any, Any]:
    """Prompts (6, 4), 6 new tokens and their log-probabilities, by a cache full of ``fill``."""
    generator = torch.Generator().manual_seed(3)
    prompts = torch.randint(0, SHAPE.vocabulary, (6, 4), generator=generator)
    chances = torch.rand(6, 6, generator=generator)
    cache = torch.full(cache_shape(SHAPE, 6), fill)
    return prompts, *generate(model, prompts, cache, chances, 0.7)


# --- tokenizer and tasks


def test_tokenizer_round_trip() -> None:
    tokenizer = CharTokenizer(["bread", "4 - 7"])
    ids = tokenizer.encode_question("bad 47")
    assert ids[-1] == tokenizer.ASK
    assert tokenizer.decode_answer(ids[:-1]) == "bad 47"
    assert max(ids) < len(tokenizer) == len(set("bread4 - 7")) + 2


def test_answer_ends_at_the_end_mark() -> None:
    tokenizer = CharTokenizer(["ab"])
    assert tokenizer.decode_answer([2, 3, tokenizer.END, 3, 3]) == "ab"
    assert tokenizer.decode_answer([2, tokenizer.ASK]) == "a\ufffd"


def test_shared_words_are_cut_at_words() -> None:
    texts = ["Add these: 12 + 1 = ?", "Add these: 17 + 3 = ?"]
    head, tail = shared_words(texts)
    assert [text[head : len(text) - tail] for text in texts] == ["12 + 1", "17 + 3"]


def test_task_grades_with_the_verifier() -> None:
    task = Task("spell_backward", {"min_word_len": 4, "max_word_len": 6}, 50, seed=5)
    for question in task.questions:
        assert question.prompt == question.entry["metadata"]["word"]
        assert task.grade(question, question.prompt[::-1]) == 1.0
        assert task.grade(question, "") == 0.0


def test_a_batch_has_one_prompt_length() -> None:
    task = Task("spell_backward", {"min_word_len": 3, "max_word_len": 6}, 50, seed=5)
    rng = random.Random(0)
    batches = [{len(q.prompt) for q in task.draw(rng, 8)} for _ in range(20)]
    assert all(len(lengths) == 1 for lengths in batches)
    assert len(set().union(*batches)) > 1


# --- model


def test_cached_generation_equals_full_forward() -> None:
    model = decoder()
    prompts, answers, logps = sample(model, fill=0.0)
    ids = torch.cat([prompts, answers[:, :-1]], dim=1)
    full = torch.log_softmax(model(ids, last=answers.shape[1]) / 0.7, dim=-1)
    torch.testing.assert_close(
        full.gather(2, answers[:, :, None])[:, :, 0], logps, atol=1e-5, rtol=1e-5
    )


def test_unwritten_cache_is_never_read() -> None:
    model = decoder()
    for clean, spoiled in zip(sample(model, 0.0), sample(model, float("nan")), strict=True):
        assert torch.equal(clean, spoiled)


def test_sampling_follows_the_probabilities() -> None:
    model = decoder()
    prompt = torch.tensor([[1, 2, 3]]).expand(20_000, 3)
    chances = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(0))
    answers, _ = generate(model, prompt, torch.empty(cache_shape(SHAPE, 20_000)), chances, 1.0)
    share = torch.bincount(answers[:, 0], minlength=SHAPE.vocabulary) / 20_000
    expected = model(prompt[:1], last=1).softmax(-1)[0, 0]
    torch.testing.assert_close(share, expected, atol=0.012, rtol=0)


def test_weights_come_from_the_given_generator_only() -> None:
    before = torch.random.get_rng_state()
    one, same, other = decoder(1), decoder(1), decoder(2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.tokens.weight, same.tokens.weight)
    assert not torch.equal(one.tokens.weight, other.tokens.weight)
    assert not any(p.is_meta for p in one.parameters())
    assert list(one.buffers()) == []


def test_tied_embeddings_are_one_parameter() -> None:
    tied, free = decoder(shape=replace(SHAPE, tie_embeddings=True)), decoder()
    assert tied.head.weight is tied.tokens.weight
    assert len(list(tied.parameters())) == len(list(free.parameters())) - 1


# --- objective


def test_advantages_are_relative_to_the_group() -> None:
    advantages = group_advantages(torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]]))
    assert advantages[:4].tolist() == pytest.approx([-0.866, 0.866, -0.866, 0.866], abs=1e-3)
    assert advantages[4:].tolist() == [0.0] * 4


def test_kept_are_the_worst_and_the_best() -> None:
    scores = torch.tensor([[0.2, 0.9, 0.1, 0.2, 1.0, 0.5]])
    assert sorted(most_telling(scores, 4)[0].tolist()) == [0, 1, 2, 4]


def test_clipped_ratio_has_no_gradient() -> None:
    old = torch.zeros(2, 1)
    logps = torch.tensor([[0.5], [0.1]], requires_grad=True)
    policy_loss(logps, old, torch.ones(2), torch.ones(2, 1), 0.2).backward()  # type: ignore[no-untyped-call]
    assert logps.grad is not None
    assert logps.grad[0].item() == 0.0
    assert logps.grad[1].item() < 0.0


# --- whole runs


def test_phases_of_a_run() -> None:
    job, records = PlainJob(), list[IterationRecord]()
    result = run_grpo(job, GrpoConfig.from_mapping(SMALL), 1, 2, records.append)  # type: ignore[arg-type]
    iteration = ["rollout", "reward", "train", "weight_sync"]
    assert job.phases == ["init", *iteration, *iteration, "save"]
    assert [record.step for record in records] == [0, 1]
    assert [record.reward_mean for record in records] == result.rewards
    assert result.loss_digest == digest_losses(record.loss for record in records)
    train, rollout = result.state_bytes["train"], result.state_bytes["rollout"]
    assert train["grads"] == train["weights"] == train["optimizer"] // 2 == rollout["weights"]
    assert rollout["kv_cache"] == 4 * 2 * 2 * (4 * 8) * (4 + 2) * 32


def test_same_seed_same_bits_beside_another_job() -> None:
    alone = run()
    results: list[GrpoResult] = []

    def body(work: Callable[[], GrpoResult]) -> None:
        results.append(work())

    other = threading.Thread(target=body, args=(lambda: run(seed=2, iterations=6),))
    other.start()
    beside = run()
    other.join()
    assert beside == alone
    assert results[0].weights_digest != alone.weights_digest


def test_reward_rises() -> None:
    result = run(iterations=60, prompts_per_step=8, group_size=16, learning_rate=2e-3)
    assert sum(result.rewards[-6:]) > 3 * sum(result.rewards[:6])


# --- config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 1.0}, "lr: Extra inputs are not permitted, got 1.0"),
        ({"d_model": "wide"}, "d_model: Input should be a valid integer, got 'wide'"),
        ({"learning_rate": 0}, "learning_rate: Input should be greater than 0, got 0"),
        ({"group_keep": 3}, "group_keep: Input should be a multiple of 2, got 3"),
        ({"n_heads": 5}, "n_heads must divide d_model, got 5 and 32"),
        ({"group_size": 2}, "group_keep must not exceed group_size, got 4 and 2"),
        ({"minibatches": 3}, "minibatches must divide prompts_per_step * group_keep, got 3 and 16"),
        ({"task_options": {"seed": 1}}, "task_options must not set seed, which the job sets"),
    ],
)
def test_config_errors_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        GrpoConfig.from_mapping(SMALL | changes)
    assert str(caught.value) == f"grpo config: {message}"


def test_a_gpu_is_refused_before_the_run_in_one_line() -> None:
    class Clock:
        def now_ns(self) -> int:
            return 0

        def sleep_until_ns(self, deadline_ns: int) -> None: ...

    job = JobSpec(name="a", kind="grpo", iterations=1, config=SMALL)
    kind_of(job, Setting(Clock())).prepare(job)
    with pytest.raises(UsageError, match=r"kind grpo .* emulated devices only") as caught:
        kind_of(job, Setting(Clock(), readable=False)).prepare(job)
    assert "\n" not in str(caught.value)


def test_missing_key_is_named() -> None:
    with pytest.raises(UsageError, match=r"^grpo config: task: Field required$"):
        GrpoConfig.from_mapping({"max_new_tokens": 3})


@pytest.mark.parametrize(
    ("name", "options"), [("no_such_task", {}), ("spell_backward", {"depth": 3})]
)
def test_wrong_task_is_one_line(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Task(name, options, 4, seed=0)
    assert str(caught.value).startswith(f"grpo config: task '{name}': ")
    assert "\n" not in str(caught.value)


def test_numbers_may_be_written_as_yaml_reads_them() -> None:
    assert GrpoConfig.from_mapping(SMALL | {"learning_rate": "1e-3"}).learning_rate == 1e-3


def test_package_imports_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['reasoning_gym'] = None\n"
        "import weave_scheduler.jobs.grpo"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

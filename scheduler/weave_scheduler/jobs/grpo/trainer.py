"""The training loop of a ``kind: grpo`` job: rollout, reward, train, weight_sync, on policy.

Two copies of one model: the policy with its optimiser on the train pool, the engine with its KV
cache on the rollout pool. Managed tensors (parameters, gradients, optimiser state, KV cache) are
read and written inside a phase that holds their pool and nowhere else; what crosses phases (ids,
log-probabilities, advantages) are ordinary tensors in host memory. Every random number comes from a
generator that belongs to this job, so the same seed gives the same bits beside any other job.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weave_scheduler.jobs.grpo.config import GrpoConfig
from weave_scheduler.jobs.grpo.model import (
    Decoder,
    DecoderShape,
    build_decoder,
    cache_shape,
    generate,
)
from weave_scheduler.jobs.grpo.records import GrpoResult, IterationRecord, digest_losses
from weave_scheduler.jobs.grpo.tasks import Question, Task
from weave_scheduler.jobs.grpo.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from weave_rt import Job, PhaseResult

__all__ = ["build_task", "group_advantages", "policy_loss", "train_grpo"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rollout hands to the later phases: ordinary tensors in host memory."""

    questions: list[Question]
    """One per group."""
    prompts: Tensor
    """Ids (batch, prompt length), the groups one after another."""
    answers: Tensor
    """Ids (batch, new tokens)."""
    logps: Tensor
    """Log-probabilities of the answers under the engine, (batch, new tokens)."""
    lengths: tuple[int, ...] = ()
    """Tokens of every answer that was sampled, also of those that were not kept."""

    def only(self, columns: Tensor) -> Batch:
        """The answers at ``columns`` (groups, answers), which are places within each group."""
        groups = columns.shape[0]
        size = self.prompts.shape[0] // groups
        rows = (columns + size * torch.arange(groups)[:, None]).flatten()
        kept = self.prompts[rows], self.answers[rows], self.logps[rows]
        return Batch(self.questions, *kept, self.lengths)


def train_grpo(
    job: Job,
    config: GrpoConfig,
    seed: int,
    iterations: int,
    on_iteration: Callable[[IterationRecord], None],
    engine_tags: Mapping[str, str] | None = None,
) -> GrpoResult:
    """Runs ``iterations`` on-policy iterations; see :func:`weave_scheduler.jobs.grpo.run_grpo`."""
    task = build_task(config, seed)
    draws = random.Random(derived_seed(seed, "questions"))
    sampling = torch.Generator().manual_seed(derived_seed(seed, "sampling"))
    shuffling = torch.Generator().manual_seed(derived_seed(seed, "shuffling"))
    shape = shape_of(config, task)

    with job.phase("init"):
        policy, engine = (
            build_decoder(shape, torch.Generator().manual_seed(derived_seed(seed, "weights")))
            for _ in range(2)
        )
        optimizer = torch.optim.AdamW(
            policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        job.manage("policy", policy, optimizer, pool="train")
        tags = {"kv_cache": "discard", **(engine_tags or {})}
        tenant = job.manage("engine", engine, pool="rollout", tags=tags)
        cache = tenant.empty(cache_shape(shape, config.sampled), torch.float32, "kv_cache")

    rewards: list[float] = []
    losses: list[float] = []
    for step in range(iterations):
        with job.phase("rollout", step=step):
            batch = roll_out(engine, cache, task, config, draws, sampling)
        with job.phase("reward", step=step):
            scores = grade(task, batch, config)
            chosen = most_telling(scores, config.group_keep)
            advantages = group_advantages(scores.gather(1, chosen))
            batch = batch.only(chosen)
        with job.phase("train", step=step):
            loss = update(policy, optimizer, batch, advantages, config, shuffling)
        with job.phase("weight_sync", step=step) as sync:
            sync_weights(sync, policy, engine, tags)
        rewards.append(scores.mean().item())
        losses.append(loss)
        on_iteration(record_of(step, scores, loss, batch))

    with job.phase("save"):
        weights_digest = digest_weights(policy)
    return GrpoResult(
        rewards=rewards,
        losses=losses,
        loss_digest=digest_losses(losses),
        weights_digest=weights_digest,
        state_bytes=measure_state(policy, optimizer, engine, cache),
    )


def build_task(config: GrpoConfig, seed: int) -> Task:
    """The questions of a job. Raises UsageError where the config names none that can be made."""
    return Task(config.task, config.task_options, config.task_size, derived_seed(seed, "task"))


def shape_of(config: GrpoConfig, task: Task) -> DecoderShape:
    """The model that the config asks for, large enough for the task."""
    return DecoderShape(
        vocabulary=len(task.tokenizer),
        context=task.longest_prompt + config.max_new_tokens - 1,
        d_model=config.d_model,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        tie_embeddings=config.tie_embeddings,
    )


def record_of(step: int, scores: Tensor, loss: float, batch: Batch) -> IterationRecord:
    """What an iteration reports."""
    correct = int((scores == 1.0).sum())
    return IterationRecord(step, scores.mean().item(), correct, loss, batch.lengths)


def roll_out(
    engine: Decoder,
    cache: Tensor,
    task: Task,
    config: GrpoConfig,
    draws: random.Random,
    sampling: torch.Generator,
) -> Batch:
    """Draws questions and samples a group of answers to each."""
    questions = task.draw(draws, config.prompts_per_step)
    ids = torch.tensor([task.tokenizer.encode_question(q.prompt) for q in questions])
    prompts = ids.repeat_interleave(config.group_size, dim=0)
    chances = torch.rand(config.max_new_tokens, config.sampled, generator=sampling)
    device = cache.device
    answers, logps = generate(
        engine, prompts.to(device), cache, chances.to(device), config.temperature
    )
    answers = answers.cpu()
    return Batch(questions, prompts, answers, logps.cpu(), answer_lengths(answers))


def answer_lengths(answers: Tensor) -> tuple[int, ...]:
    """Tokens of each answer up to the end mark, the mark included; all where it has none."""
    ended = (answers == CharTokenizer.END).int()
    before = ended.cumsum(1) - ended == 0  # up to the end mark, the mark included
    return tuple(before.sum(1).tolist())


def grade(task: Task, batch: Batch, config: GrpoConfig) -> Tensor:
    """Rewards (prompts_per_step, group_size) by the task's own verifier."""
    answers = [task.tokenizer.decode_answer(ids) for ids in batch.answers.tolist()]
    scores = [
        task.grade(batch.questions[i // config.group_size], text) for i, text in enumerate(answers)
    ]
    return torch.tensor(scores).view(config.prompts_per_step, config.group_size)


def most_telling(scores: Tensor, keep: int) -> Tensor:
    """Places (groups, keep) of the ``keep / 2`` worst and best scores of each group.

    They differ most, so they say most about what to do and what not. Equal scores stay in the order
    of sampling. With ``keep`` the size of the group this only reorders it.
    """
    order = scores.argsort(dim=1, stable=True)
    return torch.cat([order[:, : keep // 2], order[:, -(keep // 2) :]], dim=1)


def group_advantages(scores: Tensor) -> Tensor:
    """Scores (groups, group size) to advantages (groups * group size).

    Each score is compared with its own group: less the mean, over the standard deviation. A group
    whose answers all earned the same teaches nothing and gets zeros.
    """
    centred = scores - scores.mean(dim=1, keepdim=True)
    deviation = scores.std(dim=1, keepdim=True)
    return (centred / (deviation + 1e-4)).flatten()


def policy_loss(
    logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, clip_eps: float
) -> Tensor:
    """The clipped objective, averaged over the tokens that ``mask`` keeps.

    All are (batch, new tokens) except ``advantages``, which is (batch,).
    """
    ratio = (logps - old_logps).exp()
    gain = advantages[:, None]
    objective = torch.minimum(ratio * gain, ratio.clamp(1 - clip_eps, 1 + clip_eps) * gain)
    return -(objective * mask).sum() / mask.sum()


def update(
    policy: Decoder,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    advantages: Tensor,
    config: GrpoConfig,
    shuffling: torch.Generator,
) -> float:
    """One iteration's optimiser steps; returns the mean of their losses.

    The log-probabilities are those of the sampling distribution, temperature included, so that the
    ratio is 1 before the first step.
    """
    device = policy.tokens.weight.device
    new = batch.answers.shape[1]
    ids = torch.cat([batch.prompts, batch.answers[:, :-1]], dim=1)  # what is read
    ended = (batch.answers == CharTokenizer.END).int()
    mask = (ended.cumsum(1) - ended == 0).float()  # up to the end mark, the mark included
    losses = []
    for _ in range(config.epochs):
        order = torch.randperm(config.trained, generator=shuffling)
        for rows in order.chunk(config.minibatches):
            drawn, old, kept = (x[rows].to(device) for x in (batch.answers, batch.logps, mask))
            logits = policy(ids[rows].to(device), last=new) / config.temperature
            all_logps = F.log_softmax(logits, dim=-1)
            logps = all_logps.gather(2, drawn[:, :, None])[:, :, 0]
            loss = policy_loss(logps, old, advantages[rows].to(device), kept, config.clip_eps)
            if config.entropy_coef > 0:
                entropy = -(all_logps.exp() * all_logps).sum(-1)
                loss = loss - config.entropy_coef * (entropy * kept).sum() / kept.sum()
            optimizer.zero_grad(set_to_none=False)  # gradients keep their addresses
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def sync_weights(
    sync: PhaseResult, policy: Decoder, engine: Decoder, tags: Mapping[str, str]
) -> None:
    """The policy's weights become the engine's: published where those are reloaded."""
    if tags.get("weights") == "reload":
        sync.publish(engine, policy)
    else:
        copy_weights(policy, engine)


@torch.no_grad()
def copy_weights(policy: Decoder, engine: Decoder) -> None:
    """Writes the policy's weights into the engine's parameters, in place."""
    for source, target in zip(policy.parameters(), engine.parameters(), strict=True):
        target.copy_(source)


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose: independent streams from the one number that the user gives."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def digest_weights(model: nn.Module) -> str:
    """SHA-256 over the raw bytes of all parameters, in the order of their names."""
    digest = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def measure_state(
    policy: Decoder, optimizer: torch.optim.Optimizer, engine: Decoder, cache: Tensor
) -> dict[str, dict[str, int]]:
    """Bytes by pool and tag, from sizes only: the memory may belong to another job by now.

    The step counters of AdamW are left out; they are scalars in host memory.
    """

    def total(tensors: Iterable[Tensor | None]) -> int:
        return sum(t.nbytes for t in tensors if t is not None and t.dim() > 0)

    moments = (value for state in optimizer.state.values() for value in state.values())
    return {
        "train": {
            "weights": total(policy.parameters()),
            "grads": total(p.grad for p in policy.parameters()),
            "optimizer": total(moments),
        },
        "rollout": {"weights": total(engine.parameters()), "kv_cache": total([cache])},
    }

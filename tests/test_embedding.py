"""A whole trainer in the shape that the README shows, with Weave and without: same numbers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from conftest import ROLLOUT, TRAIN

import weave_rt
from weave_rt import _core


class Lm(torch.nn.Module):
    """A tiny language model with a tied head and a buffer that is in no state dict."""

    def __init__(self, width: int = 32, vocabulary: int = 24) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.mix = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((), 1.5), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(tokens))[0]) * self.scale

    def logp(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self(tokens[:, :-1]).log_softmax(-1)
        return scores.gather(-1, tokens[:, 1:, None]).squeeze(-1)


def train(
    job_id: str,
    seed: int,
    num_steps: int,
    config: dict[str, Any] | None,
    after_step: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """One job; returns its losses, its metrics and the policy, which must outlive it."""
    draw = torch.Generator().manual_seed(seed)
    losses, metrics = [], []
    with weave_rt.init(job_id=job_id, config=config) as job:
        with job.phase("init"):
            policy, engine = Lm(), Lm()
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.normal_(std=0.2, generator=draw)
            engine.load_state_dict(policy.state_dict())
            opt = torch.optim.AdamW(policy.parameters(), lr=1e-2)
        before = list(policy.parameters())
        job.manage("policy", policy, opt, pool="train")
        tags = {"weights": "keep", "kv_cache": "discard"}
        tenant = job.manage("engine", engine, pool="rollout", tags=tags)

        @job.phase("train")
        def update(seq: torch.Tensor, old: torch.Tensor, adv: torch.Tensor) -> float:
            ratio = (policy.logp(seq) - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            return float(loss.item())

        for step in range(num_steps):
            with job.phase("rollout", step=step), torch.no_grad():
                cache = tenant.empty((8, 12), torch.int64, "kv_cache").zero_()
                for position in range(11):
                    odds = engine(cache[:, : position + 1])[:, -1].softmax(-1)
                    cache[:, position + 1] = torch.multinomial(odds, 1, generator=draw)[:, 0]
                seq = job.keep(cache)
                old = job.keep(engine.logp(seq))
            with job.phase("reward", step=step):
                reward = (seq % 2 == 0).float().mean(-1, keepdim=True)
                adv = (reward - reward.mean()) / (reward.std() + 1e-4)
            losses.append(update(seq, old, adv))
            with job.phase("weight_sync", step=step):
                engine.load_state_dict(policy.state_dict())
            metrics.append(job.pop_metrics())
            after_step()
        addresses = {p.data_ptr() for p in policy.parameters()}
    assert all(a is b for a, b in zip(before, policy.parameters(), strict=True))
    assert policy.head.weight is policy.embed.weight
    weights = {k: v.clone() for k, v in policy.state_dict().items()}
    ordinary = not addresses & {p.data_ptr() for p in policy.parameters()}
    return {"losses": losses, "weights": weights, "metrics": metrics, "moved_back": ordinary}


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one["losses"] == two["losses"] and all(
        torch.equal(a, b)
        for a, b in zip(one["weights"].values(), two["weights"].values(), strict=True)
    )


def test_one_job_as_with_weave_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEAVE", raising=False)
    off = train("a", seed=1, num_steps=4, config=None)
    monkeypatch.setenv("WEAVE", "local")
    monkeypatch.setenv("WEAVE_ROLLOUT", ROLLOUT)
    monkeypatch.setenv("WEAVE_TRAIN", TRAIN)
    local = train("a", seed=1, num_steps=4, config=None)
    assert same(off, local)
    assert off["metrics"] == [{}] * 4
    assert local["moved_back"]
    expected = {f"timing_s/{name}" for name in ("rollout", "reward", "train", "weight_sync")}
    assert all(expected <= set(metrics) for metrics in local["metrics"])
    assert not same(off, train("a", seed=2, num_steps=4, config=None))  # the comparison can fail


# one job fits on each of these, two do not
TIGHT = {
    "mode": "local",
    "rollout_device": ROLLOUT.replace("2MiB", "224KiB"),
    "train_device": TRAIN.replace("2MiB", "336KiB"),
}


def test_two_jobs_on_devices_too_small_for_both() -> None:
    alone = [train(f"job{seed}", seed, 4, {"mode": "off"}) for seed in range(2)]
    outer = weave_rt.init("holder", TIGHT)  # keeps the devices open between the jobs

    def run(seed: int) -> dict[str, Any]:
        return train(f"job{seed}", seed, 4, TIGHT)

    with ThreadPoolExecutor(2) as pool:
        together = dict(enumerate(pool.map(run, range(2))))
    outer.close()
    assert all(same(alone[seed], together[seed]) for seed in range(2))
    moved = sum(m["weave/bytes_resumed"] for r in together.values() for m in r["metrics"])
    assert moved > 0


def test_steady_state_of_two_trainers_creates_and_registers_nothing() -> None:
    """Gradients that are new in each step and optimizer state that comes after the first one
    find their place again; only copies and mappings are left."""
    counts: list[dict[str, int]] = []
    iteration = Barrier(2, action=lambda: counts.append(_core.call_counts("emulated")))
    outer = weave_rt.init("holder", TIGHT)

    def run(seed: int) -> dict[str, Any]:
        return train(f"job{seed}", seed, 8, TIGHT, after_step=lambda: iteration.wait(timeout=60))

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, range(2)))
    outer.close()
    names = ("create", "release", "address_reserve", "address_free")
    names = (*names, "host_register", "host_unregister")
    steady = [{name: count[f"mem_{name}"] for name in names} for count in counts[1:]]
    assert steady == [steady[0]] * 7
    assert counts[-1]["mem_map"] > counts[1]["mem_map"]
    for result in together:
        assert all(m["weave/bytes_resumed"] > 0 for m in result["metrics"][2:])

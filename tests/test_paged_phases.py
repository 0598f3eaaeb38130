"""A rollout whose KV cache is kept by pages, interrupted between phases by jobs that take the
device, under every plan and with copies behind phases: it continues bit-identically."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import ROLLOUT
from test_paged_kv import ORDER, SHAPE, Decoder, Generation, caches

from weave_rt import Buffer, Device, LocalRuntime, Tenant, init
from weave_rt.local_job import LocalJob

STEPS = 40


def hungry(runtime: LocalRuntime, name: str, share: float) -> tuple[LocalJob, Buffer]:
    """A job with one tenant of this share of the device."""
    job = init(name, {"runtime": runtime})
    with job.phase("init", pool="rollout"):
        tenant = job.manage("x", pool="rollout")
        device = tenant.device
        blocks = int(device.usable_bytes * share) // device.block_bytes
        return job, tenant.buffer(blocks * device.block_bytes, "weights")


def interrupted(job: LocalJob, others: list[tuple[LocalJob, Buffer]]) -> list[int]:
    """The tokens of a rollout of one phase per token; every third time the others run before it."""
    model = Decoder()
    with job.phase("init", pool="rollout"):
        tenant = job.manage("engine", model, pool="rollout", tags={"kv_cache": "keep"})
        assert isinstance(tenant, Tenant)
        cache = caches(lambda: tenant.empty(SHAPE, "float32", "kv_cache"))
        generation = Generation(model, cache, ORDER)

        def table() -> tuple[list[int], list[int]]:
            found = [tenant.pages(layer, generation.used(), dim=1) for layer in cache]
            return [o for one in found for o in one[0]], [n for one in found for n in one[1]]

        tenant.page_table("kv_cache", table)
    for step in range(STEPS):
        if step % 3 == 0:
            others.reverse()
            for other, buffer in others:
                with other.phase("rollout"):
                    buffer.view()[:] = b"\xff" * buffer.nbytes  # NaN in any float
        with job.phase("rollout"):
            generation.step()
    return generation.tokens


@pytest.mark.parametrize("verify", ["off", "checksum"])
@pytest.mark.parametrize("plan", ["fewest-bytes", "least-stall", "auto"])
def test_a_rollout_continues_bit_identically_under_every_plan(
    open_checked: Callable[[str], Device], plan: str, verify: str
) -> None:
    alone = Generation(Decoder(), caches(lambda: torch.empty(SHAPE)), ORDER)
    for _ in range(STEPS):
        alone.step()
    runtime = LocalRuntime({"rollout": [open_checked(ROLLOUT)]}, plan=plan)
    job = init("a", {"runtime": runtime, "verify": verify})
    others = [hungry(runtime, "b", 1.0), hungry(runtime, "c", 0.6)]
    assert interrupted(job, others) == alone.tokens
    jobs = [job, *(other for other, _ in others)]
    others.clear()
    for each in jobs:
        each.close()
    runtime.close()

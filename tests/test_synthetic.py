"""``kind: synthetic`` against stand-ins for job, tenant and clock: what it checks and how long."""

from contextlib import contextmanager

import numpy as np
import pytest

from weave_rt.errors import StateChanged, UsageError
from weave_scheduler.jobs import Setting, Stopped
from weave_scheduler.jobs.pattern import pattern_key, renew, write
from weave_scheduler.jobs.synthetic import SyntheticKind, scaled_bytes
from weave_scheduler.specfile import parse_spec

SPEC = """
version: 1
jobs:
  - name: a
    kind: synthetic
    iterations: 3
    seed: 5
    state: {rollout: {weights: 4MB, kv_cache: 8MB, buffers: 0B}, train: {weights: 4MB, grads: 1B}}
    policy: {grads: discard}
    phases:
      init: 10s
      rollout: {law: lognormal, mean: 100s, cv: 0.2}
      reward: 4s
      train: 40s
      weight_sync: 2s
"""


class Clock:
    """Time passes only by waiting."""

    def __init__(self):
        self.ns = 0
        self.naps = 0

    def now_ns(self):
        return self.ns

    def sleep_until_ns(self, deadline_ns):
        self.naps += 1
        self.ns = max(self.ns, deadline_ns)


class Buffer:
    def __init__(self, tenant, size):
        self.tenant, self.data = tenant, bytearray(b"\xaa" * size)

    def view(self):
        assert self.tenant.resident, "touched outside its phase"
        return memoryview(self.data)


class Tenant:
    def __init__(self):
        self.resident = False
        self.buffers = {}

    def buffer(self, nbytes, tag, policy):
        assert self.resident
        self.buffers[tag] = (policy, Buffer(self, nbytes))
        return self.buffers[tag][1]


POOLS = {
    "rollout": ["rollout"],
    "train": ["train"],
    "reward": [],
    "init": ["train", "rollout"],
    "weight_sync": ["train", "rollout"],
}


class Job:
    """Phases with the pools of the runtime; ``between`` is called while nothing is resident."""

    def __init__(self, clock, between=lambda job: None):
        self.clock, self.between = clock, between
        self.tenants, self.holds, self.log = {}, [], []

    def manage(self, name, pool):
        tenant = self.tenants[pool] = Tenant()
        tenant.resident = pool in self.holds
        return tenant

    @contextmanager
    def phase(self, name, step=None):
        self.holds, start_ns = POOLS[name], self.clock.now_ns()
        for pool, tenant in self.tenants.items():
            tenant.resident = pool in self.holds
        yield
        self.holds = []
        for tenant in self.tenants.values():
            tenant.resident = False
        self.log.append((name, step, (self.clock.now_ns() - start_ns) / 1e9))
        self.between(self)


def run(between=lambda job: None, spec=SPEC, **setting):
    clock = Clock()
    job = Job(clock, between)
    spec_job = parse_spec(spec).spec.jobs[0]
    kind = SyntheticKind(Setting(clock, **setting))
    kind.prepare(spec_job)
    steps = []
    result = kind.run(job, spec_job, spec_job.seed, spec_job.iterations, steps.append)
    return job, steps, result


def test_phases_come_in_order_and_take_their_modelled_time():
    job, steps, _ = run(scale=4, speed=50)
    assert [name for name, _, _ in job.log] == ["init"] + [
        "rollout", "reward", "train", "weight_sync"] * 3  # fmt: skip
    assert [step.step for step in steps] == [0, 1, 2]
    times = {name: [s for n, _, s in job.log if n == name] for name, _, _ in job.log}
    assert times["train"] == pytest.approx([0.8] * 3)
    assert times["init"] == pytest.approx([0.2])
    assert len(set(times["rollout"])) == 3, "each iteration draws"


def test_bytes_are_those_of_the_real_job_divided_by_the_scale():
    job, _, result = run(scale=1000)
    sizes = {"rollout": {"weights": 4000, "kv_cache": 8000}, "train": {"weights": 4000, "grads": 8}}
    assert result.state_bytes == sizes
    policies = {tag: policy for tag, (policy, _) in job.tenants["rollout"].buffers.items()}
    assert policies == {"weights": "keep", "kv_cache": "discard"}
    assert job.tenants["train"].buffers["grads"][0] == "discard"
    assert scaled_bytes(0, 7) == 0
    assert scaled_bytes(1, 7) == 8


def test_the_result_depends_on_seed_and_iterations_only():
    digests = {
        run(scale=scale, spec=SPEC.replace(*change))[2].weights_digest
        for scale in (100, 100)
        for change in (("seed: 5", "seed: 5"), ("seed: 5", "seed: 6"),
                       ("iterations: 3", "iterations: 4"))
    }  # fmt: skip
    assert len(digests) == 3


@pytest.mark.parametrize("pool", ["rollout", "train"])
@pytest.mark.parametrize("offset", [0, 7, 20_000, -1])
def test_one_wrong_byte_is_found_and_named(pool, offset):
    def corrupt(job):
        if len(job.log) == 5:  # the last phase of the first iteration
            data = job.tenants[pool].buffers["weights"][1].data
            data[offset] ^= 1

    with pytest.raises(StateChanged, match=f"a: weights of the {pool} pool") as caught:
        run(corrupt, scale=100)
    size = 40_000
    assert f"offset {offset % size}," in str(caught.value)
    assert "of iteration 1" in str(caught.value)


def test_stale_bytes_are_found():
    saved = {}

    def restore_an_old_copy(job):
        data = job.tenants["rollout"].buffers["weights"][1].data
        if len(job.log) == 2:
            saved["old"] = bytes(data)
        elif len(job.log) == 6:
            data[:] = saved["old"]

    with pytest.raises(StateChanged):
        run(restore_an_old_copy, scale=100)


def test_discarded_bytes_may_change():
    def scribble(job):
        data = job.tenants["rollout"].buffers["kv_cache"][1].data
        data[:] = b"\xff" * len(data)

    run(scribble, scale=100)


def test_an_interrupt_ends_a_long_phase_early():
    calls = iter([False] * 3 + [True] * 100)
    with pytest.raises(Stopped, match="interrupted in"):
        run(stopped=lambda: next(calls))


def test_a_device_that_the_cpu_cannot_read_is_refused():
    with pytest.raises(UsageError, match="emulated devices only"):
        run(readable=False)


@pytest.mark.parametrize("words", [1, 3, 65536, 65537, 200_000])
def test_the_pattern_tells_words_and_keys_apart(words):
    one, other = pattern_key("a", 1), pattern_key("a", 2)
    data = np.zeros(words, dtype=np.uint64)
    write(memoryview(data).cast("B"), one)
    assert len(np.unique(data)) == words
    assert renew(memoryview(data).cast("B"), other, one) is not None
    assert renew(memoryview(data).cast("B"), one, other) is None
    assert renew(memoryview(data).cast("B"), other, one) is None
    data[-1] ^= np.uint64(1 << 40)
    assert renew(memoryview(data).cast("B"), one, other) == (words - 1) * 8 + 5

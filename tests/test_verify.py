"""``verify="checksum"``: the hash is the published one, a byte that changed is named, and a job
that runs with it runs as without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROLLOUT

from weave_rt import Device, LocalRuntime, Tenant, UsageError, VerifyFailed, _core, init

VECTORS = json.loads((Path(__file__).parent / "data" / "checksums.json").read_text())


def data_of(nbytes: int) -> bytes:
    """The bytes that the vectors are of: a 64-bit linear congruential generator's top bytes."""
    state, out = 1, bytearray()
    for _ in range(nbytes):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 56)
    return bytes(out)


def test_committed_vectors() -> None:
    data = data_of(max(int(n) for n in VECTORS["block_checksum"]))
    for name in ("xxh3_64", "block_checksum"):
        for nbytes, expected in VECTORS[name].items():
            assert f"{getattr(_core, name)(data[: int(nbytes)]):016x}" == expected, (name, nbytes)


def test_the_hash_is_xxhash() -> None:
    xxhash = pytest.importorskip("xxhash")
    data = data_of(3000)
    for nbytes in (*range(300), 511, 512, 513, 1023, 1024, 1025, 1088, 2048, 3000):
        assert _core.xxh3_64(data[:nbytes]) == xxhash.xxh3_64_intdigest(data[:nbytes]), nbytes
    large = data * 60
    pieces = [large[i : i + 65536] for i in range(0, len(large), 65536)]
    digests = b"".join(xxhash.xxh3_64_intdigest(p).to_bytes(8, "little") for p in pieces)
    assert _core.block_checksum(large) == xxhash.xxh3_64_intdigest(digests)


def test_a_write_that_nobody_announced_names_the_tensor(
    open_checked: Callable[[str], Device],
) -> None:
    torch = pytest.importorskip("torch")
    device = open_checked(ROLLOUT)
    device.set_verify(True)
    tenant = Tenant(device, "ref", job="a", pool="train")
    tenant.resume()
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
    tenant.adopt(net)
    tenant.mark_clean("weights")
    assert tenant.suspend().as_dict()["verify_s"] > 0
    tenant.resume()
    with torch.no_grad():
        net[1].weight[2, 3] += 1
    changed = net[1].weight.detach().clone()
    with pytest.raises(VerifyFailed, match=r"nobody called mark_dirty.*in tensor 1\.weight") as e:
        tenant.suspend()
    assert (e.value.job, e.value.tenant, e.value.tag) == ("a", "ref", "weights")
    assert e.value.tensor == "1.weight"
    assert tenant.state == "RESIDENT"
    tenant.mark_dirty("weights")
    tenant.suspend()
    tenant.resume()
    assert torch.equal(net[1].weight, changed)
    tenant.close()


def test_a_job_that_verifies_runs_as_without(runtime: LocalRuntime) -> None:
    torch = pytest.importorskip("torch")
    with init("a", {"runtime": runtime, "verify": "checksum"}) as job:
        net = torch.nn.Linear(32, 32)
        expected = net.weight.detach().clone()
        tenant = job.manage("net", net, pool="train")
        assert isinstance(tenant, Tenant)
        assert tenant.device.verifies
        for _ in range(3):
            with job.phase("train"), torch.no_grad():
                net.weight.add_(1)
            expected += 1
            tenant.suspend()
        with job.phase("train"):
            assert torch.equal(net.weight, expected)
    with pytest.raises(UsageError, match="checksum"):
        init("b", {"runtime": runtime, "verify": "everything"})

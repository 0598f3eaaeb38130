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


def test_a_write_after_write_back_is_caught_at_the_switch(
    open_checked: Callable[[str], Device],
) -> None:
    device = open_checked(ROLLOUT)
    device.set_verify(True)
    tenant, other = Tenant(device, "a", job="a"), Tenant(device, "b", job="b")
    tenant.resume()
    data = tenant.buffer(3 * device.block_bytes, "weights")
    data.view()[:] = bytes([1]) * data.nbytes
    tenant.write_back("weights").wait()
    data.view()[5] = 7
    with pytest.raises(VerifyFailed, match="nobody called mark_dirty"):
        tenant.suspend()
    assert tenant.state == "RESIDENT"
    assert data.view()[5] == 7
    tenant.mark_dirty("weights")
    tenant.suspend()
    tenant.resume()
    assert data.view()[5] == 7
    del data
    tenant.close()
    other.close()


@pytest.mark.parametrize("verify", ["off", "checksum"])
@pytest.mark.parametrize("promise", ["write_back", "mark_clean"])
def test_a_job_that_closes_gives_back_what_it_reads_and_no_older_copy(
    runtime: LocalRuntime, promise: str, verify: str
) -> None:
    """Also after a write that broke the promise: with a host copy that counts as valid."""
    torch = pytest.importorskip("torch")
    job = init("a", {"runtime": runtime, "verify": verify})
    net = torch.nn.Linear(64, 64)
    tenant = job.manage("net", net, pool="train")
    if promise == "mark_clean":
        with job.phase("train"):
            tenant.mark_clean("weights")
        tenant.suspend()
    with job.phase("train"), torch.no_grad():
        if promise == "write_back":
            tenant.write_back("weights").wait()
        net.weight.fill_(7)
    assert tenant.core.rescue()["weights"][:4] == b"\0\0\xe0\x40"  # 7.0, little-endian
    job.close()
    assert net.weight.eq(7).all()


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


def test_what_leaves_for_memory_outside_regions_is_verified_too(
    open_checked: Callable[[str], Device],
) -> None:
    torch = pytest.importorskip("torch")
    device = open_checked("emulated:h20?scale=4096&speed=50&capacity=2MiB&context=64KiB&seed=1")
    block, frames = device.block_bytes, device.usable_bytes // device.block_bytes
    raw = _core.TensorCopies(device, [3 * block], [])
    with (
        LocalRuntime({"rollout": [device]}) as runtime,
        init("a", {"runtime": runtime, "verify": "checksum"}) as a,
        init("b", {"runtime": runtime}) as b,
    ):
        net = torch.nn.Linear(64, frames // 2 * block // 256, bias=False)
        tenant = a.manage("t", net, pool="rollout")
        assert isinstance(tenant, Tenant)
        other = b.manage("t", pool="rollout")
        with b.phase("init"):
            taken = other.buffer(frames // 2 * block, "weights")
        with a.phase("rollout", step=0):
            tenant.mark_clean("weights")
        tenant.suspend()
        with a.phase("rollout", step=1), torch.no_grad():
            net.weight += 1  # nobody calls mark_dirty
        with b.phase("rollout", step=0):
            pass
        wrong = r"nobody called mark_dirty.*in tensor weight"
        with pytest.raises(VerifyFailed, match=wrong) as end, b.phase("rollout", step=1):
            raw.allocate()  # blocks of the other job have to leave for it
        assert (end.value.job, end.value.tenant, end.value.tensor) == ("a", "t", "weight")
        with pytest.raises(VerifyFailed, match=wrong), b.phase("rollout", step=2):
            pytest.fail("it has not begun")
        tenant.resume()
        tenant.mark_dirty("weights")
        tenant.release()
        with b.phase("rollout", step=2):
            assert not any(taken.view())
        assert device.stats()["blocks_total"] < frames
        raw.close()
        del taken


def test_a_write_to_a_reload_tag_is_said_to_be_one(open_checked: Callable[[str], Device]) -> None:
    device = open_checked(ROLLOUT)
    device.set_verify(True)
    tenant = Tenant(device, "engine", job="a", tags={"weights": "reload"})
    tenant.resume()
    data = tenant.buffer(device.block_bytes, "weights")
    tenant.suspend()
    tenant.resume()
    data.view()[3] = 7
    with pytest.raises(VerifyFailed, match="of a reload tag the copy on the host counts"):
        tenant.suspend()
    data.view()[3] = 0
    tenant.suspend()
    del data
    tenant.close()

"""What every device promises about memory; one body for emulated and CUDA devices."""

from __future__ import annotations

import pytest

from weave_rt import Device, NotResident, Tenant, UsageError, _core, open_device

torch = pytest.importorskip("torch")


def blocks(device: Device, share: float) -> int:
    """Bytes for a share of at most 16 blocks (1 GiB on a GPU, where a lent one has minutes)."""
    count = min(device.usable_bytes // device.block_bytes, 16)
    return max(1, int(count * share)) * device.block_bytes


def tensor(tenant: Tenant, nbytes: int, seed: int, tag: str = "weights") -> torch.Tensor:
    made = tenant.empty((nbytes,), torch.uint8, tag)
    generator = torch.Generator().manual_seed(seed)
    made.copy_(torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator))
    return made


def test_bytes_and_address_survive_suspend_and_resume(device: Device) -> None:
    tenant = Tenant(device, "a")
    tenant.resume()
    data = tensor(tenant, blocks(device, 0.5), 1)
    before, address = data.cpu().clone(), data.data_ptr()
    report = tenant.suspend()
    assert report.bytes_out >= data.numel()
    assert tenant.state == "HOST"
    report = tenant.resume()
    assert report.bytes_in >= data.numel()
    assert data.data_ptr() == address
    assert torch.equal(data.cpu(), before)
    del data
    tenant.close()


def test_discard_moves_nothing_and_counts(device: Device) -> None:
    tenant = Tenant(device, "a")
    tenant.resume()
    cache = tenant.empty((blocks(device, 0.25),), torch.uint8, "kv_cache")
    (region,) = tenant.regions
    assert region.generation == 0
    report = tenant.suspend()
    assert report.bytes_out == 0
    report = tenant.resume()
    assert report.bytes_in == 0
    assert region.generation == 1
    cache.fill_(7)
    del cache
    tenant.close()


def test_outside_its_turn_a_tenant_may_not_allocate(device: Device) -> None:
    tenant = Tenant(device, "a")
    with pytest.raises(NotResident):
        tenant.empty((16,), torch.float32, "weights")
    tenant.resume()
    tenant.release()
    with pytest.raises(NotResident):
        tenant.empty((16,), torch.float32, "weights")
    tenant.close()


def test_two_devices_do_not_mix(device: Device) -> None:
    other = _core.Device.open(device.spec)
    tenant = Tenant(other, "b")
    own = Tenant(device, "a")
    own.resume()
    with pytest.raises(UsageError, match="another device"):
        own.switch(tenant)
    tenant.close()
    own.close()
    other.close()


@pytest.mark.parametrize("wrong", ["3GB", -1, 1.5, None, 2**70])
def test_sizes_are_whole_bytes(device: Device, wrong: object) -> None:
    with pytest.raises(UsageError, match="usable_bytes is a number of bytes"):
        open_device(device.spec, usable_bytes=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a device is a text"):
        open_device(5)  # type: ignore[arg-type]

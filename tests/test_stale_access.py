"""Memory that was handed over cannot be read: the API refuses, a raw read kills the process.

Each case is a freshly started process, not a fork, so that nothing mapped here hides a mistake."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from conftest import ROLLOUT

SCRIPT = f"""
import ctypes, sys
import weave_rt

device = weave_rt.open_device({ROLLOUT!r})
first, second = weave_rt.Tenant(device, "first"), weave_rt.Tenant(device, "second")
size = int(device.usable_bytes * 0.6)
first.resume()
buffer = first.buffer(size, "weights")
buffer.view()[:] = b"x" * size
assert ctypes.string_at(buffer.address, 4) == b"xxxx"
assert ctypes.string_at(buffer.address + size - 4, 4) == b"xxxx"
first.switch(second)
other = second.buffer(size, "weights")
other.view()[:] = b"y" * size
try:
    buffer.view()
    sys.exit("the API handed out memory that is not resident")
except weave_rt.NotResident:
    print("refused", flush=True)
for offset in range(0, size, 4096):
    ctypes.string_at(buffer.address + offset, 1)
sys.exit("a stale read went through")
"""


@pytest.mark.parametrize("run", range(2))
def test_stale_access(run: int) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr
    assert done.returncode == -signal.SIGSEGV, done.stderr

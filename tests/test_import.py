"""torch is imported only when a torch object is managed. Each case runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

IMPORT = "import weave_rt"
OFF = """
import weave_rt
with weave_rt.init(job_id="a") as job:
    tenant = job.manage("kv", pool="rollout")
    tenant.buffer(64, "kv_cache").view()[:] = bytes(64)
    with job.phase("gen", step=0):
        pass
    assert job.pop_metrics() == {} and not job.active
"""
LOCAL = """
import weave_rt
spec = "emulated:h20?scale=4096&speed=50&capacity=2MiB&seed=1"
with weave_rt.init("a", {"mode": "local", "rollout_device": spec, "train_device": spec}) as job:
    tenant = job.manage("kv", pool="rollout")
    with job.phase("rollout"):
        buffer = tenant.buffer(64, "kv_cache")
        buffer.view()[:] = bytes(64)
    job.keep([1, "text"])
"""


@pytest.mark.parametrize("code", [IMPORT, OFF, LOCAL], ids=["import", "off", "local"])
def test_torch_is_not_imported(code: str) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("WEAVE")}
    script = f"{code}\nimport sys\nassert 'torch' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_main_prints_versions_and_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weave_rt"], capture_output=True, text=True, check=True
    )
    assert "weave_rt" in done.stdout
    assert "driver" in done.stdout
    assert "auto, rollout: " in done.stdout


def test_public_names_exist() -> None:
    import weave_rt

    assert sorted(weave_rt.__all__) == list(weave_rt.__all__)
    assert all(hasattr(weave_rt, name) for name in weave_rt.__all__)

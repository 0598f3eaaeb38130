"""Benchmarks of the switch: presets, arms, many tensors."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weave_rt import StateChanged, UsageError
from weave_rt.benchmarks import arms, lookahead, presets, switch, tensors
from weave_rt.benchmarks.load import busy_cores

NO_LATENCY = "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns"
TINY = f"emulated:h20?scale=16384&speed=1000&block=64KiB{NO_LATENCY}"
ROOT = Path(__file__).parent.parent


# Presets.


def sums(state: list[presets.TensorSize]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tensor in state:
        found[tensor.tag] = found.get(tensor.tag, 0) + tensor.nbytes
    return found


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_is_an_eighth_of_the_papers_node(name: str) -> None:
    node_gb, split = presets.PRESETS[name]
    state = presets.preset(name)
    by_tag = sums(state)
    assert sum(by_tag.values()) == pytest.approx(node_gb * 1e9 / 8, rel=1e-6)
    # bf16 weights of the published parameter counts, in billions
    billions = {"3b": 3.09, "7b": 7.62, "14b": 14.77, "32b": 32.76}[name.split("-")[1]]
    assert by_tag["weights"] == pytest.approx(2e9 * billions / split, rel=0.005)
    assert all(tensor.nbytes > 0 for tensor in state)
    assert len({tensor.name for tensor in state}) == len(state)
    if name.startswith("rollout"):
        assert by_tag.keys() == {"weights", "kv_cache"}
        assert all((t.policy == "discard") == (t.tag == "kv_cache") for t in state)
    else:
        assert by_tag.keys() == {"weights", "grads", "optimizer"}
        assert by_tag["grads"] == by_tag["weights"]
        assert all(t.policy == "keep" for t in state)


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"'train-70b' is not one of rollout-3b, .*train-32b"):
        presets.preset("train-70b")


def test_scaling_keeps_the_number_of_tensors() -> None:
    whole = presets.preset("train-3b")
    small = presets.scaled(whole, 1 / 64)
    assert len(small) == len(whole)
    assert all(tensor.nbytes % 512 == 0 and tensor.nbytes > 0 for tensor in small)
    total = sum(tensor.nbytes for tensor in whole)
    assert sum(tensor.nbytes for tensor in small) == pytest.approx(total / 64, rel=0.01)


def test_allocations_are_those_of_torchs_allocator() -> None:
    mib = 1 << 20

    def tensor(nbytes: int, policy: str = "keep") -> presets.TensorSize:
        return presets.TensorSize(str(nbytes), "weights", nbytes, policy)

    state = [tensor(mib), tensor(512), tensor(11 * mib), tensor(9 * mib, "discard"), tensor(mib),
             tensor(9 * mib), tensor(9 * mib)]  # fmt: skip
    allocations, places = presets.pack(state)
    assert allocations == [2 * mib, 12 * mib, 20 * mib, 2 * mib, 20 * mib]
    assert places == [
        (0, 0, mib, True),
        (0, mib, 512, True),
        (1, 0, 11 * mib, True),
        (2, 0, 9 * mib, False),
        (3, 0, mib, True),  # the first small piece has only half a MiB left
        (2, 9 * mib, 9 * mib, True),
        (4, 0, 9 * mib, True),
    ]
    assert presets.pack([tensor(11 * mib // 64)], 1 / 64)[0] == [12 * mib // 64]


def test_the_default_is_as_large_as_asked() -> None:
    state, factor = presets.default_state(237_500_000)
    assert sum(t.nbytes for t in state) == pytest.approx(237_500_000, rel=1e-3)
    assert factor == pytest.approx(1 / 64, rel=0.01)
    assert {t.tag for t in state} == {"weights"}


# Measuring.


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return switch.run(TINY, preset_name="rollout-3b", repeats=3)


def test_a_record_has_every_case_and_arm_with_all_samples(measured: dict[str, Any]) -> None:
    found = {(case["name"], case["arm"]) for case in measured["cases"]}
    assert found == {
        (name, arm)
        for name in switch.CASES
        for arm in switch.ARMS
        if arm != "cold" or name == "one_way_in"
    } | {("look_ahead", "weave"), ("look_ahead", "plain")}
    for case in measured["cases"]:
        assert len(case["samples_s"]) == case["n"] == 3
        assert case["headline"] == (case["arm"] == "weave")
        assert case["params"]["preset"] == "rollout-3b"
        if "limit_s" in case:
            assert case["efficiency"] == pytest.approx(case["limit_s"] / case["p50_s"])
    assert {"device", "spec", "cores", "started_at"} <= measured["conditions"].keys()
    json.dumps(measured, allow_nan=False)


def test_what_is_discarded_is_not_counted_as_moved(measured: dict[str, Any]) -> None:
    weights = sums(presets.scaled(presets.preset("rollout-3b"), 1 / 16384))["weights"]
    for case in measured["cases"]:
        if case["name"] == "look_ahead":
            continue
        moved = -(-weights // 65536) * 65536
        assert case["bytes_out"] == (0 if case["name"] == "one_way_in" else moved)
        assert case["bytes_in"] == (0 if case["name"] == "one_way_out" else moved)
        assert case["params"]["tenant_bytes"] > moved


def test_a_naive_switch_is_out_and_then_in(measured: dict[str, Any]) -> None:
    samples = {(c["name"], c["arm"]): c["samples_s"] for c in measured["cases"]}
    for arm in ("per_tensor_pageable", "per_tensor_pinned_now"):
        pairs = zip(samples["one_way_out", arm], samples["one_way_in", arm], strict=True)
        assert samples["duplex", arm] == [out + into for out, into in pairs]


def test_the_engine_moves_what_the_cases_say(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[int, int]] = {}

    class Watched(arms.WeavePair):
        def check(self) -> None:
            seen.update(self.moved)
            super().check()

    monkeypatch.setattr(switch, "WeavePair", Watched)
    record = switch.run(TINY, preset_name="train-3b", repeats=1, load=True)
    ours = {c["name"]: (c["bytes_out"], c["bytes_in"]) for c in record["cases"]}
    del ours["look_ahead"]
    assert seen == ours
    assert {c["params"]["load"] for c in record["cases"]} == {"torch"}


def test_looking_ahead_leaves_nothing_to_copy() -> None:
    # three tenants of 60 on 140: 40 each way per turn, all of it beside the phase
    block = 65536
    sizes = {("weights", "keep"): 60 * block}
    spec = arms.roomy(TINY, 140 * block)
    ours, plain = lookahead.measure(spec, sizes, {"x": 1}, 4, False, lambda _: None)
    assert (ours.bytes_out, ours.bytes_in) == (0, 0)
    assert ours.more["bytes_background"] == 80 * block
    assert (plain.bytes_out, plain.bytes_in) == (60 * block, 60 * block)
    assert len(ours.samples_s) == len(plain.samples_s) == 4
    said: list[str] = []
    assert lookahead.measure(TINY, {("weights", "keep"): 10**9}, {}, 1, False, said.append) == []
    assert said[0].startswith("without look_ahead: it needs")


def test_a_byte_that_changed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(arms.WeavePair):
        def suspend(self) -> float:
            span = next(iter(self.running.spans.values()))
            memoryview(span).cast("B")[1000] ^= 1
            return super().suspend()

    monkeypatch.setattr(switch, "WeavePair", Careless)
    with pytest.raises(StateChanged, match=r"1 words of weights differ .* offset 1000"):
        switch.run(TINY, sizes_bytes=[200_000], repeats=1)


def test_arms_can_be_chosen() -> None:
    record = switch.run(TINY, sizes_bytes=[200_000], repeats=1, arms=["plain"])
    assert {c["arm"] for c in record["cases"]} == {"weave", "plain"}
    record = switch.run(TINY, sizes_bytes=[200_000], repeats=1, arms=["cold"])
    found = {(c["name"], c["arm"]) for c in record["cases"] if c["arm"] != "weave"}
    assert found == {("one_way_in", "cold")}


def test_where_an_arm_cannot_run_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = switch.importlib.util.find_spec
    monkeypatch.setattr(
        switch.importlib.util,
        "find_spec",
        lambda name: None if name == "safetensors" else found(name),
    )
    said: list[str] = []
    record = switch.run(TINY, progress=said.append, sizes_bytes=[200_000], repeats=1)
    assert "without the arm cold: safetensors is not installed" in said
    assert {c["arm"] for c in record["cases"]} == set(switch.ARMS) - {"cold"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sizes_bytes": [0]}, "0 bytes"),
        ({"sizes_bytes": [10**9]}, "needs a device that has as much"),
        ({"preset_name": "nothing"}, "not one of"),
        ({"preset_name": "train-3b", "sizes_bytes": [1]}, "not both"),
        ({"arms": ["weave", "magic"]}, "'magic' is not one of weave, plain"),
    ],
)
def test_wrong_sizes_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        switch.run(TINY, repeats=1, **options)


def test_load_needs_torch_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    before = threading.active_count()
    with busy_cores(True):
        assert threading.active_count() > before
    assert threading.active_count() == before
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="pip install torch"), busy_cores(True):
        pass
    with busy_cores(False):
        pass


def test_torchs_own_calls_keep_the_bytes(tmp_path: Path) -> None:
    # as on a GPU, but on the CPU, where torch copies nothing
    state = presets.scaled(presets.preset("rollout-3b"), 1e-5)
    arms.write_checkpoint(state, tmp_path / "w.safetensors")
    naive = arms.TorchTensors("cpu", state, tmp_path / "w.safetensors")
    assert naive.cold() > 0
    naive.check()
    assert naive.move_out(False) > 0
    assert naive.move_in() > 0
    naive.check()
    naive.close()


def test_sizes_of_many_tensors_are_log_uniform_and_repeatable() -> None:
    drawn = tensors.sizes()
    assert drawn == tensors.sizes()
    assert len(drawn) == 10_000
    assert 4096 <= min(drawn) < 4608
    assert 250_000 < max(drawn) <= 262_144
    middle = sorted(drawn)[5000]  # the geometric mean of the ends
    assert middle == pytest.approx(math.sqrt(4096 * 262_144), rel=0.05)


def test_many_tensors_against_one() -> None:
    spec = f"emulated:h20?scale=64&speed=1000&capacity=24MiB&block=64KiB{NO_LATENCY}"
    many, one = tensors.measure(spec, 3, False, lambda _: None, count=100)
    assert (many.name, one.name) == ("many_tensors", "one_tensor")
    assert many.bytes_out == many.bytes_in == one.bytes_out == sum(tensors.sizes(100))
    assert len(many.samples_s) == len(one.samples_s) == 3
    shown = many.as_dict()
    assert 0 < shown["python_s"] < shown["p50_s"]
    assert shown["scan_s"] > 0
    pairs = zip(many.samples_s, one.samples_s, strict=True)
    assert shown["difference_s"] == pytest.approx(float(np.median([a - b for a, b in pairs])))
    with pytest.raises(UsageError, match="many_tensors needs"):
        tensors.measure(spec, 1, False, lambda _: None, count=1000)

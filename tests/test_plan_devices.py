"""``weave plan`` per device: what stays, what moves, foreground and background apart; and the
residency that admission asks for."""

import json
import re
from dataclasses import replace

import pytest
from test_cli import weave

from weave_rt.errors import DoesNotFit
from weave_scheduler.devices import listed_gpus, open_devices, usable_bytes
from weave_scheduler.document import SpecError
from weave_scheduler.laws import Constant, Lognormal
from weave_scheduler.model import Gpu, Group, Member, Need, Node, Placement, PoolModel, common_job
from weave_scheduler.policies.memory import (
    memory_mistake,
    stored_bytes,
    summed_host_bytes,
    too_large_alone,
)
from weave_scheduler.policies.residency import PlannedResidency, residency_of
from weave_scheduler.policies.snapshot import replay
from weave_scheduler.residency import cycle_of, device_records, plan_nodes, switch_costs, tenth_s
from weave_scheduler.specfile import parse_spec

GB = 10**9
MB = 10**6
GPU = Gpu("test", 100 * GB, 100 * MB, 0, 50e9, 50e9, 0.8)

SPEC = """
version: 1
devices: {{rollout: ["emulated:h20?scale=64&capacity=2GB&context=0"], train: ["emulated:h800"]}}
nodes: {{rollout: {{price: 1}}, train: {{price: 1}}}}
plan: {plan}
jobs:
  - {{name: a, kind: synthetic, iterations: 9, policy: {{other: reload}},
     unmanaged: {{rollout: {{running: 3GB, sleeping: 1GB}}}},
     state: {{rollout: {{weights: 60GB, other: 4GB, kv_cache: 10GB}}}},
     phases: {{rollout: 30s, train: 30s}}}}
  - {{name: b, kind: synthetic, iterations: 9, state: {{rollout: {{weights: 60GB}}}},
     phases: {{rollout: 30s, train: 30s}}}}
"""


def group_of(*needs, train_s=30.0, **more):
    jobs = [
        common_job(chr(ord("a") + at), 30.0, train_s, rollout_need=need, **more)
        for at, need in enumerate(needs)
    ]
    return Group(tuple(Member(job, Placement((0,), (0,))) for job in jobs), (0,), (0,))


def pools_of(gpu=GPU, gpus=1, host_bytes=10**15):
    return {
        "rollout": PoolModel("rollout", Node(gpus, 1.0, host_bytes, gpu=gpu)),
        "train": PoolModel("train", Node(1, 1.0, host_bytes)),
    }


def keep(size):
    return Need(size, size, size)


class TestCommand:
    def planned(self, tmp_path, plan="auto"):
        path = tmp_path / "spec.yaml"
        path.write_text(SPEC.format(plan=plan))
        done = weave("plan", path, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["devices"]

    def test_the_record_of_a_device(self, tmp_path):
        rollout, train = self.planned(tmp_path)
        assert rollout["device"] == "rollout:0"
        capacity = rollout["capacity"]
        assert capacity == pytest.approx(128 * GB, rel=1e-4)  # of the real device: 2 GB x 64
        # Beside 2 % nothing but what a takes while it runs: b keeps nothing asleep.
        assert rollout["unmanaged"] == 3 * GB
        block = rollout["block"]
        left = capacity - -(-capacity // 50) - 3 * GB
        assert rollout["usable"] == left // block * block
        a, b = rollout["tenants"]
        blocks = [a[kind] // block for kind in ("keep", "clean", "discard")]
        assert blocks == [-(-size * GB // block) for size in (60, 4, 10)]
        assert (b["clean"], b["discard"]) == (0, 0)
        assert {(one["out"], one["in"]) for one in rollout["switches"]} == {("a", "b"), ("b", "a")}
        total = sum(
            one["foreground_bytes"] + one["background_bytes"] for one in rollout["switches"]
        )
        assert rollout["bytes_per_cycle"] == total > 0
        for one in rollout["switches"]:
            for when in ("foreground", "background"):
                assert one[f"{when}_bytes"] == one[f"{when}_out"] + one[f"{when}_in"]
            assert (one["modelled_s"] > 0) == (one["foreground_bytes"] > 0)
        assert train["bytes_per_cycle"] == 0

    def test_iterations_are_also_given_with_switches(self, tmp_path):
        path = tmp_path / "spec.yaml"
        path.write_text(SPEC.format(plan="fewest-bytes"))
        record = json.loads(weave("plan", path, "--json").stdout)
        switches = record["devices"][0]["switches"]
        for member in record["groups"][0]["members"]:
            longer = member["iteration_switched_s"] - member["iteration_mean_s"]
            assert longer == pytest.approx(sum(one["modelled_s"] for one in switches))

    def test_the_plan_of_the_spec_is_taken(self, tmp_path):
        few, quick = (self.planned(tmp_path, kind)[0] for kind in ("fewest-bytes", "least-stall"))
        assert (few["plan"], quick["plan"]) == ("fewest-bytes", "least-stall")
        assert few["instead"] == {}
        assert not any(one["background_bytes"] for one in few["switches"])
        assert few["tenants"][1]["may_leave"] < quick["tenants"][1]["may_leave"]

    def test_tables(self, tmp_path):
        path = tmp_path / "spec.yaml"
        path.write_text(SPEC.format(plan="auto"))
        done = weave("plan", path)
        assert done.returncode == 0, done.stderr
        for words in ("What stays and what moves", "rollout:0", "nothing is copied", "before"):
            assert words in done.stdout

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("sleeping: 1GB", "sleeping: 4GB", "sleeping is more than running"),
            ("sleeping: 1GB", "asleep: 1GB", "asleep: unknown key"),
            ("running: 3GB", "running: many", "running"),
            ("plan: auto", "plan: some", "plan: is not known; allowed: 'auto'"),
            ("other: reload", "other: forget", "'keep', 'reload' or 'discard'"),
            ("scale=64", "scale=0", "devices.rollout.0"),
        ],
    )
    def test_mistakes_name_the_line(self, old, new, said):
        text = SPEC.format(plan="auto")
        assert old in text
        with pytest.raises(SpecError) as caught:
            listed_gpus(parse_spec(text.replace(old, new)))
        assert said in str(caught.value)
        assert re.match(r"SPEC.yaml:\d+: ", str(caught.value))

    def test_a_job_that_is_larger_than_its_device_is_refused(self, tmp_path):
        path = tmp_path / "spec.yaml"
        path.write_text(SPEC.format(plan="auto").replace("weights: 60GB}", "weights: 127GB}"))
        done = weave("plan", path, "--json")
        record = json.loads(done.stdout)
        (refusal,) = record["refused"]
        assert refusal["job"] == "b"
        assert "for jobs on each GPU" in refusal["reason"]

    def test_without_devices_there_is_no_plan_of_devices(self, tmp_path):
        path = tmp_path / "spec.yaml"
        lines = SPEC.format(plan="auto").splitlines()
        path.write_text("\n".join(line for line in lines if not line.startswith("devices")))
        assert json.loads(weave("plan", path, "--json").stdout)["devices"] == []


def test_every_gpu_of_a_node_has_its_share():
    group = group_of(keep(400 * GB), keep(400 * GB))
    records = device_records(plan_nodes(group, pools_of(gpus=8), "fifo", "fewest-bytes"))
    assert [one["device"] for one in records] == [f"rollout:{at}" for at in range(8)]
    assert all(one["tenants"][0]["keep"] == 50 * GB for one in records)
    assert len({json.dumps({**one, "device": ""}) for one in records}) == 1


def test_what_cannot_be_planned_says_why():
    (record,) = device_records(
        plan_nodes(group_of(keep(50 * GB), keep(99 * GB)), pools_of(), "fifo")
    )
    assert "tenant b has 990 blocks and the device 980 frames" in record["mistake"]


class TestCycle:
    def test_turns_come_in_the_order_in_which_they_would_run(self):
        group = group_of(keep(GB), keep(GB), keep(GB))
        turns = cycle_of(group, "rollout", 0, "strict", (0, 2, 1))
        at = [number for number, _ in turns]
        rotated = at[at.index(0) :] + at[: at.index(0)]
        assert rotated == [0, 2, 1]
        assert {seconds for _, seconds in turns} == {30.0}

    def test_phases_of_one_job_in_a_row_are_one_turn(self):
        spec = parse_spec(SPEC.format(plan="auto").replace("train: 30s", "train: 20s, eval: 5s"))
        from weave_scheduler.planinput import job_models

        members = tuple(Member(job, Placement((0,), (0,))) for job in job_models(spec))
        turns = cycle_of(Group(members, (0,), (0,)), "rollout", 0, "fifo")
        assert sorted(at for at, _ in turns) == [0, 1]
        assert all(seconds == 35.0 for _, seconds in turns)

    def test_a_job_of_another_node_is_not_there(self):
        jobs = [common_job(name, 30.0, 30.0, rollout_need=keep(GB)) for name in "abc"]
        places = [Placement((at,), (0,)) for at in (1, 0, 1)]
        group = Group(
            tuple(Member(job, place) for job, place in zip(jobs, places, strict=True)), (0, 1), (0,)
        )
        assert {at for at, _ in cycle_of(group, "rollout", 1, "fifo")} == {0, 1}
        records = device_records(plan_nodes(group, pools_of(), "fifo"))
        assert [[t["name"] for t in one["tenants"]] for one in records] == [["b"], ["a", "c"]]

    def test_the_tenth_of_a_law(self):
        assert tenth_s(Constant(3.0)) == 3.0
        law = Lognormal(100.0, 0.5)
        assert tenth_s(law) == pytest.approx(48.8, rel=0.05)
        assert tenth_s(law) == tenth_s(Lognormal(100.0, 0.5))


class TestAdmission:
    def test_all_that_is_kept_has_a_place_on_the_host(self):
        # 60 + 60 on 98: 22 of each move, and the core has taken a place for every block.
        group = group_of(keep(60 * GB), keep(60 * GB))
        planned = PlannedResidency(pools_of())
        assert planned("rollout", group.members) == 120 * GB
        tight = pools_of(host_bytes=119 * GB)
        said = memory_mistake(group, tight, "b", equal=True, residency=planned)
        assert said == "rollout:0 would hold 120 GB of 119 GB host memory"
        enough = pools_of(host_bytes=120 * GB)
        assert memory_mistake(group, enough, "b", equal=True, residency=planned) is None
        assert "120 GB of 120 GB" in memory_mistake(
            group, enough, "b", equal=False, residency=planned
        )

    def test_restart_sets_are_added_whole(self):
        group = group_of(keep(60 * GB), keep(60 * GB), restart=True)
        assert PlannedResidency(pools_of())("rollout", group.members) == (120 + 120) * GB

    def test_what_is_reloaded_has_two_places_and_what_is_discarded_none(self):
        need = Need(30 * GB, 40 * GB, 10 * GB, spare_bytes=20 * GB)
        group = group_of(need, keep(10 * GB))
        assert PlannedResidency(pools_of())("rollout", group.members) == (10 + 20 + 20 + 10) * GB
        assert summed_host_bytes("rollout", group.members) == 60 * GB

    def test_it_is_counted_in_whole_blocks_of_each_gpu(self):
        group = group_of(keep(801 * MB))
        assert PlannedResidency(pools_of())("rollout", group.members) == 900 * MB
        assert PlannedResidency(pools_of(gpus=8))("rollout", group.members) == 1600 * MB
        alone = too_large_alone(group.members[0].job, pools_of(host_bytes=850 * MB), 1, equal=True)
        assert alone == "a rollout node would hold 900 MB of 850 MB host memory"

    def test_it_is_what_the_core_takes(self, open_checked):
        """A tenant of each kind, which has published: its places in the pinned pool."""
        device = open_checked("emulated:h20?scale=4096&speed=50&capacity=2MiB&seed=1")
        block = device.block_bytes
        core = device.add_tenant("a")
        core.resume()
        sizes = {"weights": ("keep", 5), "buffers": ("reload", 3), "kv_cache": ("discard", 4)}
        spans = [
            core.region(tag, policy).allocate(blocks * block - 100)
            for tag, (policy, blocks) in sizes.items()
        ]
        core.suspend()
        publication = core.publish()
        publication.abort()
        gpu = Gpu("small", 2 << 20, block, 0, 1e9, 1e9, 0.8)
        kept, reloaded, discarded = (blocks * block for _, blocks in sizes.values())
        need = Need(kept + reloaded, kept + reloaded + discarded, kept, spare_bytes=reloaded)
        assert stored_bytes(need, Node(1, 1.0, 0, gpu=gpu)) == 11 * block
        assert device.host_pool.stats()["bytes_used"] == 11 * block
        del spans, publication

    def test_sleeping_processes_take_from_everybody(self):
        need = replace(keep(90 * GB), residual_bytes=5 * GB, running_bytes=5 * GB)
        group = group_of(need, need)
        with pytest.raises(DoesNotFit):
            PlannedResidency(pools_of())("rollout", group.members)
        said = memory_mistake(
            group, pools_of(), "b", equal=True, residency=PlannedResidency(pools_of())
        )
        assert said.startswith("rollout:0: tenant a has 900 blocks")
        assert too_large_alone(group.members[0].job, pools_of(), 1, equal=True) is None

    def test_without_a_known_gpu_it_is_the_sum(self):
        assert residency_of(pools_of(gpu=None)) is summed_host_bytes
        assert isinstance(residency_of(pools_of()), PlannedResidency)
        group = group_of(keep(60 * GB), keep(60 * GB))
        assert PlannedResidency(pools_of(gpu=None))("rollout", group.members) == 120 * GB


def test_gpus_are_read_from_the_spec_and_not_opened():
    gpus = listed_gpus(parse_spec(SPEC.format(plan="auto")))
    assert gpus["train"].capacity_bytes == pytest.approx(80 * GB, rel=1e-4)
    assert gpus["rollout"].d2h == pytest.approx(55e9)
    assert gpus["rollout"].link.h2d_duplex == pytest.approx(0.75 * 55e9)
    with pytest.raises(ValueError, match="block_bytes"):
        replace(GPU, block_bytes=0)


class TestSwitchCosts:
    def test_foreground_and_background_are_those_of_the_plan(self):
        group = group_of(*[keep(60 * GB)] * 3)
        pools = pools_of(Gpu("test", 143 * GB, 100 * MB, 0, 50e9, 50e9, 0.8))
        few = switch_costs(plan_nodes(group, pools, "fifo", "fewest-bytes"))
        assert {(one.pool, one.cost.background_s) for one in few} == {("rollout", 0.0)}
        # 180 GB on 140.1: a window of 20 GB; both ways at 40 GB/s.
        assert {round(one.cost.foreground_s, 2) for one in few} == {0.5}
        quick = switch_costs(plan_nodes(group, pools, "fifo", "least-stall"))
        assert {one.cost.foreground_s for one in quick} == {0.0}
        assert all(0.9 < one.cost.background_s < 1.1 for one in quick)
        assert {(one.outgoing, one.incoming) for one in quick} == {
            (one.outgoing, one.incoming) for one in few
        }

    def test_where_nothing_moves_nothing_is_paid(self):
        assert switch_costs(plan_nodes(group_of(keep(GB), keep(GB)), pools_of(), "fifo")) == ()


RUN = """
version: 1
plan: {plan}
devices:
  rollout: ["emulated:h20?scale=65536&speed=9000&seed=1"]
  train: ["emulated:h800?scale=65536&speed=9000&seed=1"]
jobs:
  - {{name: a, kind: synthetic, iterations: 8, state: {{rollout: {{weights: 40GB}}}},
     unmanaged: {{rollout: {{running: 3GB, sleeping: 1GB}}}}, phases: {{rollout: 90s, train: 9s}}}}
  - {{name: b, kind: synthetic, iterations: 8, state: {{rollout: {{weights: 40GB}}}},
     unmanaged: {{rollout: {{running: 2GB, sleeping: 1GB}}}}, phases: {{rollout: 90s, train: 9s}}}}
  - {{name: c, kind: synthetic, iterations: 8, state: {{rollout: {{weights: 40GB}}}},
     phases: {{rollout: 90s, train: 9s}}}}
"""


class TestRun:
    def test_what_is_pinned_is_not_for_jobs(self):
        loaded = parse_spec(RUN.format(plan="auto"))
        usable = usable_bytes(loaded, "rollout", 0) * 65536 / GB
        assert usable == pytest.approx(96 * 0.98 - 0.5 - 3 - 1, rel=1e-2)
        assert usable_bytes(loaded, "train", 0) == 0  # all that is free

    def test_a_run_moves_what_the_plan_says(self, tmp_path):
        """Three of 40 GB on 89.6: a window of 15.2. Without a plan it would be up to 30."""
        path = tmp_path / "spec.yaml"
        path.write_text(RUN.format(plan="fewest-bytes"))
        done = weave("run", path, "--out", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        record = json.loads((tmp_path / "out" / "summary.json").read_text())
        switches = [one for one in record["switches"] if "rollout:0" in one["devices"]]
        sizes = [max(one["bytes_in"], one["bytes_out"]) * 65536 / GB for one in switches]
        assert 14 < max(sizes[9:]) < 16, sizes
        # What is pinned is the record; where nothing is, it is measured.
        found = [job["unmanaged"] for job in record["jobs"]]
        assert [one["rollout"]["running"] for one in found] == [3 * GB // 65536, 2 * GB // 65536, 0]
        assert found[0]["rollout"]["sleeping"] == GB // 65536
        assert all(one["train"] == {"running": 0, "sleeping": 0} for one in found)
        assert "unmanaged" not in record


HOST = """
version: 1
{host}
nodes: {{rollout: {{price: 1, host_memory: {memory}, count: 1}}, train: {{price: 1}}}}
devices:
  rollout: ["emulated:h20?scale=65536&speed=9000&seed=1"]
  train: ["emulated:h800?scale=65536&speed=9000&seed=1"]
jobs:
  - {{name: a, kind: synthetic, iterations: 2, state: {{rollout: {{weights: 20GB, kv_cache: 5GB}}}},
     phases: {{rollout: 90s, train: 9s}}}}
  - {{name: b, kind: synthetic, iterations: 2, state: {{rollout: {{weights: 20GB}}}},
     phases: {{rollout: 90s, train: 9s}}}}
"""


class TestHostMemoryOfNodes:
    def path(self, tmp_path, memory, host=""):
        path = tmp_path / "spec.yaml"
        path.write_text(HOST.format(memory=memory, host=host))
        return path

    def test_plan_and_run_refuse_the_same(self, tmp_path):
        path = self.path(tmp_path, "39GB")
        record = json.loads(weave("plan", path, "--json").stdout)
        assert [one["jobs"] for one in record["groups"]] == [["a"]]
        (waiting,) = record["waiting"]
        assert waiting["job"] == "b"
        assert "no group takes it" in waiting["reason"]
        done = weave("run", path)
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert line.endswith(
            "spec.yaml:4: nodes.rollout.host_memory: the jobs on rollout:0 need 40.3 GB of host"
            " memory for what they keep and reload, the node has 39 GB; run fewer or smaller jobs,"
            " or give it more"
        )

    def test_plan_and_run_admit_the_same(self, tmp_path):
        path = self.path(tmp_path, "41GB")
        record = json.loads(weave("plan", path, "--json").stdout)
        assert [one["jobs"] for one in record["groups"]] == [["a", "b"]]
        (row,) = (one for one in record["groups"][0]["memory"] if one["node"] == "rollout:0")
        assert row["host_bytes"] <= row["host_capacity"] == 41 * GB
        assert weave("run", path).returncode == 0

    def test_a_second_place_is_asked_for_where_there_is_a_second_version(self, tmp_path):
        """20 and 20 GB fit 41 while nothing is published."""
        path = self.path(tmp_path, "41GB")
        once = path.read_text().replace("iterations: 2,", "iterations: 2, policy: {other: reload},")
        path.write_text(once.replace("weights", "other"))
        assert weave("run", path).returncode == 0
        path.write_text(once.replace("weights", "other").replace("9s}", "9s, weight_sync: 1s}"))
        done = weave("run", path)
        assert done.returncode == 2
        assert "the jobs on rollout:0 need 80.5 GB of host memory" in done.stderr

    def test_spilling_is_not_taken_for_room(self, tmp_path):
        path = self.path(tmp_path, "39GB", "host: {spill: spilled}")
        assert weave("run", path).stderr.endswith("(host.spill does not lower it)\n")

    def test_each_alone_fits_where_both_do_not(self, tmp_path):
        assert weave("run", self.path(tmp_path, "39GB"), "--solo").returncode == 0
        assert weave("run", self.path(tmp_path, "19GB"), "--solo").returncode == 2

    @pytest.mark.parametrize(
        ("host", "rollout", "train"),
        [
            ("", 64, None),
            ("host: {budget: 100GB}", 64, 100),
            ("host: {budget: 64GB}", 64, 64),
            ("host: {budget: 10GB}", 10, 10),
        ],
    )
    def test_the_pools_of_the_devices_hold_it(self, tmp_path, host, rollout, train):
        loaded = parse_spec(HOST.format(memory="64GB", host=host))
        opened = open_devices(loaded, lambda text: None)
        try:
            one, two = (opened.pools[pool][0].host_pool for pool in ("rollout", "train"))
            assert one.budget_bytes == rollout * GB // 65536
            if train is not None:
                assert two.budget_bytes == train * GB // 65536
            else:
                assert two.budget_bytes > 64 * GB // 65536  # what the host has
        finally:
            opened.close()


def test_a_decision_with_known_gpus_is_made_again(tmp_path):
    """The snapshot has the GPUs, so that memory is tested by the same plan."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.format(plan="auto"))
    decision = tmp_path / "decision.json"
    assert weave("plan", path, "--why", "b", "--snapshot", decision).returncode == 0
    content = json.loads(decision.read_text())
    assert content["pools"]["rollout"]["node"]["gpu"]["is"] == "Gpu"
    assert replay(content).same

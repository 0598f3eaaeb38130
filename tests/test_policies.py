"""The inter-group policies: the paper's examples, which test admitted what, fast = explained."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scheduling
from scheduling import GB, job, odd_job, pools, random_job, rng

from weave_scheduler.groupmath import longest_phases, turns_of, why_not_closed
from weave_scheduler.groupsim import simulate_group, simulated_iterations
from weave_scheduler.laws import Constant, Lognormal
from weave_scheduler.model import Degree, Group, Member, Need, Phase, Placement, common_job
from weave_scheduler.policies import Cluster, Desk, PaperPolicy, Resident, Settings, WeavePolicy
from weave_scheduler.policies.admission import judge, oversaturated
from weave_scheduler.policies.components import fifo_lower_bounds, fifo_upper_bounds
from weave_scheduler.policies.quick import fifo_iterations
from weave_scheduler.policies.table import common_times
from weave_scheduler.units import format_bytes


def apply(cluster, job_, decision):
    chosen = decision.chosen
    cluster.place(job_, chosen.placement, chosen.group, chosen.verdict.order, chosen.verdict.by)


def random_group(generator, jobs, nodes=4, most=3, switches=True):
    members = []
    for at in range(jobs):
        one = random_job(f"j{at}", generator, most_nodes=most, switches=switches)
        taken = generator.choice(nodes, one.rollout_nodes, replace=False)
        members.append(Member(one, Placement(tuple(sorted(map(int, taken))), (0,))))
    used = sorted({node for one in members for node in one.placement.rollout})
    return Group(tuple(members), tuple(used), (0,))


class TestThePapersExamples:
    def group_of_c_and_d(self):
        cluster = Cluster(pools())
        cluster.place(job("C", 300.0, 100.0), Placement((1,), (1,)), None)
        cluster.place(job("D", 250.0, 90.0), Placement((2,), (1,)), 0)
        return cluster

    @pytest.mark.parametrize("policy", [PaperPolicy, WeavePolicy])
    def test_candidates_of_e(self, policy):
        """OSDI 4.2: E on roll-1, on roll-2, on a new roll-3, and a group of its own."""
        cluster = self.group_of_c_and_d()
        decision = policy().decide(job("E", 60.0, 30.0), cluster, explain=True)
        seen = {(one.kind, one.group, one.placement.rollout) for one in decision.candidates}
        assert ("direct packing", 0, (1,)) in seen
        assert ("direct packing", 0, (2,)) in seen
        (scaled,) = [one for one in decision.candidates if one.kind == "rollout scaling"]
        (alone,) = [one for one in decision.candidates if one.kind == "isolated"]
        assert len(decision.candidates) == 4
        assert [scaled.delta, alone.delta] == pytest.approx([14.8, 57.04])
        assert {one.delta for one in decision.candidates[:2]} == {0.0}

    def test_e_packs_where_its_limits_allow_else_scales_else_stays_alone(self):
        cluster = self.group_of_c_and_d()
        policy = WeavePolicy()
        packed = policy.decide(job("E", 210.0, 60.0, 2.0), cluster).chosen
        assert packed.kind == "direct packing"
        scaled = policy.decide(job("E", 390.0, 50.0, 1.01), cluster).chosen
        assert (scaled.kind, scaled.delta) == ("rollout scaling", pytest.approx(14.8))
        alone = policy.decide(job("E", 10.0, 250.0, 1.0), cluster).chosen
        assert (alone.kind, alone.group) == ("isolated", None)

    def test_saturation_is_tested_before_and_by_option_after(self):
        """A and B of (300, 100): load 300 < cycle 400 before, 600 > 400 after, slowdown 1.5."""
        for after, kind in ((False, "direct packing"), (True, "isolated")):
            policy = PaperPolicy(Settings(require_unsaturated_after=after))
            cluster = Cluster(pools())
            cluster.place(job("A", 300.0, 100.0), Placement((0,), (0,)), None)
            decision = policy.decide(job("B", 300.0, 100.0), cluster)
            chosen = decision.chosen
            if after:
                assert chosen.kind in ("rollout scaling", kind)
                refused = [one.verdict.by for one in decision.candidates if not one.admitted]
                assert "saturated" in refused
            else:
                assert chosen.kind == kind
                assert chosen.verdict.iterations_s == (600.0, 600.0)
                assert chosen.verdict.slowdowns == (1.5, 1.5)
                apply(cluster, job("B", 300.0, 100.0), decision)
                full = policy.decide(job("tiny", 1.0, 1.0, 1000.0), cluster)
                assert full.chosen.kind == "isolated"
                assert "saturated before" in " ".join(full.ruled_out)

    def test_a_full_group_is_not_oversaturated(self):
        def state(rollout_s):
            members = (job("a", 100.0, 100.0), job("b", rollout_s, 50.0))
            placed = tuple(Member(one, Placement((0,), (0,))) for one in members)
            return oversaturated(Group(placed, (0,), (0,)))

        assert [state(50.0), state(100.0), state(150.0)] == [-1, 0, 1]

    def test_the_paper_refuses_memory_that_is_exactly_full_and_we_do_not(self):
        cluster = Cluster(pools(memory=100 * GB))
        cluster.place(job("a", 300.0, 50.0, need=60 * GB), Placement((0,), (0,)), None)
        arriving = job("b", 40.0, 200.0, need=40 * GB)
        assert WeavePolicy().decide(arriving, cluster).chosen.kind == "direct packing"
        decision = PaperPolicy().decide(arriving, cluster)
        assert decision.chosen.kind == "rollout scaling"
        assert any(one.verdict.by == "memory" for one in decision.candidates)

    def test_of_equal_prices_the_first_group_stays(self):
        for policy in (PaperPolicy, WeavePolicy):
            cluster = Cluster(pools())
            for at in range(2):
                cluster.place(job(f"g{at}", 300.0, 50.0), Placement((at,), (at,)), None)
            assert policy().decide(job("b", 50.0, 200.0), cluster).chosen.group == 0


class TestMemory:
    def test_a_restart_set_and_what_sleeps_on_the_device_count(self):
        cluster = Cluster(pools(memory=100 * GB))
        kept = Need(host_bytes=60 * GB, keep_bytes=30 * GB)
        cluster.place(job("a", 300.0, 50.0, need=0), Placement((0,), (0,)), None)
        plain = common_job("b", 40.0, 200.0, slo=2.0, rollout_need=kept)
        assert WeavePolicy().decide(plain, cluster).chosen.kind == "direct packing"
        second = common_job("c", 20.0, 30.0, slo=9.0, rollout_need=kept, restart=True)
        decision = WeavePolicy().decide(second, cluster, explain=True)
        assert decision.chosen.kind == "direct packing"  # 90 GB of 100
        cluster.place(plain, Placement((0,), (0,)), 0)
        text = " ".join(
            one.verdict.reason
            for one in WeavePolicy().decide(second, cluster, explain=True).candidates
        )
        assert format_bytes(150 * GB) in text

    def test_residues_of_sleeping_processes(self):
        models = pools()
        models["rollout"] = replace(
            models["rollout"], node=replace(models["rollout"].node, device_bytes=96 * GB)
        )
        need = Need(device_bytes=94 * GB, residual_bytes=1 * GB)
        cluster = Cluster(models)
        policy = WeavePolicy(Settings(max_group=9))
        kinds = []
        for at in range(4):
            one = common_job(f"j{at}", 10.0, 10.0, slo=9.0, rollout_need=need)
            decision = policy.decide(one, cluster)
            kinds.append(decision.chosen.kind)
            apply(cluster, one, decision)
        assert kinds == ["isolated", "direct packing", "direct packing", "rollout scaling"]

    def test_a_planner_of_residency_replaces_the_sum(self):
        cluster = Cluster(pools(memory=100 * GB))
        cluster.place(job("a", 300.0, 50.0, need=80 * GB), Placement((0,), (0,)), None)
        arriving = job("b", 40.0, 200.0, need=80 * GB)
        assert WeavePolicy().decide(arriving, cluster).chosen.kind == "rollout scaling"
        shared = WeavePolicy(residency=lambda pool, members: 90 * GB)
        assert shared.decide(arriving, cluster).chosen.kind == "direct packing"

    def test_a_job_too_large_for_every_node_is_refused_for_good(self):
        for policy in (WeavePolicy(), PaperPolicy()):
            desk = Desk(policy, pools(memory=100 * GB))
            decision = desk.submit(job("big", 10.0, 10.0, need=101 * GB))
            assert decision.never
            assert "fits on no node" in decision.reason
            assert "101 GB" in decision.reason
            assert desk.waiting == ()


class TestWhatAdmits:
    @pytest.mark.parametrize("intra", ["fifo", "strict", "barrier"])
    @pytest.mark.parametrize("seed", range(4))
    def test_the_closed_form_admits_only_under_its_conditions(self, intra, seed):
        generator = rng(seed)
        cluster = Cluster(pools())
        policy = WeavePolicy(Settings(intra=intra))
        tests = set()
        for at in range(40):
            one = (
                odd_job(f"j{at}", generator)
                if generator.random() < 0.3
                else random_job(f"j{at}", generator, most_nodes=2)
            )
            decision = policy.decide(one, cluster)
            apply(cluster, one, decision)
            group = cluster.home(one.name).group
            by = decision.chosen.verdict.by
            tests.add(by)
            assert by in ("closed form", "upper bound", "cycle ratio", "simulation")
            if by == "closed form":
                assert why_not_closed(turns_of(group), intra, group.pairs) is None
                several = len(group.rollout) > 1 or len(group.train) > 1
                assert not (intra == "fifo" and several)
        assert len(tests) > 1 or intra == "barrier"

    @pytest.mark.parametrize("seed", range(3))
    def test_limits_are_kept_by_the_policy_itself(self, seed):
        """Whatever admitted a group, the order that will run keeps every limit at the maxima."""
        for intra in ("fifo", "strict"):
            generator = rng(100 + seed)
            cluster = Cluster(pools())
            policy = WeavePolicy(Settings(intra=intra))
            for at in range(40):
                one = random_job(f"j{at}", generator)
                apply(cluster, one, policy.decide(one, cluster))
            for resident in cluster.residents.values():
                turns = turns_of(resident.group)
                means = simulated_iterations(turns, intra, order=resident.order, iterations=200)
                for mean, member in zip(means, resident.group.members, strict=True):
                    limit = member.job.slo * member.job.solo_max_s
                    assert mean <= limit * (1 + 2e-2 * (intra == "fifo") + 1e-9)


class TestComponents:
    @pytest.mark.parametrize("seed", range(60))
    def test_bounds_hold_for_fifo(self, seed):
        generator = rng(seed)
        group = random_group(generator, int(generator.integers(1, 6)))
        turns = turns_of(group)
        lower, upper = fifo_lower_bounds(turns), fifo_upper_bounds(turns)
        means = simulated_iterations(turns, "fifo", iterations=150)
        for low, mean, high in zip(lower, means, upper, strict=True):
            assert low <= mean * (1 + 1e-2)  # the mean may not have settled
            assert mean <= high * (1 + 1e-9)

    @pytest.mark.parametrize("seed", range(20))
    def test_no_iteration_exceeds_the_upper_bound_with_shorter_phases(self, seed):
        generator = rng(seed)
        group = random_group(generator, 4)
        upper = fifo_upper_bounds(turns_of(group))

        def drawn(member, phase):
            return longest_phases(member, phase) * float(generator.uniform(0.3, 1))

        rounds = [turns_of(group, drawn) for _ in range(30)]
        per_job = [[one[at] for one in rounds] for at in range(4)]
        for times, bound in zip(simulate_group(per_job, "fifo", 30), upper, strict=True):
            assert np.diff((0.0, *times.ends)).max() <= bound * (1 + 1e-9)


class TestCompiled:
    def test_fifo_iterations_are_those_of_the_state_machine(self):
        generator = rng(7)
        settings = Settings()
        means = np.zeros(6)
        off = []
        for _ in range(150):
            group = random_group(generator, int(generator.integers(1, 6)))
            local = {node: at for at, node in enumerate(group.rollout)}
            times = np.array([common_times(one, settings) for one in group.members])
            mask = np.array(
                [sum(1 << local[n] for n in one.placement.rollout) for one in group.members]
            )
            repeated = fifo_iterations(times, mask, means[: len(mask)])
            ends = simulate_group(turns_of(group), "fifo", 400)
            slow = np.array([float(one.mean_after(200)) for one in ends])
            worst = float(np.abs(means[: len(mask)] / slow - 1).max())
            assert worst < (5e-3 if repeated else 5e-2)
            off.append(worst)
        assert np.median(off) < 1e-3

    @pytest.mark.parametrize("intra", ["fifo", "strict"])
    @pytest.mark.parametrize("finite", [False, True])
    def test_the_fast_answer_is_the_explained_one(self, intra, finite):
        for seed in range(3):
            generator = rng(seed)
            settings = Settings(intra=intra, require_unsaturated_after=seed == 2)
            cluster = Cluster(pools(20, 12) if finite else pools())
            fast, slow = WeavePolicy(settings), WeavePolicy(settings)
            placed = []
            for at in range(36):
                one = (
                    odd_job(f"j{at}", generator)
                    if generator.random() < 0.15
                    else random_job(f"j{at}", generator)
                )
                quick = fast.decide(one, cluster)
                full = slow.decide(one, cluster, explain=True)
                mine, theirs = (
                    (d.chosen and (d.chosen.kind, d.chosen.group, d.chosen.placement))
                    for d in (quick, full)
                )
                assert mine == theirs, (seed, at)
                if quick.chosen is None:
                    cluster.remove(placed.pop(0))
                    continue
                assert quick.chosen.verdict.slack == pytest.approx(
                    full.chosen.verdict.slack, abs=0.05
                )
                apply(cluster, one, quick)
                placed.append(one.name)
                if at % 4 == 3:
                    cluster.remove(placed.pop(int(generator.integers(len(placed)))))

    def test_pruning_and_group_size_are_obeyed(self):
        cluster = Cluster(pools())
        policy = WeavePolicy(Settings(max_group=2))
        for at in range(4):
            one = job(f"j{at}", 10.0, 10.0, 9.0)
            apply(cluster, one, policy.decide(one, cluster))
        assert [len(one.group.members) for one in cluster.residents.values()] == [2, 2]
        pruned = WeavePolicy(Settings(prune_saturated=True))
        decision = pruned.decide(job("x", 1.0, 1.0, 99.0), cluster)
        assert decision.chosen.kind == "isolated"
        assert decision.ruled_out == {"saturated before the job joins": 2}


class TestDegrees:
    def test_a_job_trains_on_the_groups_nodes_and_takes_longer_there(self):
        cluster = Cluster(pools())
        cluster.place(job("a", 400.0, 60.0), Placement((0,), (0,)), None)
        wide = job("b", 50.0, 60.0, 9.0, train_nodes=2)
        refused = WeavePolicy().decide(wide, cluster, explain=True)
        assert refused.chosen.kind == "isolated"
        assert "trains on 2 nodes" in " ".join(refused.ruled_out)
        able = replace(wide, degrees=(Degree(1),), name="c")
        chosen = WeavePolicy().decide(able, cluster).chosen
        assert (chosen.kind, chosen.placement.train) == ("direct packing", (0,))
        assert chosen.verdict.slowdowns[1] == pytest.approx(460.0 / 110.0)  # of the requested size

    def test_a_group_of_its_own_takes_the_fewest_training_nodes_that_keep_the_limit(self):
        wide = job("b", 100.0, 50.0, 1.5, train_nodes=4, degrees=tuple(map(Degree, (1, 2, 3))))
        decision = WeavePolicy().decide(wide, Cluster(pools()))
        # 1 node: 100 + 200 > 225; 2 nodes: 100 + 100 <= 225
        assert len(decision.chosen.placement.train) == 2
        assert not decision.candidates[0].admitted
        assert len(PaperPolicy().decide(wide, Cluster(pools())).chosen.placement.train) == 4


class TestQuantile:
    def test_it_admits_what_the_worst_case_refuses_and_by_its_own_test(self):
        cluster = Cluster(pools())
        cluster.place(job("a", 110.0, 100.0, 1.6, iterations=50), Placement((0,), (0,)), None)
        rare = scheduling.noisy_job("b", rng(1), cv=0.1)
        laws = (Lognormal(100.0, 0.1, 400.0), Lognormal(90.0, 0.1, 100.0))
        phases = tuple(replace(p, law=law) for p, law in zip(rare.phases, laws, strict=True))
        rare = replace(rare, phases=phases, slo=1.6)
        assert WeavePolicy().decide(rare, cluster).chosen.kind != "direct packing"
        chosen = WeavePolicy(Settings(mode="quantile")).decide(rare, cluster).chosen
        assert (chosen.kind, chosen.verdict.by) == ("direct packing", "quantile")

    def test_constant_laws_need_no_draws(self):
        cluster = Cluster(pools())
        cluster.place(job("a", 110.0, 100.0), Placement((0,), (0,)), None)
        chosen = WeavePolicy(Settings(mode="quantile")).decide(job("b", 90.0, 80.0), cluster).chosen
        assert chosen.verdict.by == "closed form"

    def test_too_few_draws_admit_nothing(self):
        generator = rng(3)
        jobs = [replace(scheduling.noisy_job(name, generator), slo=9.0) for name in "ab"]
        group = Group(tuple(Member(one, Placement((0,), (0,))) for one in jobs), (0,), (0,))
        assert not judge(group, Settings(mode="quantile", replications=50)).admitted
        assert judge(group, Settings(mode="quantile", replications=320)).admitted

    def test_a_job_alone_is_as_fast_as_alone(self):
        one = replace(scheduling.noisy_job("a", rng(3)), slo=1.0)
        verdict = WeavePolicy(Settings(mode="quantile")).decide(one, Cluster(pools())).chosen
        assert verdict.verdict.by == "upper bound"

    def test_a_law_without_max_is_refused_by_the_worst_case_only(self):
        one = scheduling.noisy_job("a", rng(1))
        endless = replace(
            one, phases=tuple(replace(p, law=replace(p.law, max_s=None)) for p in one.phases)
        )
        with pytest.raises(ValueError, match="has no max"):
            WeavePolicy().decide(endless, Cluster(pools()))
        assert WeavePolicy(Settings(mode="quantile")).decide(endless, Cluster(pools())).chosen


@pytest.mark.parametrize("mode", ["worst-case", "quantile"])
def test_jobs_too_uneven_to_be_simulated_are_judged_by_a_bound(mode):
    """A job a million times longer: the compiled and the general tests refuse alike."""
    cluster = Cluster(pools())
    cluster.place(job("a", 1e8, 40.0, 1.5), Placement((0,), (0,)), None)
    for common in (True, False):
        for slo, kind in ((1.5, "rollout scaling"), (1.2, "isolated"), (None, "direct packing")):
            short = job("b", 100.0, 40.0, slo)
            if not common:
                sync = Phase("weight_sync", ("train",), Constant(1.0), ("train",))
                short = replace(short, phases=(*short.phases, sync))
                kind = "isolated" if slo else kind
            decision = WeavePolicy(Settings(mode=mode)).decide(short, cluster)
            assert decision.chosen.kind == kind


def test_uneven_jobs_with_drawn_durations_are_not_admitted_by_their_means():
    generator = rng(5)
    long, short = (scheduling.noisy_job(name, generator) for name in "ab")
    laws = [replace(p, law=Lognormal(p.law.mean_s * 1e6, 0.2)) for p in long.phases]
    members = tuple(
        Member(replace(one, slo=slo), Placement((at,), (0,)))
        for at, (one, slo) in enumerate(((replace(long, phases=tuple(laws)), 99.0), (short, None)))
    )
    verdict = judge(Group(members, (0, 1), (0,)), Settings(mode="quantile"))
    assert not verdict.admitted
    assert "differ" in verdict.reason
    free = tuple(replace(one, job=replace(one.job, slo=None)) for one in members)
    assert judge(Group(free, (0, 1), (0,)), Settings(mode="quantile")).admitted


def test_a_job_without_limit_packs_anywhere():
    cluster = Cluster(pools())
    cluster.place(job("a", 300.0, 50.0, None), Placement((0,), (0,)), None)
    chosen = WeavePolicy().decide(job("b", 300.0, 300.0, None), cluster).chosen
    assert chosen.kind == "direct packing"
    assert chosen.verdict.slack is None
    assert math.isfinite(chosen.verdict.period_s)


def test_a_hundred_thousand_jobs_are_no_reason_to_fail():
    cluster = Cluster(pools())
    for at in range(50_000):
        members = [
            Member(job(f"{k}{at}", 100.0, 100.0, 1.0), Placement((at,), (at,))) for k in "ab"
        ]
        cluster.restore(Resident(at, Group(tuple(members), (at,), (at,))))
    cluster.place(job("open", 300.0, 50.0), Placement((50_000,), (50_000,)), None)
    chosen = WeavePolicy().decide(job("new", 40.0, 200.0), cluster).chosen
    assert (chosen.kind, chosen.group) == ("direct packing", 50_000)
    assert len(cluster) == 100_001


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_durations_that_are_none_are_refused(seconds):
    with pytest.raises(ValueError, match="rollout"):
        job("a", seconds, 10.0)


def test_limits_and_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="slo"):
        job("a", 10.0, 10.0, 0.99)
    with pytest.raises(ValueError, match="quantile"):
        Settings(quantile=1.0)
    with pytest.raises(ValueError, match="max_group"):
        Settings(max_group=0)
    with pytest.raises(ValueError, match="train is missing"):
        Cluster({"rollout": pools()["rollout"]})

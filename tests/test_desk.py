"""Waiting and backfill, departures, failures, regrouping, drift, snapshots; the baselines."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scheduling import GB, job, noisy_job, pools, random_job, rng

from weave_scheduler.laws import Constant, Empirical
from weave_scheduler.policies import Cluster, Desk, Settings, WeavePolicy, policy_of
from weave_scheduler.policies.dedicated import colocated, solo_disaggregated
from weave_scheduler.policies.drift import DriftWatch
from weave_scheduler.policies.gavel import GavelJob, Way, allocate, schedule
from weave_scheduler.policies.regroup import regroup, regroup_desk
from weave_scheduler.policies.snapshot import replay, snapshot


def long_job(name, slo=1.0):
    """Shares with nobody under its limit."""
    return job(name, 100.0, 100.0, slo)


class TestWaiting:
    def test_a_job_waits_with_the_reason_and_is_served_when_nodes_come_free(self):
        desk = Desk(WeavePolicy(), pools(2, 1))
        assert desk.submit(long_job("a")).chosen.kind == "isolated"
        decision = desk.submit(job("b", 300.0, 300.0, 1.0))
        assert decision.chosen is None
        assert "needs 1 train node(s), 0 free" in decision.reason
        assert [one.job.name for one in desk.waiting] == ["b"]
        (served,) = desk.leave("a")
        assert (served.job, served.chosen.kind) == ("b", "isolated")
        assert desk.waiting == ()
        assert desk.cluster.owned("rollout") == desk.cluster.owned("train") == 1

    @pytest.mark.parametrize(
        ("rule", "small", "alone"), [("packing", True, False), ("none", False, False),
                                     ("any", True, True)]
    )  # fmt: skip
    def test_what_may_overtake_a_waiting_job(self, rule, small, alone):
        desk = Desk(WeavePolicy(Settings(backfill=rule)), pools(3, 2))
        desk.submit(job("a", 300.0, 50.0, 2.0))
        assert desk.submit(job("wide", 100.0, 100.0, 1.0, rollout_nodes=3)).chosen is None
        packs = desk.submit(job("small", 40.0, 200.0, 9.0))
        assert (packs.chosen is not None) == small
        own = desk.submit(long_job("own"))
        assert (own.chosen is not None) == alone
        if not alone:
            assert "behind job wide" in own.reason

    def test_names_and_absences_are_checked(self):
        desk = Desk(WeavePolicy(), pools())
        desk.submit(long_job("a"))
        with pytest.raises(ValueError, match="here already"):
            desk.submit(long_job("a"))
        with pytest.raises(ValueError, match="is not here"):
            desk.leave("b")

    def test_more_nodes_than_the_pool_has_are_refused_for_good(self):
        desk = Desk(WeavePolicy(), pools(2, 2))
        decision = desk.submit(job("wide", 10.0, 10.0, rollout_nodes=3))
        assert decision.never
        assert decision.reason == "needs 3 rollout nodes, the pool has 2"


class TestChange:
    def test_departures_release_rollout_nodes_at_once_and_the_rest_with_the_last_job(self):
        desk = Desk(WeavePolicy(), pools())
        desk.submit(job("a", 300.0, 50.0))
        desk.submit(job("b", 320.0, 60.0, 1.05))
        assert desk.cluster.owned("rollout") == 2
        desk.leave("b")
        assert (desk.cluster.owned("rollout"), desk.cluster.owned("train")) == (1, 1)
        desk.leave("a")
        assert desk.cluster.residents == {}
        assert desk.cluster.cost_per_h == 0
        assert desk.submit(long_job("c")).chosen.placement.rollout == (0,)

    def test_random_histories_keep_the_books(self):
        for seed in range(5):
            generator = rng(seed)
            desk = Desk(WeavePolicy(), pools(12, 8))
            here = []
            for at in range(60):
                if here and generator.random() < 0.4:
                    desk.leave(here.pop(int(generator.integers(len(here)))))
                else:
                    name = f"j{at}"
                    if not desk.submit(random_job(name, generator)).never:
                        here.append(name)
                self.check(desk, here)

    def check(self, desk, here):
        cluster = desk.cluster
        groups = [one.group for one in cluster.residents.values()]
        placed = [name for group in groups for name in group.names]
        waiting = [one.job.name for one in desk.waiting]
        assert sorted(placed + waiting) == sorted(here)
        for pool, count in (("rollout", 12), ("train", 8)):
            owned = [node for group in groups for node in group.nodes(pool)]
            assert len(owned) == len(set(owned)) == cluster.owned(pool) <= count
        for group in groups:
            assert {n for one in group.members for n in one.placement.rollout} == set(group.rollout)
            assert all(one.placement.train == group.train for one in group.members)

    def test_a_failed_job_arrives_again_with_what_is_left(self):
        desk = Desk(WeavePolicy(), pools())
        desk.submit(job("a", 300.0, 50.0, iterations=10))
        desk.submit(job("b", 40.0, 200.0, 9.0))
        decisions = desk.fail("a", 4)
        assert decisions[-1].chosen.kind in ("direct packing", "rollout scaling")
        group = desk.cluster.home("a").group
        assert group.names == ("b", "a")
        assert group.members[1].job.iterations == 4

    def test_regrouping_is_worth_it_or_not(self):
        policy = WeavePolicy(Settings(intra="strict"))
        desk = Desk(policy, pools())
        for at in range(12):
            desk.submit(random_job(f"j{at}", rng(at), most_nodes=1))
        for at in range(0, 12, 3):
            desk.leave(f"j{at}")
        plan = regroup(desk.cluster, policy, horizon_h=1000.0, migrate_s=300.0)
        assert plan.failed == []
        assert plan.saving_per_h == pytest.approx(desk.cluster.cost_per_h - plan.cluster.cost_per_h)
        assert plan.worth == (plan.saving_per_h * 1000.0 > plan.cost)
        assert len(plan.cluster) == len(desk.cluster)
        dear = regroup(desk.cluster, policy, horizon_h=1.0, migrate_s=1e6)
        assert not dear.worth
        again = regroup(plan.cluster, policy, horizon_h=1.0, migrate_s=300.0)
        assert (again.moved, again.cost) == ((), 0)

    def test_a_desk_goes_on_after_a_regrouping(self):
        desk = Desk(WeavePolicy(Settings(intra="strict")), pools(4, 4))
        for name, rollout, train, slo in (
            ("a", 300.0, 100.0, 1.5), ("b", 100.0, 300.0, 1.5), ("c", 300.0, 90.0, 1.01),
            ("d", 90.0, 300.0, 1.01), ("e", 120.0, 250.0, 1.2), ("f", 240.0, 120.0, 1.2),
        ):  # fmt: skip
            desk.submit(job(name, rollout, train, slo))
        for gone in "bf":
            desk.leave(gone)
        names = {name for one in desk.cluster.residents.values() for name in one.group.names}
        price = desk.cluster.cost_per_h
        plan, served = regroup_desk(desk, horizon_h=100.0, migrate_s=300.0)
        assert plan.worth == (desk.cluster is plan.cluster)
        assert desk.cluster.cost_per_h == pytest.approx(price - plan.saving_per_h * plan.worth)
        assert {name for one in desk.cluster.residents.values() for name in one.group.names} == (
            names | {one.job for one in served}
        )
        desk.submit(job("g", 50.0, 50.0))
        with pytest.raises(ValueError, match="jobs differ"):
            desk.adopt(Cluster(pools(4, 4)))


class TestDrift:
    def watch(self, **more):
        return DriftWatch(job("a", 100.0, 50.0, iterations=100), window=10, **more)

    def test_durations_as_planned_are_no_drift(self):
        watch = self.watch()
        assert not any(watch.measured("rollout", 100.0) for _ in range(30))

    def test_a_mean_that_leaves_the_plan_is_reported_after_a_window(self):
        watch = DriftWatch(noisy_job("a", rng(0)), window=10, stop=True)
        law = noisy_job("a", rng(0)).phases[0].law
        generator = rng(1)
        found = [
            watch.measured("rollout", float(law.mean_s * generator.uniform(0.5, 0.6)))
            for _ in range(10)
        ]
        assert found[:9] == [None] * 9
        assert found[9].stop
        assert found[9].above_max == 0
        again = watch.again(7)
        assert again.iterations == 7
        assert isinstance(again.phases[0].law, Empirical)
        assert again.phases[0].law.max_s == law.max_s
        assert again.phases[1].law == noisy_job("a", rng(0)).phases[1].law

    def test_one_duration_above_the_max_breaks_the_worst_case(self):
        watch = self.watch()
        for _ in range(9):
            assert watch.measured("train", 50.0) is None
        found = watch.measured("train", 55.0)
        assert found.above_max == 1
        assert "above the planned max" in found.reason
        assert watch.again(1).phases[1].law.max_s == pytest.approx(55.0)
        for _ in range(10):
            watch.measured("train", 100.0)
        assert watch.again(1).phases[1].law.max_s == pytest.approx(100.0)

    def test_phases_too_short_to_matter_do_not_drift(self):
        one = job("a", 100.0, 0.1)
        watch = DriftWatch(one, window=5)
        assert not any(watch.measured("train", 1.0) for _ in range(9))
        assert watch.measured("train", 10.0).above_max == 1

    def test_a_drifted_job_is_resubmitted(self):
        desk = Desk(WeavePolicy(), pools())
        slow = replace(job("a", 100.0, 50.0), iterations=5)
        desk.submit(job("a", 300.0, 50.0))
        assert desk.resubmit("a", slow)[-1].chosen.kind == "isolated"
        assert desk.cluster.home("a").group.members[0].job.phases[0].law == Constant(100.0)


class TestSnapshot:
    @pytest.mark.parametrize("name", ["weave", "paper", "most-idle"])
    def test_a_decision_can_be_made_again_from_its_file(self, name):
        generator = rng(2)
        desk = Desk(policy_of(name, Settings()), pools(30, 20))
        for at in range(25):
            one = random_job(f"j{at}", generator)
            before = desk.policy.decide(one, desk.cluster, explain=True)
            content = snapshot(one, desk.cluster, name, desk.policy.settings, before)
            again = replay(json.loads(json.dumps(content)))
            assert again.same
            assert again.job == one
            assert again.decision.as_dict() == before.as_dict()
            desk.submit(one)

    def test_another_answer_is_noticed_and_other_files_are_refused(self):
        cluster = Cluster(pools())
        one = noisy_job("a", rng(0))
        decision = WeavePolicy().decide(one, cluster)
        content = snapshot(one, cluster, "weave", Settings(), decision)
        assert replay(content).same
        content["decision"]["chosen"]["kind"] = "direct packing"
        assert not replay(content).same
        for wrong in (
            {**content, "format": "weave-run"},
            {**content, "version": 2},
            {**content, "job": {"is": "Popen"}},
            {"format": "weave-decision", "version": 1},
        ):
            with pytest.raises(ValueError, match=r"format|version|known|whole"):
                replay(wrong)


class TestBaselines:
    def test_random_and_most_idle_pack_without_asking_and_obey_memory(self):
        for name in ("random", "most-idle"):
            desk = Desk(policy_of(name, Settings(max_group=3)), pools(memory=1000 * GB))
            for at in range(9):
                desk.submit(job(f"j{at}", 100.0, 100.0, 1.0, need=400 * GB))
            sizes = sorted(len(one.group.members) for one in desk.cluster.residents.values())
            assert sizes == [1, 2, 2, 2, 2]

    def test_most_idle_takes_the_group_that_idles_most(self):
        desk = Desk(policy_of("most-idle", Settings(max_group=2)), pools())
        cluster = desk.cluster
        from weave_scheduler.model import Placement

        cluster.place(job("busy", 100.0, 100.0), Placement((0,), (0,)), None)
        cluster.place(job("idle", 100.0, 1.0), Placement((1,), (1,)), None)
        assert desk.submit(job("c", 10.0, 10.0)).chosen.group == 1

    def test_solo_and_colocated_by_hand(self):
        one = job("a", 300.0, 100.0, rollout_nodes=2)
        solo = solo_disaggregated(one, pools())
        assert (solo.price_per_h, solo.iteration_s) == (pytest.approx(2 * 14.8 + 42.24), 400.0)
        shared = colocated(one, pools(), 1.5)
        assert (shared.price_per_h, shared.iteration_s) == (pytest.approx(42.24), 1000.0)
        assert shared.price_per_iteration == pytest.approx(42.24 * 1000 / 3600)

    def test_gavel_by_hand_on_three_jobs(self):
        """Three equal jobs, one node each: together 1 (disaggregated), 0.8 (training node) or 0.3
        (rollout node). One job disaggregated holds both nodes for 1; one on each makes 1.1. So each
        job is a third of the time in each of the two, at 1.1 / 3."""
        pytest.importorskip("scipy")
        ways = (Way("both", 1.0, 1, 1), Way("train", 0.8, 0, 1), Way("rollout", 0.3, 1, 0))
        jobs = [GavelJob(name, ways) for name in "abc"]
        found = allocate(jobs, 1, 1)
        assert found.least == pytest.approx(1.1 / 3)
        assert found.rates == pytest.approx([1.1 / 3] * 3)
        assert sum(one[0] for one in found.fractions) == pytest.approx(0.0, abs=1e-9)
        chosen = schedule(found, 1, 1, 3000)
        for at in range(3):
            got = [float(np.mean(chosen[:, at] == way)) for way in range(3)]
            assert got == pytest.approx(found.fractions[at], abs=0.01)
        assert all(np.sum(row == 1) <= 1 and np.sum(row == 2) <= 1 for row in chosen)

    def test_gavel_prefers_both_pools_where_that_is_faster(self):
        pytest.importorskip("scipy")
        ways = (Way("both", 1.0, 1, 1), Way("train", 0.4, 0, 1), Way("rollout", 0.3, 1, 0))
        found = allocate([GavelJob(name, ways) for name in "abc"], 1, 1)
        assert found.least == pytest.approx(1 / 3)
        assert [one[0] for one in found.fractions] == pytest.approx([1 / 3] * 3)

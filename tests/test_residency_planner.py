"""The residency planner against brute force, and against what it promises for each switch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from weave_rt.benchmarks.bruteforce import LARGEST, least_copies, random_instance
from weave_rt.errors import DoesNotFit, GrowthRefused, UsageError
from weave_rt.overlay import (
    Link,
    Planner,
    RegionBlocks,
    ResidencyMap,
    TenantBlocks,
    Unmanaged,
    admit,
    closed_form_window,
    cyclic_order,
    make_plan,
    moving_blocks,
    quotas,
    tenant_blocks,
    tenth,
    usable_frames,
)

LINK = Link(55e9, 55e9, 0.75 * 55e9, 0.75 * 55e9)
GB = 10**9


def tenants_of(*sizes: int | tuple[int, ...], phase_s: float = 1e6) -> list[TenantBlocks]:
    """Tenants a, b, ...; each a number of keep blocks, or (keep, clean, discard)."""
    parts = [(size,) if isinstance(size, int) else size for size in sizes]
    return [
        TenantBlocks(chr(ord("a") + at), *part, phase_s=phase_s) for at, part in enumerate(parts)
    ]


def copies(tenants: Sequence[TenantBlocks], moving: Sequence[int]) -> int:
    return sum(one.turns * one.cost(blocks) for one, blocks in zip(tenants, moving, strict=True))


def per_switch(plan):
    """(out, in) in the foreground of every switch."""
    return [(one.foreground.out, one.foreground.into) for one in plan.switches]


def test_fewest_bytes_equals_brute_force_on_random_instances():
    rng = random.Random(11)
    shapes = {"moves": 0, "free": 0, "small": 0, "discard": 0}
    for _ in range(700):
        tenants, frames = random_instance(rng, LARGEST)
        moving = moving_blocks(tenants, frames)
        static = sum(one.blocks - m for one, m in zip(tenants, moving, strict=True))
        assert static + max(moving) <= frames, (tenants, frames)
        assert all(0 <= m <= one.blocks for one, m in zip(tenants, moving, strict=True))
        optimum = least_copies(tenants, frames)
        assert copies(tenants, moving) == optimum, (tenants, frames, moving)
        shapes["moves" if optimum else "free"] += 1
        shapes["small"] += any(one.blocks < max(moving) for one in tenants)
        shapes["discard"] += any(one.discard for one in tenants) and optimum > 0
    assert min(shapes.values()) > 100, shapes  # no kind of instance is missing


def test_no_number_of_moving_blocks_beats_the_plan_with_unequal_turns():
    """For f_i != 1 the lemma's price is an upper bound; the plan is the least of those."""
    rng = random.Random(12)

    def least(tenants, frames, at=0, moving=()):
        if at == len(tenants):
            static = sum(one.blocks - m for one, m in zip(tenants, moving, strict=True))
            return copies(tenants, moving) if static + max(moving) <= frames else float("inf")
        sizes = range(tenants[at].blocks + 1)
        return min(least(tenants, frames, at + 1, (*moving, m)) for m in sizes)

    for _ in range(150):
        tenants, frames = random_instance(rng, {2: 7, 3: 4, 4: 3}, turns=3)
        assert copies(tenants, moving_blocks(tenants, frames)) == least(tenants, frames)


def test_a_cycle_costs_at_most_what_the_moving_blocks_cost():
    rng = random.Random(13)
    for _ in range(300):
        tenants, frames = random_instance(rng, {2: 12, 3: 9, 4: 9, 5: 9}, turns=3)
        plan = make_plan(tenants, frames, GB, LINK, "fewest-bytes")
        bound = copies(tenants, plan.movable)
        assert plan.blocks_per_cycle <= bound
        if all(one.turns == 1 for one in tenants):
            assert plan.blocks_per_cycle == bound


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_arrival_keeps_the_bound_of_a_switch(seed):
    """FIFO that deviates from the cycle moves at most the window each way."""
    rng = random.Random(seed)
    for _ in range(40):
        tenants, frames = random_instance(rng, {2: 20, 3: 20, 5: 20, 9: 20})
        moving = moving_blocks(tenants, frames)
        there = ResidencyMap(tenants, frames, moving)
        seen: list[int] = []
        for _ in range(60):
            incoming = rng.randrange(len(tenants))
            recent = list(dict.fromkeys(reversed(seen)))  # as the core does: who ran last
            moved = there.switch(incoming, [at for at in recent if at != incoming])
            seen.append(incoming)
            if incoming in recent:  # the first time everything comes in
                assert moved.out <= moved.into + tenants[incoming].discard
                assert moved.into <= moving[incoming] <= max(moving)
                assert moved.out <= max(moving)
            assert there.resident(incoming) == tenants[incoming].blocks
            assert sum(map(there.resident, range(len(tenants)))) + there.free == frames


def test_least_stall_reaches_the_lower_bound_of_every_switch():
    rng = random.Random(14)
    for _ in range(400):
        tenants, frames = random_instance(rng, {2: 14, 3: 12, 4: 12, 6: 12})
        plan = make_plan(tenants, frames, GB, LINK, "least-stall")
        for one in plan.switches:
            x, y = tenants[one.outgoing], tenants[one.incoming]
            hands = max(0, x.blocks + y.blocks - frames)
            assert one.foreground.into == max(0, y.stored - (frames - x.blocks))
            assert one.foreground.out == max(0, hands - x.discard - x.clean)


def test_what_does_not_fit_behind_the_phase_is_copied_in_the_foreground():
    long = make_plan(tenants_of(60, 60, 60), 140, GB, LINK, "least-stall")
    assert per_switch(long) == [(0, 0)] * 3
    # 10 GB at the duplex rate and a little: ten of the forty blocks go behind each phase.
    short = make_plan(tenants_of(60, 60, 60, phase_s=0.25), 140, GB, LINK, "least-stall")
    assert all(one.background.into <= 10 for one in short.switches)
    assert sum(one.foreground.into for one in short.switches) > 0
    none = make_plan(tenants_of(60, 60, 60, phase_s=0), 140, GB, LINK, "least-stall")
    assert all(one.background.into == 0 for one in none.switches)
    assert short.foreground_s < none.foreground_s
    # The map repeats itself after two cycles; the mean is what no policy can beat: nE/(n-1) loads.
    loads = sum(one.foreground.into + one.background.into for one in none.switches)
    assert loads == 3 * 40 / 2


def test_an_unexpected_arrival_costs_bytes_only():
    rng = random.Random(15)
    for _ in range(60):
        tenants, frames = random_instance(rng, {2: 14, 3: 12, 5: 12})
        there = ResidencyMap(tenants, frames)
        count = len(tenants)
        for _ in range(40):
            guess, incoming = rng.randrange(count), rng.randrange(count)
            order = rng.sample(range(count), count)
            running = there.running
            if running is not None and guess != running:
                others = [at for at in order if at not in (running, guess)]
                there.prefetch(guess, others, (rng.randrange(9), rng.randrange(9)))
                assert there.resident(running) == tenants[running].blocks
            there.switch(incoming, [at for at in order if at != incoming])
            assert there.resident(incoming) == tenants[incoming].blocks
            assert sum(map(there.resident, range(count))) + there.free == frames
            assert there.free >= 0


class TestTheExamplesOfTheIssue:
    def test_three_of_60_on_140(self):
        few = make_plan(tenants_of(60, 60, 60), 140, GB, LINK, "fewest-bytes")
        assert few.movable == (20, 20, 20)
        assert per_switch(few) == [(20, 20)] * 3
        quick = make_plan(tenants_of(60, 60, 60), 140, GB, LINK, "least-stall")
        assert per_switch(quick) == [(0, 0)] * 3
        assert {(o.background.out, o.background.into) for o in quick.switches} == {(40, 40)}
        auto = make_plan(tenants_of(60, 60, 60), 140, GB, LINK)
        assert auto.kind == "least-stall"
        assert auto.others["fewest-bytes"] == (few.foreground_s, 120)
        assert make_plan(tenants_of(60, 60, 60), 140, GB, LINK, background=False) == few

    def test_two_of_60_on_80_wait_for_40_whatever_is_done(self):
        for kind in ("fewest-bytes", "least-stall"):
            plan = make_plan(tenants_of(60, 60), 80, GB, LINK, kind)
            assert per_switch(plan) == [(40, 40)] * 2
        assert make_plan(tenants_of(60, 60), 80, GB, LINK).kind == "fewest-bytes"  # a tie

    @pytest.mark.parametrize("kind", ["auto", "fewest-bytes", "least-stall"])
    def test_on_180_nothing_moves(self, kind):
        plan = make_plan(tenants_of(60, 60, 60), 180, GB, LINK, kind)
        assert plan.blocks_per_cycle == 0
        assert plan.movable == (0, 0, 0)

    def test_50_50_10_on_60(self):
        tenants = tenants_of(50, 50, 10)
        assert moving_blocks(tenants, 60) == [40, 40, 10]
        # The same in units of 10, which brute force can do.
        assert least_copies(tenants_of(5, 5, 1), 6) * 10 == copies(tenants, [40, 40, 10])

    @pytest.mark.parametrize("kind", ["auto", "fewest-bytes", "least-stall"])
    def test_weights_stay_and_caches_change_hands(self, kind):
        plan = make_plan(tenants_of((15, 0, 40), (15, 0, 40)), 80, GB, LINK, kind)
        assert plan.blocks_per_cycle == 0


def test_keep_only_has_a_closed_form():
    rng = random.Random(16)
    for _ in range(200):
        sizes = [rng.randint(1, 40) for _ in range(rng.randint(2, 8))]
        frames = rng.randint(max(sizes), sum(sizes))
        moving = moving_blocks(tenants_of(*sizes), frames)
        window = closed_form_window(sizes, frames)
        excess = sum(sizes) - frames
        assert max(moving) == window
        even = -(-excess // (len(sizes) - 1))
        assert window >= even
        if min(sizes) >= even:
            assert window == even
        assert sum(moving) - window >= excess
        assert sum(moving) >= len(sizes) * excess / (len(sizes) - 1) - 1e-9  # no policy loads less
    assert closed_form_window([3, 4], 7) == 0


def test_turns_are_spread_over_the_cycle():
    tenants = [TenantBlocks("a", 1, turns=2), TenantBlocks("b", 1), TenantBlocks("c", 1, turns=3)]
    order = [at for at, _ in cyclic_order(tenants)]
    assert sorted(order) == [0, 0, 1, 2, 2, 2]
    assert all(first != second for first, second in itertools.pairwise(order))


def test_sixty_four_tenants():
    """Planned as a whole; how long that takes is a case of `weave bench overlay`."""
    rng = random.Random(17)
    tenants = [
        TenantBlocks(
            str(at), rng.randrange(700), rng.randrange(200), rng.randrange(500), phase_s=30.0
        )
        for at in range(64)
    ]
    plan = make_plan(tenants, 9000, 64 << 20, LINK)
    assert len(plan.switches) == 64
    few = make_plan(tenants, 9000, 64 << 20, LINK, "fewest-bytes")
    assert plan.foreground_s <= few.foreground_s


class TestFrames:
    def test_the_formula(self):
        found = usable_frames(
            1000, 10, context=5, unmanaged=[Unmanaged("a", 100, 30), Unmanaged("b", 50, 40)]
        )
        assert (found.unmanaged, found.worst) == (140, "a")  # a runs, b sleeps
        assert (found.reserve, found.bytes, found.frames) == (20, 835, 83)

    def test_a_sleeper_may_be_worse_than_a_phase(self):
        found = usable_frames(1000, 1, unmanaged=[Unmanaged("a", 0, 300), Unmanaged("b", 10, 0)])
        assert (found.unmanaged, found.worst) == (310, "b")

    def test_nothing_left(self):
        with pytest.raises(DoesNotFit, match="at the peak of a") as caught:
            usable_frames(100, 10, unmanaged=[Unmanaged("a", 95)])
        assert caught.value.frames == 0

    @pytest.mark.parametrize("size", [(0, 1, 0), (10, 0, 0), (10, 1, -1)])
    def test_no_sizes(self, size):
        with pytest.raises(UsageError):
            usable_frames(*size)
        with pytest.raises(UsageError):
            Unmanaged("a", -1)


class TestMembers:
    def test_the_planner_plans_as_it_was_told(self):
        three = tenants_of(60, 60, 60)
        planner = Planner(100, GB, LINK)
        assert planner.plan(three).kind == "least-stall"
        assert planner.plan(three) == make_plan(three, 100, GB, LINK)
        assert replace(planner, background=False).plan(three).kind == "fewest-bytes"
        assert replace(planner, kind="fewest-bytes", frames=180).plan(three).excess == 0
        with pytest.raises(DoesNotFit, match="tenant c has 60 blocks") as caught:
            replace(planner, frames=59).plan(tenants_of(1, 1, 60))
        found = caught.value.tenant, caught.value.blocks_needed, caught.value.frames
        assert found == ("c", 60, 59)

    @pytest.mark.parametrize("kinds", [(100, 0, 0), (0, 60, 40), (1, 1, 98)])
    def test_who_fits_alone_may_come(self, kinds):
        admit(TenantBlocks("b", *kinds), 100, GB)
        admit(TenantBlocks("b", *kinds), 130, GB, beside=30)

    @pytest.mark.parametrize("kinds", [(101, 0, 0), (50, 40, 11)])
    def test_one_that_is_too_large_may_not(self, kinds):
        with pytest.raises(GrowthRefused, match="b would have 101 blocks") as caught:
            admit(TenantBlocks("b", *kinds), 100, GB)
        refused = caught.value
        found = refused.bytes_needed, refused.bytes_available, refused.bytes_usable
        assert found == (101 * GB, 100 * GB, 100 * GB)

    def test_what_runs_beside_it_counts(self):
        with pytest.raises(GrowthRefused, match="100 frames, of which 60 run") as caught:
            admit(TenantBlocks("b", 41), 100, GB, beside=60)
        found = caught.value.bytes_available, caught.value.bytes_usable
        assert found == (40 * GB, 100 * GB)


class TestMistakes:
    @pytest.mark.parametrize(
        "field", [{"keep": -1}, {"clean": 1.5}, {"turns": 0}, {"phase_s": float("nan")}]
    )
    def test_tenants(self, field):
        with pytest.raises(UsageError, match=next(iter(field))):
            TenantBlocks("a", **field)

    def test_plans(self):
        with pytest.raises(UsageError, match="no-such"):
            make_plan(tenants_of(1), 2, 1, LINK, "no-such")
        with pytest.raises(UsageError, match="same name"):
            make_plan([TenantBlocks("a", 1)] * 2, 2, 1, LINK)
        with pytest.raises(UsageError, match="order"):
            make_plan(tenants_of(1, 1), 2, 1, LINK, order=[(0, 1.0)])
        with pytest.raises(UsageError, match="h2d_duplex"):
            Link(1, 1, 1, 0)

    def test_no_victims_changes_nothing(self):
        there = ResidencyMap(tenants_of(3, 3), 4, movable=[1, 0])
        there.switch(0, [])
        before = there.state()
        with pytest.raises(ValueError, match="only 1"):
            there.switch(1, [0])
        assert there.state() == before


def test_nobody_and_one_tenant():
    assert make_plan([], 5, 1, LINK).switches == ()
    assert make_plan(tenants_of(5), 5, 1, LINK).switches == ()


def test_the_tenth_of_measured_phases():
    assert tenth([]) == 0.0
    assert tenth([3.0]) == 3.0
    assert tenth(range(11)) == 1.0


def test_the_limit_is_that_of_the_switch_report():
    link = Link(10.0, 20.0, 5.0, 10.0)
    assert link.limit_s(10, 0) == 1.0
    assert link.limit_s(0, 10) == 0.5
    assert link.limit_s(10, 40) == 2.0 + 20 / 20.0
    # both at once is slower than one after the other: the engine takes the faster, so does the plan
    slow = Link(d2h=10, h2d=10, d2h_duplex=4.5, h2d_duplex=4.5)
    assert slow.limit_s(10, 10) == 2.0


class TestLive:
    def test_regions_become_blocks_by_policy(self):
        regions = [
            RegionBlocks("keep", 5),
            RegionBlocks("keep", 4, clean=4),
            RegionBlocks("reload", 3),
            RegionBlocks("discard", 2),
        ]
        found = tenant_blocks("a", regions, [3.0, 1.0, 2.0], turns=2)
        assert found == TenantBlocks("a", 5, 7, 2, 2, 1.2)
        assert tenant_blocks("a", []) == TenantBlocks("a")
        with pytest.raises(UsageError, match="'forget'"):
            tenant_blocks("a", [RegionBlocks("forget", 1)])

    def test_quotas_leave_out_what_is_discarded(self):
        plan = make_plan(tenants_of((40, 0, 30), (60, 0, 0)), 100, GB, LINK, "fewest-bytes")
        # A window of 30 holds what a discards; of the 100 blocks kept, 30 must leave.
        assert sum(quotas(plan).values()) == 30
        assert quotas(plan) == {"a": 0, "b": 30}
        assert quotas(make_plan(tenants_of(3, 4), 9, GB, LINK)) == {"a": 0, "b": 0}

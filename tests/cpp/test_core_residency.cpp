// The residency map under plans: how many bytes a switch moves, by the numbers of the design. The
// quotas are worked out by hand here, as the planner would.
#include <algorithm>

#include "core_fleet.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr Bytes kGiga = kBlock;  // one block stands for 1 GB

}  // namespace

TEST(three_of_sixty_on_140_move_twenty_by_plan) {
  Fleet fleet(140, {{60}, {60}, {60}});
  fleet.plan({20, 20, 20});
  for (std::size_t step = 0; step < 3; ++step) fleet.turn(step);
  for (std::size_t step = 0; step < 6; ++step) {
    const auto report = fleet.turn(step % 3);
    CHECK_EQ(report.bytes_out, 20 * kGiga);
    CHECK_EQ(report.bytes_in, 20 * kGiga);
  }
  CHECK_EQ(fleet.device->stats().blocks_beyond_plan, 0u);
}

TEST(whoever_comes_next_a_plan_bounds_every_switch) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    Fleet fleet(140, {{60}, {60}, {60}});
    fleet.plan({20, 20, 20});
    for (std::size_t step = 0; step < 3; ++step) fleet.turn(step);
    std::mt19937 random(seed);
    std::vector<std::shared_ptr<Tenant>> order = {fleet.tenant(0), fleet.tenant(1),
                                                  fleet.tenant(2)};
    for (int step = 0; step < 30; ++step) {
      if (step % 3 == 0) {  // a guess of the order, right or wrong, changes no bound
        std::shuffle(order.begin(), order.end(), random);
        fleet.device->set_plan(
            {{fleet.tenant(0), 20}, {fleet.tenant(1), 20}, {fleet.tenant(2), 20}}, order);
      }
      const auto report = fleet.turn(random() % 3);
      CHECK(report.bytes_out <= 20 * kGiga);
      CHECK(report.bytes_in <= 20 * kGiga);
    }
    CHECK_EQ(fleet.device->stats().blocks_beyond_plan, 0u);
  }
}

TEST(without_a_plan_the_last_one_makes_room) {
  Fleet fleet(140, {{60}, {60}, {60}});
  for (std::size_t step = 0; step < 3; ++step) fleet.turn(step);
  // As few bytes in all (no policy loads less than nE/(n-1) = 60 a cycle), but not evenly.
  Bytes in = 0;
  for (std::size_t step = 0; step < 6; ++step) {
    const auto report = fleet.turn(step % 3);
    CHECK(report.bytes_in == 0 || report.bytes_in == 40 * kGiga);
    in += report.bytes_in;
  }
  CHECK_EQ(in, 2 * 60 * kGiga);
}

TEST(two_of_sixty_on_80_move_forty) {
  Fleet fleet(80, {{60}, {60}});
  for (std::size_t step = 0; step < 6; ++step) {
    const auto report = fleet.turn(step % 2);
    CHECK_EQ(report.bytes_in, 40 * kGiga);
    CHECK_EQ(report.bytes_out, 40 * kGiga);
  }
}

TEST(what_fits_never_moves) {
  Fleet fleet(180, {{60}, {60}, {60}});
  fleet.plan({20, 20, 20});
  for (std::size_t step = 0; step < 6; ++step) {
    const auto report = fleet.turn(step % 3);
    CHECK_EQ(report.bytes_in + report.bytes_out, 0u);
    CHECK_EQ(fleet.prefetch((step + 1) % 3)->bytes_total(), 0u);
  }
}

TEST(nested_windows_of_unequal_tenants) {
  // sum (N - m) + max m = 20 + 40: what the exhaustive search of the planner gives for 60.
  Fleet fleet(60, {{50}, {50}, {10}});
  fleet.plan({40, 40, 10});
  for (std::size_t step = 0; step < 6; ++step) fleet.turn(step % 3);
  Bytes in = 0;
  for (std::size_t step = 0; step < 6; ++step) {
    const auto report = fleet.turn(step % 3);
    in += report.bytes_in;
    CHECK(report.bytes_out <= 40 * kGiga);
  }
  CHECK_EQ(in, 2 * (40 + 40 + 10) * kGiga);
  CHECK_EQ(fleet.device->stats().blocks_beyond_plan, 0u);
}

TEST(discard_leaves_before_anything_else_and_no_plan_holds_it) {
  // The weights fit together; the caches change hands.
  Fleet fleet(60, {{10, 40}, {10, 40}});
  fleet.plan({0, 0});
  for (std::size_t step = 0; step < 4; ++step) {
    const auto report = fleet.turn(step % 2);
    CHECK_EQ(report.bytes_in + report.bytes_out, 0u);
    CHECK(report.blocks_remapped > 0);
  }
  CHECK_EQ(fleet.device->stats().blocks_beyond_plan, 0u);
}

TEST(a_plan_that_is_too_small_is_exceeded_and_counted) {
  Fleet fleet(80, {{60}, {60}});
  fleet.plan({10, 10});
  const auto report = fleet.turn(0);
  CHECK_EQ(report.bytes_in, 40 * kGiga);
  CHECK_EQ(fleet.device->stats().blocks_beyond_plan, 30u);
  CHECK_EQ(fleet.turn(1).bytes_in, 40 * kGiga);
}

TEST(the_order_of_next_use_decides_who_makes_room) {
  Fleet fleet(140, {{60}, {60}, {60}});
  for (std::size_t step = 0; step < 3; ++step) fleet.turn(step);
  // c ran last; all of a is needed. b comes after c: b makes room although c's turn is newer.
  fleet.device->set_plan({}, {fleet.tenant(2), fleet.tenant(1)});
  const auto before = fleet.resident(2);
  fleet.turn(0);
  CHECK_EQ(fleet.resident(2), before);
  CHECK_THROWS(fleet.device->set_plan({}, {fleet.tenant(1), fleet.tenant(1)}), UsageError, "twice");
  fleet.device->close_tenant(fleet.tenant(1));
  CHECK_THROWS(fleet.device->set_plan({{fleet.tenant(1), 3}}, {}), UsageError, "closed");
}

TEST(plans_are_kept_apart_from_tenants_that_have_gone) {
  Fleet fleet(140, {{60}, {60}, {60}});
  fleet.plan({0, 0, 0});
  fleet.device->close_tenant(fleet.tenant(0));
  fleet.members.erase(fleet.members.begin());
  fleet.check_all();
}

TEST(sequential_where_both_ways_at_once_are_slower) {
  // On the stepper's clock, so that a busy machine changes nothing.
  const std::string stepped = seed() != 0 ? "" : "&engine=stepped";
  const auto mode_with = [&](const char* duplex) {
    Fleet fleet(
        80, {{0}, {0}}, false,
        (std::string(kTwoHundredBlocks) + "&h2d=3MB/s&d2h=3MB/s" + duplex + stepped).c_str());
    fleet.device->suspend(fleet.tenant(1), 60);
    fleet.device->calibrate(30 * kBlock);
    for (auto& one : fleet.members) {
      fleet.device->resume(one.tenant, 60);
      one.spans.push_back(fleet.device->allocate(one.keep, Fleet::blocks(60), 512));
      one.bytes = Fleet::blocks(60);
      one.write();
      fleet.device->release(one.tenant);
    }
    const auto report = fleet.turn(0);
    CHECK_EQ(report.bytes_in, 40 * kGiga);
    fleet.check_all();
    return std::string(report.mode);
  };
  CHECK_EQ(mode_with("&duplex=0.45"), "sequential");
  CHECK_EQ(mode_with("&duplex=1"), "duplex");
}

TEST(the_limit_is_that_of_the_faster_mode) {
  const LinkRates slow_together{100, 100, 45, 45};
  CHECK(is_sequential_faster(slow_together));
  CHECK_EQ(limit_seconds(slow_together, 100, 100), 2.0);
  CHECK(!is_sequential_faster({100, 100, 50, 50}));
  CHECK(!is_sequential_faster({100, 100, 75, 75}));
  CHECK(is_sequential_faster({100, 50, 30, 30}));
}

TEST(growth_takes_headroom_then_discard_then_clean_then_keep) {
  Pair pair;  // 16 frames
  attach(*pair.device, pair.b, "b", 2, 3, 2);
  const auto clean = pair.device->region(pair.b.tenant, "buffers", Policy::keep, 0);
  const auto span = pair.device->allocate(clean, 2 * kBlock, 512);
  emu::host_view(clean->address(), true);
  std::memset(reinterpret_cast<void*>(clean->address()), 0x5C, 2 * kBlock);
  pair.device->mark_clean(clean);
  pair.device->suspend(pair.b.tenant, 60);
  pair.device->resume(pair.b.tenant, 60);
  pair.device->release(pair.b.tenant);
  attach(*pair.device, pair.a, "a", 1, 7, 0);  // runs; two frames are free
  const auto frames = [&] {
    std::vector<FrameId> found;
    for (const auto& slot : pair.a.keep->slots) found.push_back(slot.frame);
    return found;
  };
  const auto first = frames();
  const auto on_device = [](const Region& region) {
    return std::ranges::count_if(region.slots,
                                 [](const Slot& slot) { return slot.frame != kNoFrame; });
  };
  const Bytes before = pair.device->stats().bytes_out;
  std::vector<std::shared_ptr<Span>> spans;
  struct Step {
    int blocks, discard, clean, keep, copied;  // what b has left, and what was copied out
  };
  for (const auto& step :
       {Step{2, 2, 2, 3, 0}, Step{2, 0, 2, 3, 0}, Step{2, 0, 0, 3, 0}, Step{1, 0, 0, 2, 1}}) {
    spans.push_back(
        pair.device->allocate(pair.a.keep, static_cast<Bytes>(step.blocks) * kBlock, 512));
    CHECK_EQ(on_device(*pair.b.discard), step.discard);
    CHECK_EQ(on_device(*clean), step.clean);
    CHECK_EQ(on_device(*pair.b.keep), step.keep);
    CHECK_EQ(pair.device->stats().bytes_out - before, static_cast<Bytes>(step.copied) * kBlock);
  }
  CHECK_EQ(pair.a.tenant->slots(), 14u);
  try {
    pair.device->prepare(pair.a.keep, 3 * kBlock);
    CHECK(false);
  } catch (const Refusal& refusal) {
    CHECK(refusal.kind == Refusal::Kind::growth_refused);
    CHECK_EQ(refusal.bytes_needed, 17 * kBlock);
    CHECK_EQ(refusal.bytes_available, 16 * kBlock);
    CHECK_EQ(refusal.bytes_usable, 16 * kBlock);
  }
  CHECK_EQ(pair.a.tenant->slots(), 14u);
  auto now = frames();
  now.resize(first.size());
  CHECK(now == first);  // what runs never moves
  CHECK(pair.a.intact());
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
  emu::host_view(clean->address(), true);
  const auto* data = reinterpret_cast<const unsigned char*>(clean->address());
  CHECK(std::all_of(data, data + 2 * kBlock, [](unsigned char byte) { return byte == 0x5C; }));
}

TEST(more_than_can_be_counted_is_refused_like_more_than_there_is) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 2, 1);  // a hole behind taken bytes, and one without
  const auto half = pair.device->allocate(pair.a.keep, kBlock / 2, 512);
  const auto used = pair.a.keep->bytes_allocated();
  const auto held = pair.a.tenant->slots();
  constexpr Bytes kMost = ~Bytes{0};
  for (const Bytes bytes :
       {kMost, kMost - 100, kMost - kBlock, kMost - 3 * kBlock, kMost / 2 + 1}) {
    CHECK_THROWS(pair.device->allocate(pair.a.keep, bytes, 512), Refusal, "needs");
    CHECK_THROWS(pair.device->allocate(pair.a.keep, bytes, Bytes{1} << 63), Refusal, "needs");
    CHECK_THROWS(pair.device->prepare(pair.a.keep, bytes), Refusal, "needs");
    CHECK_THROWS(pair.device->host_pool()->reserve("job", bytes), Refusal, "budget");
    CHECK_THROWS(pair.device->plain_copy(bytes, 0), UsageError, "free");
    CHECK_THROWS(pair.device->plain_pin(bytes), Refusal, "pin");
  }
  CHECK_EQ(pair.a.keep->bytes_allocated(), used);
  CHECK_EQ(pair.a.tenant->slots(), held);
  CHECK(pair.a.intact());
}

TEST(growing_while_suspended_is_refused) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 3, 0);
  pair.device->suspend(pair.a.tenant, 60);
  for (const bool prepared : {false, true}) {
    try {
      if (prepared) {
        pair.device->prepare(pair.a.keep, kBlock);
      } else {
        pair.device->allocate(pair.a.keep, kBlock, 512);
      }
      CHECK(false);
    } catch (const Refusal& refusal) {
      CHECK(refusal.kind == Refusal::Kind::not_resident);
      CHECK_EQ(refusal.tenant, "a");
      CHECK_EQ(refusal.tag, "weights");
    }
  }
  CHECK_EQ(pair.a.tenant->slots(), 3u);
  pair.device->resume(pair.a.tenant, 60);
  CHECK(pair.a.intact());
}

// Roll-backs that cannot finish at once, and what goes on meanwhile: other tenants fail, close, are
// rescued or come; the undo is tried again later and nothing is lost or handed out twice.
#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// While it lives nobody can know whether copies are complete.
cu::FaultScope::Plan never_complete() {
  return {1, true, cu::Call::stream_synchronize, cu::kLaunchFailed};
}

void fails(const std::function<void()>& action) { CHECK_THROWS(action(), DriverError, "719"); }

}  // namespace

TEST(two_roll_backs_wait_side_by_side) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  Patterned a, b, c;
  attach(device, a, "a", 1, 3, 1);
  device.release(a.tenant);
  attach(device, b, "b", 2, 3, 1);
  device.release(b.tenant);
  attach(device, c, "c", 3, 3, 1);
  device.suspend(b.tenant, 60);
  device.suspend(c.tenant, 60);
  {
    const cu::FaultScope fault(never_complete());
    fails([&] { device.resume(b.tenant, 60); });
    fails([&] { device.resume(c.tenant, 60); });
    CHECK(b.tenant->failed && c.tenant->failed && !a.tenant->failed);
    CHECK(b.matches(device.rescue(b.tenant)));
    CHECK_EQ(device.rescue(b.tenant).size(), 1u);
  }
  for (Patterned* one : {&b, &c, &a}) {
    device.resume(one->tenant, 60);
    CHECK(one->intact());
    device.release(one->tenant);
  }
  CHECK_EQ(device.stats().blocks_free, 4);
}

TEST(closing_one_tenant_does_not_lose_the_bytes_of_the_other) {
  for (const bool close_incoming : {true, false}) {
    Pair pair;
    pair.attach_both();
    Patterned& gone = close_incoming ? pair.b : pair.a;
    Patterned& left = close_incoming ? pair.a : pair.b;
    {
      const cu::FaultScope fault(never_complete());
      fails([&] { pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60); });
      pair.device->close_tenant(gone.tenant);
      CHECK(left.matches(pair.device->rescue(left.tenant)));
      // What copies in flight may touch is not free yet.
      CHECK(pair.device->stats().blocks_free + static_cast<int>(left.tenant->slots_on_device()) <
            16);
    }
    CHECK(left.matches(pair.device->rescue(left.tenant)));
    CHECK_EQ(pair.device->rescue(left.tenant).size(), 1u);
    pair.device->resume(left.tenant, 60);
    CHECK(left.intact());
    CHECK_EQ(pair.device->stats().blocks_free, 5);
    pair.device->close();
    check_nothing_left(pair.emulated.ordinal);
  }
}

TEST(a_failed_growth_that_cannot_be_undone_leaves_the_old_bytes_whole) {
  Pair pair;
  pair.attach_both();
  {
    const cu::FaultScope fault(never_complete());
    fails([&] { pair.device->allocate(pair.a.keep, 3 * kBlock, 512); });
    CHECK(pair.a.tenant->failed);
  }
  const auto saved = pair.device->rescue(pair.a.tenant);
  CHECK_EQ(saved.size(), 1u);
  CHECK(pair.a.matches(saved));
  CHECK_EQ(pair.a.keep->slots.size(), 8u);
  pair.device->resume(pair.a.tenant, 60);
  CHECK(pair.a.intact());
}

TEST(frames_of_plain_copies_in_flight_are_not_handed_out) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  Patterned a;
  {
    const cu::FaultScope fault(never_complete());
    fails([&] { device.calibrate(4 * kBlock); });
    CHECK_EQ(device.stats().blocks_free, 8);
    fails([&] { device.plain_copy(2 * kBlock, 2 * kBlock); });
    CHECK_EQ(device.stats().blocks_free, 4);
  }
  attach(device, a, "a", 1, 8, 3);
  CHECK(a.intact());
  CHECK_EQ(device.stats().blocks_free, 5);
}

TEST(a_dead_driver_does_not_keep_host_copies_from_being_rescued) {
  Pair pair;
  pair.attach_both();
  pair.device->suspend(pair.a.tenant, 60);
  const cu::FaultScope fault({1, true});
  const auto saved = pair.device->rescue(pair.a.tenant);
  CHECK_EQ(saved.size(), 1u);
  CHECK(pair.a.matches(saved));
}

TEST(headroom_of_the_host_pool_never_refuses_what_fits) {
  Emulated emulated(
      "h20?scale=4096&speed=1000&seed=3&capacity=1MiB&granularity=4KiB&block=4KiB&context=4KiB"
      "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns");
  Device device(emulated.driver, options_with(161 * kBlock));
  const auto tenant = device.add_tenant("a", "job");
  device.resume(tenant, 60);
  const auto region = device.region(tenant, "weights", Policy::keep, 0);
  const auto first = device.allocate(region, 160 * kBlock, 512);
  const auto second = device.allocate(region, kBlock, 512);
  CHECK_EQ(device.host_pool()->used(), 161 * kBlock);
}

TEST(a_dead_context_on_the_callers_thread_does_not_make_us_forget_a_mapping) {
  const auto& table = counted_table();
  const int other = emu::add_device(emu::Spec::parse(kSixteenBlocks));
  cu::Context dead = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&dead, other), 0);
  CHECK_EQ(table.ctx_push_current(dead), 0);
  emu::remove_device(other);
  {
    Pair pair;
    pair.attach_both();
    {
      const cu::FaultScope fault({1, true, cu::Call::ctx_push_current});
      pair.device->close_tenant(pair.b.tenant);
    }
    pair.b = {};
    pair.device->resume(pair.a.tenant, 60);
    CHECK_EQ(emu::census(pair.emulated.ordinal).mappings, 16u + 11u);
    pair.device->close();
    check_nothing_left(pair.emulated.ordinal);
  }
  table.ctx_pop_current(&dead);
}

TEST(a_lane_that_could_not_be_settled_does_not_spoil_the_next_operation) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 4, 1);
  for (const auto call : {cu::Call::event_record, cu::Call::stream_synchronize}) {
    const cu::FaultScope fault({1, true, call});
    CHECK(pair.device->rescue(pair.a.tenant).empty());
  }
  CHECK_EQ(pair.device->rescue(pair.a.tenant).size(), 1u);
  pair.device->suspend(pair.a.tenant, 60);
  pair.device->resume(pair.a.tenant, 60);
  CHECK(pair.a.intact());
}

TEST(closing_again_ends_what_the_driver_refused) {
  Pair pair;
  pair.attach_both();
  const auto pool = pair.device->host_pool();  // holds the context
  {
    const cu::FaultScope fault({1, true});
    pair.device->close();
  }
  pair.device->close();
  check_nothing_left(pair.emulated.ordinal);
}

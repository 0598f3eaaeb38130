// Device::trim() and set_usable(): what goes back to the driver, what does not, and that it comes
// again.
#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

std::size_t handles(const Pair& pair) { return emu::census(pair.emulated.ordinal).handles; }

}  // namespace

TEST(free_blocks_go_back_and_come_again) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 8, 0);
  attach(*pair.device, pair.b, "b", 2, 4, 0);
  pair.device->close_tenant(pair.b.tenant);
  CHECK_EQ(handles(pair), 12u);
  const Bytes usable = pair.device->usable();
  CHECK_EQ(pair.device->trim(kBlock + 1), 2 * kBlock);
  CHECK_EQ(handles(pair), 10u);
  CHECK_EQ(pair.device->trim(100 * kBlock), 2 * kBlock);  // a runs: it gives nothing
  CHECK_EQ(pair.device->trim(kBlock), 0u);
  CHECK_EQ(handles(pair), 8u);
  CHECK_EQ(pair.device->usable(), usable - 4 * kBlock);
  CHECK_EQ(pair.device->stats().blocks_released, 4);
  CHECK_EQ(pair.device->stats().bytes_trimmed, 4 * kBlock);
  CHECK(pair.a.intact());
  Patterned c;
  attach(*pair.device, c, "c", 3, 8, 0);  // needs the four places again
  CHECK_EQ(pair.device->usable(), usable);
  CHECK_EQ(pair.device->stats().blocks_released, 0);
  CHECK(c.intact());
  CHECK(pair.a.intact());
}

TEST(idle_tenants_discard_but_keep_what_they_keep) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 5, 6);
  pair.device->release(pair.a.tenant);
  const auto generation = pair.a.discard->generation.load();
  CHECK_EQ(pair.device->trim(100 * kBlock), 6 * kBlock);
  CHECK_EQ(pair.a.discard->generation, generation + 1);
  CHECK_EQ(pair.a.tenant->slots_on_device(), 5u);
  CHECK_EQ(handles(pair), 5u);
  pair.device->resume(pair.a.tenant, 60);
  CHECK(pair.a.intact());
  CHECK_EQ(handles(pair), 11u);
}

TEST(what_others_took_meanwhile_is_said) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 6, 0);
  pair.device->suspend(pair.a.tenant, 60);
  CHECK_EQ(pair.device->trim(100 * kBlock), 6 * kBlock);
  {
    cu::FaultScope::Plan plan;
    plan.nth = 1;
    plan.from_then_on = true;
    plan.only = cu::Call::mem_create;
    plan.status = cu::kOutOfMemory;
    const cu::FaultScope fault(plan);
    CHECK_THROWS(pair.device->resume(pair.a.tenant, 60), OutOfMemory, "cuMemCreate");
  }
  CHECK_EQ(pair.device->stats().blocks_released, 6);
  pair.device->resume(pair.a.tenant, 60);
  CHECK(pair.a.intact());
}

TEST(sweep_trim) {
  for (const bool sticky : {false, true}) {
    std::uint64_t points = 0;
    for (std::uint64_t nth = 1;; ++nth) {
      Pair pair;
      Patterned gone;
      attach(*pair.device, pair.a, "a", 1, 5, 4);
      attach(*pair.device, gone, "gone", 3, 3, 0);
      pair.device->close_tenant(gone.tenant);
      pair.device->release(pair.a.tenant);
      const std::size_t before = handles(pair);
      Bytes given = 0;
      std::uint64_t hit = 0;
      {
        cu::FaultScope::Plan plan;
        plan.nth = nth;
        plan.from_then_on = sticky;
        const cu::FaultScope fault(plan);
        try {
          given = pair.device->trim(6 * kBlock);  // three free ones, three discarded
        } catch (const DriverError&) {
        }
        hit = fault.calls_failed();
      }
      // Never more than what the driver has taken back.
      CHECK(given <= (before - handles(pair)) * kBlock);
      pair.device->trim(0);
      pair.device->resume(pair.a.tenant, 60);
      CHECK(pair.a.intact());
      CHECK(pair.a.tenant->all_mapped());
      if (hit == 0) CHECK_EQ(given, 6 * kBlock);
      pair.device->close();
      check_nothing_left(pair.emulated.ordinal);
      if (hit == 0) break;
      ++points;
    }
    std::printf("sweep trim %s: %llu points\n", sticky ? "from then on" : "once",
                static_cast<unsigned long long>(points));
    CHECK(points > 15);
  }
}

TEST(idle_blocks_beyond_the_limit_go_back_in_the_order_of_victims) {
  Pair pair;
  attach(*pair.device, pair.b, "b", 2, 5, 3);
  pair.device->release(pair.b.tenant);
  attach(*pair.device, pair.a, "a", 1, 6, 0);  // runs; two frames are free
  CHECK_EQ(pair.device->set_usable(14 * kBlock), 14 * kBlock);
  CHECK_EQ(pair.b.tenant->slots_on_device(), 8u);  // what nobody had went first
  CHECK_EQ(pair.device->usable(), 14 * kBlock);
  CHECK_EQ(pair.device->set_usable(12 * kBlock), 12 * kBlock);
  CHECK_EQ(pair.b.discard->generation, 1u);  // two of its `discard`
  CHECK_EQ(pair.device->stats().bytes_out, 0u);
  CHECK_EQ(pair.device->set_usable(9 * kBlock), 9 * kBlock);  // one more of them, two of `keep`
  CHECK_EQ(pair.device->stats().bytes_out, 2 * kBlock);
  CHECK_EQ(pair.b.tenant->slots_on_device(), 3u);
  CHECK_EQ(handles(pair), 9u);
  CHECK_EQ(pair.device->stats().blocks_total, 9);
  CHECK_EQ(pair.device->stats().blocks_created, 9);
  CHECK(pair.a.intact());
  // Switches go on within it, and make no block.
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
  pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
  CHECK(pair.a.intact());
  CHECK_EQ(handles(pair), 9u);
  // Nor does growth go beyond it.
  CHECK_THROWS(pair.device->prepare(pair.a.keep, 4 * kBlock), Refusal, "of the");
  CHECK_EQ(pair.a.tenant->slots(), 6u);
  CHECK_EQ(pair.device->set_usable(1000 * kBlock), 16 * kBlock);  // what it was opened with
  CHECK_EQ(pair.device->usable(), 16 * kBlock);
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  pair.device->resume(pair.a.tenant, 60);  // both fit again
  CHECK_EQ(handles(pair), 14u);
  CHECK(pair.a.intact());
  CHECK(pair.b.intact());
}

TEST(what_runs_or_is_pinned_stays_and_a_tenant_always_fits) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 6, 0);
  attach(*pair.device, pair.b, "b", 2, 7, 0);              // both run
  CHECK_EQ(pair.device->set_usable(kBlock), 13 * kBlock);  // what they hold
  CHECK_EQ(pair.device->usable(), 7 * kBlock);             // what b has must fit
  CHECK_EQ(handles(pair), 13u);
  CHECK(pair.a.intact());
  CHECK(pair.b.intact());
  CHECK_THROWS(pair.device->prepare(pair.b.keep, kBlock * 2), Refusal, "it can have");
  pair.device->release(pair.a.tenant);
  pair.device->pin(pair.a.keep);
  CHECK_EQ(pair.device->set_usable(kBlock), 13 * kBlock);
  pair.device->unpin(pair.a.keep);
  CHECK_EQ(pair.device->set_usable(kBlock), 7 * kBlock);
  CHECK_EQ(handles(pair), 7u);
  CHECK_EQ(pair.a.tenant->slots_on_device(), 0u);
  pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
  CHECK(pair.a.intact());
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
  pair.device->close();
  CHECK_THROWS(pair.device->set_usable(kBlock), UsageError, "closed");
}

TEST(trimmed_places_count_again_when_the_limit_is_set_anew) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 6, 0);
  attach(*pair.device, pair.b, "b", 2, 4, 0);
  pair.device->close_tenant(pair.b.tenant);
  CHECK_EQ(pair.device->trim(3 * kBlock), 3 * kBlock);
  CHECK_EQ(pair.device->usable(), 13 * kBlock);
  CHECK_EQ(pair.device->set_usable(12 * kBlock), 12 * kBlock);
  CHECK_EQ(pair.device->usable(), 12 * kBlock);
  CHECK_EQ(pair.device->stats().blocks_released, 0);
  CHECK_EQ(pair.device->stats().blocks_free, 6);
}

TEST(a_place_counts_again_once_its_block_was_created_whoever_emptied_it) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 10, 0);
  attach(*pair.device, pair.b, "b", 2, 6, 0);
  pair.device->close_tenant(pair.b.tenant);
  CHECK_EQ(pair.device->set_usable(14 * kBlock), 14 * kBlock);
  CHECK_EQ(pair.device->trim(2 * kBlock), 2 * kBlock);
  CHECK_EQ(pair.device->usable(), 12 * kBlock);
  Patterned c;
  attach(*pair.device, c, "c", 3, 4, 0);  // blocks are created in two of the four empty places
  CHECK_EQ(pair.device->stats().blocks_created, 14);
  CHECK_EQ(pair.device->usable(), 14 * kBlock);
  CHECK_EQ(pair.device->stats().blocks_released, 0);
}

TEST(sweep_set_usable) {
  for (const bool sticky : {false, true}) {
    std::uint64_t points = 0;
    for (std::uint64_t nth = 1;; ++nth) {
      Pair pair;
      attach(*pair.device, pair.b, "b", 2, 6, 4);
      pair.device->release(pair.b.tenant);
      attach(*pair.device, pair.a, "a", 1, 5, 0);  // runs; one frame was never made
      std::uint64_t hit = 0;
      bool thrown = false;
      {
        cu::FaultScope::Plan plan;
        plan.nth = nth;
        plan.from_then_on = sticky;
        const cu::FaultScope fault(plan);
        try {
          pair.device->set_usable(10 * kBlock);  // four discarded, one copied out
        } catch (const DriverError&) {
          thrown = true;
        }
        hit = fault.calls_failed();
      }
      CHECK_EQ(pair.device->usable(), (thrown ? 16 : 10) * kBlock);
      CHECK(pair.a.tenant->running);
      CHECK(pair.a.intact());
      CHECK_EQ(pair.device->set_usable(10 * kBlock), 10 * kBlock);
      CHECK_EQ(handles(pair), 10u);
      pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
      CHECK(pair.b.intact());
      CHECK(pair.b.tenant->all_mapped());
      pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
      CHECK(pair.a.intact());
      pair.device->close();
      check_nothing_left(pair.emulated.ordinal);
      if (hit == 0) break;
      ++points;
    }
    std::printf("sweep set_usable %s: %llu points\n", sticky ? "from then on" : "once",
                static_cast<unsigned long long>(points));
    CHECK(points > 15);
  }
}

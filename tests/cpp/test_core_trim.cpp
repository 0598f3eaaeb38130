// Device::trim(): what goes back to the driver, what does not, and that it comes again.
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

// What is known of a device before anybody runs on it: rates that were measured earlier, what
// background copies cost a phase, whose memory is taken.
#include <limits>

#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

TEST(rates_of_an_earlier_process_give_reports_a_limit) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  CHECK(!device.rates().has_value());
  device.use_rates({2e6, 1e6, 1e6, 5e5, 16});
  CHECK_EQ(device.rates()->chunks, Bytes{16});
  Patterned a;
  attach(device, a, "a", 1, 8, 0);
  const auto report = device.suspend(a.tenant, 60);
  CHECK(report.limit_s.has_value());
  CHECK(*report.limit_s > 0.99 * 8 * kBlock / 1e6 && *report.limit_s < 1.01 * 8 * kBlock / 1e6);
  device.resume(a.tenant, 60);
  CHECK(a.intact());
}

TEST(rates_that_no_link_has_are_refused) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const LinkRates& wrong : {LinkRates{}, LinkRates{1, 1, 1, -1}, LinkRates{1, nan, 1, 1},
                                 LinkRates{1, 1, 1, 1, 5000}}) {
    CHECK_THROWS(device.use_rates(wrong), UsageError, "more than 0");
  }
  CHECK(!device.rates().has_value());
}

TEST(the_cost_of_copies_beside_a_phase_is_measured_and_leaves_nothing) {
  Pair pair;
  const auto before = emu::census(pair.emulated.ordinal);
  const auto slowdown = pair.device->slowdown(4 * kBlock, 0.002);
  CHECK(slowdown.has_value());
  CHECK(*slowdown > -1);
  const auto after = emu::census(pair.emulated.ordinal);
  CHECK_EQ(after.registrations, before.registrations);
  CHECK_EQ(after.streams, before.streams);
  CHECK_EQ(after.pageable_copies, 0u);
  pair.attach_both();
  CHECK(pair.a.intact());
  CHECK_THROWS(pair.device->slowdown(kBlock), UsageError, "slowdown needs a device that no tenant");
  CHECK(pair.a.intact());
}

TEST(without_kernels_nobody_can_tell_what_copies_cost) {
  const int ordinal = emu::add_device(emu::Spec::parse(spec_with_seed(kSixteenBlocks)));
  cu::Table table = counted_table();
  table.launch_kernel = nullptr;
  {
    Device device(std::make_shared<Driver>(table, ordinal, [] {}), options_with());
    CHECK(!device.slowdown(kBlock).has_value());
  }
  emu::remove_device(ordinal);
}

TEST(memory_of_the_device_is_ours_or_named_as_not_ours) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  const auto opened = device.memory();
  CHECK_EQ(opened.ours, Bytes{0});
  cu::MemAllocationProp prop{};
  prop.type = cu::kAllocationPinned;
  prop.location = {cu::kLocationDevice, emulated.ordinal};
  cu::AllocHandle other = 0;  // a communicator's, or a private pool's
  CHECK_EQ(counted_table().mem_create(&other, 2 * kBlock, &prop, 0), cu::kSuccess);
  Patterned a;
  attach(device, a, "a", 1, 5, 1);
  device.suspend(a.tenant, 60);
  const auto now = device.memory();
  CHECK_EQ(now.ours, 6 * kBlock);
  CHECK_EQ(now.total - now.free - now.ours, opened.total - opened.free + 2 * kBlock);
  CHECK_EQ(counted_table().mem_release(other), cu::kSuccess);
  device.close();
  CHECK_THROWS(device.memory(), UsageError, "closed");
}

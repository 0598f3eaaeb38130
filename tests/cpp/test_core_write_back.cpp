// What takes a write-back back while its blocks still wait to be copied: the bytes that are written
// afterwards are those that come back. The copies are made in the test's own thread, so that each
// of them is queued when the promise ends.
#include <functional>

#include "core_fleet.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// a runs with 60 of 80 blocks, all of which it promised not to change; b is idle.
struct Promised : Fleet {
  Promised() : Fleet(80, {{60}, {60}}), a(members[0]) {
    turn(0);
    copy = device->write_back(a.tenant, "weights");
    CHECK_EQ(copy->bytes_total(), 60 * kBlock);
  }
  // Other bytes, after the background had its chance; they come back.
  SwitchReport write_and_suspend() {
    device->run_background();
    a.seed += 50;
    a.write();
    return suspend();
  }
  SwitchReport suspend() {
    const auto report = device->suspend(a.tenant, 60);
    turn(1);
    enter(0);
    CHECK(a.intact());
    return report;
  }
  Patterned& a;
  std::shared_ptr<BackgroundCopy> copy;
};

// Called before the n-th copy out.
std::function<void()> at_copy;
int copies_left = 0;

}  // namespace

TEST(mark_dirty_ends_a_write_back_that_waits) {
  Promised fleet;
  fleet.device->mark_dirty(fleet.a.keep);
  CHECK(fleet.copy->finished());
  CHECK(fleet.copy->cancelled());
  CHECK_EQ(fleet.write_and_suspend().bytes_out, 60 * kBlock);
  CHECK_EQ(fleet.copy->bytes_done(), 0u);
}

TEST(mark_dirty_ends_every_write_back_of_the_region_and_no_other) {
  Promised fleet;
  const auto other = fleet.device->region(fleet.a.tenant, "other", Policy::keep, 0);
  const auto span = fleet.device->allocate(other, 2 * kBlock, 512);
  const auto again = fleet.device->write_back(fleet.a.tenant, "weights");
  const auto kept = fleet.device->write_back(fleet.a.tenant, "other");
  fleet.device->mark_dirty(fleet.a.keep);
  CHECK(fleet.copy->cancelled() && again->cancelled() && !kept->cancelled());
  // A promise that is made after that counts.
  const auto anew = fleet.device->write_back(fleet.a.tenant, "weights");
  fleet.device->run_background();
  CHECK_EQ(kept->bytes_done(), 2 * kBlock);
  CHECK_EQ(anew->bytes_done(), 60 * kBlock);
  CHECK_EQ(fleet.turn(1).bytes_out, 0u);
}

TEST(a_new_tensor_in_a_block_that_waits_is_left_to_the_switch) {
  Promised fleet;
  auto& a = fleet.a;
  // Its old bytes are gone; of the new ones four blocks are in use.
  a.spans.clear();
  a.spans.push_back(fleet.device->allocate(a.keep, 3 * kBlock + 1, 512));
  a.bytes = 3 * kBlock + 1;
  CHECK(fleet.write_and_suspend().bytes_out >= a.bytes);
  CHECK(fleet.copy->finished());
  CHECK_EQ(fleet.copy->bytes_done(), 56 * kBlock);
}

TEST(a_growth_is_left_to_the_switch) {
  Promised fleet;
  auto& a = fleet.a;
  const auto unchanged = a.bytes;
  a.spans.push_back(fleet.device->allocate(a.keep, 5 * kBlock, 512));
  a.bytes += 5 * kBlock;
  fleet.device->run_background();
  CHECK(fleet.copy->finished());
  CHECK_EQ(fleet.copy->bytes_done(), unchanged);
  // The promise holds for what was there.
  emu::host_view(a.keep->address(), true);
  auto* data = reinterpret_cast<unsigned char*>(a.keep->address());
  for (Bytes offset = unchanged; offset < a.bytes; ++offset) data[offset] = a.byte_at(offset);
  CHECK_EQ(fleet.suspend().bytes_out, 5 * kBlock);
}

TEST(pages_in_use_that_change_are_left_to_the_switch) {
  Promised fleet;
  fleet.device->set_pages(fleet.a.keep, {{{0, 60 * kBlock}}});
  CHECK_EQ(fleet.write_and_suspend().bytes_out, 60 * kBlock);
  CHECK(fleet.copy->finished());
  CHECK_EQ(fleet.copy->bytes_done(), 0u);
}

TEST(a_block_that_is_taken_back_while_it_is_copied_does_not_count) {
  Emulated emulated;
  cu::Table table = counted_table();
  table.memcpy_dtoh_async = [](void* target, cu::DevicePtr source, std::size_t bytes,
                               cu::Stream stream) {
    if (copies_left > 0 && --copies_left == 0) at_copy();
    return counted_table().memcpy_dtoh_async(target, source, bytes, stream);
  };
  auto options = options_with();
  options.background_thread = false;
  Device device(std::make_shared<Driver>(table, emulated.ordinal, [] {}), options);
  Patterned a;
  attach(device, a, "a", 1, 6, 0);
  const auto copy = device.write_back(a.tenant, "weights");
  at_copy = [&] { device.mark_dirty(a.keep); };
  copies_left = 3;
  device.run_background();
  CHECK(copy->finished());
  CHECK_EQ(copies_left, 0);
  CHECK_EQ(copy->bytes_done(), 2 * kBlock);  // and the third was in flight
}

TEST(only_keep_regions_are_written_back) {
  Promised fleet;
  const auto reload = fleet.device->region(fleet.a.tenant, "engine", Policy::reload, 0);
  const auto span = fleet.device->allocate(reload, kBlock, 512);
  CHECK_THROWS(fleet.device->write_back(fleet.a.tenant, "engine"), UsageError, "is reload");
  CHECK_THROWS(fleet.device->write_back(fleet.a.tenant, "kv_cache"), UsageError, "discarded");
  fleet.device->mark_dirty(fleet.a.keep);
}

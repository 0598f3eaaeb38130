// Blocks, addresses and mappings of the emulated driver: behaviours 3 to 9, and the census.
#include "emulated.hpp"

using namespace weave;
using namespace weave::test;

TEST(behaviour_3_create_refuses) {
  Opened device;
  const auto& table = device.table;
  const auto unit = device.spec.granularity_bytes;
  auto prop = prop_for(device.ordinal);
  cu::AllocHandle handle = 0;
  CHECK_EQ(table.mem_create(&handle, 0, &prop, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_create(&handle, unit + 1, &prop, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_create(&handle, unit, &prop, 1), cu::kInvalidValue);
  CHECK_EQ(table.mem_create(&handle, unit, nullptr, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_create(nullptr, unit, &prop, 0), cu::kInvalidValue);
  prop.location.id = 1'000'000;
  CHECK_EQ(table.mem_create(&handle, unit, &prop, 0), cu::kInvalidDevice);
  prop = prop_for(device.ordinal);
  prop.location.type = 2;
  CHECK_EQ(table.mem_create(&handle, unit, &prop, 0), cu::kInvalidValue);
  prop = prop_for(device.ordinal);
  prop.type = 0;
  CHECK_EQ(table.mem_create(&handle, unit, &prop, 0), cu::kInvalidValue);
  prop = prop_for(device.ordinal);
  prop.requested_handle_types = 8;
  CHECK_EQ(table.mem_create(&handle, unit, &prop, 0), cu::kNotSupported);
  prop.requested_handle_types = cu::kHandlePosixFd;
  CHECK_EQ(table.mem_create(&handle, unit, &prop, 0), 0);
  std::size_t granularity = 0;
  CHECK_EQ(table.mem_get_allocation_granularity(&granularity, &prop, cu::kGranularityMinimum), 0);
  CHECK_EQ(granularity, unit);
}

TEST(behaviour_3_capacity) {
  Opened device("h20?scale=4096&seed=1&capacity=1MiB&context=64KiB&unmanaged=128KiB&create=0");
  const auto& table = device.table;
  std::size_t bytes_free = 0;
  std::size_t total = 0;
  CHECK_EQ(table.mem_get_info(&bytes_free, &total), 0);
  CHECK_EQ(total, 1024U << 10);
  CHECK_EQ(bytes_free, 832U << 10);
  const auto prop = prop_for(device.ordinal);
  cu::AllocHandle handle = 0;
  CHECK_EQ(table.mem_create(&handle, 836U << 10, &prop, 0), cu::kOutOfMemory);
  const auto all = device.create(832U << 10);
  CHECK_EQ(table.mem_create(&handle, 4096, &prop, 0), cu::kOutOfMemory);
  CHECK_EQ(table.mem_get_info(&bytes_free, &total), 0);
  CHECK_EQ(bytes_free, 0U);
  // The context's share comes back with the context.
  CHECK_EQ(table.primary_ctx_release(device.ordinal), 0);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
  CHECK_EQ(table.mem_create(&handle, 64U << 10, &prop, 0), 0);
  cu::Context context = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&context, device.ordinal), cu::kOutOfMemory);
  CHECK_EQ(table.mem_release(all), 0);
  CHECK_EQ(table.primary_ctx_retain(&context, device.ordinal), 0);
  CHECK_EQ(table.ctx_push_current(context), 0);
}

TEST(behaviour_4_reserve) {
  Opened device;
  const auto& table = device.table;
  const auto unit = device.spec.granularity_bytes;
  cu::DevicePtr address = 0;
  CHECK_EQ(table.mem_address_reserve(&address, unit, 3, 0, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_address_reserve(&address, unit + 1, 0, 0, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_address_reserve(&address, 0, 0, 0, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_address_reserve(&address, unit, 0, 0, 1), cu::kInvalidValue);
  CHECK_EQ(table.mem_address_reserve(&address, unit, 1 << 21, 0, 0), 0);
  CHECK_EQ(address % (1 << 21), 0U);
  CHECK_EQ(table.mem_address_free(address, unit), 0);
  CHECK_EQ(table.mem_address_reserve(&address, 3 * unit, 0, 0, 0), 0);
  CHECK_EQ(address % unit, 0U);
}

TEST(behaviour_4_hint_may_be_ignored) {
  Opened device;
  const auto& table = device.table;
  const auto unit = device.spec.granularity_bytes;
  int taken = 0;
  constexpr int kTries = 40;
  const auto range = device.reserve((kTries + 1) * unit);
  CHECK_EQ(table.mem_address_free(range, (kTries + 1) * unit), 0);
  for (int i = 0; i < kTries; ++i) {
    const auto hint = range + static_cast<std::uint64_t>(i) * unit;
    cu::DevicePtr address = 0;
    CHECK_EQ(table.mem_address_reserve(&address, unit, 0, hint, 0), 0);
    taken += address == hint ? 1 : 0;
    CHECK_EQ(table.mem_address_free(address, unit), 0);
  }
  CHECK(taken > 0);
  CHECK(taken < kTries);
  // A hint that is in use is no error.
  const auto used = device.reserve(unit);
  cu::DevicePtr address = 0;
  CHECK_EQ(table.mem_address_reserve(&address, unit, 0, used, 0), 0);
  CHECK(address != used);
}

TEST(behaviour_5_free_of_addresses) {
  Opened device;
  const auto& table = device.table;
  const auto block = device.spec.block_bytes;
  const auto address = device.memory(2);
  CHECK_EQ(table.mem_address_free(address, 2 * block), cu::kInvalidValue);
  CHECK_EQ(table.mem_unmap(address, block), 0);
  CHECK_EQ(table.mem_address_free(address, 2 * block), cu::kInvalidValue);
  CHECK_EQ(table.mem_unmap(address + block, block), 0);
  CHECK_EQ(table.mem_address_free(address, block), cu::kInvalidValue);
  CHECK_EQ(table.mem_address_free(address + block, block), cu::kInvalidValue);
  CHECK_EQ(table.mem_address_free(address, 2 * block), 0);
  CHECK_EQ(table.mem_address_free(address, 2 * block), cu::kInvalidValue);
}

TEST(behaviour_6_map_refuses) {
  Opened device;
  const auto& table = device.table;
  const auto block = device.spec.block_bytes;
  const auto unit = device.spec.granularity_bytes;
  const auto handle = device.create(block);
  const auto address = device.reserve(2 * block);
  CHECK_EQ(table.mem_map(address, block, unit, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address, block, 0, handle, 1), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address, unit, 0, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address, 2 * block, 0, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address + 1, block, 0, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address - block, block, 0, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address + 2 * block - unit, block, 0, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(4096, block, 0, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address, block, 0, handle, 0), 0);
  CHECK_EQ(table.mem_map(address, block, 0, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address + unit, block, 0, handle, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_map(address + block, block, 0, handle, 0), 0);  // a block may be mapped twice
  CHECK_EQ(table.mem_map(address, block, 0, 12345, 0), cu::kInvalidValue);
}

TEST(behaviour_7_access) {
  Opened device;
  Opened other;
  CHECK_EQ(device.table.ctx_push_current(device.context), 0);
  const auto& table = device.table;
  const auto block = device.spec.block_bytes;
  const auto address = device.reserve(4 * block);
  for (const int i : {0, 1, 3}) {
    const auto at = address + static_cast<std::uint64_t>(i) * block;
    CHECK_EQ(table.mem_map(at, block, 0, device.create(block), 0), 0);
  }
  CHECK_EQ(device.allow(address, 4 * block), cu::kInvalidValue);
  CHECK_EQ(device.allow(address, block / 2), cu::kInvalidValue);
  CHECK_EQ(device.allow(address + 2 * block, block), cu::kInvalidValue);
  CHECK_EQ(table.mem_set_access(address, block, nullptr, 1), cu::kInvalidValue);
  CHECK_EQ(device.allow(address, block, 2), cu::kInvalidValue);
  cu::MemAccessDesc desc{{cu::kLocationDevice, 1'000'000}, cu::kAccessReadWrite};
  CHECK_EQ(table.mem_set_access(address, block, &desc, 1), cu::kInvalidDevice);
  CHECK_EQ(device.allow(address, 2 * block), 0);
  HostBuffer host(2 * block, 5);
  CHECK_EQ(device.pin(host), 0);
  CHECK_EQ(table.memcpy_htod_async(address, host.data, host.bytes, nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  // Another device has to be let in apart.
  CHECK_EQ(table.ctx_push_current(other.context), 0);
  desc.location.id = other.ordinal;
  desc.flags = cu::kAccessRead;
  CHECK_EQ(table.mem_set_access(address, 2 * block, &desc, 1), 0);
  std::memset(host.data, 0, host.bytes);
  CHECK_EQ(table.memcpy_dtoh_async(host.data, address, host.bytes, nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK(host.holds(5));
  // Read is not write.
  const auto refused = table.memset_d8_async(address, 1, 16, nullptr);
  CHECK(refused != 0 || table.ctx_synchronize() == cu::kIllegalAddress);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
}

TEST(behaviour_7_access_is_lost_on_unmap) {
  Opened device;
  const auto& table = device.table;
  const auto block = device.spec.block_bytes;
  const auto address = device.reserve(block);
  const auto handle = device.create(block);
  CHECK_EQ(table.mem_map(address, block, 0, handle, 0), 0);
  CHECK_EQ(device.allow(address, block), 0);
  CHECK_EQ(table.memset_d8_async(address, 1, block, nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(table.mem_unmap(address, block), 0);
  CHECK_EQ(table.mem_map(address, block, 0, handle, 0), 0);
  const auto refused = table.memset_d8_async(address, 1, block, nullptr);
  CHECK(refused == cu::kInvalidValue || table.ctx_synchronize() == cu::kIllegalAddress);
}

TEST(behaviour_8_unmap_refuses) {
  Opened device;
  const auto& table = device.table;
  const auto block = device.spec.block_bytes;
  const auto address = device.memory(4);
  CHECK_EQ(table.mem_unmap(address, block / 2), cu::kInvalidValue);
  CHECK_EQ(table.mem_unmap(address + block / 2, block), cu::kInvalidValue);
  CHECK_EQ(table.mem_unmap(address, block + block / 2), cu::kInvalidValue);
  CHECK_EQ(table.mem_unmap(4096, block), cu::kInvalidValue);
  CHECK_EQ(table.mem_unmap(address, 3 * block), 0);
  CHECK_EQ(table.mem_unmap(address, block), cu::kInvalidValue);
  CHECK_EQ(table.mem_unmap(address, 4 * block), cu::kInvalidValue);
  CHECK_EQ(table.mem_unmap(address + 3 * block, block), 0);
}

// By seed an unmap waits for the context's work, which then is whole, or pulls the memory away from
// under it.
TEST(behaviour_8_unmap_waits_by_seed) {
  int waited = 0;
  int pulled = 0;
  for (int seed = 1; seed <= 12; ++seed) {
    Opened device("h20?scale=4096&h2d=1MB/s&d2h=1MB/s&seed=" + std::to_string(seed));
    const auto& table = device.table;
    const auto address = device.memory();
    HostBuffer host(device.spec.block_bytes, 1);
    CHECK_EQ(device.pin(host), 0);
    Gate gate(device, 20);
    const auto stream = device.stream();
    gate.hold(stream);
    CHECK_EQ(table.memcpy_htod_async(address, host.data, host.bytes, stream), 0);
    CHECK_EQ(table.mem_unmap(address, device.spec.block_bytes), 0);
    const auto status = table.ctx_synchronize();
    waited += status == 0 ? 1 : 0;
    pulled += status == cu::kIllegalAddress ? 1 : 0;
    CHECK(table.now_ns() >= gate.open_ns);
  }
  CHECK_EQ(waited + pulled, 12);
  CHECK(waited > 0);
  CHECK(pulled > 0);
}

TEST(behaviour_9_release_while_mapped) {
  Opened device;
  const auto& table = device.table;
  const auto block = device.spec.block_bytes;
  const auto address = device.reserve(2 * block);
  const auto handle = device.create(block);
  CHECK_EQ(table.mem_map(address, block, 0, handle, 0), 0);
  CHECK_EQ(table.mem_map(address + block, block, 0, handle, 0), 0);
  CHECK_EQ(table.mem_release(handle), 0);
  auto census = emu::census(device.ordinal);
  CHECK_EQ(census.handles, 0U);
  CHECK_EQ(census.mappings, 2U);
  CHECK_EQ(census.bytes_used, block);
  CHECK_EQ(device.allow(address, 2 * block), 0);
  CHECK_EQ(table.memset_d8_async(address, 3, block, nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(table.mem_unmap(address, block), 0);
  CHECK_EQ(emu::census(device.ordinal).bytes_used, block);
  CHECK_EQ(table.mem_unmap(address + block, block), 0);
  census = emu::census(device.ordinal);
  CHECK_EQ(census.bytes_used, 0U);
  CHECK_EQ(census.descriptors, 0U);
}

TEST(behaviour_9_dead_handles_abort) {
  Opened device;
  const auto& table = device.table;
  const auto handle = device.create(device.spec.block_bytes);
  const auto address = device.reserve(device.spec.block_bytes);
  CHECK_EQ(table.mem_release(handle), 0);
  CHECK_EQ(table.mem_release(77), cu::kInvalidValue);
  CHECK_EQ(table.mem_release(handle + 16), cu::kInvalidValue);
  CHECK(device.create(device.spec.block_bytes) != handle);
  CHECK_ABORTS(table.mem_release(handle), "cuMemRelease was given the allocation handle");
  CHECK_ABORTS(table.mem_map(address, device.spec.block_bytes, 0, handle, 0),
               "cuMemMap was given the allocation handle");
}

TEST(census_counts_and_goes_back) {
  Opened device;
  const auto& table = device.table;
  const auto block = device.spec.block_bytes;
  const auto before = emu::census(device.ordinal);
  CHECK(before == emu::Census{});
  HostBuffer host(4096);
  const auto region = device.reserve(4 * block);
  const auto first = device.create(block);
  const auto second = device.create(block);
  CHECK_EQ(table.mem_map(region, block, 0, first, 0), 0);
  CHECK_EQ(device.pin(host), 0);
  const auto stream = device.stream();
  const auto event = device.event();
  const auto now = emu::census(device.ordinal);
  CHECK(now == (emu::Census{.handles = 2,
                            .mappings = 1,
                            .reservations = 1,
                            .registrations = 1,
                            .streams = 1,
                            .events = 1,
                            .bytes_used = 2 * block,
                            .pageable_copies = 0,
                            .descriptors = 2}));
  CHECK_EQ(table.mem_unmap(region, block), 0);
  CHECK_EQ(table.mem_release(first), 0);
  CHECK_EQ(table.mem_release(second), 0);
  CHECK_EQ(table.mem_address_free(region, 4 * block), 0);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
  CHECK_EQ(table.stream_destroy(stream), 0);
  CHECK_EQ(table.event_destroy(event), 0);
  CHECK(emu::census(device.ordinal) == before);
}

TEST(a_reservation_belongs_to_whom_it_serves) {
  Opened a;
  Opened b;
  const auto& table = a.table;
  CHECK_EQ(table.ctx_push_current(nullptr), cu::kInvalidContext);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
  const auto block = a.spec.block_bytes;
  const auto region = a.reserve(block);
  CHECK_EQ(emu::census(a.ordinal).reservations, 1U);
  CHECK_EQ(emu::census(b.ordinal).reservations, 1U);
  CHECK_EQ(table.mem_map(region, block, 0, a.create(block), 0), 0);
  CHECK_EQ(emu::census(a.ordinal).reservations, 1U);
  CHECK_EQ(emu::census(b.ordinal).reservations, 0U);
  CHECK_EQ(table.ctx_push_current(a.context), 0);
  CHECK_EQ(table.ctx_push_current(b.context), 0);
}

// The two sides of a copy on the emulated driver: host memory and its registrations, and device
// memory that is not there. Behaviours 12 to 15.
#include "emulated.hpp"

using namespace weave;
using namespace weave::test;

namespace {

unsigned char* bytes_at(cu::DevicePtr address) { return reinterpret_cast<unsigned char*>(address); }

}  // namespace

// By seed a copy on memory without mapping or access is refused, or found out by the engine.
TEST(behaviour_12_copy_without_mapping) {
  int refused = 0;
  int sticky = 0;
  for (int seed = 1; seed <= 12; ++seed) {
    Opened device("h20?scale=4096&speed=50&seed=" + std::to_string(seed));
    const auto& table = device.table;
    const auto block = device.spec.block_bytes;
    const auto address = device.memory(2);
    HostBuffer host(2 * block, 9);
    CHECK_EQ(device.pin(host), 0);
    CHECK_EQ(table.mem_unmap(address + block, block), 0);
    const auto status = table.memcpy_dtoh_async(host.data, address, 2 * block, nullptr);
    refused += status == cu::kInvalidValue ? 1 : 0;
    const auto later = table.ctx_synchronize();
    sticky += status == 0 && later == cu::kIllegalAddress ? 1 : 0;
    CHECK(host.holds(9));
  }
  CHECK_EQ(refused + sticky, 12);
  CHECK(refused > 0);
  CHECK(sticky > 0);
}

TEST(behaviour_13_register) {
  Opened device;
  Opened other;
  CHECK_EQ(device.table.ctx_push_current(device.context), 0);
  const auto& table = device.table;
  HostBuffer host(16 * 4096);
  CHECK_EQ(table.mem_host_register(host.data, 0, 1), cu::kInvalidValue);
  CHECK_EQ(table.mem_host_register(nullptr, 4096, 1), cu::kInvalidValue);
  CHECK_EQ(table.mem_host_register(host.data, 4096, 64), cu::kInvalidValue);
  CHECK_EQ(table.mem_host_register(host.data, 4096, 4), cu::kNotSupported);
  CHECK_EQ(table.mem_host_register(host.data, std::size_t{512} << 30, 1), cu::kOutOfMemory);
  CHECK_EQ(table.mem_host_register(host.data + 4096, 2 * 4096, 1), 0);
  for (const int page : {0, 1, 2}) {
    CHECK_EQ(table.mem_host_register(host.data + page * 4096, 2 * 4096, 1),
             cu::kHostMemoryAlreadyRegistered);
  }
  CHECK_EQ(table.mem_host_register(host.data, 8 * 4096, 1), cu::kHostMemoryAlreadyRegistered);
  CHECK_EQ(table.mem_host_register(host.data, 4097, 1), cu::kHostMemoryAlreadyRegistered);
  CHECK_EQ(table.mem_host_register(host.data + 3 * 4096, 4096, 0), 0);
  CHECK_EQ(table.mem_host_register(host.data, 4096, 0), 0);
  const auto device_memory = device.memory();
  CHECK_EQ(table.mem_host_register(bytes_at(device_memory), 4096, 1), cu::kInvalidValue);
  CHECK_EQ(emu::census(device.ordinal).registrations, 3U);
  CHECK_EQ(emu::census(other.ordinal).registrations, 0U);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
}

TEST(behaviour_13_not_mapped) {
  Opened device;
  HostBuffer host(2 * 4096);
  munmap(host.data + 4096, 4096);
  CHECK_EQ(device.table.mem_host_register(host.data, 2 * 4096, 1), cu::kInvalidValue);
}

TEST(behaviour_13_only_portable_is_seen_by_all) {
  Opened device;
  Opened other;  // current
  const auto& table = device.table;
  const auto address = other.memory();
  HostBuffer portable(4096);
  HostBuffer local(4096);
  CHECK_EQ(table.ctx_push_current(device.context), 0);
  CHECK_EQ(table.mem_host_register(portable.data, 4096, cu::kHostRegisterPortable), 0);
  CHECK_EQ(table.mem_host_register(local.data, 4096, 0), 0);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
  CHECK_EQ(table.memcpy_htod_async(address, portable.data, 4096, nullptr), 0);
  CHECK_EQ(emu::census(other.ordinal).pageable_copies, 0U);
  CHECK_EQ(table.memcpy_htod_async(address, local.data, 4096, nullptr), 0);
  CHECK_EQ(emu::census(other.ordinal).pageable_copies, 1U);
  CHECK_EQ(table.ctx_synchronize(), 0);
}

TEST(behaviour_14_unregister) {
  Opened device;
  const auto& table = device.table;
  HostBuffer host(2 * 4096);
  CHECK_EQ(device.pin(host), 0);
  CHECK_EQ(table.mem_host_unregister(host.data + 4096), cu::kHostMemoryNotRegistered);
  CHECK_EQ(table.mem_host_unregister(nullptr), cu::kInvalidValue);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
  CHECK_EQ(table.mem_host_unregister(host.data), cu::kHostMemoryNotRegistered);
}

TEST(behaviour_14_unregister_with_a_copy_in_flight_aborts) {
  Opened device(kGated);
  Gate gate(device, 200);
  CHECK_ABORTS(device.table.mem_host_unregister(gate.source.data), "Synchronise the streams");
}

TEST(behaviour_14_munmap_of_registered_memory_aborts) {
  Opened device;
  const auto address = device.memory();
  HostBuffer host(2 * 4096);
  CHECK_EQ(device.pin(host), 0);
  munmap(host.data + 4096, 4096);
  CHECK_ABORTS(device.table.memcpy_htod_async(address, host.data, host.bytes, nullptr),
               "Unregister host memory before it is unmapped");
}

TEST(behaviour_15_copy_that_leaves_its_registration) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory(2);
  HostBuffer host(4 * 4096, 1);
  CHECK_EQ(table.mem_host_register(host.data + 4096, 4096, 1), 0);
  CHECK_EQ(table.mem_host_register(host.data + 2 * 4096, 4096, 1), 0);
  const auto copy = [&](int from, int bytes) {
    return table.memcpy_htod_async(address, host.data + from, static_cast<std::size_t>(bytes),
                                   nullptr);
  };
  CHECK_EQ(copy(4096, 4096), 0);
  CHECK_EQ(copy(4096, 4097), cu::kInvalidValue);      // two registrations
  CHECK_EQ(copy(2 * 4096, 4097), cu::kInvalidValue);  // out at the end
  CHECK_EQ(copy(4095, 2), cu::kInvalidValue);         // in at the beginning
  CHECK_EQ(copy(0, 4 * 4096), cu::kInvalidValue);     // around both
  CHECK_EQ(table.memcpy_dtoh_async(host.data + 2 * 4096, address, 4097, nullptr),
           cu::kInvalidValue);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(emu::census(device.ordinal).pageable_copies, 0U);
}

TEST(device_memory_is_no_host_memory) {
  Opened device;
  const auto address = device.memory(2);
  const auto block = device.spec.block_bytes;
  emu::host_view(address, true);
  CHECK_EQ(device.table.memcpy_htod_async(address, bytes_at(address + block), 16, nullptr),
           cu::kInvalidValue);
}

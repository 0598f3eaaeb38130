// Blocks in several processes: behaviour 10, and 3 and 9 across processes.
#include <fcntl.h>

#include <memory>

#include "emulated.hpp"
#include "process.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// One device for this test program and its children; the id is in the environment, which they get.
std::string shared_spec() {
  constexpr const char* kVariable = "WEAVE_TEST_SHARED_ID";
  const std::string id = "test-" + std::to_string(getpid());
  setenv(kVariable, id.c_str(), 0);
  return std::string("h20?scale=4096&speed=50&seed=1&id=") + std::getenv(kVariable);
}

cu::Status import(Opened& device, int file, cu::AllocHandle& handle) {
  auto* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  return device.table.mem_import(&handle, shareable, cu::kHandlePosixFd);
}

int exported(Opened& device, cu::AllocHandle handle) {
  int file = -1;
  CHECK_EQ(device.table.mem_export(&file, handle, cu::kHandlePosixFd, 0), 0);
  return file;
}

// Every byte at the address, read by a copy.
bool holds(Opened& device, cu::DevicePtr address, std::size_t bytes, unsigned char value) {
  HostBuffer host(bytes);
  CHECK_EQ(device.table.memcpy_dtoh_async(host.data, address, bytes, nullptr), 0);
  CHECK_EQ(device.table.ctx_synchronize(), 0);
  return host.holds(value);
}

void fill(Opened& device, cu::DevicePtr address, std::size_t bytes, unsigned char value) {
  CHECK_EQ(device.table.memset_d8_async(address, value, bytes, nullptr), 0);
  CHECK_EQ(device.table.ctx_synchronize(), 0);
}

}  // namespace

TEST(behaviour_10_refusals) {
  Opened device;
  const auto& table = device.table;
  const auto plain = device.create(device.spec.block_bytes);
  const auto shared = device.create(device.spec.block_bytes, cu::kHandlePosixFd);
  int file = -1;
  CHECK_EQ(table.mem_export(&file, plain, cu::kHandlePosixFd, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_export(&file, shared, cu::kHandlePosixFd, 1), cu::kInvalidValue);
  CHECK_EQ(table.mem_export(nullptr, shared, cu::kHandlePosixFd, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_export(&file, shared, 2, 0), cu::kInvalidValue);
  CHECK_EQ(table.mem_export(&file, 12345, cu::kHandlePosixFd, 0), cu::kInvalidValue);
  CHECK_EQ(file, -1);
  const int foreign = open("/dev/null", O_RDWR | O_CLOEXEC);
  cu::AllocHandle handle = 0;
  CHECK_EQ(import(device, foreign, handle), cu::kInvalidValue);
  CHECK_EQ(import(device, -1, handle), cu::kInvalidValue);
  close(foreign);
  // A block of a device that this process has not: here, of one that it has no more.
  int left = -1;
  {
    Opened other;
    left = exported(other, other.create(other.spec.block_bytes, cu::kHandlePosixFd));
  }
  CHECK_EQ(import(device, left, handle), cu::kInvalidValue);
  close(left);
  CHECK_ABORTS((table.mem_release(shared), table.mem_export(&file, shared, 1, 0)), "released");
}

TEST(behaviour_10_an_import_is_a_reference_of_its_own) {
  Opened device;
  const auto& table = device.table;
  const auto bytes = device.spec.block_bytes;
  const auto first = device.create(bytes, cu::kHandlePosixFd);
  const int file = exported(device, first);
  cu::AllocHandle second = 0;
  CHECK_EQ(import(device, file, second), 0);
  CHECK(second != first);
  CHECK(fcntl(file, F_GETFD) >= 0);  // still the caller's
  close(file);
  CHECK_EQ(emu::census(device.ordinal).bytes_used, bytes);
  const auto there = device.map(first, bytes);
  const auto here = device.map(second, bytes);
  fill(device, there, bytes, 5);
  CHECK(holds(device, here, bytes, 5));
  CHECK_EQ(table.mem_release(first), 0);
  device.unmap(there, bytes);
  CHECK(holds(device, here, bytes, 5));
  device.unmap(here, bytes);
  CHECK_EQ(emu::census(device.ordinal).bytes_used, bytes);
  CHECK_EQ(table.mem_release(second), 0);
  CHECK_EQ(emu::census(device.ordinal).bytes_used, 0U);
}

// Imports what it is given, says so, changes the bytes on 'w', lets go on 'e'.
CHILD(importer) {
  Opened device(shared_spec());
  const auto bytes = device.spec.block_bytes;
  cu::AllocHandle handle = 0;
  CHECK_EQ(import(device, kGiven, handle), 0);
  const auto address = device.map(handle, bytes);
  CHECK(holds(device, address, bytes, 7));
  say('r');
  CHECK_EQ(hear(), 'w');
  fill(device, address, bytes, 9);
  say('w');
  CHECK_EQ(hear(), 'e');
  device.unmap(address, bytes);
  CHECK_EQ(device.table.mem_release(handle), 0);
  say('e');
  hear();
}

namespace {

// An exported block, filled with 7, mapped here, and imported by another process.
struct Shared {
  Shared()
      : device(shared_spec()),
        bytes(device.spec.block_bytes),
        free_before(device.bytes_free()),
        handle(device.create(bytes, cu::kHandlePosixFd)),
        address(device.map(handle, bytes)) {
    fill(device, address, bytes, 7);
    const int file = exported(device, handle);
    other = std::make_unique<Process>("importer", file);
    close(file);
    CHECK_EQ(other->hear(), 'r');
  }
  void let_go() {
    device.unmap(address, bytes);
    CHECK_EQ(device.table.mem_release(handle), 0);
  }
  Opened device;
  const std::size_t bytes;
  const std::size_t free_before;
  const cu::AllocHandle handle;
  const cu::DevicePtr address;
  std::unique_ptr<Process> other;
};

}  // namespace

TEST(behaviour_10_across_processes) {
  Shared shared;
  shared.other->say('w');
  CHECK_EQ(shared.other->hear(), 'w');
  CHECK(holds(shared.device, shared.address, shared.bytes, 9));
  shared.other->say('e');
  CHECK_EQ(shared.other->hear(), 'e');
  shared.other->say('x');
  CHECK_EQ(shared.other->wait(), 0);
  shared.let_go();
  CHECK_EQ(shared.device.bytes_free(), shared.free_before);
}

// Released here, the memory counts until the importer has released it too.
TEST(behaviour_9_memory_counts_until_the_last_process_lets_go) {
  Shared shared;
  const auto context = shared.device.spec.context_bytes;
  shared.let_go();
  CHECK_EQ(emu::census(shared.device.ordinal).handles, 0U);
  CHECK_EQ(shared.device.bytes_free(), shared.free_before - shared.bytes - context);
  shared.other->say('w');
  CHECK_EQ(shared.other->hear(), 'w');
  shared.other->say('e');
  CHECK_EQ(shared.other->hear(), 'e');
  CHECK_EQ(shared.device.bytes_free(), shared.free_before - context);
  shared.other->say('x');
  CHECK_EQ(shared.other->wait(), 0);
  CHECK_EQ(shared.device.bytes_free(), shared.free_before);
  CHECK_EQ(emu::census(shared.device.ordinal).descriptors, 0U);
}

TEST(behaviour_9_a_killed_importer_holds_nothing) {
  Shared shared;
  shared.let_go();
  CHECK(shared.device.bytes_free() < shared.free_before);
  shared.other->kill();
  CHECK_EQ(shared.device.bytes_free(), shared.free_before);
}

// Exports a block filled with 7, says under which number, and waits.
CHILD(exporter) {
  Opened device(shared_spec());
  const auto handle = device.create(device.spec.block_bytes, cu::kHandlePosixFd);
  fill(device, device.map(handle, device.spec.block_bytes), device.spec.block_bytes, 7);
  say(static_cast<char>(exported(device, handle)));
  hear();
}

TEST(behaviour_10_an_importer_outlives_the_exporter) {
  Opened device(shared_spec());
  const auto bytes = device.spec.block_bytes;
  const auto free_before = device.bytes_free();
  Process other("exporter");
  const auto path =
      "/proc/" + std::to_string(other.pid()) + "/fd/" + std::to_string(int{other.hear()});
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  cu::AllocHandle handle = 0;
  CHECK_EQ(import(device, file, handle), 0);
  close(file);
  // The block counts once, the other process's context beside it.
  CHECK_EQ(device.bytes_free(), free_before - bytes - device.spec.context_bytes);
  other.kill();
  CHECK_EQ(device.bytes_free(), free_before - bytes);
  const auto address = device.map(handle, bytes);
  CHECK(holds(device, address, bytes, 7));
  device.unmap(address, bytes);
  CHECK_EQ(device.table.mem_release(handle), 0);
  CHECK_EQ(device.bytes_free(), free_before);
}

// Takes all blocks but one.
CHILD(hoarder) {
  Opened device(shared_spec());
  const auto count = device.bytes_free() / device.spec.block_bytes;
  for (std::size_t i = 1; i < count; ++i) device.create(device.spec.block_bytes);
  say('r');
  hear();
}

TEST(behaviour_3_capacity_counts_every_process) {
  Opened device(shared_spec());
  const auto bytes = device.spec.block_bytes;
  const auto free_before = device.bytes_free();
  Process other("hoarder");
  CHECK_EQ(other.hear(), 'r');
  CHECK(device.bytes_free() < 2 * bytes);
  const auto prop = prop_for(device.ordinal);
  cu::AllocHandle handle = 0;
  CHECK_EQ(device.table.mem_create(&handle, 2 * bytes, &prop, 0), cu::kOutOfMemory);
  CHECK_EQ(device.table.mem_create(&handle, bytes, &prop, 0), 0);
  CHECK_EQ(device.table.mem_release(handle), 0);
  other.kill();
  CHECK_EQ(device.bytes_free(), free_before);
  CHECK_EQ(device.table.mem_create(&handle, 2 * bytes, &prop, 0), 0);
  CHECK_EQ(device.table.mem_release(handle), 0);
}

// Without an id a device belongs to its process alone.
CHILD(stranger) {
  Opened device;
  device.memory(4);
  say('r');
  hear();
}

TEST(behaviour_3_devices_without_an_id_share_nothing) {
  Opened device;
  const auto free_before = device.bytes_free();
  Process other("stranger");
  CHECK_EQ(other.hear(), 'r');
  CHECK_EQ(device.bytes_free(), free_before);
}

// What the CPU sees of emulated device memory: nothing, unless a reservation is viewed.
#include <sys/syscall.h>
#include <sys/wait.h>

#include "emulated.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// Whether the CPU may read there, found without a fault: the kernel refuses to.
bool is_readable(cu::DevicePtr address) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const long count = syscall(SYS_write, ends[1], address, 1);
  close(ends[0]);
  close(ends[1]);
  return count == 1;
}

unsigned char* bytes_at(cu::DevicePtr address) { return reinterpret_cast<unsigned char*>(address); }

}  // namespace

TEST(only_a_viewed_reservation_is_readable) {
  Opened device;
  const auto& table = device.table;
  const auto block = device.spec.block_bytes;
  const auto home = device.memory();
  const auto region = device.reserve(3 * block);
  CHECK(!is_readable(home));
  CHECK(!is_readable(region));
  emu::host_view(region, true);
  const auto handle = device.create(block);
  CHECK_EQ(table.mem_map(region, block, 0, handle, 0), 0);
  CHECK_EQ(table.mem_map(region + 2 * block, block, 0, handle, 0), 0);
  CHECK(!is_readable(region));  // mapped, no access yet
  CHECK_EQ(device.allow(region, block), 0);
  CHECK_EQ(device.allow(region + 2 * block, block), 0);
  CHECK(is_readable(region));
  CHECK(!is_readable(region + block));
  // Both addresses are one block, and what the engine writes is what the CPU reads.
  bytes_at(region)[5] = 99;
  CHECK_EQ(int{bytes_at(region + 2 * block)[5]}, 99);
  CHECK_EQ(table.memset_d8_async(region, 42, block, nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(int{bytes_at(region)[block - 1]}, 42);
  emu::host_view(region, false);
  CHECK(!is_readable(region));
  emu::host_view(region, true);
  CHECK_EQ(int{bytes_at(region)[0]}, 42);
  CHECK_EQ(device.allow(region, block, cu::kAccessNone), 0);
  CHECK(!is_readable(region));
  CHECK(is_readable(region + 2 * block));
  CHECK_EQ(table.mem_unmap(region + 2 * block, block), 0);
  CHECK(!is_readable(region + 2 * block));
  CHECK_THROWS(emu::host_view(region + block, true), UsageError, "no reservation");
  // The handle keeps the bytes.
  CHECK_EQ(table.mem_map(region + block, block, 0, handle, 0), 0);
  CHECK_EQ(device.allow(region + block, block), 0);
  CHECK_EQ(int{bytes_at(region + block)[7]}, 42);
}

// A helper forked by the application must not go on writing into blocks that are handed over.
TEST(a_forked_child_has_no_view) {
  Opened device;
  const auto region = device.memory();
  emu::host_view(region, true);
  CHECK(is_readable(region));
  const pid_t child = fork();
  if (child == 0) _exit(is_readable(region) ? 1 : 0);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

TEST(huge_blocks) {
  Opened device("h20?seed=1&capacity=1GiB&context=0&create=0");
  CHECK_EQ(device.spec.block_bytes, 64U << 20);
  const auto region = device.memory(2, 4 << 20);
  CHECK_EQ(region % (2 << 20), 0U);
  emu::host_view(region, true);
  CHECK_EQ(device.table.memset_d8_async(region, 7, 8 << 20, nullptr), 0);
  CHECK_EQ(device.table.ctx_synchronize(), 0);
  CHECK_EQ(int{bytes_at(region)[0]}, 7);
  CHECK_EQ(int{bytes_at(region)[(8 << 20) - 1]}, 7);
}

// Kernels and host functions of the emulated driver: behaviours 22 and 24.
#include "kernels.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr std::size_t kBlock = 16384;

std::string stepped(int seed) {
  return "h20?scale=4096&engine=stepped&seed=" + std::to_string(seed);
}

struct Called {
  const cu::Table* table = nullptr;
  const HostBuffer* buffer = nullptr;
  std::vector<cu::Status> statuses;
  int times = 0;
  bool complete = false;
};

// Every call that a host function makes is refused; what is before it in the stream is complete.
void call_the_driver(void* argument) {
  auto& called = *static_cast<Called*>(argument);
  ++called.times;
  called.complete = called.buffer != nullptr && called.buffer->holds(3);
  cu::Context context = nullptr;
  int count = 0;
  cu::DevicePtr address = 0;
  called.statuses = {called.table->ctx_synchronize(),
                     called.table->stream_query(nullptr),
                     called.table->ctx_get_current(&context),
                     called.table->device_get_count(&count),
                     called.table->memset_d8_async(0, 0, 1, nullptr),
                     called.table->mem_address_reserve(&address, 4096, 0, 0, 0)};
}

}  // namespace

TEST(behaviour_22_kernels_do_what_their_twins_say) {
  Opened device;
  const Kernels kernels(device);
  const auto& table = device.table;
  const auto address = device.memory(3);
  HostBuffer host(3 * kBlock, 0);
  CHECK_EQ(device.pin(host), 0);
  CHECK_EQ(kernels.write("weave_fill", address, 2 * kBlock, 7), 0);
  CHECK_EQ(kernels.write("weave_add", address, 2 * kBlock, 252), 0);  // 7 + 252 = 3 mod 256
  CHECK_EQ(kernels.sum(address, 2 * kBlock, address + 2 * kBlock), 0);
  CHECK_EQ(table.memcpy_dtoh_async(host.data, address, 3 * kBlock, nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  for (std::size_t i = 0; i < 2 * kBlock; ++i) CHECK_EQ(int{host.data[i]}, 3);
  std::uint64_t total = 0;
  std::memcpy(&total, host.data + 2 * kBlock, sizeof total);
  CHECK_EQ(total, 3 * 2 * kBlock);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
}

TEST(behaviour_22_refusals) {
  Opened device;
  const Kernels kernels(device);
  const auto& table = device.table;
  cu::Module module = nullptr;
  cu::Function function = nullptr;
  CHECK_EQ(table.module_load_data(&module,
                                  "\x7f"
                                  "ELF"),
           cu::kInvalidImage);
  CHECK_EQ(table.module_load_data(&module, nullptr), cu::kInvalidValue);
  CHECK_EQ(table.module_get_function(&function, kernels.module, "weave_nothing"), cu::kNotFound);
  CHECK_EQ(table.module_load_data(&module, "// none\n.version 7.0"), 0);
  CHECK_EQ(table.module_get_function(&function, module, "weave_fill"), cu::kNotFound);
  CHECK_EQ(table.module_unload(module), 0);
  CHECK_EQ(table.module_unload(module), cu::kInvalidHandle);
  const auto spin = kernels.function("weave_spin");
  std::uint64_t none = 0;
  void* parameters[] = {&none};
  void* missing[] = {nullptr};
  CHECK_EQ(table.launch_kernel(spin, 0, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
           cu::kInvalidValue);
  CHECK_EQ(table.launch_kernel(spin, 1, 1, 1, 2048, 1, 1, 0, nullptr, parameters, nullptr),
           cu::kInvalidValue);
  CHECK_EQ(table.launch_kernel(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, missing),
           cu::kNotSupported);
  CHECK_EQ(kernels.launch(spin, nullptr, missing), cu::kInvalidValue);
  CHECK_EQ(kernels.launch(spin, nullptr, nullptr), cu::kInvalidValue);
  CHECK_EQ(kernels.launch(nullptr, nullptr, parameters), cu::kInvalidHandle);
  CHECK_EQ(kernels.launch(spin, nullptr, parameters), 0);
  CHECK_EQ(table.module_unload(kernels.module), 0);
  CHECK_EQ(kernels.launch(spin, nullptr, parameters), cu::kInvalidHandle);
  CHECK_EQ(table.ctx_synchronize(), 0);
  Opened other;
  CHECK_EQ(table.launch_host_func(nullptr, nullptr, nullptr), cu::kInvalidValue);
  CHECK_EQ(kernels.launch(Kernels(device).function("weave_spin"), nullptr, parameters), 0);
}

// On a stepped device nothing runs before somebody waits, so it shows that the launch did not.
TEST(behaviour_22_launch_is_asynchronous) {
  Opened device(stepped(1));
  const Kernels kernels(device);
  const auto address = device.memory();
  CHECK_EQ(device.table.memset_d8_async(address, 1, kBlock, nullptr), 0);
  CHECK_EQ(device.table.ctx_synchronize(), 0);
  emu::host_view(address, true);
  const auto* const bytes = reinterpret_cast<const volatile unsigned char*>(address);
  CHECK_EQ(kernels.write("weave_fill", address, kBlock, 9), 0);
  CHECK_EQ(int{bytes[0]}, 1);
  CHECK_EQ(device.table.ctx_synchronize(), 0);
  CHECK_EQ(int{bytes[0]}, 9);
  CHECK_EQ(int{bytes[kBlock - 1]}, 9);
}

// A copy that nothing orders behind the kernel gets half of its work; a drain mends it.
TEST(behaviour_22_a_missing_drain_corrupts_bytes) {
  int torn = 0;
  for (int seed = 1; seed <= 24; ++seed) {
    for (const bool drains : {false, true}) {
      Opened device(stepped(seed));
      const Kernels kernels(device);
      const auto& table = device.table;
      const auto address = device.memory();
      HostBuffer host(kBlock);
      CHECK_EQ(device.pin(host), 0);
      const auto compute = device.stream();
      const auto leaving = device.stream();
      CHECK_EQ(table.memset_d8_async(address, 1, kBlock, compute), 0);
      CHECK_EQ(table.stream_synchronize(compute), 0);
      CHECK_EQ(kernels.write("weave_add", address, kBlock, 1, compute), 0);
      if (drains) CHECK_EQ(table.ctx_synchronize(), 0);
      CHECK_EQ(table.memcpy_dtoh_async(host.data, address, kBlock, leaving), 0);
      CHECK_EQ(table.ctx_synchronize(), 0);
      if (drains) CHECK(host.holds(2));
      torn += host.holds(2) || host.holds(1) ? 0 : 1;
      CHECK_EQ(table.mem_host_unregister(host.data), 0);
    }
  }
  CHECK(torn > 0);
}

TEST(behaviour_22_a_kernel_on_unmapped_memory_is_sticky) {
  Opened device;
  const Kernels kernels(device);
  const auto address = device.memory(2);
  CHECK_EQ(device.table.mem_unmap(address + kBlock, kBlock), 0);
  const auto spin = kernels.function("weave_spin");
  CHECK_EQ(kernels.write("weave_fill", address, 2 * kBlock, 1), 0);
  CHECK_EQ(device.table.ctx_synchronize(), cu::kIllegalAddress);
  std::uint64_t none = 0;
  void* parameters[] = {&none};
  CHECK_EQ(kernels.launch(spin, nullptr, parameters), cu::kIllegalAddress);
}

// Read-only memory is not written either.
TEST(behaviour_22_a_kernel_needs_the_access_it_uses) {
  Opened device;
  const Kernels kernels(device);
  const auto address = device.memory(2);
  CHECK_EQ(device.allow(address, kBlock, cu::kAccessRead), 0);
  CHECK_EQ(kernels.sum(address, kBlock, address + kBlock), 0);
  CHECK_EQ(device.table.ctx_synchronize(), 0);
  CHECK_EQ(kernels.write("weave_add", address, kBlock, 1), 0);
  CHECK_EQ(device.table.ctx_synchronize(), cu::kIllegalAddress);
}

// The compute engine is one of its own: beside a copy, kernels one after the other.
TEST(behaviour_22_kernels_run_beside_copies) {
  Opened device("h20?scale=4096&h2d=1MB/s&d2h=1MB/s&engine=stepped&seed=4");
  const Kernels kernels(device);
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer host(kBlock);
  CHECK_EQ(device.pin(host), 0);
  const cu::Stream streams[] = {device.stream(), device.stream(), device.stream()};
  const auto begin = device.event();
  const cu::Event ends[] = {device.event(), device.event(), device.event()};
  CHECK_EQ(table.event_record(begin, streams[0]), 0);
  CHECK_EQ(kernels.spin(10'000'000, streams[0]), 0);
  CHECK_EQ(kernels.spin(10'000'000, streams[1]), 0);
  CHECK_EQ(table.memcpy_htod_async(address, host.data, kBlock, streams[2]), 0);
  for (const std::size_t i : {0, 1, 2}) CHECK_EQ(table.event_record(ends[i], streams[i]), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  const auto first = device.elapsed_ms(begin, ends[0]);
  const auto second = device.elapsed_ms(begin, ends[1]);
  CHECK(std::max(first, second) >= 20.0F);
  CHECK(std::min(first, second) < 20.0F);
  CHECK(device.elapsed_ms(begin, ends[2]) < 20.0F);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
}

TEST(behaviour_24_calls_in_a_host_function_give_800) {
  for (const char* spec : {kSmall, "h20?scale=4096&engine=stepped&seed=2"}) {
    Opened device(spec);
    const auto& table = device.table;
    const auto address = device.memory();
    HostBuffer host(kBlock);
    CHECK_EQ(device.pin(host), 0);
    const auto stream = device.stream();
    Called called{&table, &host, {}};
    CHECK_EQ(table.memset_d8_async(address, 3, kBlock, stream), 0);
    CHECK_EQ(table.memcpy_dtoh_async(host.data, address, kBlock, stream), 0);
    CHECK_EQ(table.launch_host_func(stream, &call_the_driver, &called), 0);
    CHECK_EQ(table.stream_synchronize(stream), 0);
    CHECK_EQ(called.times, 1);
    CHECK(called.complete);
    CHECK_EQ(called.statuses.size(), 6U);
    for (const auto status : called.statuses) CHECK_EQ(status, cu::kNotPermitted);
    CHECK_EQ(table.ctx_synchronize(), 0);  // nothing sticks
    CHECK_EQ(table.mem_host_unregister(host.data), 0);
  }
}

TEST(behaviour_24_not_called_after_an_error) {
  Opened device(stepped(3));
  const Kernels kernels(device);
  const auto& table = device.table;
  const auto stream = device.stream();
  Called called{&table, nullptr, {}};
  CHECK_EQ(kernels.write("weave_fill", device.reserve(kBlock), kBlock, 1, stream), 0);
  CHECK_EQ(table.launch_host_func(stream, &call_the_driver, &called), 0);
  CHECK_EQ(table.stream_synchronize(stream), cu::kIllegalAddress);
  CHECK_EQ(table.primary_ctx_reset(device.ordinal), 0);
  CHECK_EQ(called.times, 0);
}

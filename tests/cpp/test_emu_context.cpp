// Process, device and context calls of the emulated driver: behaviours 1, 2, 11 and 25.
#include <sys/wait.h>

#include <thread>
#include <tuple>

#include "emulated.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// Calls with zeros; the status says how far the call got.
template <class... Args>
cu::Status call_with_zeros(cu::Status (*call)(Args...)) {
  return std::apply(call, std::tuple<Args...>{});
}

struct NamedStatus {
  cu::Call call;
  cu::Status status;
};

// Every call but init and the one that needs no init.
template <class Wanted>
std::vector<NamedStatus> call_all(Wanted wanted) {
  const auto& table = emu::table();
  std::vector<NamedStatus> result;
#define WEAVE_CALL(field, need, symbol, exported, version, parameters)                        \
  if (cu::Call::field != cu::Call::init && cu::Call::field != cu::Call::driver_get_version && \
      wanted(#field)) {                                                                       \
    result.push_back({cu::Call::field, call_with_zeros(table.field)});                        \
  }
#include "driver/calls.def"
#undef WEAVE_CALL
  return result;
}

bool any(std::string_view) { return true; }

// What still works in a context with a sticky error: choosing another one, and asking devices.
bool returns_sticky(std::string_view field) {
  return !field.starts_with("device_") && !field.starts_with("primary_ctx_") &&
         (!field.starts_with("ctx_") || field == "ctx_synchronize") &&
         field != "thread_exchange_capture_mode" && field != "graph_destroy";
}

// Breaks the context: a fill of memory that was reserved only. By seed the call itself refuses.
void make_sticky(Opened& device) {
  const auto address = device.reserve(device.spec.block_bytes);
  while (device.table.memset_d8_async(address, 1, 16, nullptr) != 0) {
  }
  CHECK_EQ(device.table.ctx_synchronize(), cu::kIllegalAddress);
}

int run_in_child(int (*body)()) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

// First in this file: nothing has called init yet.
TEST(behaviour_1_before_init) {
  const int ordinal = emu::add_device(emu::Spec::parse(kSmall));
  for (const auto& [call, status] : call_all(any)) {
    if (status != cu::kNotInitialized) fail(__FILE__, __LINE__, std::string(cu::info(call).field));
  }
  int version = 0;
  CHECK_EQ(emu::table().driver_get_version(&version), 0);
  CHECK(version >= 11040);
  CHECK_EQ(emu::table().init(1), cu::kInvalidValue);
  CHECK_EQ(emu::table().init(0), 0);
  CHECK_EQ(emu::table().init(0), 0);
  cu::Device device = -1;
  CHECK_EQ(emu::table().device_get(&device, ordinal), 0);
  CHECK_EQ(device, ordinal);
  emu::remove_device(ordinal);
}

TEST(behaviour_1_forked_child) {
  const Opened device;
  const int wrong = run_in_child([] {
    int count = emu::table().init(0) == cu::kNotInitialized ? 0 : 1;
    for (const auto& [call, status] : call_all(any)) count += status == cu::kNotInitialized ? 0 : 1;
    return count;
  });
  CHECK_EQ(wrong, 0);
  CHECK_EQ(device.table.ctx_synchronize(), 0);
}

TEST(behaviour_2_no_context_on_this_thread) {
  Opened device;
  std::thread([&] {
    const auto& table = device.table;
    HostBuffer host(4096);
    cu::Stream stream = nullptr;
    cu::Event event = nullptr;
    std::size_t bytes = 0;
    CHECK_EQ(table.stream_create(&stream, 0), cu::kInvalidContext);
    CHECK_EQ(table.stream_synchronize(nullptr), cu::kInvalidContext);
    CHECK_EQ(table.stream_query(nullptr), cu::kInvalidContext);
    CHECK_EQ(table.event_create(&event, 0), cu::kInvalidContext);
    CHECK_EQ(table.event_record(event, stream), cu::kInvalidContext);
    CHECK_EQ(table.memcpy_htod_async(1, host.data, 1, nullptr), cu::kInvalidContext);
    CHECK_EQ(table.memcpy_dtoh_async(host.data, 1, 1, nullptr), cu::kInvalidContext);
    CHECK_EQ(table.memset_d8_async(1, 0, 1, nullptr), cu::kInvalidContext);
    CHECK_EQ(device.pin(host), cu::kInvalidContext);
    CHECK_EQ(table.mem_host_unregister(host.data), cu::kInvalidContext);
    CHECK_EQ(table.ctx_synchronize(), cu::kInvalidContext);
    CHECK_EQ(table.mem_get_info(&bytes, &bytes), cu::kInvalidContext);
    CHECK_EQ(table.ctx_pop_current(nullptr), cu::kInvalidContext);
    cu::Module module = nullptr;
    CHECK_EQ(table.module_load_data(&module, ".version 7.0"), cu::kInvalidContext);
    CHECK_EQ(table.launch_kernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
             cu::kInvalidContext);
    CHECK_EQ(table.launch_host_func(nullptr, nullptr, nullptr), cu::kInvalidContext);
    CHECK_EQ(table.stream_begin_capture(nullptr, cu::kCaptureModeGlobal), cu::kInvalidContext);
    cu::Context current = device.context;
    CHECK_EQ(table.ctx_get_current(&current), 0);
    CHECK(current == nullptr);
    // Creating, reserving and mapping do without.
    device.memory();
  }).join();
}

TEST(context_stack) {
  Opened device;
  Opened other;
  const auto& table = device.table;
  cu::Context current = nullptr;
  CHECK_EQ(table.ctx_get_current(&current), 0);
  CHECK(current == other.context);
  CHECK_EQ(table.ctx_push_current(device.context), 0);
  CHECK_EQ(table.ctx_pop_current(&current), 0);
  CHECK(current == device.context);
  CHECK_EQ(table.ctx_set_current(device.context), 0);
  CHECK_EQ(table.ctx_get_current(&current), 0);
  CHECK(current == device.context);
  CHECK_EQ(table.ctx_set_current(nullptr), 0);
  CHECK_EQ(table.ctx_get_current(&current), 0);
  CHECK(current == device.context);  // the one below
  CHECK_EQ(table.ctx_push_current(other.context), 0);
  CHECK_EQ(table.ctx_push_current(nullptr), cu::kInvalidContext);
  CHECK_EQ(table.ctx_set_current(reinterpret_cast<cu::Context>(64)), cu::kInvalidContext);
}

TEST(devices) {
  const auto fixed = std::string(kSmall) + "&id=here";
  Opened a;
  Opened b(fixed);
  Opened c(fixed);
  const auto& table = a.table;
  cu::Uuid of_a, of_b, of_c;
  CHECK_EQ(table.device_get_uuid(&of_a, a.ordinal), 0);
  CHECK_EQ(table.device_get_uuid(&of_b, b.ordinal), 0);
  CHECK_EQ(table.device_get_uuid(&of_c, c.ordinal), 0);
  CHECK(std::memcmp(&of_a, &of_b, sizeof of_a) != 0);
  CHECK(std::memcmp(&of_b, &of_c, sizeof of_a) == 0);
  char name[8] = {};
  CHECK_EQ(table.device_get_name(name, sizeof name, a.ordinal), 0);
  CHECK_EQ(std::string(name), "emulate");
  std::size_t total = 0;
  CHECK_EQ(table.device_total_mem(&total, a.ordinal), 0);
  CHECK_EQ(total, a.spec.capacity_bytes);
  int value = -1;
  CHECK_EQ(table.device_get_attribute(&value, cu::kAttributeAsyncEngineCount, a.ordinal), 0);
  CHECK_EQ(value, 2);
  CHECK_EQ(table.device_get_attribute(&value, cu::kAttributeVirtualMemoryManagement, a.ordinal), 0);
  CHECK_EQ(value, 1);
  CHECK_EQ(table.device_get_attribute(&value, -1, a.ordinal), cu::kInvalidValue);
  CHECK_EQ(emu::spec_of(a.ordinal).seed, 1U);
  int count = 0;
  CHECK_EQ(table.device_get_count(&count), 0);
  CHECK_EQ(count, c.ordinal + 1);
}

TEST(a_seed_of_zero_is_drawn) {
  const Opened device("h20?scale=4096");
  CHECK(emu::spec_of(device.ordinal).seed != 0);
}

TEST(a_removed_device_is_gone) {
  Opened device;
  const auto& table = device.table;
  device.memory(3);
  device.create(device.spec.block_bytes);
  const auto stream = device.stream();
  const auto event = device.event();
  emu::remove_device(device.ordinal);
  emu::remove_device(device.ordinal);
  const auto prop = prop_for(device.ordinal);
  cu::AllocHandle handle = 0;
  cu::Context context = nullptr;
  cu::Device number = 0;
  CHECK_EQ(table.device_get(&number, device.ordinal), cu::kInvalidDevice);
  CHECK_EQ(table.primary_ctx_retain(&context, device.ordinal), cu::kInvalidDevice);
  CHECK_EQ(table.primary_ctx_release(device.ordinal), cu::kInvalidDevice);
  CHECK_EQ(table.ctx_synchronize(), cu::kContextIsDestroyed);
  CHECK_EQ(table.stream_synchronize(stream), cu::kContextIsDestroyed);
  CHECK_EQ(table.event_query(event), cu::kContextIsDestroyed);
  CHECK_EQ(table.mem_create(&handle, 4096, &prop, 0), cu::kContextIsDestroyed);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
  CHECK_EQ(table.mem_create(&handle, 4096, &prop, 0), cu::kInvalidDevice);
  CHECK_THROWS(emu::census(device.ordinal), UsageError, "there is no emulated device");
  const Opened next;
  CHECK(next.ordinal > device.ordinal);
}

TEST(handles_of_a_removed_device_are_dead) {
  Opened device;
  const auto handle = device.create(device.spec.block_bytes);
  emu::remove_device(device.ordinal);
  device.table.ctx_pop_current(nullptr);
  CHECK_ABORTS(device.table.mem_release(handle), "its device was removed");
}

TEST(too_many_blocks_for_the_descriptor_limit) {
  CHECK_THROWS(emu::add_device(emu::Spec::parse("h20?capacity=64TiB&granularity=4KiB&block=4KiB")),
               UsageError, "file descriptors");
}

TEST(host_limited) {
  const Opened slow("h20?scale=4096&seed=1");
  const Opened fast("h20?scale=4096&seed=1&h2d=100TB/s");
  CHECK(!emu::host_limited(slow.ordinal));
  CHECK(emu::host_limited(fast.ordinal));
}

TEST(behaviour_11_sticky_error) {
  Opened other;
  Opened device;
  const auto& table = device.table;
  make_sticky(device);
  for (const auto& [call, status] : call_all(returns_sticky)) {
    if (status != cu::kIllegalAddress) fail(__FILE__, __LINE__, std::string(cu::info(call).field));
  }
  CHECK_EQ(table.ctx_push_current(other.context), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(table.ctx_pop_current(nullptr), 0);
}

TEST(behaviour_11_a_new_context_is_well) {
  Opened device;
  const auto& table = device.table;
  const auto stream = device.stream();
  make_sticky(device);
  CHECK_EQ(table.stream_synchronize(stream), cu::kIllegalAddress);
  CHECK_EQ(table.primary_ctx_release(device.ordinal), 0);
  cu::Context fresh = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&fresh, device.ordinal), 0);
  CHECK(fresh != device.context);
  CHECK_EQ(table.ctx_synchronize(), cu::kContextIsDestroyed);
  CHECK_EQ(table.ctx_set_current(fresh), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(table.stream_synchronize(stream), cu::kContextIsDestroyed);
}

TEST(behaviour_25_retain_and_release_are_counted) {
  Opened device;
  const auto& table = device.table;
  cu::Context again = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&again, device.ordinal), 0);
  CHECK(again == device.context);
  CHECK_EQ(table.primary_ctx_release(device.ordinal), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(table.primary_ctx_release(device.ordinal), 0);
  CHECK_EQ(table.ctx_synchronize(), cu::kContextIsDestroyed);
  CHECK_EQ(table.primary_ctx_release(device.ordinal), cu::kInvalidContext);
  CHECK_EQ(table.ctx_set_current(device.context), cu::kContextIsDestroyed);
}

TEST(behaviour_25_reset_invalidates) {
  Opened device;
  const auto& table = device.table;
  HostBuffer host(4096, 7);
  CHECK_EQ(device.pin(host), 0);
  const auto stream = device.stream();
  const auto event = device.event();
  const auto address = device.memory();
  CHECK_EQ(emu::census(device.ordinal).registrations, 1U);
  // Another library's doing, on its own thread.
  std::thread([&] { CHECK_EQ(table.primary_ctx_reset(device.ordinal), 0); }).join();
  const auto left = emu::census(device.ordinal);
  CHECK_EQ(left.registrations, 0U);
  CHECK_EQ(left.streams, 0U);
  CHECK_EQ(left.events, 0U);
  CHECK_EQ(left.mappings, 1U);
  CHECK_EQ(table.stream_query(stream), cu::kContextIsDestroyed);
  CHECK_EQ(table.event_record(event, stream), cu::kContextIsDestroyed);
  CHECK_EQ(table.memcpy_htod_async(address, host.data, 16, stream), cu::kContextIsDestroyed);
  CHECK_EQ(table.mem_unmap(address, device.spec.block_bytes), cu::kContextIsDestroyed);
  CHECK_EQ(device.pin(host), cu::kContextIsDestroyed);
  cu::Context fresh = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&fresh, device.ordinal), 0);
  CHECK_EQ(table.ctx_set_current(fresh), 0);
  CHECK_EQ(table.stream_query(stream), cu::kContextIsDestroyed);
  CHECK_EQ(table.stream_destroy(stream), cu::kContextIsDestroyed);
  CHECK_EQ(table.event_destroy(event), cu::kContextIsDestroyed);
  CHECK_EQ(table.mem_host_unregister(host.data), cu::kHostMemoryNotRegistered);
  CHECK_EQ(device.pin(host), 0);
  CHECK_EQ(table.mem_unmap(address, device.spec.block_bytes), 0);
}

TEST(behaviour_25_reset_with_work_pending) {
  Opened device(kGated);
  const auto& table = device.table;
  HostBuffer host(65536, 7);
  const auto address = device.memory(4);
  CHECK_EQ(device.pin(host), 0);
  for (int i = 0; i < 20; ++i) {
    CHECK_EQ(table.memcpy_htod_async(address, host.data, 16384, device.stream()), 0);
  }
  CHECK_EQ(table.primary_ctx_reset(device.ordinal), 0);
  CHECK_EQ(table.ctx_synchronize(), cu::kContextIsDestroyed);
}

// One lock for the whole process: two registrations, on two devices, take the sum of their times.
TEST(behaviour_25_registrations_exclude_each_other) {
  const auto text = std::string(kSmall) + "&register=20ms";
  Opened a(text);
  Opened b(text);
  const auto begin_ns = a.table.now_ns();
  std::vector<std::thread> threads;
  for (Opened* device : {&a, &b}) {
    threads.emplace_back([device] {
      HostBuffer host(4096);
      CHECK_EQ(device->table.ctx_push_current(device->context), 0);
      CHECK_EQ(device->pin(host), 0);
      CHECK_EQ(device->table.mem_host_unregister(host.data), 0);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(a.table.now_ns() - begin_ns >= 40'000'000);
}

TEST(capture_mode_is_per_thread) {
  const Opened device;
  const auto& table = device.table;
  int mode = cu::kCaptureModeRelaxed;
  CHECK_EQ(table.thread_exchange_capture_mode(&mode), 0);
  CHECK_EQ(mode, 0);
  std::thread([&] {
    int its = 1;
    CHECK_EQ(table.thread_exchange_capture_mode(&its), 0);
    CHECK_EQ(its, 0);
  }).join();
  CHECK_EQ(table.thread_exchange_capture_mode(&mode), 0);
  CHECK_EQ(mode, cu::kCaptureModeRelaxed);
  mode = 3;
  CHECK_EQ(table.thread_exchange_capture_mode(&mode), cu::kInvalidValue);
}

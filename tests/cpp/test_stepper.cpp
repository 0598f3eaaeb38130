// The seeded stepper: any legal order, nothing but the seed decides, and no real time passes.
#include <set>
#include <thread>

#include "kernels.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr std::size_t kBlock = 16384;

std::string stepped(int seed, const char* more = "") {
  return "h20?scale=4096&engine=stepped&seed=" + std::to_string(seed) + more;
}

// Copies, kernels and events on four streams, some ordered; the digest of the order they ran in.
std::uint64_t order_of(int seed) {
  Opened device(stepped(seed));
  const Kernels kernels(device);
  const auto& table = device.table;
  const auto address = device.memory(4);
  HostBuffer host(4 * kBlock);
  CHECK_EQ(device.pin(host), 0);
  const cu::Stream streams[] = {device.stream(), device.stream(), device.stream(),
                                device.stream(cu::kStreamDefault)};
  const auto event = device.event();
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t i : {0, 1, 2, 3}) {
      const auto at = i * kBlock;
      CHECK_EQ(table.memcpy_htod_async(address + at, host.data + at, kBlock, streams[i]), 0);
      CHECK_EQ(table.event_record(event, streams[i]), 0);
      CHECK_EQ(table.stream_wait_event(streams[(i + 1) % 4], event, 0), 0);
      CHECK_EQ(kernels.write("weave_add", address + at, kBlock, 1, streams[i]), 0);
      CHECK_EQ(table.memcpy_dtoh_async(host.data + at, address + at, kBlock, streams[i]), 0);
    }
    CHECK_EQ(table.memset_d8_async(address, 0, kBlock, nullptr), 0);
  }
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
  return emu::order_digest(device.ordinal);
}

}  // namespace

TEST(the_same_seed_gives_the_same_order) {
  std::set<std::uint64_t> orders;
  for (int seed = 1; seed <= 10; ++seed) {
    const auto order = order_of(seed);
    CHECK_EQ(order, order_of(seed));
    orders.insert(order);
  }
  CHECK_EQ(orders.size(), 10U);
}

// 16 KiB at 1 KB/s: sixteen modelled seconds in which nothing sleeps.
TEST(time_is_modelled) {
  Opened device(stepped(1, "&h2d=1KB/s&copy=1s&map=10s"));
  const auto& table = device.table;
  const auto before_ns = table.now_ns();
  const auto address = device.memory();
  CHECK(table.now_ns() - before_ns >= 10'000'000'000);
  HostBuffer host(kBlock);
  CHECK_EQ(device.pin(host), 0);
  const cu::Event events[] = {device.event(), device.event()};
  CHECK_EQ(table.event_record(events[0], nullptr), 0);
  const auto begin_ns = table.now_ns();
  CHECK_EQ(table.memcpy_htod_async(address, host.data, kBlock, nullptr), 0);
  CHECK_EQ(table.event_record(events[1], nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK(table.now_ns() - begin_ns >= 17'000'000'000);
  CHECK(device.elapsed_ms(events[0], events[1]) >= 16384.0F);
  const auto deadline_ns = table.now_ns() + 3'600'000'000'000;
  table.sleep_until_ns(deadline_ns);
  CHECK_EQ(table.now_ns(), deadline_ns);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
}

// Two writers of one block: without order their bytes may mix; an event decides it.
TEST(what_nothing_orders_ends_in_any_order) {
  std::set<int> ends;  // 3: some bytes of each
  for (int seed = 1; seed <= 40; ++seed) {
    for (const bool ordered : {false, true}) {
      Opened device(stepped(seed));
      const Kernels kernels(device);
      const auto& table = device.table;
      const auto address = device.memory();
      HostBuffer first(kBlock, 1);
      HostBuffer target(kBlock);
      CHECK_EQ(device.pin(first), 0);
      const cu::Stream streams[] = {device.stream(), device.stream()};
      const auto event = device.event();
      CHECK_EQ(table.memcpy_htod_async(address, first.data, kBlock, streams[0]), 0);
      CHECK_EQ(table.event_record(event, streams[0]), 0);
      if (ordered) CHECK_EQ(table.stream_wait_event(streams[1], event, 0), 0);
      CHECK_EQ(kernels.write("weave_fill", address, kBlock, 2, streams[1]), 0);
      CHECK_EQ(table.ctx_synchronize(), 0);
      CHECK_EQ(table.memcpy_dtoh_async(target.data, address, kBlock, nullptr), 0);
      CHECK_EQ(table.ctx_synchronize(), 0);
      const int end = target.holds(1) ? 1 : target.holds(2) ? 2 : 3;
      if (ordered) CHECK_EQ(end, 2);
      ends.insert(end);
      CHECK_EQ(table.mem_host_unregister(first.data), 0);
    }
  }
  CHECK(ends.contains(2) && ends.contains(3));
}

TEST(a_full_stream_and_polling_drive_it) {
  Opened device(stepped(3));
  const auto& table = device.table;
  const auto address = device.memory();
  const auto stream = device.stream();
  const auto event = device.event();
  for (int i = 0; i < 2500; ++i) {
    CHECK_EQ(table.memset_d8_async(address, static_cast<unsigned char>(i), 64, stream), 0);
  }
  CHECK_EQ(table.stream_query(stream), cu::kNotReady);
  CHECK_EQ(table.event_record(event, stream), 0);
  int asked = 0;
  while (table.event_query(event) == cu::kNotReady) ++asked;
  CHECK(asked > 100);
  while (table.stream_query(stream) == cu::kNotReady) ++asked;
  emu::host_view(address, true);
  CHECK_EQ(int{*reinterpret_cast<const volatile unsigned char*>(address)}, 2499 % 256);
}

// A stream waits for work of another stepped device, and of one with engine threads.
TEST(waits_cross_devices) {
  for (const auto& spec : {stepped(5), std::string(kSmall)}) {
    Opened other(spec);
    const auto source = other.memory();
    const auto first = other.stream();
    const auto event = other.event();
    HostBuffer host(kBlock);
    CHECK_EQ(other.pin(host), 0);
    CHECK_EQ(other.table.memset_d8_async(source, 4, kBlock, first), 0);
    CHECK_EQ(other.table.memcpy_dtoh_async(host.data, source, kBlock, first), 0);
    CHECK_EQ(other.table.event_record(event, first), 0);
    Opened device(stepped(6));
    const auto target = device.memory();
    const auto second = device.stream();
    CHECK_EQ(device.table.stream_wait_event(second, event, 0), 0);
    CHECK_EQ(device.table.memcpy_htod_async(target, host.data, kBlock, second), 0);
    CHECK_EQ(device.table.stream_synchronize(second), 0);
    emu::host_view(target, true);
    CHECK_EQ(int{reinterpret_cast<const volatile unsigned char*>(target)[kBlock - 1]}, 4);
    CHECK_EQ(other.table.mem_host_unregister(host.data), 0);
  }
}

// An unmap either waits or leaves the copy to fault; the seed decides, as with engine threads.
TEST(an_unmap_waits_by_seed) {
  std::set<cu::Status> ends;
  for (int seed = 1; seed <= 20; ++seed) {
    Opened device(stepped(seed));
    const auto& table = device.table;
    const auto address = device.memory();
    CHECK_EQ(table.memset_d8_async(address, 1, kBlock, device.stream()), 0);
    CHECK_EQ(table.mem_unmap(address, kBlock), 0);
    ends.insert(table.ctx_synchronize());
  }
  CHECK((ends == std::set<cu::Status>{cu::kSuccess, cu::kIllegalAddress}));
}

// What has begun when the device goes ends with it; nothing waits for ever.
TEST(removing_a_device_in_the_middle) {
  for (int seed = 1; seed <= 20; ++seed) {
    Opened device(stepped(seed));
    const auto address = device.memory(4);
    HostBuffer host(4 * kBlock);
    CHECK_EQ(device.pin(host), 0);
    const auto stream = device.stream();
    for (std::size_t i = 0; i < 4; ++i) {
      const auto at = i * kBlock;
      CHECK_EQ(
          device.table.memcpy_htod_async(address + at, host.data + at, kBlock, device.stream()), 0);
      CHECK_EQ(device.table.memcpy_dtoh_async(host.data + at, address + at, kBlock, stream), 0);
    }
    for (int i = 0; i < seed; ++i) device.table.stream_query(stream);
  }
}

TEST(several_threads_drive_it) {
  Opened device(stepped(9));
  const auto& table = device.table;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      table.ctx_push_current(device.context);
      const auto address = device.memory();
      HostBuffer host(kBlock, static_cast<unsigned char>(thread + 1));
      HostBuffer back(kBlock);
      device.pin(host);
      device.pin(back);
      const auto stream = device.stream();
      for (int round = 0; round < 50; ++round) {
        std::memset(back.data, 0, kBlock);
        wrong += table.memcpy_htod_async(address, host.data, kBlock, stream);
        wrong += table.memcpy_dtoh_async(back.data, address, kBlock, stream);
        wrong += table.stream_synchronize(stream);
        wrong += back.holds(static_cast<unsigned char>(thread + 1)) ? 0 : 1;
      }
      table.mem_host_unregister(host.data);
      table.mem_host_unregister(back.data);
      table.ctx_pop_current(nullptr);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

// Copies on the emulated device: behaviours 16 and 21, and the modelled clock.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "emulated.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr std::size_t kBlock = 16384;

void check_near(double got, double wanted, int line) {
  if (std::abs(got - wanted) <= wanted * 1e-3) return;
  fail(__FILE__, line, std::to_string(got) + " ms, not " + std::to_string(wanted));
}

}  // namespace

TEST(copies_move_bytes) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory(4);
  HostBuffer source(4 * kBlock);
  HostBuffer target(4 * kBlock);
  for (std::size_t i = 0; i < source.bytes; ++i) source.data[i] = static_cast<unsigned char>(i * 7);
  CHECK_EQ(device.pin(source), 0);
  CHECK_EQ(device.pin(target), 0);
  const auto stream = device.stream();
  // Neither side aligned, over three mappings.
  CHECK_EQ(table.memcpy_htod_async(address + 100, source.data + 3, 2 * kBlock + 50, stream), 0);
  CHECK_EQ(table.memset_d8_async(address + 110, 9, kBlock, stream), 0);
  CHECK_EQ(table.memcpy_dtoh_async(target.data + 1, address + 100, 2 * kBlock + 50, stream), 0);
  CHECK_EQ(table.memcpy_htod_async(address, source.data, 0, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK_EQ(table.stream_query(stream), 0);
  CHECK(std::equal(target.data + 1, target.data + 11, source.data + 3));
  for (std::size_t i = 0; i < kBlock; ++i) CHECK_EQ(int{target.data[11 + i]}, 9);
  CHECK(std::equal(target.data + 11 + kBlock, target.data + 1 + 2 * kBlock + 50,
                   source.data + 13 + kBlock));
  CHECK_EQ(int{target.data[0]}, 0);
  CHECK_EQ(int{target.data[2 * kBlock + 51]}, 0);
  CHECK_EQ(table.memcpy_htod_async(address, nullptr, 1, stream), cu::kInvalidValue);
}

TEST(behaviour_16_pageable_to_device_returns_after_staging) {
  Opened device(kGated);
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer source(kBlock, 1);
  HostBuffer target(kBlock, 0);
  CHECK_EQ(device.pin(target), 0);
  const auto stream = device.stream();
  Gate gate(device, 50);
  gate.hold(stream);
  CHECK_EQ(table.memcpy_htod_async(address, source.data, kBlock, stream), 0);
  CHECK(gate.is_held(table.stream_query(stream)));
  std::memset(source.data, 2, kBlock);
  CHECK_EQ(table.memcpy_dtoh_async(target.data, address, kBlock, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK(target.holds(1));
  CHECK_EQ(emu::census(device.ordinal).pageable_copies, 1U);
  CHECK_EQ(table.mem_host_unregister(target.data), 0);
}

TEST(behaviour_16_pageable_to_host_returns_after_completion) {
  Opened device(kGated);
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer target(kBlock, 0);
  const auto stream = device.stream();
  Gate gate(device, 20);
  gate.hold(stream);
  CHECK_EQ(table.memset_d8_async(address, 6, kBlock, stream), 0);
  CHECK_EQ(table.memcpy_dtoh_async(target.data, address, kBlock, stream), 0);
  CHECK(table.now_ns() >= gate.open_ns);
  CHECK(target.holds(6));
  CHECK_EQ(emu::census(device.ordinal).pageable_copies, 1U);
}

TEST(behaviour_16_pageable_is_slow) {
  Opened device("h20?scale=4096&seed=1&h2d=100MB/s&pageable=1MB/s");
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer source(kBlock, 1);
  const auto stream = device.stream();
  const cu::Event events[] = {device.event(), device.event(), device.event()};
  CHECK_EQ(table.memset_d8_async(address, 6, 1, stream), 0);
  CHECK_EQ(table.event_record(events[0], stream), 0);
  CHECK_EQ(table.memcpy_htod_async(address, source.data, kBlock, stream), 0);
  CHECK_EQ(table.event_record(events[1], stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK(device.elapsed_ms(events[0], events[1]) >= 16.38F);
}

// Both streams are released at one modelled instant, so the times are exact however late the
// threads of this host are.
TEST(behaviour_21_one_copy_per_direction_at_a_time) {
  Opened device("h20?scale=4096&h2d=1MB/s&d2h=1MB/s&seed=3");
  const auto& table = device.table;
  const auto address = device.memory(2);
  HostBuffer host(2 * kBlock);
  CHECK_EQ(device.pin(host), 0);
  Gate gate(device, 10);
  const cu::Event events[] = {device.event(), device.event()};
  for (const std::size_t i : {0, 1}) {
    const auto stream = device.stream();
    gate.hold(stream);
    const auto at = i * kBlock;
    CHECK_EQ(table.memcpy_htod_async(address + at, host.data + at, kBlock, stream), 0);
    CHECK_EQ(table.event_record(events[i], stream), 0);
  }
  CHECK_EQ(table.ctx_synchronize(), 0);
  const double one_ms = kBlock / 1e6 * 1e3;
  const double times[] = {device.elapsed_ms(gate.event, events[0]),
                          device.elapsed_ms(gate.event, events[1])};
  check_near(std::min(times[0], times[1]), one_ms, __LINE__);
  check_near(std::max(times[0], times[1]), 2 * one_ms, __LINE__);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
}

TEST(behaviour_21_both_directions_share_the_link) {
  Opened device("h20?scale=4096&h2d=1MB/s&d2h=1MB/s&duplex=0.5&seed=3");
  const auto& table = device.table;
  const auto address = device.memory(2);
  HostBuffer host(2 * kBlock);
  CHECK_EQ(device.pin(host), 0);
  Gate gate(device, 10);
  const cu::Stream streams[] = {device.stream(), device.stream()};
  const cu::Event events[] = {device.event(), device.event()};
  gate.hold(streams[0]);
  gate.hold(streams[1]);
  CHECK_EQ(table.memcpy_htod_async(address, host.data, kBlock, streams[0]), 0);
  CHECK_EQ(table.memcpy_dtoh_async(host.data + kBlock, address + kBlock, kBlock, streams[1]), 0);
  CHECK_EQ(table.event_record(events[0], streams[0]), 0);
  CHECK_EQ(table.event_record(events[1], streams[1]), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  const double both_ms = kBlock / 1e6 / 0.5 * 1e3;
  check_near(device.elapsed_ms(gate.event, events[0]), both_ms, __LINE__);
  check_near(device.elapsed_ms(gate.event, events[1]), both_ms, __LINE__);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
}

// A fill stays on the device: it neither takes from the link nor gives.
TEST(behaviour_21_a_fill_does_not_use_the_link) {
  Opened device("h20?scale=4096&h2d=1MB/s&d2h=1MB/s&duplex=0.5&seed=3");
  const auto& table = device.table;
  const auto address = device.memory(2);
  HostBuffer host(kBlock);
  CHECK_EQ(device.pin(host), 0);
  Gate gate(device, 10);
  const cu::Stream streams[] = {device.stream(), device.stream()};
  const cu::Event events[] = {device.event(), device.event()};
  gate.hold(streams[0]);
  gate.hold(streams[1]);
  CHECK_EQ(table.memset_d8_async(address, 1, kBlock, streams[0]), 0);
  CHECK_EQ(table.memcpy_dtoh_async(host.data, address + kBlock, kBlock, streams[1]), 0);
  CHECK_EQ(table.event_record(events[0], streams[0]), 0);
  CHECK_EQ(table.event_record(events[1], streams[1]), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  const double one_ms = kBlock / 1e6 * 1e3;
  check_near(device.elapsed_ms(gate.event, events[0]), one_ms / 10, __LINE__);
  check_near(device.elapsed_ms(gate.event, events[1]), one_ms, __LINE__);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
}

TEST(behaviour_21_two_engines_share_one_direction) {
  Opened device("h20?scale=4096&h2d=1MB/s&d2h=1MB/s&engines=2&seed=3");
  const auto& table = device.table;
  const auto address = device.memory(2);
  HostBuffer host(2 * kBlock);
  CHECK_EQ(device.pin(host), 0);
  Gate gate(device, 10);
  const cu::Event events[] = {device.event(), device.event()};
  for (const std::size_t i : {0, 1}) {
    const auto stream = device.stream();
    gate.hold(stream);
    const auto at = i * kBlock;
    CHECK_EQ(table.memcpy_htod_async(address + at, host.data + at, kBlock, stream), 0);
    CHECK_EQ(table.event_record(events[i], stream), 0);
  }
  CHECK_EQ(table.ctx_synchronize(), 0);
  const double one_ms = kBlock / 1e6 * 1e3;
  for (const auto event : events) CHECK(device.elapsed_ms(gate.event, event) >= one_ms * 0.999);
  CHECK_EQ(table.mem_host_unregister(host.data), 0);
}

TEST(behaviour_21_a_full_stream_blocks_submission) {
  Opened device(kGated);
  const auto& table = device.table;
  const auto stream = device.stream();
  const auto event = device.event();
  Gate gate(device, 100);
  gate.hold(stream);
  for (int i = 0; i < 990; ++i) CHECK_EQ(table.event_record(event, stream), 0);
  CHECK(gate.is_held(table.stream_query(stream)));
  for (int i = 0; i < 20; ++i) CHECK_EQ(table.event_record(event, stream), 0);
  CHECK(table.now_ns() >= gate.open_ns);
  CHECK_EQ(table.stream_synchronize(stream), 0);
}

TEST(completion_is_never_early) {
  Opened device("h20?scale=4096&h2d=50MB/s&d2h=50MB/s&seed=2");
  const auto& table = device.table;
  constexpr std::size_t kBytes = std::size_t{5} << 19;  // pieces of 1, 1 and 0.5 MiB
  const auto address = device.memory(1, kBytes);
  HostBuffer host(kBytes, 3);
  CHECK_EQ(device.pin(host), 0);
  const auto begin_ns = table.now_ns();
  CHECK_EQ(table.memcpy_htod_async(address, host.data, kBytes, nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK(table.now_ns() - begin_ns >= std::int64_t{kBytes} * 20);
  std::memset(host.data, 0, kBytes);
  CHECK_EQ(table.memcpy_dtoh_async(host.data, address, kBytes, nullptr), 0);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK(host.holds(3));
  CHECK(table.now_ns() - begin_ns >= std::int64_t{kBytes} * 40);
}

// Consecutive copies of one stream lose no modelled time between them.
TEST(modelled_time_is_contiguous) {
  Opened device("h20?scale=4096&h2d=10MB/s&seed=2");
  const auto& table = device.table;
  const auto address = device.memory(4);
  HostBuffer host(4 * kBlock, 3);
  CHECK_EQ(device.pin(host), 0);
  const auto stream = device.stream();
  const cu::Event events[] = {device.event(), device.event()};
  Gate gate(device, 1);
  gate.hold(stream);
  CHECK_EQ(table.event_record(events[0], stream), 0);
  for (std::size_t at = 0; at < host.bytes; at += kBlock) {
    CHECK_EQ(table.memcpy_htod_async(address + at, host.data + at, kBlock, stream), 0);
  }
  CHECK_EQ(table.event_record(events[1], stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK(device.elapsed_ms(events[0], events[1]) >= 6.55F);
}

TEST(run_next_has_nothing_to_do_on_an_idle_device) {
  const Opened device;
  CHECK(!emu::run_next(device.ordinal, emu::kToDevice));
  CHECK(!emu::run_next(device.ordinal, emu::kToHost));
  CHECK_THROWS(emu::run_next(device.ordinal, 2), UsageError, "direction");
}

TEST(removing_a_device_drops_its_pending_work) {
  HostBuffer host(kBlock);
  Opened device(kGated);
  CHECK_EQ(device.pin(host), 0);
  const auto address = device.memory();
  for (int i = 0; i < 50; ++i) {
    CHECK_EQ(device.table.memcpy_htod_async(address, host.data, kBlock, device.stream()), 0);
  }
}

// The engine's own pattern, random sizes: out to the host, and one step behind it in to the same
// block, on two streams ordered by events. Run by several threads beside mapping calls.
TEST(threads_copy_beside_mapping) {
  Opened device("h20?scale=4096&speed=500&seed=5&copy=0&map=0&unmap=0&access=0&create=0");
  const auto& table = device.table;
  constexpr int kThreads = 3;
  constexpr int kRounds = 40;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::minstd_rand random(static_cast<unsigned>(thread) + 1);
      table.ctx_push_current(device.context);
      const auto address = device.memory();
      HostBuffer out(kBlock);
      HostBuffer in(kBlock);
      device.pin(out);
      device.pin(in);
      const auto leaving = device.stream();
      const auto entering = device.stream();
      const auto event = device.event(cu::kEventDisableTiming);
      int expected = 0;
      CHECK_EQ(table.memset_d8_async(address, 0, kBlock, leaving), 0);
      for (int round = 0; round < kRounds; ++round) {
        const std::size_t bytes = 1 + random() % kBlock;
        std::memset(in.data, round + 1, kBlock);
        wrong += table.memcpy_dtoh_async(out.data, address, bytes, leaving);
        wrong += table.event_record(event, leaving);
        wrong += table.stream_wait_event(entering, event, 0);
        wrong += table.memcpy_htod_async(address, in.data, kBlock, entering);
        wrong += table.stream_synchronize(entering);
        for (std::size_t i = 0; i < bytes; ++i) wrong += out.data[i] == expected ? 0 : 1;
        expected = round + 1;
        // What another thread does meanwhile.
        const auto scratch = device.memory();
        wrong += table.mem_unmap(scratch, kBlock);
        wrong += table.mem_address_free(scratch, kBlock);
      }
      // An unmap must not pull memory away from under another thread's copies.
      wrong += table.stream_destroy(leaving) + table.stream_destroy(entering);
      wrong += table.mem_host_unregister(out.data) + table.mem_host_unregister(in.data);
      wrong += table.event_destroy(event);
      table.ctx_pop_current(nullptr);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  const auto census = emu::census(device.ordinal);
  CHECK_EQ(census.mappings, std::uint64_t{kThreads});
  CHECK_EQ(census.descriptors, std::uint64_t{kThreads});
  CHECK_EQ(census.pageable_copies, 0U);
}

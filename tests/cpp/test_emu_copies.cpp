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

// One call with one set of attributes.
struct Batch {
  std::vector<cu::DevicePtr> targets, sources;
  std::vector<std::size_t> sizes;
  cu::MemcpyAttributes attributes{cu::kSourceOrderStream, {}, {}, 0};
  std::size_t first = 0;
  std::size_t failed = 77;

  void add(cu::DevicePtr target, const void* source, std::size_t bytes) {
    targets.push_back(target);
    sources.push_back(reinterpret_cast<cu::DevicePtr>(source));
    sizes.push_back(bytes);
  }
  void add(void* target, cu::DevicePtr source, std::size_t bytes) {
    add(reinterpret_cast<cu::DevicePtr>(target), reinterpret_cast<const void*>(source), bytes);
  }
  cu::Status submit(const cu::Table& table, cu::Stream stream) {
    return table.memcpy_batch_async(targets.data(), sources.data(), sizes.data(), sizes.size(),
                                    &attributes, &first, 1, &failed, stream);
  }
};

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

TEST(behaviour_26_a_batch_moves_everything_in_stream_order) {
  // A call takes a second, on a clock on which no real time passes.
  Opened device("h20?scale=4096&speed=50&engine=stepped&seed=1&copy=1s");
  const auto& table = device.table;
  const auto address = device.memory(4);
  HostBuffer source(4 * kBlock);
  HostBuffer target(4 * kBlock, 0xEE);
  for (std::size_t i = 0; i < source.bytes; ++i) source.data[i] = static_cast<unsigned char>(i * 7);
  CHECK_EQ(device.pin(source), 0);
  CHECK_EQ(device.pin(target), 0);
  const auto stream = device.stream();
  Batch in;
  Batch out;
  constexpr std::size_t kPieces = 64;
  constexpr std::size_t kPiece = 4 * kBlock / kPieces;  // of which a gap is left
  for (std::size_t i = 0; i < kPieces; ++i) {
    in.add(address + i * kPiece, source.data + i * kPiece, kPiece - 24);
    out.add(target.data + i * kPiece, address + i * kPiece, kPiece - 24);
  }
  const auto began = table.now_ns();
  CHECK_EQ(table.memset_d8_async(address, 3, 4 * kBlock, stream), 0);
  CHECK_EQ(in.submit(table, stream), 0);
  CHECK_EQ(out.submit(table, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  // Three calls, not 129.
  CHECK(table.now_ns() - began < 4'000'000'000);
  for (std::size_t i = 0; i < target.bytes; ++i) {
    CHECK_EQ(int{target.data[i]}, i % kPiece < kPiece - 24 ? int{source.data[i]} : 0xEE);
  }
  CHECK_EQ(emu::census(device.ordinal).pageable_copies, 0u);
}

TEST(behaviour_26_copies_of_a_batch_are_made_in_any_order) {
  bool first_came_late = false;
  bool first_came_early = false;
  for (int seed = 1; seed <= 12; ++seed) {
    Opened device("h20?scale=4096&speed=50&engine=stepped&seed=" + std::to_string(seed));
    const auto& table = device.table;
    const auto address = device.memory(1);
    HostBuffer source(kBlock, 5);
    CHECK_EQ(device.pin(source), 0);
    const auto stream = device.stream();
    emu::host_view(address, true);
    const auto* bytes = reinterpret_cast<const volatile unsigned char*>(address);
    Batch batch;
    for (std::size_t i = 0; i < 4; ++i) batch.add(address + i * 64, source.data + i * 64, 64);
    CHECK_EQ(batch.submit(table, stream), 0);
    while (bytes[0] == 0 && bytes[255] == 0) CHECK(emu::run_next(device.ordinal, 0));
    (bytes[0] == 0 ? first_came_late : first_came_early) = true;
    CHECK_EQ(table.stream_synchronize(stream), 0);
    for (std::size_t i = 0; i < 256; ++i) CHECK_EQ(int{bytes[i]}, 5);
  }
  CHECK(first_came_late && first_came_early);
}

TEST(behaviour_26_one_invalid_copy_refuses_the_batch) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory(2);
  HostBuffer source(2 * kBlock, 5);
  HostBuffer target(2 * kBlock, 0);
  HostBuffer other(kBlock, 5);
  CHECK_EQ(device.pin(target), 0);
  // Only the first half of the source is registered.
  CHECK_EQ(table.mem_host_register(source.data, kBlock, cu::kHostRegisterPortable), 0);
  const auto stream = device.stream();
  CHECK_EQ(table.memset_d8_async(address, 1, 2 * kBlock, stream), 0);
  Batch beyond;
  beyond.add(address, source.data, 64);
  beyond.add(address + 64, source.data + kBlock - 32, 64);
  beyond.add(address + 128, source.data + 128, 64);
  CHECK_EQ(beyond.submit(table, stream), cu::kInvalidValue);
  CHECK_EQ(beyond.failed, 1u);
  Batch empty;
  empty.add(address, source.data, 64);
  empty.add(address + 64, source.data + 64, 0);
  CHECK_EQ(empty.submit(table, stream), cu::kInvalidValue);
  CHECK_EQ(empty.failed, 1u);
  Batch elsewhere;
  elsewhere.add(address, reinterpret_cast<const void*>(address + kBlock), 64);
  CHECK_EQ(elsewhere.submit(table, stream), cu::kNotSupported);
  CHECK_EQ(table.memcpy_dtoh_async(target.data, address, 2 * kBlock, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK(target.holds(1));
  // Nothing counts as in flight.
  CHECK_EQ(table.mem_host_unregister(source.data), 0);
  // Pageable is legal, and slow.
  Batch pageable;
  pageable.add(address, other.data, kBlock);
  CHECK_EQ(pageable.submit(table, stream), 0);
  Batch back;
  back.add(other.data, address + kBlock, kBlock);
  CHECK_EQ(back.submit(table, stream), 0);
  CHECK(other.holds(1));
  CHECK_EQ(emu::census(device.ordinal).pageable_copies, 2u);
}

TEST(behaviour_26_refusals) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer source(kBlock, 5);
  CHECK_EQ(device.pin(source), 0);
  const auto stream = device.stream();
  Batch batch;
  for (std::size_t i = 0; i < 4; ++i) batch.add(address + i * 64, source.data + i * 64, 64);
  const auto legacy = reinterpret_cast<cu::Stream>(std::uint64_t{1});
  for (const cu::Stream refused : {cu::Stream{nullptr}, legacy}) {
    CHECK_EQ(batch.submit(table, refused), cu::kInvalidValue);
    CHECK_EQ(batch.failed, ~std::size_t{0});
  }
  const auto submit = [&](std::vector<std::size_t> first, std::size_t count, int order,
                          std::size_t* failed) {
    std::vector<cu::MemcpyAttributes> attributes(first.size(), {order, {}, {}, 0});
    return table.memcpy_batch_async(batch.targets.data(), batch.sources.data(), batch.sizes.data(),
                                    count, attributes.data(), first.data(), first.size(), failed,
                                    stream);
  };
  std::size_t failed = 0;
  const auto order = cu::kSourceOrderStream;
  CHECK_EQ(submit({}, 4, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({1}, 4, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0, 2, 2}, 4, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0, 4}, 4, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 4, cu::kSourceOrderInvalid, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 4, 4, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 0, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 4, order, nullptr), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 4, cu::kSourceOrderAny, &failed), cu::kNotSupported);
  CHECK_EQ(submit({0, 1, 3}, 4, order, &failed), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
}

TEST(behaviour_26_a_batch_cannot_be_captured) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer source(kBlock, 5);
  CHECK_EQ(device.pin(source), 0);
  const auto stream = device.stream();
  Batch batch;
  batch.add(address, source.data, 64);
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeRelaxed), 0);
  CHECK_EQ(batch.submit(table, stream), cu::kCaptureUnsupported);
  cu::Graph graph = nullptr;
  CHECK_EQ(table.stream_end_capture(stream, &graph), cu::kCaptureInvalidated);
  // Beside a capture of another stream it may run.
  const auto other = device.stream();
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeGlobal), 0);
  CHECK_EQ(batch.submit(table, other), 0);
  CHECK_EQ(table.stream_end_capture(stream, &graph), 0);
  CHECK_EQ(table.graph_destroy(graph), 0);
  CHECK_EQ(table.stream_synchronize(other), 0);
}

TEST(behaviour_26_copies_that_depend_on_each_other_abort) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer source(kBlock, 5);
  CHECK_EQ(device.pin(source), 0);
  const auto stream = device.stream();
  Batch twice;  // one target
  twice.add(address, source.data, 64);
  twice.add(address + 63, source.data + 64, 64);
  CHECK_ABORTS(twice.submit(table, stream), "depend on each other");
  Batch through;  // the second copy reads what the first one writes
  through.add(address, source.data, 64);
  through.add(source.data + 512, address, 64);
  CHECK_ABORTS(through.submit(table, stream), "depend on each other");
  Batch fanned;  // one source is fine
  fanned.add(address, source.data, 64);
  fanned.add(address + 64, source.data, 64);
  CHECK_EQ(fanned.submit(table, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
}

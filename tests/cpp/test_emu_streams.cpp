// Streams and events of the emulated driver: behaviours 17 to 20.
#include <cmath>

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

TEST(behaviour_17_null_stream_and_blocking_streams) {
  Opened device(kGated);
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer first(kBlock, 1);
  HostBuffer last(kBlock, 2);
  HostBuffer target(kBlock, 0);
  for (const auto* buffer : {&first, &last, &target}) CHECK_EQ(device.pin(*buffer), 0);
  const auto before = device.stream(cu::kStreamDefault);
  const auto after = device.stream(cu::kStreamDefault);
  const auto beside = device.stream(cu::kStreamNonBlocking);
  Gate gate(device, 30);
  gate.hold(before);
  CHECK_EQ(table.memcpy_htod_async(address, first.data, kBlock, before), 0);
  CHECK_EQ(table.memcpy_dtoh_async(target.data, address, kBlock, nullptr), 0);
  CHECK_EQ(table.memcpy_htod_async(address, last.data, kBlock, after), 0);
  const auto event = device.event();
  CHECK_EQ(table.event_record(event, beside), 0);
  CHECK_EQ(table.event_synchronize(event), 0);  // not held by the NULL stream
  CHECK(gate.is_held(table.stream_query(after)));
  CHECK(gate.is_held(table.stream_query(nullptr)));
  CHECK_EQ(table.stream_synchronize(nullptr), 0);
  CHECK(target.holds(1));
  CHECK_EQ(table.stream_synchronize(after), 0);
  CHECK_EQ(table.memcpy_dtoh_async(target.data, address, kBlock, after), 0);
  CHECK_EQ(table.stream_synchronize(nullptr), 0);  // the NULL stream waits for `after`
  CHECK(target.holds(2));
  for (const auto* buffer : {&first, &last, &target}) {
    CHECK_EQ(table.mem_host_unregister(buffer->data), 0);
  }
}

TEST(behaviour_17_two_streams_serialise_in_either_order) {
  int first = 0;
  constexpr int kSeeds = 16;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    Opened device("h20?scale=4096&h2d=1MB/s&d2h=10MB/s&seed=" + std::to_string(seed));
    const auto& table = device.table;
    const auto address = device.memory();
    HostBuffer target(2 * kBlock);
    CHECK_EQ(device.pin(target), 0);
    Gate gate(device, 5);
    const cu::Stream streams[] = {device.stream(), device.stream()};
    const cu::Event events[] = {device.event(), device.event()};
    for (const std::size_t i : {0, 1}) {
      gate.hold(streams[i]);
      CHECK_EQ(table.memcpy_dtoh_async(target.data + i * kBlock, address, kBlock, streams[i]), 0);
      CHECK_EQ(table.event_record(events[i], streams[i]), 0);
    }
    CHECK_EQ(table.ctx_synchronize(), 0);
    const float lead = device.elapsed_ms(events[0], events[1]);
    check_near(std::abs(lead), kBlock / 10e6 * 1e3, __LINE__);
    first += lead > 0 ? 1 : 0;
  }
  CHECK(first > 0);
  CHECK(first < kSeeds);
}

TEST(behaviour_18_destroy_with_work_pending) {
  Opened device(kGated);
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer target(kBlock);
  CHECK_EQ(device.pin(target), 0);
  const auto stream = device.stream();
  const auto event = device.event();
  Gate gate(device, 20);
  gate.hold(stream);
  CHECK_EQ(table.memset_d8_async(address, 8, kBlock, stream), 0);
  CHECK_EQ(table.event_record(event, stream), 0);
  const auto reader = device.stream();
  CHECK_EQ(table.stream_wait_event(reader, event, 0), 0);
  CHECK_EQ(table.memcpy_dtoh_async(target.data, address, kBlock, reader), 0);
  CHECK_EQ(table.stream_destroy(stream), 0);
  CHECK_EQ(table.event_destroy(event), 0);
  CHECK_EQ(table.stream_destroy(reader), 0);
  CHECK_EQ(table.stream_query(stream), cu::kInvalidHandle);
  CHECK_EQ(table.stream_synchronize(stream), cu::kInvalidHandle);
  CHECK_EQ(table.stream_destroy(stream), cu::kInvalidHandle);
  CHECK_EQ(table.memset_d8_async(address, 1, 1, stream), cu::kInvalidHandle);
  CHECK_EQ(table.event_query(event), cu::kInvalidHandle);
  CHECK_EQ(table.event_destroy(event), cu::kInvalidHandle);
  CHECK_EQ(table.stream_wait_event(nullptr, event, 0), cu::kInvalidHandle);
  CHECK_EQ(table.stream_query(reinterpret_cast<cu::Stream>(4096)), cu::kInvalidHandle);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK(target.holds(8));
  CHECK_EQ(emu::census(device.ordinal).streams, 1U);  // the gate's
  CHECK_EQ(table.mem_host_unregister(target.data), 0);
}

TEST(behaviour_18_blocking_stream_destroyed_before_the_null_stream) {
  Opened device(kGated);
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer target(kBlock);
  CHECK_EQ(device.pin(target), 0);
  const auto stream = device.stream(cu::kStreamDefault);
  Gate gate(device, 20);
  gate.hold(stream);
  CHECK_EQ(table.memset_d8_async(address, 8, kBlock, stream), 0);
  CHECK_EQ(table.stream_destroy(stream), 0);
  CHECK_EQ(table.memcpy_dtoh_async(target.data, address, kBlock, nullptr), 0);
  CHECK_EQ(table.stream_synchronize(nullptr), 0);
  CHECK(target.holds(8));
  CHECK_EQ(table.mem_host_unregister(target.data), 0);
}

TEST(behaviour_19_records_are_snapshots) {
  Opened device(kGated);
  const auto& table = device.table;
  const auto stream = device.stream();
  const auto event = device.event();
  // Never recorded: no obstacle to anybody.
  CHECK_EQ(table.event_query(event), 0);
  CHECK_EQ(table.event_synchronize(event), 0);
  CHECK_EQ(table.stream_wait_event(stream, event, 0), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK_EQ(table.stream_wait_event(stream, event, 7), cu::kInvalidValue);
  // A wait takes the latest record at the time of the call, not a later one.
  CHECK_EQ(table.event_record(event, stream), 0);
  const auto waiting = device.stream();
  CHECK_EQ(table.stream_wait_event(waiting, event, 0), 0);
  Gate gate(device, 40);
  gate.hold(stream);
  CHECK_EQ(table.event_record(event, stream), 0);
  CHECK(gate.is_held(table.event_query(event)));
  CHECK_EQ(table.stream_synchronize(waiting), 0);
  const auto held = device.stream();
  CHECK_EQ(table.stream_wait_event(held, event, 0), 0);
  CHECK(gate.is_held(table.stream_query(held)));
  CHECK_EQ(table.event_synchronize(event), 0);
  CHECK(table.now_ns() >= gate.open_ns);
}

TEST(behaviour_19_event_and_stream_of_different_contexts) {
  Opened device;
  const auto event = device.event();
  const auto stream = device.stream();
  Opened other;  // current
  const auto& table = device.table;
  CHECK_EQ(table.event_record(event, other.stream()), cu::kInvalidHandle);
  CHECK_EQ(table.event_record(event, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  const auto address = other.memory();
  CHECK_EQ(table.memset_d8_async(address, 1, 1, stream), cu::kInvalidHandle);
}

TEST(behaviour_19_wait_across_devices) {
  Opened device(kGated);
  Gate gate(device, 30);
  {
    Opened other;  // current
    const auto& table = other.table;
    const auto address = other.memory();
    HostBuffer target(kBlock);
    CHECK_EQ(other.pin(target), 0);
    const auto stream = other.stream();
    gate.hold(stream);
    CHECK_EQ(table.memset_d8_async(address, 4, kBlock, stream), 0);
    CHECK_EQ(table.memcpy_dtoh_async(target.data, address, kBlock, stream), 0);
    CHECK(gate.is_held(table.stream_query(stream)));
    CHECK_EQ(table.stream_synchronize(stream), 0);
    CHECK(table.now_ns() >= gate.open_ns);
    CHECK(target.holds(4));
    CHECK_EQ(table.mem_host_unregister(target.data), 0);
  }
}

TEST(behaviour_20_not_ready_is_no_error) {
  Opened device(kGated);
  const auto& table = device.table;
  const auto stream = device.stream();
  const cu::Event events[] = {device.event(), device.event()};
  const auto untimed = device.event(cu::kEventDisableTiming);
  float ms = 0;
  CHECK_EQ(table.event_elapsed_time(&ms, events[0], events[1]), cu::kInvalidHandle);
  CHECK_EQ(table.event_record(events[0], stream), 0);
  CHECK_EQ(table.event_elapsed_time(&ms, events[0], events[1]), cu::kInvalidHandle);
  Gate gate(device, 50);
  gate.hold(stream);
  CHECK_EQ(table.event_record(events[1], stream), 0);
  CHECK_EQ(table.event_record(untimed, stream), 0);
  CHECK(gate.is_held(table.event_elapsed_time(&ms, events[0], events[1])));
  CHECK(gate.is_held(table.stream_query(stream)));
  CHECK(gate.is_held(table.event_query(untimed)));
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK_EQ(table.event_query(events[1]), 0);
  CHECK(device.elapsed_ms(events[0], events[1]) >= 50.0F);
  CHECK_EQ(table.event_elapsed_time(&ms, events[0], untimed), cu::kInvalidHandle);
  CHECK_EQ(table.event_elapsed_time(nullptr, events[0], events[1]), cu::kInvalidValue);
  cu::Event event = nullptr;
  CHECK_EQ(table.event_create(&event, 64), cu::kInvalidValue);
  cu::Stream created = nullptr;
  CHECK_EQ(table.stream_create(&created, 2), cu::kInvalidValue);
}

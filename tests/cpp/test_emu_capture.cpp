// Stream capture of the emulated driver: behaviour 23.
#include <functional>
#include <thread>

#include "emulated.hpp"

using namespace weave;
using namespace weave::test;

namespace {

int mode_of_thread(const cu::Table& table, int mode) {
  CHECK_EQ(table.thread_exchange_capture_mode(&mode), 0);
  return mode;
}

int capture_status(const cu::Table& table, cu::Stream stream) {
  int status = -1;
  CHECK_EQ(table.stream_is_capturing(stream, &status), 0);
  return status;
}

// The status of a call made by another thread in that mode, with the context current.
template <class Call>
cu::Status elsewhere(const Opened& device, int mode, Call call) {
  cu::Status status = -1;
  std::thread([&] {
    device.table.ctx_push_current(device.context);
    mode_of_thread(device.table, mode);
    status = call();
    device.table.ctx_pop_current(nullptr);
  }).join();
  return status;
}

void end(const cu::Table& table, cu::Stream stream, cu::Status wanted) {
  cu::Graph graph = nullptr;
  CHECK_EQ(table.stream_end_capture(stream, &graph), wanted);
  CHECK((graph != nullptr) == (wanted == cu::kSuccess));
  if (graph != nullptr) CHECK_EQ(table.graph_destroy(graph), 0);
}

}  // namespace

TEST(behaviour_23_what_is_captured_does_not_run) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory();
  const auto stream = device.stream();
  const auto event = device.event();
  emu::host_view(address, true);
  CHECK_EQ(capture_status(table, stream), cu::kCaptureNone);
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeGlobal), 0);
  CHECK_EQ(capture_status(table, stream), cu::kCaptureActive);
  CHECK_EQ(table.memset_d8_async(address, 9, 16, stream), 0);
  CHECK_EQ(table.event_record(event, stream), 0);
  CHECK_EQ(table.stream_wait_event(stream, event, 0), 0);
  end(table, stream, cu::kSuccess);
  CHECK_EQ(table.ctx_synchronize(), 0);
  CHECK_EQ(int{*reinterpret_cast<const volatile unsigned char*>(address)}, 0);
  CHECK_EQ(table.memset_d8_async(address, 9, 16, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK_EQ(int{*reinterpret_cast<const volatile unsigned char*>(address)}, 9);
}

TEST(behaviour_23_refusals) {
  Opened device;
  const auto& table = device.table;
  const auto stream = device.stream();
  cu::Graph graph = nullptr;
  CHECK_EQ(table.stream_begin_capture(nullptr, cu::kCaptureModeGlobal), cu::kInvalidValue);
  CHECK_EQ(table.stream_begin_capture(stream, 3), cu::kInvalidValue);
  CHECK_EQ(table.stream_end_capture(stream, &graph), cu::kInvalidValue);
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeGlobal), 0);
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeGlobal), cu::kInvalidValue);
  CHECK_EQ(elsewhere(device, cu::kCaptureModeGlobal,
                     [&] { return table.stream_end_capture(stream, &graph); }),
           cu::kCaptureWrongThread);
  end(table, stream, cu::kSuccess);
  CHECK_EQ(table.graph_destroy(graph), cu::kInvalidValue);
  // Begun in the relaxed mode, any thread may end it.
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeRelaxed), 0);
  CHECK_EQ(elsewhere(device, cu::kCaptureModeGlobal,
                     [&] { return table.stream_end_capture(stream, &graph); }),
           0);
  CHECK_EQ(table.graph_destroy(graph), 0);
}

TEST(behaviour_23_an_unsafe_call_beside_a_global_capture) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory();
  const auto block = device.spec.block_bytes;
  const auto other = device.stream();
  const auto event = device.event();
  HostBuffer host(4096);
  const auto prop = prop_for(device.ordinal);
  const auto spare = device.reserve(block);
  const auto handle = device.create(block);
  cu::AllocHandle made = 0;
  const std::vector<std::function<cu::Status()>> unsafe = {
      [&] { return table.mem_create(&made, block, &prop, 0); },
      [&] { return table.mem_map(spare, block, 0, handle, 0); },
      [&] { return device.allow(address, block); },
      [&] { return table.mem_unmap(address, block); },
      [&] { return table.mem_release(handle); },
      [&] { return table.mem_address_free(spare, block); },
      [&] { return device.pin(host); },
      [&] { return table.mem_host_unregister(host.data); },
      [&] { return table.event_query(event); },
      [&] { return table.event_synchronize(event); },
      [&] { return table.stream_query(other); },
      [&] { return table.stream_synchronize(other); },
      [&] { return table.ctx_synchronize(); },
  };
  const auto census = emu::census(device.ordinal);
  for (const auto& call : unsafe) {
    const auto stream = device.stream();
    CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeGlobal), 0);
    CHECK_EQ(elsewhere(device, cu::kCaptureModeGlobal, call), cu::kCaptureUnsupported);
    CHECK_EQ(capture_status(table, stream), cu::kCaptureBroken);
    CHECK_EQ(table.memset_d8_async(address, 1, 16, stream), cu::kCaptureInvalidated);
    end(table, stream, cu::kCaptureInvalidated);
    CHECK_EQ(table.stream_destroy(stream), 0);
  }
  CHECK(emu::census(device.ordinal) == census);
}

// What decides is the mode of the calling thread and the mode that the capture was begun in.
TEST(behaviour_23_modes) {
  struct Row {
    int capture;
    int thread;
    bool own_thread;
    bool prohibited;
  };
  constexpr int kGlobal = cu::kCaptureModeGlobal;
  constexpr int kLocal = cu::kCaptureModeThreadLocal;
  constexpr int kRelaxed = cu::kCaptureModeRelaxed;
  constexpr Row kRows[] = {
      {kGlobal, kGlobal, false, true},   {kGlobal, kLocal, false, false},
      {kGlobal, kRelaxed, false, false}, {kLocal, kGlobal, false, false},
      {kRelaxed, kGlobal, false, false}, {kGlobal, kGlobal, true, true},
      {kLocal, kGlobal, true, true},     {kLocal, kLocal, true, true},
      {kGlobal, kRelaxed, true, false},  {kRelaxed, kGlobal, true, false},
  };
  Opened device;
  const auto& table = device.table;
  const auto event = device.event();
  for (const auto& row : kRows) {
    const auto stream = device.stream();
    CHECK_EQ(table.stream_begin_capture(stream, row.capture), 0);
    cu::Status status = -1;
    if (row.own_thread) {
      const int before = mode_of_thread(table, row.thread);
      status = table.event_query(event);
      mode_of_thread(table, before);
    } else {
      status = elsewhere(device, row.thread, [&] { return table.event_query(event); });
    }
    CHECK_EQ(status, row.prohibited ? cu::kCaptureUnsupported : cu::kSuccess);
    end(table, stream, row.prohibited ? cu::kCaptureInvalidated : cu::kSuccess);
  }
}

// Whatever the modes: a stream under capture has no execution status.
TEST(behaviour_23_waiting_for_the_captured_stream) {
  Opened device;
  const auto& table = device.table;
  const auto stream = device.stream();
  mode_of_thread(table, cu::kCaptureModeRelaxed);
  for (const bool query : {false, true}) {
    CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeRelaxed), 0);
    CHECK_EQ(query ? table.stream_query(stream) : table.stream_synchronize(stream),
             cu::kCaptureUnsupported);
    end(table, stream, cu::kCaptureInvalidated);
  }
  CHECK_EQ(table.stream_synchronize(stream), 0);
  mode_of_thread(table, cu::kCaptureModeGlobal);
}

// Whatever the modes, and from any thread: no more has a context with such a stream. One of another
// context is not concerned.
TEST(behaviour_23_waiting_for_a_context_with_a_capture) {
  for (const int capture :
       {cu::kCaptureModeGlobal, cu::kCaptureModeThreadLocal, cu::kCaptureModeRelaxed}) {
    for (const bool own_thread : {false, true}) {
      Opened device;
      const auto& table = device.table;
      const auto stream = device.stream();
      const auto synchronize = [&] { return table.ctx_synchronize(); };
      const int before = mode_of_thread(table, cu::kCaptureModeRelaxed);
      CHECK_EQ(table.stream_begin_capture(stream, capture), 0);
      const auto status =
          own_thread ? synchronize() : elsewhere(device, cu::kCaptureModeRelaxed, synchronize);
      CHECK_EQ(status, cu::kCaptureUnsupported);
      CHECK_EQ(capture_status(table, stream), cu::kCaptureBroken);
      end(table, stream, cu::kCaptureInvalidated);
      CHECK_EQ(synchronize(), 0);
      Opened other;
      CHECK_EQ(other.table.stream_begin_capture(other.stream(), capture), 0);
      CHECK_EQ(elsewhere(device, cu::kCaptureModeRelaxed, synchronize), 0);
      mode_of_thread(table, before);
    }
  }
}

// A capture ends with its stream and with its context.
TEST(behaviour_23_a_capture_ends_with_its_stream) {
  Opened device;
  const auto& table = device.table;
  const auto event = device.event();
  const auto stream = device.stream();
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeGlobal), 0);
  CHECK_EQ(table.stream_destroy(stream), 0);
  CHECK_EQ(table.event_query(event), 0);
  CHECK_EQ(table.stream_begin_capture(device.stream(), cu::kCaptureModeGlobal), 0);
  CHECK_EQ(table.primary_ctx_reset(device.ordinal), 0);
  Opened next;
  CHECK_EQ(table.ctx_synchronize(), 0);
}

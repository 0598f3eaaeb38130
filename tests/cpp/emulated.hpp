// tests/cpp/emulated.hpp: an emulated device with its context current, for one test, and the few
// steps that most tests start with.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "driver/status.hpp"
#include "driver/table.hpp"
#include "emu/emulator.hpp"

namespace weave::test {

inline constexpr const char* kSmall = "h20?scale=4096&speed=50&seed=1";

inline cu::MemAllocationProp prop_for(int ordinal) {
  cu::MemAllocationProp prop{};
  prop.type = cu::kAllocationPinned;
  prop.location = {cu::kLocationDevice, ordinal};
  return prop;
}

// Page-aligned host memory, not registered.
struct HostBuffer {
  explicit HostBuffer(std::size_t size, unsigned char value = 0)
      : bytes(size),
        data(static_cast<unsigned char*>(
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    std::memset(data, value, bytes);
  }
  ~HostBuffer() { munmap(data, bytes); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  bool holds(unsigned char value) const {
    for (std::size_t i = 0; i < bytes; ++i) {
      if (data[i] != value) return false;
    }
    return true;
  }
  const std::size_t bytes;
  unsigned char* const data;
};

// A device, its context retained and current on this thread.
struct Opened {
  explicit Opened(const std::string& text = kSmall)
      : spec(emu::Spec::parse(text)),
        table(emu::with_clock(emu::table(), spec)),
        ordinal(emu::add_device(spec)) {
    table.init(0);
    CHECK_EQ(table.primary_ctx_retain(&context, ordinal), 0);
    CHECK_EQ(table.ctx_push_current(context), 0);
  }
  ~Opened() {
    table.ctx_pop_current(nullptr);
    emu::remove_device(ordinal);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  cu::AllocHandle create(std::size_t bytes, int handle_types = cu::kHandleNone) {
    auto prop = prop_for(ordinal);
    prop.requested_handle_types = handle_types;
    cu::AllocHandle handle = 0;
    CHECK_EQ(table.mem_create(&handle, bytes, &prop, 0), 0);
    return handle;
  }
  cu::DevicePtr reserve(std::size_t bytes) {
    cu::DevicePtr address = 0;
    CHECK_EQ(table.mem_address_reserve(&address, bytes, 0, 0, 0), 0);
    return address;
  }
  cu::Status allow(cu::DevicePtr address, std::size_t bytes, int flags = cu::kAccessReadWrite) {
    const cu::MemAccessDesc desc{{cu::kLocationDevice, ordinal}, flags};
    return table.mem_set_access(address, bytes, &desc, 1);
  }
  // A reservation filled with accessible blocks of that size, whose handles are released already.
  cu::DevicePtr memory(int blocks, std::size_t block) {
    const auto bytes = static_cast<std::size_t>(blocks) * block;
    const auto address = reserve(bytes);
    for (std::size_t at = 0; at < bytes; at += block) {
      const auto handle = create(block);
      CHECK_EQ(table.mem_map(address + at, block, 0, handle, 0), 0);
      CHECK_EQ(table.mem_release(handle), 0);
    }
    CHECK_EQ(allow(address, bytes), 0);
    return address;
  }
  // The block of a handle at an address of its own, accessible.
  cu::DevicePtr map(cu::AllocHandle handle, std::size_t bytes) {
    const auto address = reserve(bytes);
    CHECK_EQ(table.mem_map(address, bytes, 0, handle, 0), 0);
    CHECK_EQ(allow(address, bytes), 0);
    return address;
  }
  void unmap(cu::DevicePtr address, std::size_t bytes) {
    CHECK_EQ(table.mem_unmap(address, bytes), 0);
    CHECK_EQ(table.mem_address_free(address, bytes), 0);
  }
  std::size_t bytes_free() const {
    std::size_t free_now = 0;
    std::size_t total = 0;
    CHECK_EQ(table.mem_get_info(&free_now, &total), 0);
    return free_now;
  }
  cu::DevicePtr memory(int blocks = 1) { return memory(blocks, spec.block_bytes); }
  cu::Status pin(const HostBuffer& buffer) {
    return table.mem_host_register(buffer.data, buffer.bytes, cu::kHostRegisterPortable);
  }
  cu::Stream stream(unsigned flags = cu::kStreamNonBlocking) {
    cu::Stream created = nullptr;
    CHECK_EQ(table.stream_create(&created, flags), 0);
    return created;
  }
  cu::Event event(unsigned flags = cu::kEventDefault) {
    cu::Event created = nullptr;
    CHECK_EQ(table.event_create(&created, flags), 0);
    return created;
  }
  float elapsed_ms(cu::Event from, cu::Event to) {
    float milliseconds = -1;
    CHECK_EQ(table.event_elapsed_time(&milliseconds, from, to), 0);
    return milliseconds;
  }

  const emu::Spec spec;
  const cu::Table table;
  const int ordinal;
  cu::Context context = nullptr;
};

// A stream and an event that is recorded behind a copy of `ms` modelled milliseconds: whatever
// waits for it stays pending until now_ns() has reached `open_ns`. The device's h2d must be 1 MB/s.
inline constexpr const char* kGated =
    "h20?scale=4096&speed=50&seed=1&h2d=1MB/s&d2h=1MB/s&pageable=1MB/s";

struct Gate {
  Gate(Opened& opened, int ms) : owner(opened), source(static_cast<std::size_t>(ms) * 1000, 1) {
    const auto pages = (source.bytes + 4095) / 4096 * 4096;
    const auto address = opened.memory(1, pages);
    CHECK_EQ(opened.pin(source), 0);
    stream = opened.stream();
    event = opened.event();
    const auto& table = opened.table;
    open_ns = table.now_ns() + std::int64_t{ms} * 1'000'000;
    CHECK_EQ(table.memcpy_htod_async(address, source.data, source.bytes, stream), 0);
    CHECK_EQ(table.event_record(event, stream), 0);
  }
  ~Gate() {
    owner.table.stream_synchronize(stream);
    owner.table.mem_host_unregister(source.data);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void hold(cu::Stream other) { CHECK_EQ(owner.table.stream_wait_event(other, event, 0), 0); }
  // The status of something behind the gate: not ready, unless the gate may be open by now.
  bool is_held(cu::Status status) const {
    return status == cu::kNotReady || (status == 0 && owner.table.now_ns() >= open_ns);
  }

  Opened& owner;
  HostBuffer source;
  cu::Stream stream = nullptr;
  cu::Event event = nullptr;
  std::int64_t open_ns = 0;
};

}  // namespace weave::test

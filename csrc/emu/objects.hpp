// emu/objects.hpp: what exists on emulated devices. Memory objects (Block, Mapping, Reservation,
// Registration) are guarded by Driver::memory, queue objects (StreamState, Operation) by their
// device's mutex; what both sides read is atomic. Operations are data: engine.cpp interprets them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver/abi.hpp"

namespace weave::emu {

struct DeviceState;
struct ContextState;
struct Reservation;

// One physical allocation: a memfd, and the mapping through which the engines copy.
struct Block {
  // Both throw std::bad_alloc. The second one takes over a locked description of another process's
  // block.
  Block(std::shared_ptr<DeviceState> owner, std::uint64_t size, bool for_export);
  Block(std::shared_ptr<DeviceState> owner, std::uint64_t size, int imported_file);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Neither referenced nor mapped in this process.
  bool is_over() const { return references == 0 && mappings == 0; }

  const std::shared_ptr<DeviceState> device;
  const std::uint64_t bytes;
  const bool exportable;
  const bool imported;
  bool exported = false;
  int file = -1;
  std::uint64_t inode = 0;
  std::byte* alias = nullptr;
  // The memory counts as used until both are zero, here and in every process that imported it.
  std::uint64_t references = 0;
  std::uint64_t mappings = 0;
};

// One handle: a reference to a block that needs its own release.
struct AllocReference {
  std::shared_ptr<Block> block;
};

struct Mapping {
  cu::DevicePtr address = 0;
  std::uint64_t bytes = 0;
  std::shared_ptr<Block> block;
  std::atomic<bool> alive{true};  // false once unmapped; queued copies look before each piece
  std::map<int, int> access;      // per device ordinal: kAccessRead or kAccessReadWrite
};

struct Reservation {
  cu::DevicePtr address = 0;
  std::uint64_t bytes = 0;
  bool host_view = false;
  int owner = -1;  // ordinal, or -1 while no device owns it
  std::map<cu::DevicePtr, std::shared_ptr<Mapping>> mappings;
};

// Host memory that copies reach at full speed.
struct Registration {
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;
  bool portable = false;
  std::shared_ptr<ContextState> context;
  std::atomic<std::int64_t> in_flight{0};
};

// What an event holds after it was recorded: one point of one stream.
struct Record {
  std::shared_ptr<DeviceState> device;
  std::atomic<std::int64_t> time_ns{0};  // modelled; valid once complete
  std::atomic<bool> complete{false};
  std::vector<std::weak_ptr<DeviceState>> watchers;  // other devices whose streams wait for it
};

// A part of one mapping that a copy reads or writes.
struct Range {
  std::shared_ptr<Mapping> mapping;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

enum class Kind { to_device, to_host, fill, kernel, call, record, wait };

struct Launch;  // launch.hpp
struct Twin;

struct Operation {
  Kind kind = Kind::record;
  std::uint64_t sequence = 0;  // order of submission on the device
  std::int64_t enqueue_ns = 0;
  bool running = false;
  bool faults = false;  // touches memory without mapping or access: sticky 700 when it runs
  double bytes_per_s = 0;
  std::vector<Range> ranges;
  std::byte* host = nullptr;
  unsigned char value = 0;                     // fill
  std::shared_ptr<Registration> registration;  // null for pageable memory
  std::vector<std::byte> staging;              // pageable, to_device
  std::shared_ptr<Record> record;              // record, wait
  std::shared_ptr<const Launch> launch;        // kernel
  void (*function)(void*) = nullptr;           // call
  void* argument = nullptr;
};

struct StreamState {
  std::shared_ptr<ContextState> context;
  bool is_null = false;
  bool blocking = true;  // against the NULL stream
  bool destroyed = false;
  std::int64_t time_ns = 0;  // modelled end of the last operation that completed
  std::deque<std::shared_ptr<Operation>> queue;
};

struct EventState {
  std::shared_ptr<ContextState> context;
  bool timing = true;
  std::mutex mutex;
  std::shared_ptr<Record> latest;  // null: never recorded
};

struct ModuleState {
  std::shared_ptr<ContextState> context;
  std::string image;
};

struct FunctionState {
  std::shared_ptr<ContextState> context;
  std::shared_ptr<ModuleState> module;
  const Twin* twin = nullptr;
};

// What a capture leaves: how much was captured.
struct GraphState {
  std::uint64_t nodes = 0;
};

struct ContextState {
  std::shared_ptr<DeviceState> device;
  std::uint64_t id = 0;
  std::atomic<bool> alive{true};
  std::atomic<cu::Status> sticky{cu::kSuccess};
  std::shared_ptr<StreamState> null_stream;  // guarded by the device's mutex; null once destroyed
  std::int64_t drained_ns = 0;  // latest modelled end on blocking streams that are gone

  // What every call made with this context current returns, or success.
  cu::Status status() const {
    if (!alive.load(std::memory_order_acquire)) return cu::kContextIsDestroyed;
    return sticky.load(std::memory_order_acquire);
  }
  void fail(cu::Status status) {
    cu::Status none = cu::kSuccess;
    sticky.compare_exchange_strong(none, status, std::memory_order_acq_rel);
  }
};

}  // namespace weave::emu

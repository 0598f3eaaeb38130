// emu/device.hpp: one emulated device (its queues, engines, ledger) and the one emulated driver of
// the process that all devices belong to. Lock order: slow, registry, memory, DeviceState::mutex;
// a catalogue's and an event's own lock are innermost. No lock is held while copying or sleeping,
// except `slow`, which a registration holds on purpose.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <thread>

#include "emu/catalogue.hpp"
#include "emu/emulator.hpp"
#include "emu/ledger.hpp"
#include "emu/objects.hpp"

namespace weave::emu {

// What an operation runs on. The first two are the directions of emulator.hpp; all have engines of
// their own, so a kernel, a host function and a copy each way run side by side.
inline constexpr int kCompute = 2;
inline constexpr int kCalls = 3;
inline constexpr int kLanes = 4;

// One engine. Busy in modelled time from begin_ns to free_at_ns, open while the copy runs.
struct Engine {
  bool running = false;
  bool on_link = false;  // a fill is not
  std::int64_t begin_ns = 0;
  std::int64_t free_at_ns = 0;  // modelled end of the last operation
};

// An operation that an engine is in the middle of: between two pieces of it, or inside one.
struct Job {
  std::shared_ptr<StreamState> stream;
  std::shared_ptr<Operation> operation;
  Engine* engine = nullptr;
  int lane = kToDevice;
  std::int64_t time_ns = 0;  // modelled end of the last piece
  std::size_t range = 0;     // where the next piece begins
  std::uint64_t at = 0;
  std::uint64_t done = 0;  // bytes of a copy, steps of a kernel or call
};

struct DeviceState : std::enable_shared_from_this<DeviceState> {
  DeviceState(const Spec& wanted, int number);

  const Spec spec;
  const int ordinal;
  cu::Uuid uuid{};
  bool limited = false;
  std::atomic<bool> removed{false};
  std::atomic<std::uint64_t> descriptors{0};
  std::atomic<std::uint64_t> pageable_copies{0};

  // What documentation leaves open is decided by the next draw from the seed.
  std::uint64_t draw();
  bool coin() { return (draw() >> 32U) % 2 == 0; }

  // Guarded by Driver::memory.
  std::uint64_t bytes_used = 0;
  std::uint64_t bytes_pending = 0;                // of bytes_used, for blocks that are being made
  std::uint64_t contexts = 0;                     // each holds context_bytes
  std::vector<std::shared_ptr<Block>> lingering;  // over here, but imported by another process
  std::unique_ptr<Ledger> ledger;                 // null without an id
  std::uint64_t handles = 0;
  std::uint64_t mappings = 0;

  // Guarded by Driver::registry.
  std::shared_ptr<ContextState> primary;
  unsigned retains = 0;

  // The queues, guarded by `mutex`. `work` wakes engines, `done` whoever waits for completion.
  std::mutex mutex;
  std::condition_variable work;
  std::condition_variable done;
  std::vector<std::shared_ptr<StreamState>> streams;  // also destroyed ones with work pending
  std::array<std::vector<Engine>, kLanes> engines;
  std::uint64_t last_sequence = 0;
  bool stopping = false;
  std::vector<std::weak_ptr<DeviceState>> wakes;  // devices to look again once `mutex` is free

  std::vector<std::thread> threads;
  std::array<bool, kLanes> started{};  // its threads run; of the last two only once they are used

  // Guarded by the stepper's lock: what it has begun, and a digest of the order so far.
  std::vector<Job> jobs;
  std::uint64_t order = 0;

 private:
  std::atomic<std::uint64_t> random_;
};

// Bytes per second of work that does not cross the link.
inline double on_device_rate(const Spec& spec) { return spec.h2d_bytes_per_s * 10; }

// The device's clock: the host's, or the stepper's.
std::int64_t now_ns(const DeviceState& device);
void sleep_until_ns(const DeviceState& device, std::int64_t deadline_ns);

// Holds a device's mutex; on release lets other devices look again whose streams waited for a
// record that completed meanwhile. Do not wait on `lock` after pump() in the same scope.
class Locked {
 public:
  explicit Locked(DeviceState& device) : device_(device), lock(device.mutex) {}
  ~Locked();
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  DeviceState& device_;

 public:
  std::unique_lock<std::mutex> lock;
};

struct Driver {
  std::atomic<bool> initialized{false};
  std::atomic<bool> forked{false};

  std::mutex slow;      // one mapping or registering call at a time
  std::mutex registry;  // devices, primary contexts
  std::mutex memory;    // reservations, mappings, registrations, ledgers

  std::vector<std::shared_ptr<DeviceState>> devices;  // by ordinal, null once removed
  std::map<cu::DevicePtr, Reservation> reservations;
  std::map<std::uintptr_t, std::shared_ptr<Registration>> registrations;
  std::map<std::pair<int, std::uint64_t>, std::weak_ptr<Block>> blocks;  // by ordinal and inode

  Catalogue<AllocReference> handles{1};
  Catalogue<ContextState> contexts{2};
  Catalogue<StreamState> streams{3};
  Catalogue<EventState> events{4};
  Catalogue<ModuleState> modules{5};
  Catalogue<FunctionState> functions{6};
  Catalogue<GraphState> graphs{7};
};

// The driver of this process. Never destroyed: engine threads may outlive static destructors.
Driver& driver();

// Null when there is no such device (any more).
std::shared_ptr<DeviceState> find_device(int ordinal);

// queue.cpp. pre: the device's mutex is held.
// Drops the work of failed contexts, retires what needs no engine (unless the stepper does) and
// wakes the others.
void pump(DeviceState& device);
// The head needs no engine and may be over now; and then it is.
bool can_retire(const DeviceState& device, const StreamState& stream);
void retire(DeviceState& device, StreamState& stream);
// Work of the other streams that must be over before the stream's head may start: none left.
bool is_unblocked(const DeviceState& device, const StreamState& stream);
// The modelled instant from which the stream's head may run.
std::int64_t ready_at_ns(const DeviceState& device, const StreamState& stream);
void pop_front(StreamState& stream);
// The head is an operation for this lane, and may start.
bool is_ready(const DeviceState& device, const StreamState& stream, int lane);

// queue.cpp, without the mutex.
// Appends to the stream; blocks while it is full.
cu::Status enqueue(StreamState& stream, const std::shared_ptr<Operation>& operation);
// Waits for the work that these have now; `stream` null: every stream of the context.
cu::Status wait_for(ContextState& context, const StreamState* stream);
bool has_work(ContextState& context, const StreamState* stream);

// engine.cpp, without the mutex.
// Threads for the engines of a lane, unless it has them or the device is stepped.
void start_lane(const std::shared_ptr<DeviceState>& device, int lane);
void stop_engines(DeviceState& device);
bool run_next(DeviceState& device, int lane);
// pre: the mutex is held. An engine of the lane that is free, or null.
Engine* free_engine(DeviceState& device, int lane);
// pre: the mutex is held; the stream's head is ready for the lane. It runs from now on.
Job begin(DeviceState& device, int lane, Engine& engine,
          const std::shared_ptr<StreamState>& stream);
// Runs one piece; job.time_ns is then its modelled end. False when none is left or the job must
// stop; then it is to be finished.
bool run_piece(DeviceState& device, Job& job);
void finish(DeviceState& device, Job& job);

// context.cpp. Its pending work is dropped, its streams, events and registrations end.
void destroy_context(const std::shared_ptr<ContextState>& context);

// memory.cpp. Unmaps and forgets everything of the device.
void free_memory(DeviceState& device);

}  // namespace weave::emu

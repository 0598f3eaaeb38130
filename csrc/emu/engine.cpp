// emu/engine.cpp: the copy engines. A copy runs on a modelled clock in pieces of at most 1 MiB: the
// bytes are copied, then the engine sleeps to the piece's absolute deadline, so that a late wake-up
// is caught up and nothing is ever early. run_next() executes one copy; a thread per engine loops
// over it. The device's mutex is held to choose, to time a piece and to finish, not while copying.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "driver/clock.hpp"
#include "emu/call.hpp"

namespace weave::emu {

namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20U;

struct Job {
  std::shared_ptr<StreamState> stream;
  std::shared_ptr<Operation> operation;
  Engine* engine = nullptr;
  std::int64_t begin_ns = 0;
};

bool is_busy_at(const Engine& engine, std::int64_t time_ns) {
  return engine.begin_ns <= time_ns && (engine.running || time_ns < engine.free_at_ns);
}

// The other direction uses the link at this modelled instant: it runs, or would, had its thread
// woken up in time.
bool is_shared_at(const DeviceState& device, int direction, std::int64_t time_ns) {
  const int other = 1 - direction;
  const auto& engines = device.engines[static_cast<std::size_t>(other)];
  const auto busy = [&](const Engine& engine) {
    return engine.on_link && is_busy_at(engine, time_ns);
  };
  if (std::ranges::any_of(engines, busy)) return true;
  return std::ranges::any_of(device.streams, [&](const auto& stream) {
    return is_ready(device, *stream, other) && stream->queue.front()->kind != Kind::fill &&
           ready_at_ns(device, *stream) <= time_ns;
  });
}

// pre: the mutex is held. One ready copy and a free engine, or nothing.
bool pick(DeviceState& device, int direction, Job& job) {
  auto& engines = device.engines[static_cast<std::size_t>(direction)];
  Engine* engine = nullptr;
  for (auto& each : engines) {
    if (each.running) continue;
    if (engine == nullptr || each.free_at_ns < engine->free_at_ns) engine = &each;
  }
  if (engine == nullptr) return false;
  std::vector<std::shared_ptr<StreamState>> ready;
  for (const auto& stream : device.streams) {
    if (is_ready(device, *stream, direction)) ready.push_back(stream);
  }
  if (ready.empty()) return false;
  job.stream = ready[ready.size() == 1 ? 0 : device.draw() % ready.size()];
  job.operation = job.stream->queue.front();
  job.engine = engine;
  job.begin_ns = std::max(engine->free_at_ns, ready_at_ns(device, *job.stream));
  job.operation->running = true;
  engine->running = true;
  engine->on_link = job.operation->kind != Kind::fill;
  engine->begin_ns = job.begin_ns;
  return true;
}

// The modelled end of a piece that starts at `begin_ns`, or -1 when the copy must stop.
std::int64_t piece_end_ns(DeviceState& device, int direction, const Job& job, std::uint64_t bytes,
                          std::int64_t begin_ns) {
  const Locked locked(device);
  if (device.stopping || job.stream->context->status() != cu::kSuccess) return -1;
  double rate = job.operation->bytes_per_s;
  if (job.engine->on_link && is_shared_at(device, direction, begin_ns)) rate *= device.spec.duplex;
  const auto& engines = device.engines[static_cast<std::size_t>(direction)];
  // Engines of one direction share its bandwidth; this one counts itself.
  const auto sharers = std::ranges::count_if(
      engines, [&](const Engine& engine) { return is_busy_at(engine, begin_ns); });
  rate /= static_cast<double>(std::max<std::ptrdiff_t>(sharers, 1));
  return begin_ns + static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) * 1e9 / rate));
}

void move_bytes(const Operation& operation, std::byte* device, std::uint64_t at,
                std::uint64_t bytes) {
  switch (operation.kind) {
    case Kind::to_device:
      std::memcpy(device, operation.host + at, bytes);
      return;
    case Kind::to_host:
      std::memcpy(operation.host + at, device, bytes);
      return;
    default:
      std::memset(device, operation.value, bytes);
  }
}

// Runs all pieces; returns the modelled end. A mapping that is gone fails the context.
std::int64_t run_pieces(DeviceState& device, int direction, const Job& job) {
  const auto& operation = *job.operation;
  auto& context = *job.stream->context;
  std::int64_t time_ns = job.begin_ns;
  std::uint64_t done = 0;
  if (operation.faults) context.fail(cu::kIllegalAddress);
  for (const auto& range : operation.ranges) {
    for (std::uint64_t at = 0; at < range.bytes;) {
      const auto bytes = std::min(range.bytes - at, kPieceBytes);
      const auto end_ns = piece_end_ns(device, direction, job, bytes, time_ns);
      if (end_ns < 0) return time_ns;
      if (!range.mapping->alive.load(std::memory_order_acquire)) {
        context.fail(cu::kIllegalAddress);
        return time_ns;
      }
      move_bytes(operation, range.mapping->block->alias + range.offset + at, done, bytes);
      cu::system_sleep_until_ns(end_ns);
      time_ns = end_ns;
      at += bytes;
      done += bytes;
    }
  }
  return time_ns;
}

void finish(DeviceState& device, const Job& job, std::int64_t end_ns) {
  // Before anyone is told: a block that only this copy kept alive is gone when the copy is over.
  job.operation->ranges.clear();
  const Locked locked(device);
  job.engine->running = false;
  job.engine->free_at_ns = end_ns;
  job.operation->running = false;
  job.stream->time_ns = end_ns;
  pop_front(*job.stream);
  pump(device);
}

void engine_loop(DeviceState& device, int direction) {
  // Else the kernel may wake a sleeper 50 us late.
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  pthread_setname_np(pthread_self(), direction == kToDevice ? "weave-emu-h2d" : "weave-emu-d2h");
  while (true) {
    if (run_next(device, direction)) continue;
    Locked locked(device);
    device.work.wait(locked.lock, [&] {
      const auto ready = [&](const auto& stream) { return is_ready(device, *stream, direction); };
      const auto& engines = device.engines[static_cast<std::size_t>(direction)];
      return device.stopping || (std::ranges::any_of(device.streams, ready) &&
                                 !std::ranges::all_of(engines, &Engine::running));
    });
    if (device.stopping) return;
  }
}

}  // namespace

bool run_next(DeviceState& device, int direction) {
  Job job;
  {
    const Locked locked(device);
    if (device.stopping || !pick(device, direction, job)) return false;
  }
  finish(device, job, run_pieces(device, direction, job));
  return true;
}

void start_engines(const std::shared_ptr<DeviceState>& device) {
  // Signals belong to the threads of the application.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int engine = 0; engine < device->spec.engines; ++engine) {
    for (const int direction : {kToDevice, kToHost}) {
      device->threads.emplace_back([device, direction] { engine_loop(*device, direction); });
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void stop_engines(DeviceState& device) {
  {
    const Locked locked(device);
    device.stopping = true;
    device.work.notify_all();
  }
  for (auto& thread : device.threads) thread.join();
  device.threads.clear();
}

}  // namespace weave::emu

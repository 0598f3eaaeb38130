// emu/engine.cpp: the engines. An operation runs on a modelled clock in pieces (of a copy at most
// 1 MiB): the bytes are moved, then the engine sleeps to the piece's absolute deadline, so that a
// late wake-up is caught up and nothing is ever early. run_next() executes one operation; a thread
// per engine loops over it, and the stepper (stepper.cpp) calls the parts of it. The device's mutex
// is held to choose, to time a piece and to finish, not while bytes move.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "emu/call.hpp"
#include "emu/launch.hpp"

namespace weave::emu {

namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20U;

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

// The modelled end of a piece that starts now in modelled time, or -1 when the job must stop.
std::int64_t piece_end_ns(DeviceState& device, const Job& job, std::uint64_t bytes) {
  const Locked locked(device);
  if (device.stopping || job.stream->context->status() != cu::kSuccess) return -1;
  const auto begin_ns = job.time_ns;
  double rate = job.operation->bytes_per_s;
  if (job.engine->on_link && is_shared_at(device, job.lane, begin_ns)) rate *= device.spec.duplex;
  const auto& engines = device.engines[static_cast<std::size_t>(job.lane)];
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

// The stepper cuts even a small copy, so that others can come in between.
std::uint64_t piece_bytes(const DeviceState& device, const Operation& operation) {
  if (!device.spec.stepped) return kPieceBytes;
  std::uint64_t bytes = 0;
  for (const auto& range : operation.ranges) bytes += range.bytes;
  return std::clamp<std::uint64_t>(bytes / 3, 1, kPieceBytes);
}

bool run_copy_piece(DeviceState& device, Job& job) {
  const auto& operation = *job.operation;
  auto& context = *job.stream->context;
  if (operation.faults) context.fail(cu::kIllegalAddress);
  if (job.range == operation.ranges.size()) return false;
  const auto& range = operation.ranges[job.range];
  const auto bytes = std::min(range.bytes - job.at, piece_bytes(device, operation));
  const auto end_ns = piece_end_ns(device, job, bytes);
  if (end_ns < 0) return false;
  if (!range.mapping->alive.load(std::memory_order_acquire)) {
    context.fail(cu::kIllegalAddress);
    return false;
  }
  move_bytes(operation, range.mapping->block->alias + range.offset + job.at, job.done, bytes);
  job.time_ns = end_ns;
  job.at += bytes;
  job.done += bytes;
  if (job.at == range.bytes) {
    job.at = 0;
    ++job.range;
  }
  return true;
}

// One step of the kernel's host twin. Memory it may not touch fails the context.
bool run_kernel_piece(DeviceState& device, Job& job) {
  if (piece_end_ns(device, job, 0) < 0) return false;
  const auto& launch = *job.operation->launch;
  const auto step = launch.step(device.ordinal, job.done);
  if (step.faults) job.stream->context->fail(cu::kIllegalAddress);
  if (step.is_last || step.faults) return false;
  job.time_ns = std::max(job.time_ns + step.duration_ns, piece_end_ns(device, job, step.bytes));
  ++job.done;
  return true;
}

bool run_call(DeviceState& device, Job& job) {
  if (job.done != 0 || piece_end_ns(device, job, 0) < 0) return false;
  job.done = 1;
  const HostFunctionScope inside;
  job.operation->function(job.operation->argument);
  job.time_ns = std::max(job.time_ns, now_ns(device));
  return true;
}

constexpr std::array kThreadNames = {"weave-emu-h2d", "weave-emu-d2h", "weave-emu-compute",
                                     "weave-emu-calls"};
static_assert(kThreadNames.size() == kLanes);

void engine_loop(DeviceState& device, int lane) {
  // Else the kernel may wake a sleeper 50 us late.
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  pthread_setname_np(pthread_self(), kThreadNames[static_cast<std::size_t>(lane)]);
  while (true) {
    if (run_next(device, lane)) continue;
    Locked locked(device);
    device.work.wait(locked.lock, [&] {
      const auto ready = [&](const auto& stream) { return is_ready(device, *stream, lane); };
      return device.stopping ||
             (std::ranges::any_of(device.streams, ready) && free_engine(device, lane) != nullptr);
    });
    if (device.stopping) return;
  }
}

}  // namespace

Engine* free_engine(DeviceState& device, int lane) {
  Engine* engine = nullptr;
  for (auto& each : device.engines[static_cast<std::size_t>(lane)]) {
    if (each.running) continue;
    if (engine == nullptr || each.free_at_ns < engine->free_at_ns) engine = &each;
  }
  return engine;
}

Job begin(DeviceState& device, int lane, Engine& engine,
          const std::shared_ptr<StreamState>& stream) {
  Job job;
  job.stream = stream;
  job.operation = stream->queue.front();
  job.engine = &engine;
  job.lane = lane;
  job.time_ns = std::max(engine.free_at_ns, ready_at_ns(device, *stream));
  job.operation->running = true;
  engine.running = true;
  engine.on_link = job.operation->kind == Kind::to_device || job.operation->kind == Kind::to_host;
  engine.begin_ns = job.time_ns;
  return job;
}

bool run_piece(DeviceState& device, Job& job) {
  switch (job.lane) {
    case kCompute:
      return run_kernel_piece(device, job);
    case kCalls:
      return run_call(device, job);
    default:
      return run_copy_piece(device, job);
  }
}

void finish(DeviceState& device, Job& job) {
  // Before anyone is told: a block that only this copy kept alive is gone when the copy is over.
  job.operation->ranges.clear();
  const Locked locked(device);
  job.engine->running = false;
  job.engine->free_at_ns = job.time_ns;
  job.operation->running = false;
  job.stream->time_ns = job.time_ns;
  pop_front(*job.stream);
  pump(device);
}

bool run_next(DeviceState& device, int lane) {
  Job job;
  {
    const Locked locked(device);
    Engine* const engine = device.stopping ? nullptr : free_engine(device, lane);
    if (engine == nullptr) return false;
    std::vector<std::shared_ptr<StreamState>> ready;
    for (const auto& stream : device.streams) {
      if (is_ready(device, *stream, lane)) ready.push_back(stream);
    }
    if (ready.empty()) return false;
    job = begin(device, lane, *engine, ready[ready.size() == 1 ? 0 : device.draw() % ready.size()]);
  }
  while (run_piece(device, job)) sleep_until_ns(device, job.time_ns);
  finish(device, job);
  return true;
}

void start_lane(const std::shared_ptr<DeviceState>& device, int lane) {
  if (device->spec.stepped) return;
  const Locked locked(*device);
  bool& started = device->started[static_cast<std::size_t>(lane)];
  if (started || device->stopping) return;
  started = true;
  // Signals belong to the threads of the application.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto engines = device->engines[static_cast<std::size_t>(lane)].size();
  for (std::size_t engine = 0; engine < engines; ++engine) {
    device->threads.emplace_back([device, lane] { engine_loop(*device, lane); });
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void stop_engines(DeviceState& device) {
  {
    const Locked locked(device);
    device.stopping = true;
    device.work.notify_all();
  }
  // Nothing is added any more.
  for (auto& thread : device.threads) thread.join();
  device.threads.clear();
}

}  // namespace weave::emu

// emu/queue.cpp: the order of operations. Streams are FIFO queues; records and waits retire here
// as soon as they are first and allowed, the rest stays until an engine has run it; on a stepped
// device all of it stays until the stepper comes to it. Called by
// stream.cpp, copy.cpp, engine.cpp and context.cpp; everything is guarded by the device's mutex.
#include <algorithm>

#include "emu/call.hpp"
#include "emu/stepper.hpp"

namespace weave::emu {

namespace {

constexpr std::size_t kStreamDepth = 1000;

bool needs_engine(const Operation& operation) {
  return operation.kind != Kind::record && operation.kind != Kind::wait;
}

bool has_before(const StreamState& stream, std::uint64_t sequence) {
  return !stream.queue.empty() && stream.queue.front()->sequence < sequence;
}

// The streams that the NULL stream waits for, and that wait for it.
bool is_beside(const StreamState& stream, const ContextState& context) {
  return stream.context.get() == &context && !stream.is_null && stream.blocking;
}

void complete(DeviceState& device, Record& record, std::int64_t time_ns) {
  record.time_ns.store(time_ns, std::memory_order_relaxed);
  record.complete.store(true, std::memory_order_release);
  std::ranges::move(record.watchers, std::back_inserter(device.wakes));
  record.watchers.clear();
}

// Drops the head if its context failed and no engine has begun it. Its host function is not called.
bool drop(DeviceState& device, StreamState& stream) {
  if (stream.queue.empty() || stream.context->status() == cu::kSuccess) return false;
  const auto operation = stream.queue.front();
  if (operation->running) return false;
  if (operation->kind == Kind::record) complete(device, *operation->record, stream.time_ns);
  pop_front(stream);
  return true;
}

// Streams that were destroyed with work pending leave when it is done.
void forget_drained(DeviceState& device) {
  std::erase_if(device.streams, [](const auto& stream) {
    if (!stream->destroyed || !stream->queue.empty()) return false;
    auto& drained = stream->context->drained_ns;
    if (stream->blocking) drained = std::max(drained, stream->time_ns);
    return true;
  });
}

bool is_drained(const DeviceState& device, const ContextState& context, const StreamState* stream,
                std::uint64_t sequence) {
  return std::ranges::none_of(device.streams, [&](const auto& each) {
    if (each->context.get() != &context) return false;
    const bool counts =
        stream == nullptr || each.get() == stream || (stream->is_null && is_beside(*each, context));
    return counts && has_before(*each, sequence);
  });
}

int lane_of(Kind kind) {
  switch (kind) {
    case Kind::to_host:
      return kToHost;
    case Kind::kernel:
      return kCompute;
    case Kind::call:
      return kCalls;
    default:
      return kToDevice;
  }
}

}  // namespace

bool can_retire(const DeviceState& device, const StreamState& stream) {
  if (stream.queue.empty() || stream.context->status() != cu::kSuccess) return false;
  const auto& operation = *stream.queue.front();
  if (needs_engine(operation) || !is_unblocked(device, stream)) return false;
  return operation.kind != Kind::wait || operation.record->complete.load(std::memory_order_acquire);
}

void retire(DeviceState& device, StreamState& stream) {
  const auto operation = stream.queue.front();
  std::int64_t time_ns = ready_at_ns(device, stream);
  if (operation->kind == Kind::wait) {
    time_ns = std::max(time_ns, operation->record->time_ns.load(std::memory_order_relaxed));
  } else {
    complete(device, *operation->record, time_ns);
  }
  stream.time_ns = time_ns;
  pop_front(stream);
}

void pop_front(StreamState& stream) {
  if (const auto& registration = stream.queue.front()->registration) {
    registration->in_flight.fetch_sub(1, std::memory_order_acq_rel);
  }
  stream.queue.pop_front();
}

bool is_unblocked(const DeviceState& device, const StreamState& stream) {
  if (!stream.blocking) return true;
  const auto sequence = stream.queue.front()->sequence;
  const auto& context = *stream.context;
  if (!stream.is_null) {
    return context.null_stream == nullptr || !has_before(*context.null_stream, sequence);
  }
  return std::ranges::none_of(device.streams, [&](const auto& other) {
    return is_beside(*other, context) && has_before(*other, sequence);
  });
}

std::int64_t ready_at_ns(const DeviceState& device, const StreamState& stream) {
  std::int64_t ready = std::max(stream.time_ns, stream.queue.front()->enqueue_ns);
  if (!stream.blocking) return ready;
  const auto& context = *stream.context;
  if (!stream.is_null) {
    return context.null_stream ? std::max(ready, context.null_stream->time_ns) : ready;
  }
  // What was submitted after this waits for it, so their times are those of earlier work.
  ready = std::max(ready, context.drained_ns);
  for (const auto& other : device.streams) {
    if (is_beside(*other, context)) ready = std::max(ready, other->time_ns);
  }
  return ready;
}

bool is_ready(const DeviceState& device, const StreamState& stream, int lane) {
  if (stream.queue.empty()) return false;
  const auto& operation = *stream.queue.front();
  if (operation.running || !needs_engine(operation)) return false;
  return lane_of(operation.kind) == lane && is_unblocked(device, stream);
}

void pump(DeviceState& device) {
  const bool retires = !device.spec.stepped;
  bool moved = true;
  while (moved) {
    moved = false;
    for (const auto& stream : device.streams) {
      while (drop(device, *stream)) moved = true;
      while (retires && can_retire(device, *stream)) {
        retire(device, *stream);
        moved = true;
      }
    }
  }
  forget_drained(device);
  device.work.notify_all();
  device.done.notify_all();
  if (device.spec.stepped) stepper::changed();
}

cu::Status enqueue(StreamState& stream, const std::shared_ptr<Operation>& operation) {
  const auto device = stream.context->device;
  start_lane(device, lane_of(operation->kind));
  stepper::wait_until(*device, [&] {
    return stream.queue.size() < kStreamDepth || stream.context->status() != cu::kSuccess;
  });
  const Locked locked(*device);
  const auto status = stream.context->status();
  if (status != cu::kSuccess || stream.destroyed) {
    if (operation->registration) operation->registration->in_flight.fetch_sub(1);
    return status != cu::kSuccess ? status : cu::kInvalidHandle;
  }
  operation->sequence = ++device->last_sequence;
  operation->enqueue_ns = now_ns(*device);
  stream.queue.push_back(operation);
  pump(*device);
  return cu::kSuccess;
}

cu::Status wait_for(ContextState& context, const StreamState* stream) {
  auto& device = *context.device;
  std::uint64_t sequence = 0;
  {
    const Locked locked(device);
    sequence = device.last_sequence + 1;
  }
  stepper::wait_until(device, [&] {
    return is_drained(device, context, stream, sequence) || context.status() != cu::kSuccess;
  });
  return context.status();
}

bool has_work(ContextState& context, const StreamState* stream) {
  auto& device = *context.device;
  stepper::asked(device);
  const Locked locked(device);
  return !is_drained(device, context, stream, device.last_sequence + 1);
}

}  // namespace weave::emu

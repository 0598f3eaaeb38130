// emu/stream.cpp: stream and event calls. A handle is an id; what hangs behind it is guarded by the
// device's mutex (streams) or its own (an event's latest record).
#include <algorithm>
#include <utility>

#include "emu/call.hpp"
#include "emu/capture.hpp"
#include "emu/stepper.hpp"

namespace weave::emu {

namespace {

cu::Status status_of(Life life) {
  if (life == Life::live) return cu::kSuccess;
  return life == Life::orphaned ? cu::kContextIsDestroyed : cu::kInvalidHandle;
}

std::shared_ptr<Record> latest_of(EventState& event) {
  const std::lock_guard lock(event.mutex);
  return event.latest;
}

// A context for the call and a stream that is well; the stream may belong to another context.
cu::Status need_stream(cu::Stream handle, std::shared_ptr<StreamState>& stream) {
  std::shared_ptr<ContextState> context;
  if (const auto status = need_context(context); status != cu::kSuccess) return status;
  if (const auto status = find_stream(handle, context, stream); status != cu::kSuccess) {
    return status;
  }
  return stream->context->status();
}

cu::Status need_event(cu::Event handle, std::shared_ptr<EventState>& event) {
  std::shared_ptr<ContextState> context;
  if (const auto status = need_context(context); status != cu::kSuccess) return status;
  if (const auto status = find_event(handle, event); status != cu::kSuccess) return status;
  return event->context->status();
}

// Waiting for a stream, or asking: not while it is captured, nor where that endangers a capture.
cu::Status wait_status(const StreamState& stream) {
  if (const auto status = capture_wait(stream); status != cu::kSuccess) return status;
  return unsafe_status();
}

}  // namespace

cu::Status find_stream(cu::Stream handle, const std::shared_ptr<ContextState>& context,
                       std::shared_ptr<StreamState>& stream) {
  constexpr std::uint64_t kLegacy = 1;  // CU_STREAM_LEGACY, another name of the NULL stream
  const auto id = reinterpret_cast<std::uint64_t>(handle);
  if (id == 0 || id == kLegacy) {
    const Locked locked(*context->device);
    stream = context->null_stream;
    return stream ? cu::kSuccess : cu::kContextIsDestroyed;
  }
  auto found = driver().streams.find(id);
  stream = std::move(found.object);
  return status_of(found.life);
}

cu::Status find_event(cu::Event handle, std::shared_ptr<EventState>& event) {
  auto found = driver().events.find(reinterpret_cast<std::uint64_t>(handle));
  event = std::move(found.object);
  return status_of(found.life);
}

namespace calls {

Status stream_create(Stream* stream, unsigned flags) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    if (stream == nullptr || flags > cu::kStreamNonBlocking) return cu::kInvalidValue;
    auto created = std::make_shared<StreamState>();
    created->context = context;
    created->blocking = flags == cu::kStreamDefault;
    const auto id = driver().streams.add(created);
    const Locked locked(*context->device);
    if (!context->alive) {
      driver().streams.take(id);
      return cu::kContextIsDestroyed;
    }
    context->device->streams.push_back(std::move(created));
    *stream = reinterpret_cast<Stream>(id);
    return cu::kSuccess;
  });
}

// Returns at once; pending work completes, then the stream is forgotten.
Status stream_destroy(Stream stream) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_stream(stream, found); status != cu::kSuccess) return status;
    if (found->is_null) return cu::kInvalidHandle;
    const auto taken = driver().streams.take(reinterpret_cast<std::uint64_t>(stream));
    if (taken.life != Life::live) return status_of(taken.life);
    forget_capture(*found);
    const Locked locked(*found->context->device);
    found->destroyed = true;
    pump(*found->context->device);
    return cu::kSuccess;
  });
}

Status stream_synchronize(Stream stream) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_stream(stream, found); status != cu::kSuccess) return status;
    if (const auto status = wait_status(*found); status != cu::kSuccess) return status;
    return wait_for(*found->context, found.get());
  });
}

Status stream_query(Stream stream) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_stream(stream, found); status != cu::kSuccess) return status;
    if (const auto status = wait_status(*found); status != cu::kSuccess) return status;
    const bool pending = has_work(*found->context, found.get());
    const auto status = found->context->status();
    return status == cu::kSuccess && pending ? cu::kNotReady : status;
  });
}

Status stream_wait_event(Stream stream, Event event, unsigned flags) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_stream(stream, found); status != cu::kSuccess) return status;
    std::shared_ptr<EventState> awaited;
    if (const auto status = find_event(event, awaited); status != cu::kSuccess) return status;
    if (flags != 0) return cu::kInvalidValue;
    bool captured = false;
    if (const auto status = capture_submission(*found, captured); captured) return status;
    const auto record = latest_of(*awaited);
    if (!record) return cu::kSuccess;
    const auto& device = found->context->device;
    if (record->device != device) {
      // Before the wait is queued, so that no completion is missed in between.
      const Locked locked(*record->device);
      if (!record->complete) record->watchers.push_back(device);
    }
    auto operation = std::make_shared<Operation>();
    operation->kind = Kind::wait;
    operation->record = record;
    return enqueue(*found, operation);
  });
}

Status event_create(Event* event, unsigned flags) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    constexpr unsigned kKnown = cu::kEventBlockingSync | cu::kEventDisableTiming;
    if (event == nullptr || (flags & ~kKnown) != 0) return cu::kInvalidValue;
    auto created = std::make_shared<EventState>();
    created->context = context;
    created->timing = (flags & cu::kEventDisableTiming) == 0;
    const auto id = driver().events.add(std::move(created));
    if (!context->alive) {
      driver().events.take(id);
      return cu::kContextIsDestroyed;
    }
    *event = reinterpret_cast<Event>(id);
    return cu::kSuccess;
  });
}

// A record or a wait that is queued keeps what it needs of the event.
Status event_destroy(Event event) {
  return guarded([&]() -> Status {
    std::shared_ptr<EventState> found;
    if (const auto status = need_event(event, found); status != cu::kSuccess) return status;
    return status_of(driver().events.take(reinterpret_cast<std::uint64_t>(event)).life);
  });
}

Status event_record(Event event, Stream stream) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_stream(stream, found); status != cu::kSuccess) return status;
    std::shared_ptr<EventState> recorded;
    if (const auto status = find_event(event, recorded); status != cu::kSuccess) return status;
    if (recorded->context != found->context) return cu::kInvalidHandle;
    bool captured = false;
    if (const auto status = capture_submission(*found, captured); captured) return status;
    auto operation = std::make_shared<Operation>();
    operation->kind = Kind::record;
    operation->record = std::make_shared<Record>();
    operation->record->device = found->context->device;
    if (const auto status = enqueue(*found, operation); status != cu::kSuccess) return status;
    const std::lock_guard lock(recorded->mutex);
    recorded->latest = operation->record;
    return cu::kSuccess;
  });
}

Status event_query(Event event) {
  return guarded([&]() -> Status {
    std::shared_ptr<EventState> found;
    if (const auto status = need_event(event, found); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    stepper::asked(*found->context->device);
    const auto record = latest_of(*found);
    if (!record || record->complete.load(std::memory_order_acquire)) {
      return found->context->status();
    }
    return cu::kNotReady;
  });
}

Status event_synchronize(Event event) {
  return guarded([&]() -> Status {
    std::shared_ptr<EventState> found;
    if (const auto status = need_event(event, found); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    if (const auto record = latest_of(*found)) {
      stepper::wait_until(*record->device, [&] { return record->complete.load(); });
    }
    return found->context->status();
  });
}

Status event_elapsed_time(float* milliseconds, Event start, Event end) {
  return guarded([&]() -> Status {
    std::shared_ptr<EventState> first;
    std::shared_ptr<EventState> last;
    if (const auto status = need_event(start, first); status != cu::kSuccess) return status;
    if (const auto status = need_event(end, last); status != cu::kSuccess) return status;
    if (milliseconds == nullptr) return cu::kInvalidValue;
    const auto from = latest_of(*first);
    const auto to = latest_of(*last);
    if (!from || !to || !first->timing || !last->timing) return cu::kInvalidHandle;
    if (first->context != last->context) return cu::kInvalidHandle;
    if (!from->complete.load(std::memory_order_acquire) ||
        !to->complete.load(std::memory_order_acquire)) {
      return cu::kNotReady;
    }
    *milliseconds = static_cast<float>(static_cast<double>(to->time_ns - from->time_ns) / 1e6);
    return cu::kSuccess;
  });
}

}  // namespace calls

}  // namespace weave::emu

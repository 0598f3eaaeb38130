#include "core/stream.hpp"

namespace weave {

namespace {

// Ends something of a context. Tried again later no context may be current, or the context may be
// gone and have taken it along.
template <class Destroy>
Driver::Undo in_context(const ContextRef& context, Destroy destroy) {
  return [weak = std::weak_ptr<Context>(context), destroy](const cu::Table& table) {
    const cu::Status status = destroy(table);
    if (status != cu::kInvalidContext) return status;
    const auto alive = weak.lock();
    if (alive == nullptr) return cu::kSuccess;
    try {
      const ContextScope scope(*alive);
      return destroy(table);
    } catch (const DriverError& error) {
      return error.code;
    }
  };
}

}  // namespace

Stream::Stream(ContextRef context) : context_(std::move(context)) {
  cu::check(context_->driver().table.stream_create(&stream_, cu::kStreamNonBlocking),
            cu::Call::stream_create);
}

Stream::~Stream() {
  context_->driver_ref()->undo(cu::Call::stream_destroy,
                               in_context(context_, [stream = stream_](const cu::Table& table) {
                                 return table.stream_destroy(stream);
                               }));
}

Event::Event(ContextRef context, unsigned flags) : context_(std::move(context)) {
  cu::check(context_->driver().table.event_create(&event_, flags), cu::Call::event_create);
}

Event::~Event() {
  context_->driver_ref()->undo(cu::Call::event_destroy,
                               in_context(context_, [event = event_](const cu::Table& table) {
                                 return table.event_destroy(event);
                               }));
}

}  // namespace weave

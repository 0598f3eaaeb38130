#include "core/stream.hpp"

namespace weave {

Stream::Stream(ContextRef context) : context_(std::move(context)) {
  cu::check(context_->driver().table.stream_create(&stream_, cu::kStreamNonBlocking),
            cu::Call::stream_create);
}

Stream::~Stream() {
  context_->driver_ref()->undo(
      cu::Call::stream_destroy,
      [stream = stream_](const cu::Table& table) { return table.stream_destroy(stream); });
}

Event::Event(ContextRef context, unsigned flags) : context_(std::move(context)) {
  cu::check(context_->driver().table.event_create(&event_, flags), cu::Call::event_create);
}

Event::~Event() {
  context_->driver_ref()->undo(cu::Call::event_destroy, [event = event_](const cu::Table& table) {
    return table.event_destroy(event);
  });
}

}  // namespace weave

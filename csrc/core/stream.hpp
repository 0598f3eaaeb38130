// core/stream.hpp: owners of streams and events. pre for all: the context is current.
#pragma once

#include "core/driver.hpp"

namespace weave {

class Stream {
 public:
  explicit Stream(ContextRef context);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cu::Stream raw() const { return stream_; }

 private:
  ContextRef context_;
  cu::Stream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(ContextRef context, unsigned flags = cu::kEventDisableTiming);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cu::Event raw() const { return event_; }

 private:
  ContextRef context_;
  cu::Event event_ = nullptr;
};

}  // namespace weave

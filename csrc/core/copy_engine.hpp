// core/copy_engine.hpp: moves lists of chunks both ways at once, one stream per direction. An
// incoming chunk may name the outgoing chunk whose place it takes; the driver then orders the two
// by an event, one chunk apart, so both directions run all the time and no byte is overwritten
// before its own copy out is complete. At most kWindow chunks are queued per direction (a stream
// blocks its caller at about 1,000 operations). Lock: the owning Device's. pre for all: the context
// is current.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/stream.hpp"

namespace weave {

struct Chunk {
  cu::DevicePtr device = 0;
  std::byte* host = nullptr;
  Bytes bytes = 0;
  int after = -1;  // incoming only: index of the outgoing chunk that must be complete first
  int fill = -1;   // incoming only: not a copy, every byte becomes this
};

class CopyEngine {
 public:
  explicit CopyEngine(const ContextRef& context);

  // How far a run got; valid also after run() threw.
  struct Progress {
    std::size_t outs_issued = 0;
    std::size_t ins_issued = 0;
  };
  // Queue all chunks. An incoming chunk waits until the outgoing one it names is queued. pre:
  // `after` is the index of an outgoing chunk, or none. Throws DriverError; what was issued by then
  // is in `progress` and may still be running.
  void run(std::span<const Chunk> outs, std::span<const Chunk> ins, Progress& progress);

  // Wait until everything queued is complete; seconds each direction took, by the driver's events.
  struct Seconds {
    double out = 0;
    double in = 0;
  };
  Seconds finish();

  // Wait after a failure, trying more than once. False when it cannot be known whether the copies
  // are complete; true at once where nothing was queued. Never throws.
  bool settle() noexcept;

  // The size of one copy call for a switch of `bytes` in blocks of `block_bytes`.
  static Bytes chunk_bytes(Bytes bytes, Bytes block_bytes);

 private:
  static constexpr std::size_t kWindow = 64;

  struct Lane {
    explicit Lane(const ContextRef& context);
    Stream stream;
    Event started;
    Event ended;
    std::vector<std::unique_ptr<Event>> done;  // ring: done[k % kWindow] follows chunk k
    bool used = false;   // something may be in flight since the last finish() or settle()
    bool timed = false;  // `started` was recorded by this run
  };
  void begin(Lane& lane, std::size_t index);
  void issue_out(std::span<const Chunk> outs, Progress& progress);
  void issue_in(const Chunk& chunk, Progress& progress);
  void end(Lane& lane, std::size_t index);
  double seconds(const Lane& lane) const;

  ContextRef context_;
  const cu::Table& table_;
  Lane out_;
  Lane in_;
};

}  // namespace weave

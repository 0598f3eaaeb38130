// core/copy_engine.hpp: moves lists of chunks both ways at once, one stream per direction. An
// incoming chunk may name the outgoing chunk whose place it takes; the driver then orders the two
// by an event, one chunk apart, so both directions run all the time and no byte is overwritten
// before its own copy out is complete. Where the link is slower both ways at once (`sequential`),
// everything goes out before anything comes in. At most a window of chunks is queued per direction
// (a stream blocks its caller at about 1,000 operations). Lock: the owning Device's, or its user's,
// if it is not shared. pre for all: the context is current.
#pragma once

#include <atomic>
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
  // A chunk is up to three operations of a stream (wait, copy, record); 256 at most are queued.
  static constexpr std::size_t kWindow = 64;
  static_assert(3 * kWindow + 2 <= 256);

  // window: at most so many chunks in flight per direction.
  explicit CopyEngine(const ContextRef& context, std::size_t window = kWindow);

  // How far a run got; valid also after run() threw.
  struct Progress {
    std::size_t outs_issued = 0;
    std::size_t ins_issued = 0;
  };
  // Queue all chunks. An incoming chunk waits until the outgoing one it names is queued. pre:
  // `after` is the index of an outgoing chunk, or none. Throws DriverError; what was issued by then
  // is in `progress` and may still be running. Once `stop` is true nothing more is queued.
  void run(std::span<const Chunk> outs, std::span<const Chunk> ins, Progress& progress,
           const std::atomic<bool>* stop = nullptr);

  // Wait until everything queued is complete; seconds each direction took, by the driver's events.
  struct Seconds {
    double out = 0;
    double in = 0;
  };
  Seconds finish();

  // Wait after a failure, trying more than once. False when it cannot be known whether the copies
  // are complete; true at once where nothing was queued. Never throws.
  bool settle() noexcept;

  // One direction after the other. Decided by calibration, like the size of a chunk.
  void set_sequential(bool sequential) { sequential_ = sequential; }
  bool sequential() const { return sequential_; }
  void set_chunks(Bytes per_switch) { chunks_ = per_switch; }
  Bytes chunks() const { return chunks_; }
  // The size of one copy call for a switch of `bytes` in blocks of `block_bytes`: a share of the
  // switch, small enough that filling the pipeline costs little, large enough for the link.
  Bytes chunk_bytes(Bytes bytes, Bytes block_bytes) const;

 private:
  struct Lane {
    Lane(const ContextRef& context, std::size_t window);
    Stream stream;
    Event started;
    Event ended;
    std::vector<std::unique_ptr<Event>> done;  // ring: done[k % window] follows chunk k
    bool used = false;   // something may be in flight since the last finish() or settle()
    bool timed = false;  // `started` was recorded by this run
  };
  void begin(Lane& lane, std::size_t index);
  void issue_out(std::span<const Chunk> outs, Progress& progress);
  void issue_in(const Chunk& chunk, Progress& progress);
  void end(Lane& lane, std::size_t index);
  double seconds(const Lane& lane) const;

  bool stopped(const std::atomic<bool>* stop) const { return stop != nullptr && *stop; }

  ContextRef context_;
  const cu::Table& table_;
  const std::size_t window_;
  bool sequential_ = false;
  Bytes chunks_ = 64;
  Lane out_;
  Lane in_;
};

}  // namespace weave

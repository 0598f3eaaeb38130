// core/copy_engine.hpp: moves lists of chunks both ways at once, one stream per direction. An
// incoming chunk may name the outgoing chunk whose place it takes; the driver then orders the two
// by an event, one chunk apart, so both directions run all the time and no byte is overwritten
// before its own copy out is complete. Where the link is slower both ways at once (`sequential`),
// everything goes out before anything comes in.
//
// A driver call moves one chunk, or, where the driver can do that, a batch of neighbouring small
// ones (pages, the used bytes of small tags). Events stand behind calls. At most a window of calls
// is queued per direction (a stream blocks its caller at about 1,000 operations). Lock: the owning
// Device's, or its user's, if it is not shared. pre for all: the context is current.
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
  // Calls in flight per direction. Beside its copies a call is up to two operations of a stream
  // (wait, record).
  static constexpr std::size_t kWindow = 64;
  // Copies in one batch, and in flight per direction.
  static constexpr std::size_t kBatchCopies = 256;
  static constexpr std::size_t kWindowCopies = 3 * kBatchCopies;
  static_assert(2 * kWindow + kWindowCopies + 2 < 1000);
  // Chunks below this are batched. Others measured on GPUs that batching halves the time for copies
  // of 4 to 8 KiB and changes nothing from 32 KiB on, where the call hides behind its bytes.
  static constexpr Bytes kBatchBelow = Bytes{32} << 10;

  // window: at most so many calls in flight per direction. beside_phase: waiting leaves the core to
  // others (the driver spins otherwise), and a batch leaves the multiprocessors to them.
  explicit CopyEngine(const ContextRef& context, std::size_t window = kWindow,
                      bool beside_phase = false);

  // How far a run got, in chunks; valid also after run() threw.
  struct Progress {
    std::size_t outs_issued = 0;
    std::size_t ins_issued = 0;
  };
  struct Options {
    Bytes batch_bytes = 0;                    // at most so many in one batch; 0: none
    const std::atomic<bool>* stop = nullptr;  // once true nothing more is queued
  };
  // Queue all chunks. An incoming chunk waits until the outgoing one it names is queued. pre:
  // `after` is the index of an outgoing chunk, or none; no two chunks of one direction overlap.
  // Throws DriverError; what was issued by then is in `progress` and may still be running.
  void run(std::span<const Chunk> outs, std::span<const Chunk> ins, Progress& progress,
           const Options& options);
  void run(std::span<const Chunk> outs, std::span<const Chunk> ins, Progress& progress) {
    run(outs, ins, progress, Options{});
  }

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
    Lane(const ContextRef& context, std::size_t window, unsigned wait_flags);
    Stream stream;
    Event started;
    Event ended;
    std::vector<std::unique_ptr<Event>> done;  // ring: done[k % window] follows call k
    bool used = false;   // something may be in flight since the last finish() or settle()
    bool timed = false;  // `started` was recorded by this run
    // Of this run: where each call that was made ends, in chunks; which of them are known to be
    // complete (the first so many); and the copies in those that are not.
    std::vector<std::size_t> calls;
    std::size_t complete = 0;
    std::size_t copies = 0;
  };
  void reset(Lane& lane);
  void begin(Lane& lane, std::size_t copies);
  void end(Lane& lane, std::size_t chunks);
  std::size_t call_end(std::span<const Chunk> chunks, std::size_t begin, Bytes batch_bytes) const;
  void issue_out(std::span<const Chunk> outs, Progress& progress, const Options& options);
  void issue_in(std::span<const Chunk> ins, Progress& progress, const Options& options);
  void wait_for_out(int after);
  void copy(const Chunk& chunk, bool out);
  bool copy_batch(std::span<const Chunk> chunks, bool out);
  void copy_all(std::span<const Chunk> chunks, bool out);
  double seconds(const Lane& lane) const;

  ContextRef context_;
  const cu::Table& table_;
  const std::size_t window_;
  const bool beside_phase_;
  bool sequential_ = false;
  bool batches_ = true;  // until the driver says that it does not support them
  Bytes chunks_ = 64;
  Lane out_;
  Lane in_;
};

}  // namespace weave

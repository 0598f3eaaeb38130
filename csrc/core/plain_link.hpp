// core/plain_link.hpp: what the link itself can do: plain pinned copies of whole blocks through the
// driver table, one stream a direction, without the engine, its chunks, its events or any mapping.
// The yardstick of every report (calibrate) and the `plain` arm of the benchmarks.
// Lock: the owning Device's. pre for all: the context is current.
#pragma once

#include <vector>

#include "core/copy_engine.hpp"
#include "core/frames.hpp"
#include "core/host_pool.hpp"
#include "core/report.hpp"
#include "core/stream.hpp"

namespace weave {

// Whose pinned memory it takes.
inline constexpr const char* kPlainJob = "weave-plain-copies";

class PlainLink {
 public:
  // Holds frames and pinned memory for `blocks` blocks per direction until it dies. pre: the frames
  // are available. Throws DriverError, Refusal.
  PlainLink(const ContextRef& context, Frames& frames, HostPool& host_pool, std::size_t blocks);
  ~PlainLink();
  PlainLink(const PlainLink&) = delete;
  PlainLink& operator=(const PlainLink&) = delete;

  std::size_t blocks() const { return extents_.size() / 2; }
  // Seconds for so many blocks out and in at once: by the clock of the caller, and by the driver's
  // events, which do not count how late a busy host wakes up. pre: neither exceeds blocks(). Throws
  // DriverError.
  struct Seconds {
    double host = 0, device = 0;
  };
  Seconds copy(std::size_t blocks_out, std::size_t blocks_in);
  // The same copies in two steps: queue them, and wait for all that are queued.
  void start(std::size_t blocks_out, std::size_t blocks_in);
  void finish();
  // Seconds for as many blocks as it holds to leave their frames and as many others to enter the
  // same ones, by the engine: a switch without its mapping. Throws DriverError; the engine has to
  // be settled then too.
  double exchange(CopyEngine& engine);
  Bytes chunk_bytes(const CopyEngine& engine) const;  // that exchange() uses
  // After copy() threw: whether everything queued is known to be complete. Until then the frames
  // and extents must not be used otherwise. Never throws.
  bool settle() noexcept;

 private:
  ContextRef context_;
  Frames& frames_;
  Stream out_;
  Stream in_;
  Event started_;
  Event out_ended_;
  Event in_ended_;
  std::vector<Extent> extents_;  // first half out, second half in; likewise the frames
  std::vector<FrameId> taken_;
};

// Both directions alone and together, best of three, after one unmeasured round (a link sleeps when
// idle).
struct Measured {
  LinkRates rates;          // by the host's clock: what a switch can be compared with
  bool sequential = false;  // one direction after the other is faster, by the driver's events
};
Measured measure_rates(PlainLink& link, Bytes block_bytes);
// Sets in how many chunks the engine cuts a switch. A few are tried, for about a second at most;
// another one than the default must be clearly faster. Throws DriverError.
Bytes best_chunks(PlainLink& link, CopyEngine& engine);

}  // namespace weave

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

class PlainLink {
 public:
  // Holds frames and pinned memory for `blocks` blocks per direction until it dies. pre: the frames
  // are available. Throws DriverError, Refusal.
  PlainLink(const ContextRef& context, Frames& frames, HostPool& host_pool, std::size_t blocks);
  ~PlainLink();
  PlainLink(const PlainLink&) = delete;
  PlainLink& operator=(const PlainLink&) = delete;

  std::size_t blocks() const { return extents_.size() / 2; }
  // Seconds for so many blocks out and in at once. pre: neither exceeds blocks(). Throws
  // DriverError.
  double copy(std::size_t blocks_out, std::size_t blocks_in);
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
  std::vector<Extent> extents_;  // first half out, second half in; likewise the frames
  std::vector<FrameId> taken_;
};

// Both directions alone and together, best of three, after one unmeasured round (a link sleeps when
// idle).
LinkRates measure_rates(PlainLink& link, Bytes block_bytes);
// In how many chunks the engine had best cut a switch of this size; it is left at that. A few are
// tried, for about a second at most; another one than the default must be clearly faster.
Bytes best_chunks(PlainLink& link, CopyEngine& engine);

}  // namespace weave

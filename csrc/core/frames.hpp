// core/frames.hpp: the blocks of one device. A frame is created when first needed, up to `total`,
// and recycled from then on: steady state creates and releases nothing. Of the `total` places only
// `limit` may be in use, which changes with what others take of the device. Each frame's block is
// mapped once, for its life, at a home address that only the copy engine uses, so copying never
// waits for mapping and a failed map never endangers bytes. Lock: the owning Device's.
#pragma once

#include <algorithm>
#include <vector>

#include "core/vmm.hpp"

namespace weave {

class Frames {
 public:
  Frames(DriverRef driver, Bytes block_bytes, int total, bool gpu_direct);

  // A free frame; a recycled one where there is one. pre: available() > 0. Throws DriverError.
  FrameId take();
  void give_back(FrameId frame) { free_.push_back(frame); }

  int total() const { return total_; }
  // How many may be in use from now on, up to total(). More that are in use stay so until they are
  // given back. Places that release() withheld are no longer.
  int limit() const { return limit_; }
  void set_limit(int limit) noexcept {
    limit_ = limit;
    withheld_ = 0;
  }
  // Give up to `count` free blocks back to the driver; their places stay, and blocks are created in
  // them when they are needed again. `withhold`: until then they do not count as usable. Returns
  // how many went; the driver's refusals are retried later.
  int release(int count, bool withhold) noexcept;

  // Created, and nobody's: taking one of these makes no driver call.
  int free() const { return static_cast<int>(free_.size()); }
  int created() const { return static_cast<int>(frames_.size() - empty_.size()); }
  int in_use() const { return created() - free(); }
  // Withheld by release() and not created again.
  int released() const { return std::min(withheld_, static_cast<int>(empty_.size())); }
  int available() const {
    const int room = std::max(0, limit_ - in_use());
    return may_create_ ? room : std::min(room, free());
  }
  // While false, only frames that exist count as available: the driver has no memory for more.
  void allow_creating(bool allowed) { may_create_ = allowed; }
  Bytes block_bytes() const { return block_bytes_; }
  cu::DevicePtr home(FrameId frame) const {
    return reservation_->address() + static_cast<Bytes>(frame) * block_bytes_;
  }
  const std::shared_ptr<Block>& block(FrameId frame) const {
    return frames_[static_cast<std::size_t>(frame)].block;
  }

 private:
  struct Frame {
    std::shared_ptr<Block> block;
    Mapping home;
  };
  DriverRef driver_;
  Bytes block_bytes_;
  int total_;
  int limit_ = total_;
  int withheld_ = 0;
  bool gpu_direct_;
  bool may_create_ = true;
  std::shared_ptr<Reservation> reservation_;
  std::vector<Frame> frames_;
  std::vector<FrameId> free_;
  std::vector<FrameId> empty_;  // places whose block was given back
};

}  // namespace weave

// core/frames.hpp: the blocks of one device. A frame is created when first needed, up to `total`,
// and recycled from then on: steady state creates and releases nothing. Each frame's block is
// mapped once, for its life, at a home address that only the copy engine uses, so copying never
// waits for mapping and a failed map never endangers bytes. Lock: the owning Device's.
#pragma once

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
  int created() const { return static_cast<int>(frames_.size()); }
  int available() const {
    return static_cast<int>(free_.size()) + (may_create_ ? total_ - created() : 0);
  }
  // Those of them that exist: taking one of these makes no driver call.
  int free() const { return static_cast<int>(free_.size()); }
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
  bool gpu_direct_;
  bool may_create_ = true;
  std::shared_ptr<Reservation> reservation_;
  std::vector<Frame> frames_;
  std::vector<FrameId> free_;
};

}  // namespace weave

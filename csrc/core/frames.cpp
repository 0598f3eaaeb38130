#include "core/frames.hpp"

namespace weave {

Frames::Frames(DriverRef driver, Bytes block_bytes, int total, bool gpu_direct)
    : driver_(std::move(driver)),
      block_bytes_(block_bytes),
      total_(total),
      gpu_direct_(gpu_direct),
      reservation_(
          std::make_shared<Reservation>(driver_, static_cast<Bytes>(total) * block_bytes)) {}

FrameId Frames::take() {
  if (!free_.empty()) {
    const FrameId frame = free_.back();
    free_.pop_back();
    return frame;
  }
  WEAVE_ASSERT(created() < total_, "a frame was taken although none is available");
  const auto id = static_cast<FrameId>(frames_.size());
  Frame frame;
  frame.block = std::make_shared<Block>(driver_, block_bytes_, gpu_direct_);
  frame.home = Mapping(reservation_, frame.block, static_cast<Bytes>(id) * block_bytes_);
  set_access(*driver_, home(id), block_bytes_);
  frames_.push_back(std::move(frame));
  return id;
}

}  // namespace weave

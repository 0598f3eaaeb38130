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
  // Places that release() emptied first. Recorded only when the block is there and mapped.
  const auto id = empty_.empty() ? static_cast<FrameId>(frames_.size()) : empty_.back();
  Frame frame;
  frame.block = std::make_shared<Block>(driver_, block_bytes_, gpu_direct_);
  frame.home = Mapping(reservation_, frame.block, static_cast<Bytes>(id) * block_bytes_);
  set_access(*driver_, home(id), block_bytes_);
  if (empty_.empty()) {
    frames_.push_back(std::move(frame));
  } else {
    frames_[static_cast<std::size_t>(id)] = std::move(frame);
    empty_.pop_back();
    withheld_ = std::max(0, withheld_ - 1);
  }
  return id;
}

int Frames::release(int count, bool withhold) noexcept {
  const int withheld = released();
  int gone = 0;
  while (gone < count && !free_.empty()) {
    const FrameId id = free_.back();
    free_.pop_back();
    // If the driver does not unmap the home now, mapping the next block there fails until the undo
    // was retried, which every operation of the device begins with.
    frames_[static_cast<std::size_t>(id)] = Frame{};
    empty_.push_back(id);
    ++gone;
  }
  if (withhold) withheld_ = withheld + gone;
  return gone;
}

}  // namespace weave

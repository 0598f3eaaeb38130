// core/trimming.cpp: what gives device memory back to the driver: Device::trim() when somebody asks
// for it, and set_usable() when others have come to need more of the device for good.
#include <algorithm>

#include "core/device.hpp"

namespace weave {

Bytes Device::trim(Bytes bytes) {
  const Foreground lock(*this);
  require_open();
  const ContextScope scope(*context_);
  retry_unfinished();
  const auto wanted =
      static_cast<int>(std::min<Bytes>(bytes / block_bytes_ + (bytes % block_bytes_ != 0 ? 1 : 0),
                                       static_cast<Bytes>(frames_->total())));
  if (wanted > frames_->free()) {
    const Tenant nobody("", "");
    auto outs =
        choose_victims(tenants_, nobody, static_cast<std::size_t>(wanted - frames_->free())).slots;
    std::erase_if(outs, [](const SlotRef& ref) { return ref.region->policy != Policy::discard; });
    if (!outs.empty()) transfer(outs, {}, nullptr, nullptr, 60.0);
  }
  return release_frames(wanted, true);
}

Bytes Device::set_usable(Bytes bytes) {
  const Foreground lock(*this);
  require_open();
  const ContextScope scope(*context_);
  retry_unfinished();
  std::size_t wanted = std::max<std::size_t>(bytes / block_bytes_, 1);
  // A tenant comes in whole or not at all: what it has already must fit.
  for (const auto& tenant : tenants_) wanted = std::max(wanted, tenant->slots());
  const auto limit = static_cast<int>(std::min(wanted, static_cast<std::size_t>(frames_->total())));
  if (frames_->in_use() > limit) {
    const Tenant nobody("", "");
    const auto excess = static_cast<std::size_t>(frames_->in_use() - limit);
    const auto outs = choose_victims(tenants_, nobody, excess, plan_).slots;
    if (!outs.empty()) transfer(outs, {}, nullptr, nullptr, 60.0);
  }
  frames_->set_limit(limit);
  if (frames_->created() > limit) release_frames(frames_->created() - limit, false);
  return static_cast<Bytes>(std::max(limit, frames_->created())) * block_bytes_;
}

// What the driver refuses to take back now is retried later, and is not counted as given.
Bytes Device::release_frames(int count, bool withhold) noexcept {
  const auto before = static_cast<Bytes>(driver_->retry_buried());
  const auto released = static_cast<Bytes>(frames_->release(count, withhold));
  const auto after = static_cast<Bytes>(driver_->retry_buried());
  const Bytes kept = after > before ? after - before : 0;
  const Bytes given = (released - std::min(released, kept)) * block_bytes_;
  stats_.bytes_trimmed += given;
  return given;
}

}  // namespace weave

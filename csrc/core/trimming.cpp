// core/trimming.cpp: Device::trim(), which gives device memory back to the driver.
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
  // What the driver refuses to take back now is retried later, and is not counted as given.
  const auto before = static_cast<Bytes>(driver_->retry_buried());
  const auto released = static_cast<Bytes>(frames_->release(wanted));
  const auto after = static_cast<Bytes>(driver_->retry_buried());
  const Bytes kept = after > before ? after - before : 0;
  const Bytes given = (released - std::min(released, kept)) * block_bytes_;
  stats_.bytes_trimmed += given;
  return given;
}

}  // namespace weave

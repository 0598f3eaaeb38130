// core/rescue.cpp: Device::rescue(), which reads contents in whatever state a tenant is.
#include <cstring>

#include "core/device.hpp"

namespace weave {

std::map<std::string, std::vector<std::byte>> Device::rescue(
    const std::shared_ptr<Tenant>& tenant) {
  const std::lock_guard lock(mutex_);
  require_open();
  if (tenant->closed) throw UsageError("tenant " + tenant->name + " is closed");
  std::map<std::string, std::vector<std::byte>> saved;
  const ContextScope scope(*context_);
  retry_unfinished();
  if (tenant->running) drain_->wait(60.0);
  for (const auto& region : tenant->regions) {
    if (region->policy != Policy::keep) continue;
    std::vector<std::byte> bytes(region->slots.size() * block_bytes_);
    bool complete = true;
    for (std::size_t index = 0; index < region->slots.size() && complete; ++index) {
      Slot& slot = region->slots[index];
      const bool concerned = unfinished_ != nullptr && unfinished_->concerns(*tenant);
      if (!slot.host_valid && (slot.frame == kNoFrame || concerned)) {
        complete = false;
        break;
      }
      if (!slot.host_valid) {
        const Chunk chunk{frames_->home(slot.frame), slot.host.data(), block_bytes_};
        CopyEngine::Progress progress;
        engine_->run({&chunk, 1}, {}, progress);
        engine_->finish();
      }
      std::memcpy(bytes.data() + index * block_bytes_, slot.host.data(), block_bytes_);
    }
    if (complete) saved.emplace(region->tag, std::move(bytes));
  }
  return saved;
}

}  // namespace weave

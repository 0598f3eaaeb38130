// core/accounts.cpp: what a device tells about itself: its counters, its memory, its tenants.
#include "core/device.hpp"

namespace weave {

bool Device::closed() const {
  const std::lock_guard lock(mutex_);
  return frames_ == nullptr;
}

Bytes Device::usable() const {
  const std::lock_guard lock(mutex_);
  if (frames_ == nullptr) return 0;
  return static_cast<Bytes>(frames_->limit() - frames_->released()) * block_bytes_;
}

void Device::note_background(Stats& stats) const {
  if (background_ == nullptr) return;
  stats.bytes_background_out = background_->stats().bytes_out;
  stats.bytes_background_in = background_->stats().bytes_in;
  stats.background_errors = background_->stats().errors;
}

Device::Stats Device::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  if (frames_ != nullptr) {
    stats.blocks_created = frames_->created();
    stats.blocks_total = frames_->limit();
    stats.blocks_free = frames_->available();
    stats.blocks_released = frames_->released();
    for (const auto& tenant : tenants_) {
      for (const auto& region : tenant->regions) {
        for (std::size_t slot = 0; slot < region->slots.size(); ++slot) {
          if (region->slots[slot].file != nullptr) stats.bytes_in_files += region->host_bytes(slot);
        }
      }
    }
  }
  note_background(stats);
  return stats;
}

Device::Memory Device::memory() const {
  const std::lock_guard lock(mutex_);
  require_open();
  const ContextScope scope(*context_);
  std::size_t free = 0;
  std::size_t total = 0;
  cu::check(driver_->table.mem_get_info(&free, &total), cu::Call::mem_get_info);
  return {total, free, static_cast<Bytes>(frames_->created()) * block_bytes_};
}

Device::Place Device::place(const std::shared_ptr<Tenant>& tenant) const {
  const std::lock_guard lock(mutex_);
  return {tenant->slots(), tenant->slots_on_device(), tenant->slots_spilled(), tenant->all_mapped(),
          tenant->regions};
}

std::vector<std::shared_ptr<Tenant>> Device::tenants() const {
  const std::lock_guard lock(mutex_);
  return tenants_;
}

}  // namespace weave

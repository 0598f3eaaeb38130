#include "core/region.hpp"

#include <algorithm>

namespace weave {

Region::Region(std::weak_ptr<Tenant> tenant_, std::string tag_, Policy policy_,
               std::shared_ptr<Reservation> reservation_, Bytes block_bytes_)
    : tag(std::move(tag_)),
      policy(policy_),
      tenant(std::move(tenant_)),
      block_bytes(block_bytes_),
      reservation(std::move(reservation_)) {}

std::optional<Bytes> Region::take(Bytes bytes, Bytes alignment) {
  const std::lock_guard lock(space_mutex_);
  return space_.take(bytes, alignment);
}

Bytes Region::shortage(Bytes bytes, Bytes alignment) const {
  const std::lock_guard lock(space_mutex_);
  return space_.shortage(bytes, alignment);
}

void Region::give_back(Bytes offset, Bytes bytes) {
  const std::lock_guard lock(space_mutex_);
  space_.give_back(offset, bytes);
}

void Region::grow_space() {
  const std::lock_guard lock(space_mutex_);
  space_.grow(slots.size() * block_bytes);
  bytes_held = slots.size() * block_bytes;
}

Bytes Region::bytes_allocated() const {
  const std::lock_guard lock(space_mutex_);
  return space_.used();
}

Bytes Region::used_in(std::size_t slot) const {
  const std::lock_guard lock(space_mutex_);
  return space_.used_in(slot * block_bytes, block_bytes);
}

Bytes Region::unwritten(const std::map<Bytes, Bytes>& pieces) const {
  const std::lock_guard lock(space_mutex_);
  return space_.missing(pieces, 512);
}

std::vector<Range> Region::ranges(std::size_t slot) const {
  const Bytes used = policy == Policy::discard ? 0 : used_in(slot);
  if (used == 0) return {};
  return {{0, used, slots[slot].host.data()}};
}

void Region::invalidate_host(Bytes offset, Bytes bytes) {
  const std::size_t end =
      std::min<Bytes>(round_up(offset + bytes, block_bytes) / block_bytes, slots.size());
  for (std::size_t slot = offset / block_bytes; slot < end; ++slot) {
    if (slots[slot].frame_valid) slots[slot].host_valid = false;
  }
}

std::size_t Tenant::slots() const {
  std::size_t count = 0;
  for (const auto& region : regions) count += region->slots.size();
  return count;
}

std::size_t Tenant::slots_on_device() const {
  std::ptrdiff_t count = 0;
  for (const auto& region : regions) {
    count += std::ranges::count_if(region->slots,
                                   [](const Slot& slot) { return slot.frame != kNoFrame; });
  }
  return static_cast<std::size_t>(count);
}

bool Tenant::all_mapped() const {
  return std::ranges::all_of(regions, [](const auto& region) {
    return std::ranges::all_of(region->slots,
                               [](const Slot& slot) { return static_cast<bool>(slot.mapping); });
  });
}

void Tenant::refresh_states() {
  for (const auto& region : regions) {
    const bool on_device = std::ranges::all_of(
        region->slots, [](const Slot& slot) { return static_cast<bool>(slot.mapping); });
    const auto away =
        region->policy == Policy::discard ? RegionState::discarded : RegionState::host;
    region->state = failed ? RegionState::failed : on_device ? RegionState::resident : away;
  }
}

}  // namespace weave

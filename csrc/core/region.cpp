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

std::size_t Region::extents_needed(const std::optional<PageTable>& pages) const {
  return pages ? pages->extents() : slots.size();
}

std::size_t Region::extents_held() const {
  const auto count = std::ranges::count_if(packed, [](const Extent& e) { return bool{e}; }) +
                     std::ranges::count_if(slots, [](const Slot& s) { return bool{s.host}; });
  return static_cast<std::size_t>(count);
}

void Region::set_pages(std::optional<PageTable> pages, std::vector<Extent> more) {
  const std::size_t needed = extents_needed(pages);
  std::vector<Extent> all;
  all.reserve(extents_held() + more.size());
  const auto take = [&](Extent& extent) {
    if (extent) all.push_back(std::move(extent));
  };
  std::ranges::for_each(packed, take);
  for (auto& slot : slots) take(slot.host);
  std::ranges::for_each(more, take);
  WEAVE_ASSERT(all.size() >= needed, "a page table was set without memory for it");
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(needed), all.end());
  packed.clear();
  if (pages) {
    packed = std::move(all);
  } else {
    for (std::size_t slot = 0; slot < slots.size(); ++slot) slots[slot].host = std::move(all[slot]);
  }
  {
    const std::lock_guard lock(space_mutex_);
    pages_ = std::move(pages);
    pages_outdated_ = false;
  }
  for (auto& slot : slots) slot.checked.clear();
  invalidate_host(0, slots.size() * block_bytes);
}

void Region::forget_pages() {
  const std::lock_guard lock(space_mutex_);
  pages_outdated_ = pages_.has_value();
}

bool Region::keep_pages(const std::optional<PageTable>& pages) {
  const std::lock_guard lock(space_mutex_);
  if (pages != pages_) return false;
  pages_outdated_ = false;
  return true;
}

Bytes Region::host_bytes(std::size_t slot) const {
  return pages_ ? pages_->bytes_in(slot) : block_bytes;
}

void Region::drop_spilled() {
  if (!pages_) return;
  std::vector<bool> needed(packed.size(), false);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].file != nullptr) continue;
    for (const auto& part : pages_->parts(slot)) needed[part.extent] = true;
  }
  for (std::size_t extent = 0; extent < packed.size(); ++extent) {
    if (!needed[extent]) packed[extent] = Extent{};
  }
}

Bytes Region::bytes_in_pages() const {
  const std::lock_guard lock(space_mutex_);
  return pages_ && !pages_outdated_ ? pages_->bytes() : space_.used();
}

std::vector<Range> Region::host_ranges(std::size_t slot) const {
  if (policy == Policy::discard) return {};
  if (!pages_) return {{0, block_bytes, slots[slot].host.data()}};
  std::vector<Range> found;
  for (const auto& part : pages_->parts(slot)) {
    const Extent& extent = packed[part.extent];
    found.push_back({part.offset, part.bytes, extent ? extent.data() + part.at : nullptr});
  }
  return found;
}

std::vector<Range> Region::ranges(std::size_t slot) const {
  auto found = host_ranges(slot);
  const Bytes used = used_in(slot);
  std::erase_if(found, [&](const Range& range) { return range.offset >= used; });
  if (!found.empty()) {
    Range& last = found.back();
    last.bytes = std::min(last.bytes, used - last.offset);
  }
  return found;
}

void Region::invalidate_host(Bytes offset, Bytes bytes) {
  const std::size_t end =
      std::min<Bytes>(round_up(offset + bytes, block_bytes) / block_bytes, slots.size());
  for (std::size_t slot = offset / block_bytes; slot < end; ++slot) {
    if (!slots[slot].frame_valid) continue;
    slots[slot].host_valid = policy == Policy::keep && host_bytes(slot) == 0;
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

std::size_t Tenant::slots_spilled() const {
  std::ptrdiff_t count = 0;
  for (const auto& region : regions) {
    count +=
        std::ranges::count_if(region->slots, [](const Slot& slot) { return slot.file != nullptr; });
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

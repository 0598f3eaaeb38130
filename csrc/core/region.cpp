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

void Region::set_pages(std::optional<std::vector<Piece>> pages) {
  std::vector<Piece> merged;
  if (pages) {
    std::ranges::sort(*pages, {}, &Piece::offset);
    const Bytes size = slots.size() * block_bytes;
    for (const auto& [offset, bytes] : *pages) {
      if (offset > size || bytes > size - offset) {
        throw UsageError("page at " + std::to_string(offset) + " of " + std::to_string(bytes) +
                         " bytes is outside region " + tag + ", which has " + std::to_string(size));
      }
      if (bytes == 0) continue;
      if (!merged.empty() && offset <= merged.back().offset + merged.back().bytes) {
        const Bytes end = std::max(merged.back().offset + merged.back().bytes, offset + bytes);
        merged.back().bytes = end - merged.back().offset;
      } else {
        merged.push_back({offset, bytes});
      }
    }
  }
  invalidate_host(0, slots.size() * block_bytes);  // it may lack pages that are in use now
  const std::lock_guard lock(space_mutex_);
  pages_.reset();
  if (pages) pages_ = std::move(merged);
}

Bytes Region::bytes_in_pages() const {
  const std::lock_guard lock(space_mutex_);
  if (!pages_) return space_.used();
  Bytes bytes = 0;
  for (const auto& page : *pages_) bytes += page.bytes;
  return bytes;
}

std::vector<Range> Region::ranges(std::size_t slot) const {
  if (policy == Policy::discard) return {};
  const std::lock_guard lock(space_mutex_);
  const Bytes begin = slot * block_bytes;
  const Bytes used = space_.used_in(begin, block_bytes);
  std::byte* host = slots[slot].host.data();
  std::vector<Range> found;
  if (!pages_) {
    if (used > 0) found.push_back({0, used, host});
    return found;
  }
  // The last page that begins before the block may reach into it.
  auto page = std::ranges::upper_bound(*pages_, begin, {}, &Piece::offset);
  if (page != pages_->begin()) --page;
  for (; page != pages_->end() && page->offset < begin + used; ++page) {
    const Bytes from = std::max(page->offset, begin);
    const Bytes to = std::min(page->offset + page->bytes, begin + used);
    if (from < to) found.push_back({from - begin, to - from, host + (from - begin)});
  }
  return found;
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

// emu/memory.cpp: physical blocks and address ranges. Called by the table; the books are guarded by
// Driver::memory, and calls that change address ranges hold Driver::slow throughout.
#include "emu/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "emu/call.hpp"
#include "emu/pages.hpp"
#include "emu/story.hpp"

namespace weave::emu {

Block::Block(std::shared_ptr<DeviceState> owner, std::uint64_t size)
    : device(std::move(owner)), bytes(size) {
  const bool huge = bytes % pages::kHugePageBytes == 0;
  file = pages::make_file(bytes);
  if (file >= 0) alias = pages::reserve(bytes, huge ? pages::kHugePageBytes : 0);
  // Huge pages have to be asked for before the first touch, hence lazy.
  if (alias == nullptr || !pages::put_file(alias, bytes, file, pages::Access::read_write, huge) ||
      !pages::populate(alias, bytes)) {
    if (alias != nullptr) pages::release(alias, bytes);
    if (file >= 0) close(file);
    throw std::bad_alloc();
  }
  ++device->descriptors;
}

Block::~Block() {
  pages::release(alias, bytes);
  close(file);
  --device->descriptors;
}

Reservation* reservation_of(cu::DevicePtr address, std::uint64_t bytes) {
  auto& all = driver().reservations;
  const auto next = all.upper_bound(address);
  if (bytes == 0 || next == all.begin()) return nullptr;
  auto& found = std::prev(next)->second;
  const auto offset = address - found.address;
  return offset < found.bytes && bytes <= found.bytes - offset ? &found : nullptr;
}

std::vector<std::shared_ptr<Mapping>> mappings_in(const Reservation& reservation,
                                                  cu::DevicePtr address, std::uint64_t bytes) {
  std::vector<std::shared_ptr<Mapping>> result;
  const auto end = address + bytes;
  auto at = address;
  for (auto next = reservation.mappings.find(at); at < end; ++next) {
    if (next == reservation.mappings.end() || next->first != at) return {};
    result.push_back(next->second);
    at += next->second->bytes;
  }
  if (at != end) result.clear();
  return result;
}

bool overlaps_mapping(const Reservation& reservation, cu::DevicePtr address, std::uint64_t bytes) {
  const auto next = reservation.mappings.lower_bound(address);
  if (next != reservation.mappings.end() && next->first < address + bytes) return true;
  if (next == reservation.mappings.begin()) return false;
  const auto& previous = *std::prev(next)->second;
  return previous.address + previous.bytes > address;
}

void settle(const Block& block) {
  if (block.references == 0 && block.mappings == 0) block.device->bytes_used -= block.bytes;
}

void forget(Reservation& reservation, const std::shared_ptr<Mapping>& mapping) {
  mapping->alive.store(false, std::memory_order_release);
  reservation.mappings.erase(mapping->address);
  auto& block = *mapping->block;
  --block.mappings;
  --block.device->mappings;
  settle(block);
}

void abort_on_dead_handle(cu::AllocHandle handle, const char* call) {
  abort_with_story(std::string(call) + " was given the allocation handle " + hex(handle) +
                   ", which has been released before (or its device was removed). On a GPU this is "
                   "undefined: the handle's value may name another allocation by now. Each handle "
                   "is released exactly once and not used afterwards.");
}

cu::Status find_handle(cu::AllocHandle handle, const char* call, std::shared_ptr<Block>& block) {
  const auto found = driver().handles.find(handle);
  if (found.life == Life::unknown) return cu::kInvalidValue;
  if (found.life != Life::live) abort_on_dead_handle(handle, call);
  block = found.object->block;
  return cu::kSuccess;
}

namespace {

// What a reservation's size is a multiple of: the current device's granularity, else the finest.
std::uint64_t granularity_for_reserving() {
  if (const auto context = current_context()) return context->device->spec.granularity_bytes;
  const std::lock_guard lock(driver().registry);
  std::uint64_t finest = std::numeric_limits<std::uint64_t>::max();
  for (const auto& device : driver().devices) {
    if (device) finest = std::min(finest, device->spec.granularity_bytes);
  }
  return finest == std::numeric_limits<std::uint64_t>::max() ? pages::page_bytes() : finest;
}

cu::Status check(const cu::MemAllocationProp* prop, std::shared_ptr<DeviceState>& device) {
  if (prop == nullptr || prop->type != cu::kAllocationPinned ||
      prop->location.type != cu::kLocationDevice || prop->alloc_flags.compression_type != 0) {
    return cu::kInvalidValue;
  }
  if (prop->requested_handle_types != cu::kHandleNone &&
      prop->requested_handle_types != cu::kHandlePosixFd) {
    return cu::kNotSupported;
  }
  device = find_device(prop->location.id);
  return device ? cu::kSuccess : cu::kInvalidDevice;
}

// Counts the bytes, or refuses: what does not fit must not be allocated even for a moment.
bool take_bytes(DeviceState& device, std::uint64_t bytes) {
  const std::lock_guard lock(driver().memory);
  if (bytes > device.bytes_free()) return false;
  device.bytes_used += bytes;
  return true;
}

// pre: memory is held.
void release_reference(const AllocReference& reference) {
  auto& block = *reference.block;
  --block.references;
  --block.device->handles;
  settle(block);
}

// Without a context any device may decide.
bool is_hint_taken() {
  if (const auto context = current_context()) return context->device->coin();
  const std::lock_guard lock(driver().registry);
  for (const auto& device : driver().devices) {
    if (device) return device->coin();
  }
  return true;
}

}  // namespace

void free_memory(DeviceState& device) {
  std::vector<std::shared_ptr<Mapping>> unmapped;  // blocks end after the locks
  std::vector<std::shared_ptr<AllocReference>> handles;
  const std::lock_guard slow(driver().slow);
  const std::lock_guard lock(driver().memory);
  handles = driver().handles.orphan_if(
      [&](const AllocReference& handle) { return handle.block->device.get() == &device; });
  for (const auto& handle : handles) release_reference(*handle);
  auto& all = driver().reservations;
  for (auto next = all.begin(); next != all.end();) {
    auto& reservation = next->second;
    const auto mappings = reservation.mappings;
    for (const auto& [address, mapping] : mappings) {
      if (mapping->block->device.get() != &device) continue;
      pages::put_nothing(pointer(address), mapping->bytes);
      forget(reservation, mapping);
      unmapped.push_back(mapping);
    }
    if (reservation.owner != device.ordinal) {
      ++next;
    } else if (!reservation.mappings.empty()) {
      reservation.owner = reservation.mappings.begin()->second->block->device->ordinal;
      ++next;
    } else {
      pages::release(pointer(reservation.address), reservation.bytes);
      next = all.erase(next);
    }
  }
}

namespace calls {

Status mem_get_info(std::size_t* bytes_free, std::size_t* bytes_total) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    if (bytes_free == nullptr || bytes_total == nullptr) return cu::kInvalidValue;
    const std::lock_guard lock(driver().memory);
    *bytes_free = context->device->bytes_free();
    *bytes_total = context->device->spec.capacity_bytes;
    return cu::kSuccess;
  });
}

Status mem_get_allocation_granularity(std::size_t* granularity, const MemAllocationProp* prop,
                                      int option) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    constexpr int kGranularityRecommended = 1;
    if (granularity == nullptr || option < 0 || option > kGranularityRecommended) {
      return cu::kInvalidValue;
    }
    std::shared_ptr<DeviceState> device;
    if (const auto status = check(prop, device); status != cu::kSuccess) return status;
    *granularity = device->spec.granularity_bytes;
    return cu::kSuccess;
  });
}

Status mem_create(AllocHandle* handle, std::size_t bytes, const MemAllocationProp* prop,
                  unsigned long long flags) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    std::shared_ptr<DeviceState> device;
    if (handle == nullptr || flags != 0) return cu::kInvalidValue;
    if (const auto status = check(prop, device); status != cu::kSuccess) return status;
    if (bytes == 0 || bytes % device->spec.granularity_bytes != 0) return cu::kInvalidValue;
    if (!take_bytes(*device, bytes)) return cu::kOutOfMemory;
    spend(device->spec.create_ns);
    std::shared_ptr<Block> block;
    try {
      block = std::make_shared<Block>(device, bytes);
    } catch (...) {
      const std::lock_guard lock(driver().memory);
      device->bytes_used -= bytes;
      throw;
    }
    const std::lock_guard lock(driver().memory);
    if (device->removed) {
      device->bytes_used -= bytes;
      return cu::kInvalidDevice;
    }
    ++block->references;
    ++device->handles;
    *handle = driver().handles.add(std::make_shared<AllocReference>(AllocReference{block}));
    return cu::kSuccess;
  });
}

Status mem_release(AllocHandle handle) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    const auto found = driver().handles.take(handle);
    if (found.life == Life::unknown) return cu::kInvalidValue;
    if (found.life != Life::live) abort_on_dead_handle(handle, "cuMemRelease");
    const std::lock_guard lock(driver().memory);
    release_reference(*found.object);
    return cu::kSuccess;
  });
}

Status mem_address_reserve(DevicePtr* address, std::size_t bytes, std::size_t alignment,
                           DevicePtr hint, unsigned long long flags) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    const auto granularity = granularity_for_reserving();
    if (address == nullptr || bytes == 0 || bytes % granularity != 0 || flags != 0 ||
        (alignment != 0 && !std::has_single_bit(alignment))) {
      return cu::kInvalidValue;
    }
    // Room for huge pages, where the range could hold one.
    const std::size_t wanted = std::max<std::size_t>(
        {alignment, granularity, bytes >= pages::kHugePageBytes ? pages::kHugePageBytes : 0});
    void* const wished = hint != 0 && is_hint_taken() ? pointer(hint) : nullptr;
    const std::lock_guard slow(driver().slow);
    auto* const taken = pages::reserve(bytes, wanted, wished);
    if (taken == nullptr) return cu::kOutOfMemory;
    Reservation reservation;
    reservation.address = reinterpret_cast<DevicePtr>(taken);
    reservation.bytes = bytes;
    if (const auto context = current_context()) reservation.owner = context->device->ordinal;
    *address = reservation.address;
    const std::lock_guard lock(driver().memory);
    driver().reservations.emplace(reservation.address, std::move(reservation));
    return cu::kSuccess;
  });
}

Status mem_address_free(DevicePtr address, std::size_t bytes) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    const std::lock_guard slow(driver().slow);
    {
      const std::lock_guard lock(driver().memory);
      auto& all = driver().reservations;
      const auto found = all.find(address);
      if (found == all.end() || found->second.bytes != bytes || !found->second.mappings.empty()) {
        return cu::kInvalidValue;
      }
      all.erase(found);
    }
    pages::release(pointer(address), bytes);
    return cu::kSuccess;
  });
}

}  // namespace calls

}  // namespace weave::emu

// emu/memory.cpp: physical blocks and address ranges. Called by the table; the books are guarded by
// Driver::memory, and calls that change address ranges hold Driver::slow throughout.
#include "emu/memory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "emu/call.hpp"
#include "emu/capture.hpp"
#include "emu/driver_codes.hpp"
#include "emu/pages.hpp"
#include "emu/sharing.hpp"
#include "emu/story.hpp"

namespace weave::emu {

namespace {

// What new memory of that size is aligned to, so that it can have huge pages.
std::size_t alias_alignment(std::uint64_t bytes) {
  return bytes % pages::kHugePageBytes == 0 ? pages::kHugePageBytes : 0;
}

std::uint64_t inode_of(int file) {
  struct stat status{};
  return fstat(file, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

Block::Block(std::shared_ptr<DeviceState> owner, std::uint64_t size, bool for_export)
    : device(std::move(owner)), bytes(size), exportable(for_export), imported(false) {
  file = pages::make_file(pages::file_name(device->uuid), bytes);
  if (file >= 0) alias = pages::reserve(bytes, alias_alignment(bytes));
  // Huge pages have to be asked for before the first touch, hence lazy.
  const bool huge = alias_alignment(bytes) != 0;
  if (alias == nullptr || !pages::put_file(alias, bytes, file, pages::Access::read_write, huge) ||
      !pages::populate(alias, bytes)) {
    if (alias != nullptr) pages::release(alias, bytes);
    if (file >= 0) close(file);
    throw std::bad_alloc();
  }
  inode = inode_of(file);
  ++device->descriptors;
}

Block::Block(std::shared_ptr<DeviceState> owner, std::uint64_t size, int imported_file)
    : device(std::move(owner)), bytes(size), exportable(true), imported(true), file(imported_file) {
  alias = pages::reserve(bytes, alias_alignment(bytes));
  if (alias == nullptr || !pages::put_file(alias, bytes, file, pages::Access::read_write)) {
    if (alias != nullptr) pages::release(alias, bytes);
    close(file);
    throw std::bad_alloc();
  }
  inode = inode_of(file);
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

void forget(Reservation& reservation, const std::shared_ptr<Mapping>& mapping) {
  mapping->alive.store(false, std::memory_order_release);
  reservation.mappings.erase(mapping->address);
  --mapping->block->mappings;
  --mapping->block->device->mappings;
  settle(mapping->block);
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
  return device ? cu::kSuccess : codes::create_bad_device;
}

// pre: memory is held.
void release_reference(const AllocReference& reference) {
  --reference.block->references;
  --reference.block->device->handles;
  settle(reference.block);
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
  std::vector<std::shared_ptr<Block>> lingering;
  const std::lock_guard slow(driver().slow);
  const std::lock_guard lock(driver().memory);
  lingering.swap(device.lingering);
  std::erase_if(driver().blocks,
                [&](const auto& entry) { return entry.first.first == device.ordinal; });
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
    *bytes_free = emu::bytes_free(*context->device);
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
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    std::shared_ptr<DeviceState> device;
    if (handle == nullptr) return cu::kInvalidValue;
    if (flags != 0) return codes::create_flags;
    if (const auto status = check(prop, device); status != cu::kSuccess) return status;
    if (bytes == 0) return codes::create_zero;
    if (bytes % device->spec.granularity_bytes != 0) return codes::create_unaligned;
    {
      const std::lock_guard lock(driver().memory);
      if (!take_bytes(*device, bytes)) return cu::kOutOfMemory;
    }
    spend(*device, device->spec.create_ns);
    std::shared_ptr<Block> block;
    try {
      const bool exportable = prop->requested_handle_types == cu::kHandlePosixFd;
      block = std::make_shared<Block>(device, bytes, exportable);
    } catch (...) {
      const std::lock_guard lock(driver().memory);
      give_back_bytes(*device, bytes);
      throw;
    }
    const std::lock_guard lock(driver().memory);
    if (device->removed) {
      give_back_bytes(*device, bytes);
      return cu::kInvalidDevice;
    }
    hold_bytes(*block);
    if (block->exportable) remember(block);
    ++block->references;
    ++device->handles;
    *handle = driver().handles.add(std::make_shared<AllocReference>(AllocReference{block}));
    return cu::kSuccess;
  });
}

Status mem_release(AllocHandle handle) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
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
    if (address == nullptr || flags != 0) return cu::kInvalidValue;
    if (alignment != 0 && !std::has_single_bit(alignment)) return codes::reserve_alignment;
    if (bytes == 0 || bytes % granularity != 0) return codes::reserve_unaligned;
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
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    const std::lock_guard slow(driver().slow);
    {
      const std::lock_guard lock(driver().memory);
      auto& all = driver().reservations;
      const auto found = all.find(address);
      if (found == all.end() || found->second.bytes != bytes) return codes::free_wrong_size;
      if (!found->second.mappings.empty()) return codes::free_while_mapped;
      all.erase(found);
    }
    pages::release(pointer(address), bytes);
    return cu::kSuccess;
  });
}

}  // namespace calls

}  // namespace weave::emu

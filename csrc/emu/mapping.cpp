// emu/mapping.cpp: which block is mapped where, and who may touch it. Called by the table. These
// calls hold Driver::slow throughout, so each sees an address space at rest while it changes page
// tables; Driver::memory only to read or change the books, so that submitting a copy never waits
// for a page table.
#include <algorithm>
#include <utility>

#include "driver/status.hpp"
#include "emu/call.hpp"
#include "emu/capture.hpp"
#include "emu/driver_codes.hpp"
#include "emu/memory.hpp"
#include "emu/pages.hpp"

namespace weave::emu {

bool find_ranges(cu::DevicePtr address, std::uint64_t bytes, bool writes, int ordinal,
                 std::vector<Range>& ranges) {
  Reservation* reservation = reservation_of(address, bytes);
  if (reservation == nullptr) return false;
  const auto end = address + bytes;
  auto next = reservation->mappings.upper_bound(address);
  if (next == reservation->mappings.begin()) return false;
  --next;
  for (auto at = address; at < end; ++next) {
    if (next == reservation->mappings.end()) return false;
    const auto& mapping = next->second;
    const auto mapping_end = mapping->address + mapping->bytes;
    if (mapping->address > at || mapping_end <= at) return false;
    const auto access = mapping->access.find(ordinal);
    if (access == mapping->access.end()) return false;
    if (writes && access->second != cu::kAccessReadWrite) return false;
    const auto piece = std::min(end, mapping_end) - at;
    ranges.push_back({mapping, at - mapping->address, piece});
    at += piece;
  }
  return true;
}

namespace {

using Mappings = std::vector<std::shared_ptr<Mapping>>;

// What the CPU may do with a mapping: nothing unless the reservation is viewed, else what the most
// permitted device may.
pages::Access cpu_access(bool viewed, const std::map<int, int>& access) {
  if (!viewed) return pages::Access::none;
  auto result = pages::Access::none;
  for (const auto& [ordinal, flags] : access) {
    if (flags == cu::kAccessReadWrite) return pages::Access::read_write;
    if (flags == cu::kAccessRead) result = pages::Access::read;
  }
  return result;
}

bool show(const Mapping& mapping, pages::Access access) {
  return pages::put_file(pointer(mapping.address), mapping.bytes, mapping.block->file, access);
}

cu::Status check(const cu::MemAccessDesc* desc, std::size_t count) {
  if (desc == nullptr || count == 0) return cu::kInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    const int flags = desc[i].flags;
    const bool known =
        flags == cu::kAccessNone || flags == cu::kAccessRead || flags == cu::kAccessReadWrite;
    if (!known || desc[i].location.type != cu::kLocationDevice) return cu::kInvalidValue;
    if (!find_device(desc[i].location.id)) return cu::kInvalidDevice;
  }
  return cu::kSuccess;
}

std::map<int, int> changed(std::map<int, int> access, const cu::MemAccessDesc* desc,
                           std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (desc[i].flags == cu::kAccessNone) {
      access.erase(desc[i].location.id);
    } else {
      access[desc[i].location.id] = desc[i].flags;
    }
  }
  return access;
}

// Why an unmap is refused: it cuts a mapping, or there is none.
cu::Status refused_unmap(cu::DevicePtr address, std::uint64_t bytes) {
  const std::lock_guard lock(driver().memory);
  const Reservation* reservation = reservation_of(address, bytes);
  return reservation != nullptr && overlaps_mapping(*reservation, address, bytes)
             ? codes::unmap_part
             : codes::unmap_nothing;
}

// The whole mappings of the range, and whether their reservation is viewed by the CPU.
Mappings look_up(cu::DevicePtr address, std::uint64_t bytes, bool* viewed = nullptr) {
  const std::lock_guard lock(driver().memory);
  const Reservation* reservation = reservation_of(address, bytes);
  if (reservation == nullptr) return {};
  if (viewed != nullptr) *viewed = reservation->host_view;
  return mappings_in(*reservation, address, bytes);
}

// Where the driver waits in an unmap is not documented: for all work of the context, or not at all.
void wait_by_seed(DeviceState& device) {
  if (!device.coin()) return;
  std::shared_ptr<ContextState> context;
  {
    const std::lock_guard lock(driver().registry);
    context = device.primary;
  }
  if (context) wait_for(*context, nullptr);
}

}  // namespace

void host_view(cu::DevicePtr address, bool readable) {
  {
    const std::lock_guard lock(driver().memory);
    const auto found = driver().reservations.find(address);
    if (found != driver().reservations.end() && found->second.host_view == readable) return;
  }
  const std::lock_guard slow(driver().slow);
  std::map<cu::DevicePtr, std::shared_ptr<Mapping>> mappings;
  {
    const std::lock_guard lock(driver().memory);
    const auto found = driver().reservations.find(address);
    if (found == driver().reservations.end()) {
      throw UsageError("host_view: no reservation begins at this address");
    }
    found->second.host_view = readable;
    mappings = found->second.mappings;
  }
  for (const auto& [at, mapping] : mappings) {
    if (!show(*mapping, cpu_access(readable, mapping->access))) throw std::bad_alloc();
  }
}

namespace calls {

Status mem_map(DevicePtr address, std::size_t bytes, std::size_t offset, AllocHandle handle,
               unsigned long long flags) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    auto mapping = std::make_shared<Mapping>();
    if (const auto status = find_handle(handle, "cuMemMap", mapping->block);
        status != cu::kSuccess) {
      return status;
    }
    const auto& device = mapping->block->device;
    // The whole block: that a part may be mapped is nowhere promised.
    if (offset != 0) return codes::map_offset;
    if (flags != 0) return codes::map_flags;
    if (bytes != mapping->block->bytes || address % device->spec.granularity_bytes != 0) {
      return cu::kInvalidValue;
    }
    spend(*device, device->spec.map_ns);
    mapping->address = address;
    mapping->bytes = bytes;
    const std::lock_guard slow(driver().slow);
    {
      const std::lock_guard lock(driver().memory);
      if (device->removed) return cu::kInvalidDevice;
      const Reservation* reservation = reservation_of(address, bytes);
      if (reservation == nullptr) return codes::map_outside;
      if (overlaps_mapping(*reservation, address, bytes)) return codes::map_twice;
    }
    if (!show(*mapping, pages::Access::none)) return cu::kOutOfMemory;
    const std::lock_guard lock(driver().memory);
    // Released by another thread in between, and nothing else keeps it.
    if (mapping->block->is_over()) {
      abort_on_dead_handle(handle, "cuMemMap");
    }
    Reservation& reservation = *reservation_of(address, bytes);
    reservation.mappings.emplace(address, mapping);
    if (reservation.owner < 0) reservation.owner = device->ordinal;
    ++mapping->block->mappings;
    ++device->mappings;
    return cu::kSuccess;
  });
}

Status mem_unmap(DevicePtr address, std::size_t bytes) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    const auto first = look_up(address, bytes);
    if (first.empty()) return refused_unmap(address, bytes);
    auto& device = *first.front()->block->device;
    spend(device, device.spec.unmap_ns);
    wait_by_seed(device);
    const std::lock_guard slow(driver().slow);
    Mappings mappings;  // ends after the lock: a block may end with it
    {
      const std::lock_guard lock(driver().memory);
      Reservation* reservation = reservation_of(address, bytes);
      if (reservation != nullptr) mappings = mappings_in(*reservation, address, bytes);
      for (const auto& mapping : mappings) forget(*reservation, mapping);
    }
    if (mappings.empty()) return codes::unmap_nothing;
    return pages::put_nothing(pointer(address), bytes) ? cu::kSuccess : cu::kUnknown;
  });
}

// Over a range with a hole nothing changes, nor where the host refuses a page table.
Status mem_set_access(DevicePtr address, std::size_t bytes, const MemAccessDesc* desc,
                      std::size_t count) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    if (const auto status = check(desc, count); status != cu::kSuccess) return status;
    const auto first = look_up(address, bytes);
    if (first.empty()) return codes::access_hole;
    spend(*first.front()->block->device, first.front()->block->device->spec.access_ns);
    const std::lock_guard slow(driver().slow);
    bool viewed = false;
    const auto mappings = look_up(address, bytes, &viewed);
    if (mappings.empty()) return codes::access_hole;
    std::vector<std::map<int, int>> wanted;
    for (const auto& mapping : mappings) wanted.push_back(changed(mapping->access, desc, count));
    for (std::size_t i = 0; viewed && i < mappings.size(); ++i) {
      if (show(*mappings[i], cpu_access(true, wanted[i]))) continue;
      for (const auto& mapping : mappings) show(*mapping, cpu_access(true, mapping->access));
      return cu::kOutOfMemory;
    }
    const std::lock_guard lock(driver().memory);
    for (std::size_t i = 0; i < mappings.size(); ++i) mappings[i]->access.swap(wanted[i]);
    return cu::kSuccess;
  });
}

}  // namespace calls

}  // namespace weave::emu

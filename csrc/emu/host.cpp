// emu/host.cpp: registering host memory, and finding the registration that a copy's host side lies
// in. A registration takes its latency under Driver::slow, behind which mapping calls of the whole
// process wait; the list is guarded by Driver::memory.
#include "emu/host.hpp"

#include <utility>

#include "emu/call.hpp"
#include "emu/capture.hpp"
#include "emu/driver_codes.hpp"
#include "emu/memory.hpp"
#include "emu/pages.hpp"
#include "emu/story.hpp"

namespace weave::emu {

namespace {

constexpr std::uint64_t kTooLarge = std::uint64_t{512} << 30U;  // what r580 drivers refuse
constexpr unsigned kDeviceMap = 2;
constexpr unsigned kIoMemory = 4;
constexpr unsigned kReadOnly = 8;

// pre: memory is held. The first registration that ends after `address`, or null.
std::shared_ptr<Registration> next_after(std::uintptr_t address) {
  const auto& all = driver().registrations;
  const auto next = all.upper_bound(address);
  if (next != all.begin()) {
    const auto& previous = std::prev(next)->second;
    if (previous->address + previous->bytes > address) return previous;
  }
  return next != all.end() ? next->second : nullptr;
}

// pre: memory is held. Pages are pinned whole, so two registrations cannot share one.
bool overlaps_registration(std::uintptr_t address, std::uint64_t bytes) {
  const auto page = pages::page_bytes();
  const auto begin = address / page * page;
  const auto end = (address + bytes + page - 1) / page * page;
  const auto found = next_after(begin);
  return found && found->address < end;
}

}  // namespace

cu::Status find_registration(const ContextState& context, const void* host, std::uint64_t bytes,
                             std::shared_ptr<Registration>& registration) {
  const auto begin = reinterpret_cast<std::uintptr_t>(host);
  if (begin + bytes < begin) return cu::kInvalidValue;
  // Device memory is no host memory, even where the CPU may see it.
  if (reservation_of(begin, 1) != nullptr || reservation_of(begin + bytes - 1, 1) != nullptr) {
    return cu::kInvalidValue;
  }
  const auto found = next_after(begin);
  if (!found || found->address >= begin + bytes) return cu::kSuccess;
  if (!found->portable && found->context.get() != &context) return cu::kSuccess;
  if (begin < found->address || begin + bytes > found->address + found->bytes) {
    return codes::copy_beyond_registration;
  }
  registration = found;
  return cu::kSuccess;
}

namespace calls {

Status mem_host_register(void* address, std::size_t bytes, unsigned flags) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    constexpr unsigned kKnown = cu::kHostRegisterPortable | kDeviceMap | kIoMemory | kReadOnly;
    if (address == nullptr || (flags & ~kKnown) != 0) return cu::kInvalidValue;
    if (bytes == 0) return codes::register_zero;
    if ((flags & (kIoMemory | kReadOnly)) != 0) return cu::kNotSupported;
    if (bytes >= kTooLarge) return cu::kOutOfMemory;
    auto registration = std::make_shared<Registration>();
    registration->address = reinterpret_cast<std::uintptr_t>(address);
    registration->bytes = bytes;
    registration->portable = (flags & cu::kHostRegisterPortable) != 0;
    registration->context = context;
    const std::lock_guard slow(driver().slow);
    spend(*context->device, context->device->spec.register_ns);
    if (!pages::is_mapped(address, bytes)) return cu::kInvalidValue;
    const std::lock_guard lock(driver().memory);
    if (const auto status = context->status(); status != cu::kSuccess) return status;
    if (reservation_of(registration->address, 1) != nullptr) return cu::kInvalidValue;
    if (overlaps_registration(registration->address, bytes)) {
      return cu::kHostMemoryAlreadyRegistered;
    }
    driver().registrations.emplace(registration->address, registration);
    return cu::kSuccess;
  });
}

Status mem_host_unregister(void* address) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    if (address == nullptr) return cu::kInvalidValue;
    const std::lock_guard slow(driver().slow);
    const std::lock_guard lock(driver().memory);
    const auto found = driver().registrations.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == driver().registrations.end()) return cu::kHostMemoryNotRegistered;
    if (found->second->in_flight.load(std::memory_order_acquire) != 0) {
      abort_with_story("cuMemHostUnregister was called on " + hex(found->first) +
                       " while a copy to or from it was queued or running. On a GPU the copy "
                       "engine would go on reading or writing pages that are pinned no longer. "
                       "Synchronise the streams that use the memory first.");
    }
    driver().registrations.erase(found);
    return cu::kSuccess;
  });
}

}  // namespace calls

}  // namespace weave::emu

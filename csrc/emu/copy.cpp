// emu/copy.cpp: submitting copies and fills: what memory they touch is settled here, when they are
// submitted; engine.cpp runs them. Driver::memory is held to look the memory up, and no lock while
// bytes are staged.
#include <algorithm>
#include <cstring>
#include <utility>

#include "emu/call.hpp"
#include "emu/capture.hpp"
#include "emu/driver_codes.hpp"
#include "emu/host.hpp"
#include "emu/memory.hpp"
#include "emu/pages.hpp"
#include "emu/story.hpp"

namespace weave::emu {

namespace {

struct Submission {
  Kind kind = Kind::to_device;
  cu::DevicePtr device = 0;
  std::byte* host = nullptr;
  unsigned char value = 0;
  std::uint64_t bytes = 0;
};

double rate_of(const Spec& spec, Kind kind, bool pageable) {
  if (kind == Kind::fill) return on_device_rate(spec);
  const double link = kind == Kind::to_host ? spec.d2h_bytes_per_s : spec.h2d_bytes_per_s;
  return pageable ? std::min(link, spec.pageable_bytes_per_s) : link;
}

[[noreturn]] void abort_on_unmapped(const Registration& registration, const void* host) {
  abort_with_story("a copy was submitted on host memory at " +
                   hex(reinterpret_cast<std::uintptr_t>(host)) + ", inside the registration at " +
                   hex(registration.address) +
                   ", but that memory has been unmapped. On a GPU the registration still pins the "
                   "old pages, and the copy would move bytes that nobody sees. Unregister host "
                   "memory before it is unmapped.");
}

// Settles what the operation touches. From here on a registration counts it as in flight.
cu::Status resolve(const ContextState& context, const Submission& wanted, Operation& operation) {
  auto& device = *context.device;
  const std::lock_guard lock(driver().memory);
  if (wanted.kind != Kind::fill) {
    const auto status =
        find_registration(context, wanted.host, wanted.bytes, operation.registration);
    if (status != cu::kSuccess) return status;
    if (!pages::is_mapped(wanted.host, wanted.bytes)) {
      if (operation.registration) abort_on_unmapped(*operation.registration, wanted.host);
      return cu::kInvalidValue;
    }
  }
  const bool writes = wanted.kind != Kind::to_host;
  if (!find_ranges(wanted.device, wanted.bytes, writes, device.ordinal, operation.ranges)) {
    // Refused at once, or found out by the engine: the driver does either.
    if (codes::copy_without_mapping != cu::kSuccess && device.coin()) {
      return codes::copy_without_mapping;
    }
    operation.ranges.clear();
    operation.faults = true;
  }
  if (operation.registration) operation.registration->in_flight.fetch_add(1);
  return cu::kSuccess;
}

cu::Status submit(const Submission& wanted, cu::Stream handle) {
  std::shared_ptr<ContextState> context;
  if (const auto status = need_context(context); status != cu::kSuccess) return status;
  std::shared_ptr<StreamState> stream;
  if (const auto status = find_stream(handle, context, stream); status != cu::kSuccess) {
    return status;
  }
  if (stream->context != context) return cu::kInvalidHandle;
  if (wanted.bytes == 0) return cu::kSuccess;
  if (wanted.kind != Kind::fill && wanted.host == nullptr) return cu::kInvalidValue;
  bool captured = false;
  if (const auto status = capture_submission(*stream, captured); captured) return status;
  auto& device = *context->device;
  spend(device, device.spec.copy_ns);
  const auto operation = std::make_shared<Operation>();
  operation->kind = wanted.kind;
  operation->host = wanted.host;
  operation->value = wanted.value;
  if (const auto status = resolve(*context, wanted, *operation); status != cu::kSuccess) {
    return status;
  }
  const bool pageable = wanted.kind != Kind::fill && operation->registration == nullptr;
  operation->bytes_per_s = rate_of(device.spec, wanted.kind, pageable);
  if (pageable) {
    ++device.pageable_copies;
    if (wanted.kind == Kind::to_device) {
      operation->staging.assign(wanted.host, wanted.host + wanted.bytes);
      operation->host = operation->staging.data();
    }
  }
  if (const auto status = enqueue(*stream, operation); status != cu::kSuccess) return status;
  // Bytes for pageable memory go through staging, which only the caller's thread can empty.
  const bool waits = pageable && wanted.kind == Kind::to_host;
  return waits ? wait_for(*context, stream.get()) : cu::kSuccess;
}

}  // namespace

namespace calls {

Status memcpy_htod_async(DevicePtr target, const void* source, std::size_t bytes, Stream stream) {
  return guarded([&] {
    // Only read: the kind says so.
    auto* const host = static_cast<std::byte*>(const_cast<void*>(source));
    return submit({.kind = Kind::to_device, .device = target, .host = host, .bytes = bytes},
                  stream);
  });
}

Status memcpy_dtoh_async(void* target, DevicePtr source, std::size_t bytes, Stream stream) {
  return guarded([&] {
    auto* const host = static_cast<std::byte*>(target);
    return submit({.kind = Kind::to_host, .device = source, .host = host, .bytes = bytes}, stream);
  });
}

Status memset_d8_async(DevicePtr target, unsigned char value, std::size_t bytes, Stream stream) {
  return guarded([&] {
    return submit({.kind = Kind::fill, .device = target, .value = value, .bytes = bytes}, stream);
  });
}

}  // namespace calls

}  // namespace weave::emu

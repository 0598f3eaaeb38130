// emu/copy.cpp: submitting copies and fills: what memory they touch is settled here, when they are
// submitted; engine.cpp runs them. Driver::memory is held to look the memory up, and no lock while
// bytes are staged.
#include <algorithm>
#include <cstring>
#include <limits>
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

bool is_pageable(const Operation& operation) {
  return operation.kind != Kind::fill && operation.registration == nullptr;
}

// The operation, all but queued. What it holds is let go by queue() or give_up().
cu::Status prepare(const ContextState& context, const Submission& wanted, Operation& operation) {
  operation.kind = wanted.kind;
  operation.host = wanted.host;
  operation.value = wanted.value;
  if (const auto status = resolve(context, wanted, operation); status != cu::kSuccess) {
    return status;
  }
  operation.bytes_per_s = rate_of(context.device->spec, wanted.kind, is_pageable(operation));
  return cu::kSuccess;
}

void give_up(const Operation& operation) {
  if (operation.registration) operation.registration->in_flight.fetch_sub(1);
}

cu::Status queue(StreamState& stream, const std::shared_ptr<Operation>& operation,
                 std::uint64_t bytes) {
  if (is_pageable(*operation)) {
    ++stream.context->device->pageable_copies;
    if (operation->kind == Kind::to_device) {
      operation->staging.assign(operation->host, operation->host + bytes);
      operation->host = operation->staging.data();
    }
  }
  return enqueue(stream, operation);
}

// Bytes for pageable memory go through staging, which only the caller's thread can empty.
bool waits_for(const Operation& operation) {
  return is_pageable(operation) && operation.kind == Kind::to_host;
}

cu::Status find_own_stream(cu::Stream handle, std::shared_ptr<ContextState>& context,
                           std::shared_ptr<StreamState>& stream) {
  if (const auto status = need_context(context); status != cu::kSuccess) return status;
  if (const auto status = find_stream(handle, context, stream); status != cu::kSuccess) {
    return status;
  }
  return stream->context == context ? cu::kSuccess : cu::kInvalidHandle;
}

cu::Status submit(const Submission& wanted, cu::Stream handle) {
  std::shared_ptr<ContextState> context;
  std::shared_ptr<StreamState> stream;
  if (const auto status = find_own_stream(handle, context, stream); status != cu::kSuccess) {
    return status;
  }
  if (wanted.bytes == 0) return cu::kSuccess;
  if (wanted.kind != Kind::fill && wanted.host == nullptr) return cu::kInvalidValue;
  bool captured = false;
  if (const auto status = capture_submission(*stream, captured); captured) return status;
  spend(*context->device, context->device->spec.copy_ns);
  const auto operation = std::make_shared<Operation>();
  if (const auto status = prepare(*context, wanted, *operation); status != cu::kSuccess) {
    return status;
  }
  if (const auto status = queue(*stream, operation, wanted.bytes); status != cu::kSuccess) {
    return status;
  }
  return waits_for(*operation) ? wait_for(*context, stream.get()) : cu::kSuccess;
}

// --- batches

bool are_valid(const cu::MemcpyAttributes* attributes, const std::size_t* first,
               std::size_t attribute_count, std::size_t count) {
  if (attributes == nullptr || first == nullptr || attribute_count == 0) return false;
  if (attribute_count > count || first[0] != 0) return false;
  for (std::size_t index = 0; index < attribute_count; ++index) {
    if (first[index] >= count || (index > 0 && first[index] <= first[index - 1])) return false;
    const int order = attributes[index].source_order;
    if (order <= cu::kSourceOrderInvalid || order > cu::kSourceOrderAny) return false;
    if ((attributes[index].flags & ~cu::kMemcpyPreferOverlap) != 0) return false;
  }
  return true;
}

// Between a device and the host; what has device memory on both sides, or on none, is not emulated.
cu::Status direct(cu::DevicePtr target, cu::DevicePtr source, std::uint64_t bytes,
                  Submission& wanted) {
  if (bytes == 0 || target == 0 || source == 0) return cu::kInvalidValue;
  const std::lock_guard lock(driver().memory);
  const bool to_device = reservation_of(target, 1) != nullptr;
  if (to_device == (reservation_of(source, 1) != nullptr)) return cu::kNotSupported;
  wanted.kind = to_device ? Kind::to_device : Kind::to_host;
  wanted.device = to_device ? target : source;
  wanted.host = static_cast<std::byte*>(pointer(to_device ? source : target));
  wanted.bytes = bytes;
  return cu::kSuccess;
}

// Nothing orders the copies of a batch among themselves.
void require_independent(const std::vector<Submission>& batch) {
  struct Touched {
    std::uint64_t begin, end;
    bool written;
  };
  std::vector<Touched> touched;
  for (const auto& copy : batch) {
    const auto host = reinterpret_cast<std::uintptr_t>(copy.host);
    touched.push_back({copy.device, copy.device + copy.bytes, copy.kind == Kind::to_device});
    touched.push_back({host, host + copy.bytes, copy.kind == Kind::to_host});
  }
  std::ranges::sort(touched, {}, &Touched::begin);
  std::uint64_t end = 0;          // of all that begin earlier
  std::uint64_t written_end = 0;  // of those that are written
  for (const auto& each : touched) {
    if (each.begin < (each.written ? end : written_end)) {
      abort_with_story("a batch has copies that depend on each other, at " + hex(each.begin) +
                       ". The copies of a batch are made in any order, so the bytes are "
                       "undefined. Put what must come later into another call.");
    }
    end = std::max(end, each.end);
    if (each.written) written_end = std::max(written_end, each.end);
  }
}

// All of them, or none: what is wrong with one is found before the first is queued.
cu::Status submit_batch(const std::vector<Submission>& batch,
                        const std::shared_ptr<ContextState>& context, StreamState& stream,
                        std::size_t& failed) {
  std::vector<std::size_t> order(batch.size());
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::size_t index = 0; index < batch.size(); ++index) {
    order[index] = index;
    operations.push_back(std::make_shared<Operation>());
    if (const auto status = prepare(*context, batch[index], *operations.back());
        status != cu::kSuccess) {
      operations.pop_back();
      for (const auto& operation : operations) give_up(*operation);
      failed = index;
      return status;
    }
  }
  for (std::size_t index = order.size(); index > 1; --index) {
    std::swap(order[index - 1], order[context->device->draw() % index]);
  }
  bool waits = false;
  for (std::size_t done = 0; done < order.size(); ++done) {
    const auto index = order[done];
    const auto status = queue(stream, operations[index], batch[index].bytes);
    waits = waits || waits_for(*operations[index]);
    if (status == cu::kSuccess) continue;
    for (++done; done < order.size(); ++done) give_up(*operations[order[done]]);
    return status;
  }
  return waits ? wait_for(*context, &stream) : cu::kSuccess;
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

Status memcpy_batch_async(DevicePtr* targets, DevicePtr* sources, std::size_t* sizes,
                          std::size_t count, MemcpyAttributes* attributes, std::size_t* first,
                          std::size_t attribute_count, std::size_t* failed, Stream stream) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    std::shared_ptr<StreamState> found;
    if (const auto status = find_own_stream(stream, context, found); status != cu::kSuccess) {
      return status;
    }
    if (failed == nullptr) return cu::kInvalidValue;
    *failed = std::numeric_limits<std::size_t>::max();
    if (found->is_null || targets == nullptr || sources == nullptr || sizes == nullptr ||
        !are_valid(attributes, first, attribute_count, count)) {
      return cu::kInvalidValue;
    }
    // It has no form as a node of a graph.
    if (const auto status = capture_wait(*found); status != cu::kSuccess) return status;
    for (std::size_t index = 0; index < attribute_count; ++index) {
      if (attributes[index].source_order != cu::kSourceOrderStream) return cu::kNotSupported;
    }
    spend(*context->device, context->device->spec.copy_ns);
    std::vector<Submission> batch(count);
    for (std::size_t index = 0; index < count; ++index) {
      const auto status = direct(targets[index], sources[index], sizes[index], batch[index]);
      if (status == cu::kSuccess) continue;
      *failed = index;
      return status;
    }
    require_independent(batch);
    return submit_batch(batch, context, *found, *failed);
  });
}

Status memset_d8_async(DevicePtr target, unsigned char value, std::size_t bytes, Stream stream) {
  return guarded([&] {
    return submit({.kind = Kind::fill, .device = target, .value = value, .bytes = bytes}, stream);
  });
}

}  // namespace calls

}  // namespace weave::emu

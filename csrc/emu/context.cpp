// emu/context.cpp: process, device and context calls, and the checks that every other call starts
// with. A device has one primary context, retained and released by count (Driver::registry); the
// current context is a stack per thread.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "driver/clock.hpp"
#include "emu/call.hpp"
#include "emu/capture.hpp"
#include "emu/sharing.hpp"
#include "emu/stepper.hpp"

namespace weave::emu {

namespace {

thread_local std::vector<std::shared_ptr<ContextState>> current_stack;
thread_local bool in_host_function = false;

cu::Context handle_of(const ContextState& context) {
  return reinterpret_cast<cu::Context>(context.id);
}

// A context handle: 709 when it was destroyed, 201 when it never existed.
cu::Status find_context(cu::Context handle, std::shared_ptr<ContextState>& context) {
  auto found = driver().contexts.find(reinterpret_cast<std::uint64_t>(handle));
  if (found.life == Life::unknown) return cu::kInvalidContext;
  if (found.life != Life::live) return cu::kContextIsDestroyed;
  context = std::move(found.object);
  return cu::kSuccess;
}

// The device of an ordinal after the process check; 101 when there is none.
cu::Status need_device(int ordinal, std::shared_ptr<DeviceState>& device) {
  if (const auto status = process_status(); status != cu::kSuccess) return status;
  device = find_device(ordinal);
  return device ? cu::kSuccess : cu::kInvalidDevice;
}

// pre: registry is held.
std::shared_ptr<ContextState> make_context(const std::shared_ptr<DeviceState>& device) {
  {
    const std::lock_guard lock(driver().memory);
    if (!take_context(*device)) throw std::bad_alloc();
  }
  auto context = std::make_shared<ContextState>();
  context->device = device;
  context->null_stream = std::make_shared<StreamState>();
  context->null_stream->context = context;
  context->null_stream->is_null = true;
  context->id = driver().contexts.add(context);
  const Locked locked(*device);
  device->streams.push_back(context->null_stream);
  return context;
}

void forget_memory_of(const ContextState& context) {
  const std::lock_guard slow(driver().slow);
  const std::lock_guard lock(driver().memory);
  std::erase_if(driver().registrations,
                [&](const auto& entry) { return entry.second->context.get() == &context; });
  give_back_context(*context.device);
}

}  // namespace

cu::Status process_status() {
  if (in_host_function) return cu::kNotPermitted;
  if (driver().forked.load(std::memory_order_acquire)) return cu::kNotInitialized;
  return driver().initialized.load(std::memory_order_acquire) ? cu::kSuccess : cu::kNotInitialized;
}

HostFunctionScope::HostFunctionScope() { in_host_function = true; }
HostFunctionScope::~HostFunctionScope() { in_host_function = false; }

std::shared_ptr<ContextState> current_context() {
  return current_stack.empty() ? nullptr : current_stack.back();
}

cu::Status ambient_status() {
  if (const auto status = process_status(); status != cu::kSuccess) return status;
  const auto context = current_context();
  return context ? context->status() : cu::kSuccess;
}

cu::Status need_context(std::shared_ptr<ContextState>& context) {
  if (const auto status = process_status(); status != cu::kSuccess) return status;
  context = current_context();
  return context ? context->status() : cu::kInvalidContext;
}

void spend(const DeviceState& device, std::int64_t latency_ns) {
  if (latency_ns <= 0) return;
  const auto deadline = now_ns(device) + latency_ns;
  if (latency_ns >= 100'000 || device.spec.stepped) return sleep_until_ns(device, deadline);
  while (cu::system_now_ns() < deadline) {
  }
}

void destroy_context(const std::shared_ptr<ContextState>& context) {
  auto& device = *context->device;
  const auto belongs = [&](const auto& object) { return object.context == context; };
  context->alive.store(false, std::memory_order_release);
  driver().contexts.take(context->id);
  driver().streams.orphan_if(belongs);
  driver().events.orphan_if(belongs);
  driver().functions.orphan_if(belongs);
  driver().modules.orphan_if(belongs);
  forget_captures(*context);
  {
    const Locked locked(device);
    pump(device);
  }
  stepper::abandon(device);
  // What is left is what an engine is in the middle of; it stops at the next piece.
  stepper::wait_until(device, [&] {
    return std::ranges::none_of(device.streams, [&](const auto& stream) {
      return stream->context == context && !stream->queue.empty();
    });
  });
  {
    const Locked locked(device);
    std::erase_if(device.streams, [&](const auto& stream) { return stream->context == context; });
    context->null_stream = nullptr;
  }
  forget_memory_of(*context);
}

namespace calls {

Status init(unsigned flags) {
  if (driver().forked) return cu::kNotInitialized;
  if (flags != 0) return cu::kInvalidValue;
  driver().initialized.store(true, std::memory_order_release);
  return cu::kSuccess;
}

// The one call that needs no init: cuda.h lists no other error for it than INVALID_VALUE.
Status driver_get_version(int* version) {
  if (version == nullptr) return cu::kInvalidValue;
  *version = 13000;
  return cu::kSuccess;
}

Status device_get_count(int* count) {
  if (const auto status = process_status(); status != cu::kSuccess) return status;
  if (count == nullptr) return cu::kInvalidValue;
  const std::lock_guard lock(driver().registry);
  *count = static_cast<int>(driver().devices.size());
  return cu::kSuccess;
}

Status device_get(Device* device, int ordinal) {
  std::shared_ptr<DeviceState> found;
  if (const auto status = need_device(ordinal, found); status != cu::kSuccess) return status;
  if (device == nullptr) return cu::kInvalidValue;
  *device = ordinal;
  return cu::kSuccess;
}

Status device_get_name(char* name, int bytes, Device device) {
  return guarded([&]() -> Status {
    std::shared_ptr<DeviceState> found;
    if (const auto status = need_device(device, found); status != cu::kSuccess) return status;
    if (name == nullptr || bytes <= 0) return cu::kInvalidValue;
    std::snprintf(name, static_cast<std::size_t>(bytes), "emulated %s", found->spec.name.c_str());
    return cu::kSuccess;
  });
}

Status device_get_uuid(Uuid* uuid, Device device) {
  std::shared_ptr<DeviceState> found;
  if (const auto status = need_device(device, found); status != cu::kSuccess) return status;
  if (uuid == nullptr) return cu::kInvalidValue;
  *uuid = found->uuid;
  return cu::kSuccess;
}

Status device_get_attribute(int* value, int attribute, Device device) {
  std::shared_ptr<DeviceState> found;
  if (const auto status = need_device(device, found); status != cu::kSuccess) return status;
  if (value == nullptr) return cu::kInvalidValue;
  switch (attribute) {
    case cu::kAttributeIntegrated:
      *value = found->spec.integrated ? 1 : 0;
      return cu::kSuccess;
    case cu::kAttributeComputeMode:
    case cu::kAttributeMpsEnabled:
      *value = 0;
      return cu::kSuccess;
    case cu::kAttributeAsyncEngineCount:
      *value = 2 * found->spec.engines;
      return cu::kSuccess;
    case cu::kAttributeVirtualMemoryManagement:
    case cu::kAttributePosixFdHandles:
    case cu::kAttributeGpuDirectRdmaWithVmm:
      *value = 1;
      return cu::kSuccess;
    case cu::kAttributeHostNumaId:
      *value = -1;  // near no node more than another
      return cu::kSuccess;
    default:
      return cu::kInvalidValue;
  }
}

Status device_total_mem(std::size_t* bytes, Device device) {
  std::shared_ptr<DeviceState> found;
  if (const auto status = need_device(device, found); status != cu::kSuccess) return status;
  if (bytes == nullptr) return cu::kInvalidValue;
  *bytes = found->spec.capacity_bytes;
  return cu::kSuccess;
}

Status primary_ctx_retain(Context* context, Device device) {
  return guarded([&]() -> Status {
    std::shared_ptr<DeviceState> found;
    if (const auto status = need_device(device, found); status != cu::kSuccess) return status;
    if (context == nullptr) return cu::kInvalidValue;
    const std::lock_guard lock(driver().registry);
    if (found->removed) return cu::kInvalidDevice;
    if (!found->primary) found->primary = make_context(found);
    ++found->retains;
    *context = handle_of(*found->primary);
    return cu::kSuccess;
  });
}

Status primary_ctx_release(Device device) {
  return guarded([&]() -> Status {
    std::shared_ptr<DeviceState> found;
    if (const auto status = need_device(device, found); status != cu::kSuccess) return status;
    std::shared_ptr<ContextState> last;
    {
      const std::lock_guard lock(driver().registry);
      if (found->retains == 0) return cu::kInvalidContext;
      if (--found->retains == 0) last = std::exchange(found->primary, nullptr);
    }
    if (last) destroy_context(last);
    return cu::kSuccess;
  });
}

// Destroys the context whoever retained it; the retains stay and refer to the next one.
Status primary_ctx_reset(Device device) {
  return guarded([&]() -> Status {
    std::shared_ptr<DeviceState> found;
    if (const auto status = need_device(device, found); status != cu::kSuccess) return status;
    std::shared_ptr<ContextState> context;
    {
      const std::lock_guard lock(driver().registry);
      context = std::exchange(found->primary, nullptr);
    }
    if (context) destroy_context(context);
    return cu::kSuccess;
  });
}

Status ctx_get_current(Context* context) {
  if (const auto status = process_status(); status != cu::kSuccess) return status;
  if (context == nullptr) return cu::kInvalidValue;
  const auto current = current_context();
  *context = current ? handle_of(*current) : nullptr;
  return cu::kSuccess;
}

Status ctx_set_current(Context context) {
  return guarded([&]() -> Status {
    if (const auto status = process_status(); status != cu::kSuccess) return status;
    std::shared_ptr<ContextState> found;
    if (context != nullptr) {
      if (const auto status = find_context(context, found); status != cu::kSuccess) return status;
    }
    if (!current_stack.empty()) current_stack.pop_back();
    if (found) current_stack.push_back(std::move(found));
    return cu::kSuccess;
  });
}

Status ctx_push_current(Context context) {
  return guarded([&]() -> Status {
    if (const auto status = process_status(); status != cu::kSuccess) return status;
    std::shared_ptr<ContextState> found;
    if (const auto status = find_context(context, found); status != cu::kSuccess) return status;
    current_stack.push_back(std::move(found));
    return cu::kSuccess;
  });
}

Status ctx_pop_current(Context* context) {
  if (const auto status = process_status(); status != cu::kSuccess) return status;
  if (current_stack.empty()) return cu::kInvalidContext;
  if (context != nullptr) *context = handle_of(*current_stack.back());
  current_stack.pop_back();
  return cu::kSuccess;
}

Status ctx_synchronize() {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    if (const auto status = capture_wait(*context); status != cu::kSuccess) return status;
    if (const auto status = unsafe_status(); status != cu::kSuccess) return status;
    return wait_for(*context, nullptr);
  });
}

}  // namespace calls

}  // namespace weave::emu

// emu/call.hpp: what every driver call does first: initialised or not, which context, is it well;
// and the declarations of all calls, generated from calls.def. Included by the files that
// implement calls and by table.cpp.
#pragma once

#include <memory>
#include <new>

#include "emu/device.hpp"

namespace weave::emu {

// Not initialised, or in a forked child: 3; in a host function: 800. Else success.
cu::Status process_status();

// The context that is current on this thread; null when there is none.
std::shared_ptr<ContextState> current_context();

// The status of a call that works without a context but not in a broken one.
cu::Status ambient_status();

// The status of a call that needs a context, which it fills in.
cu::Status need_context(std::shared_ptr<ContextState>& context);

// Takes host time like the real call: a short latency spins, a long one sleeps.
void spend(const DeviceState& device, std::int64_t latency_ns);

// While it lives this thread runs a host function of a stream: every call gives 800.
class HostFunctionScope {
 public:
  HostFunctionScope();
  ~HostFunctionScope();
  HostFunctionScope(const HostFunctionScope&) = delete;
  HostFunctionScope& operator=(const HostFunctionScope&) = delete;
};

// No exception leaves a table function.
template <class Body>
cu::Status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return cu::kOutOfMemory;
  } catch (...) {
    return cu::kUnknown;
  }
}

// A stream or event handle of any context. 400 when destroyed or unknown, 709 when its context is.
cu::Status find_stream(cu::Stream handle, const std::shared_ptr<ContextState>& context,
                       std::shared_ptr<StreamState>& stream);
cu::Status find_event(cu::Event handle, std::shared_ptr<EventState>& event);

namespace calls {

using cu::AllocHandle;
using cu::Context;
using cu::Device;
using cu::DevicePtr;
using cu::Event;
using cu::Function;
using cu::Graph;
using cu::HostFunction;
using cu::MemAccessDesc;
using cu::MemAllocationProp;
using cu::MemcpyAttributes;
using cu::Module;
using cu::Status;
using cu::Stream;
using cu::Uuid;

#define WEAVE_CALL(field, need, symbol, exported, version, parameters) Status field parameters;
#include "driver/calls.def"
#undef WEAVE_CALL

}  // namespace calls

}  // namespace weave::emu

// emu/host.hpp: finding the registration of a copy's host side; called by copy.cpp.
#pragma once

#include "emu/device.hpp"

namespace weave::emu {

// The registration, visible to this context, that holds the whole range; null for pageable memory.
// 1 when the range leaves a registration, spans two, or is device memory.
// pre: Driver::memory is held.
cu::Status find_registration(const ContextState& context, const void* host, std::uint64_t bytes,
                             std::shared_ptr<Registration>& registration);

}  // namespace weave::emu

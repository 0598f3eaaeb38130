// emu/memory.hpp: the bookkeeping of reservations and mappings, shared by memory.cpp (blocks and
// addresses), mapping.cpp (what is where) and copy.cpp (what a copy touches).
// pre: Driver::memory is held for every function but find_handle.
#pragma once

#include <vector>

#include "emu/device.hpp"

namespace weave::emu {

inline void* pointer(cu::DevicePtr address) { return reinterpret_cast<void*>(address); }

// Null when the range is empty or does not lie inside one reservation.
Reservation* reservation_of(cu::DevicePtr address, std::uint64_t bytes);

// The whole mappings that fill the range; none when it has a hole or cuts a mapping.
std::vector<std::shared_ptr<Mapping>> mappings_in(const Reservation& reservation,
                                                  cu::DevicePtr address, std::uint64_t bytes);

bool overlaps_mapping(const Reservation& reservation, cu::DevicePtr address, std::uint64_t bytes);

// What a range touches, in order. False when part of it is not mapped, or not accessible to this
// device in this way.
bool find_ranges(cu::DevicePtr address, std::uint64_t bytes, bool writes, int ordinal,
                 std::vector<Range>& ranges);

// Unmapped in the books; queued copies will notice. The memory stops to count as used when this was
// the last mapping and no handle is left.
void forget(Reservation& reservation, const std::shared_ptr<Mapping>& mapping);

// A live handle, or the status to return. A dead one aborts.
cu::Status find_handle(cu::AllocHandle handle, const char* call, std::shared_ptr<Block>& block);
[[noreturn]] void abort_on_dead_handle(cu::AllocHandle handle, const char* call);

}  // namespace weave::emu

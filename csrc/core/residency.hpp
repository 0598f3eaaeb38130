// core/residency.hpp: who gives up which slots. Pure: reads tenants, changes nothing, calls
// nothing. The simple rule of the first version: only the excess leaves, first what costs nothing,
// and among equals from the idle tenant whose next turn is farthest. In a cycle that is the one
// that ran last.
#pragma once

#include <memory>
#include <vector>

#include "core/region.hpp"

namespace weave {

struct SlotRef {
  std::shared_ptr<Region> region;
  std::size_t slot = 0;
  Slot& get() const { return region->slots[slot]; }
};

// Slots of `tenant` that must come in before it can run: without a frame, unmapped, or with a frame
// that does not hold what the host copy does.
std::vector<SlotRef> missing_slots(const Tenant& tenant);

// Up to `count` slots that idle tenants other than `incoming` can give up, in the order in which
// they should leave: discard, then clean (a valid host copy), then keep; within each class from the
// most recent turn to the oldest; within a tenant from the end of its regions, so that the same
// part moves each time and the rest stays.
std::vector<SlotRef> choose_victims(const std::vector<std::shared_ptr<Tenant>>& tenants,
                                    const Tenant& incoming, std::size_t count);

// All slots of `tenant` that are on the device.
std::vector<SlotRef> slots_on_device(const Tenant& tenant);

}  // namespace weave

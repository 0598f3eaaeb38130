// core/residency.hpp: who gives up which slots. Pure: reads tenants, changes nothing, calls
// nothing. Only the excess leaves, first what costs nothing, and among equals from the idle tenant
// whose next turn is farthest: as the plan says, else the one that ran last, because in a cycle its
// turn comes last. A plan also says how much of each tenant may leave at all, so that the rest
// never moves, whoever comes next.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/region.hpp"

namespace weave {

struct SlotRef {
  std::shared_ptr<Region> region;
  std::size_t slot = 0;
  Slot& get() const { return region->slots[slot]; }
};

// A slot whose bytes are on the host only, or on the device only.
inline bool lacks_bytes(const Region& region, const Slot& slot) {
  return region.policy != Policy::discard && !slot.frame_valid && slot.host_valid;
}
inline bool is_only_on_device(const Region& region, const Slot& slot) {
  return region.policy != Policy::discard && slot.frame_valid && !slot.host_valid;
}

// Slots of `tenant` that must come in before it can run: without a frame, unmapped, or with a frame
// that does not hold what the host copy does.
std::vector<SlotRef> missing_slots(const Tenant& tenant);

// What a planner wants of a device. Tenants that it does not name are as if there were no plan.
struct ResidencyPlan {
  // At most so many slots of a tenant, `discard` not counted, are off the device for the sake of
  // others.
  std::map<const Tenant*, std::size_t> movable;
  // Whose turn comes next, soonest first.
  std::vector<const Tenant*> next_use;

  // Position in next_use; its length for a tenant that is not in it, whose turn is farthest.
  std::size_t rank(const Tenant& tenant) const;
  // How many more of its slots may leave.
  std::size_t allowance(const Tenant& tenant) const;
};

struct Victims {
  std::vector<SlotRef> slots;
  std::size_t beyond_plan =
      0;  // of them: taken although the plan says no, as nothing else was left
};

// Up to `count` slots that tenants other than `incoming` do not use now and can give up, in the
// order in which they should leave: discard, then clean (a valid host copy), then keep; within each
// class from the farthest turn to the nearest; within a tenant from the end of its regions, so that
// the same part moves each time and the rest stays.
Victims choose_victims(const std::vector<std::shared_ptr<Tenant>>& tenants, const Tenant& incoming,
                       std::size_t count, const ResidencyPlan& plan = {});

// The counter of turns (a tenant's last_turn is its value when it last started or stopped), and the
// newest one whose work is known to be complete.
struct Turns {
  std::uint64_t now = 0;
  std::uint64_t drained = 0;
  bool is_drained(const Tenant& tenant) const {
    return !tenant.running && tenant.last_turn <= drained;
  }
};

// What it costs when a slot leaves.
enum class Cost { nothing, load, store_and_load };  // discard, clean, keep

// The next slot to leave in the background, so that `incoming` finds room: as above, but never
// beyond the plan, only of tenants whose last phase is drained and whose turn comes after
// `incoming`'s, and costing `least` to `most`.
std::optional<SlotRef> next_victim(const std::vector<std::shared_ptr<Tenant>>& tenants,
                                   const Tenant& incoming, const ResidencyPlan& plan,
                                   const Turns& turns, Cost least, Cost most);

// All slots of `tenant` that are on the device.
std::vector<SlotRef> slots_on_device(const Tenant& tenant);

}  // namespace weave

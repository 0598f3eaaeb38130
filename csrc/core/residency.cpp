#include "core/residency.hpp"

#include <algorithm>

namespace weave {

namespace {

int cost_class(const Region& region, const Slot& slot) {
  if (region.policy == Policy::discard) return 0;
  return slot.host_valid ? 1 : 2;
}

template <class Predicate>
std::vector<SlotRef> select(const Tenant& tenant, Predicate wanted) {
  std::vector<SlotRef> found;
  for (const auto& region : tenant.regions) {
    for (std::size_t slot = 0; slot < region->slots.size(); ++slot) {
      if (wanted(region->slots[slot])) found.push_back({region, slot});
    }
  }
  return found;
}

}  // namespace

std::vector<SlotRef> missing_slots(const Tenant& tenant) {
  return select(tenant, [](const Slot& slot) {
    return !slot.mapping || (!slot.frame_valid && slot.host_valid);
  });
}

std::vector<SlotRef> slots_on_device(const Tenant& tenant) {
  return select(tenant, [](const Slot& slot) { return slot.frame != kNoFrame; });
}

std::vector<SlotRef> choose_victims(const std::vector<std::shared_ptr<Tenant>>& tenants,
                                    const Tenant& incoming, std::size_t count) {
  std::vector<Tenant*> idle;
  for (const auto& tenant : tenants) {
    if (tenant.get() != &incoming && !tenant->running && !tenant->failed) {
      idle.push_back(tenant.get());
    }
  }
  std::ranges::stable_sort(idle, std::ranges::greater{}, &Tenant::last_turn);
  std::vector<SlotRef> candidates;
  for (const Tenant* tenant : idle) {
    auto slots = slots_on_device(*tenant);
    std::erase_if(slots, [](const SlotRef& ref) { return ref.region->pins > 0; });
    candidates.insert(candidates.end(), slots.rbegin(), slots.rend());
  }
  std::ranges::stable_sort(candidates, {}, [](const SlotRef& candidate) {
    return cost_class(*candidate.region, candidate.get());
  });
  if (candidates.size() > count) candidates.resize(count);
  return candidates;
}

}  // namespace weave

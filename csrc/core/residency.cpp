#include "core/residency.hpp"

#include <algorithm>
#include <limits>
#include <ranges>

namespace weave {

namespace {

Cost cost_of(const Region& region, const Slot& slot) {
  if (region.policy == Policy::discard) return Cost::nothing;
  return slot.host_valid ? Cost::load : Cost::store_and_load;
}

// Tenants other than `incoming`, the one whose turn is farthest first.
std::vector<const Tenant*> others_by_next_use(const std::vector<std::shared_ptr<Tenant>>& tenants,
                                              const Tenant& incoming, const ResidencyPlan& plan) {
  std::vector<const Tenant*> others;
  for (const auto& tenant : tenants) {
    if (tenant.get() != &incoming && !tenant->failed) others.push_back(tenant.get());
  }
  std::ranges::stable_sort(others, std::ranges::greater{}, &Tenant::last_turn);
  std::ranges::stable_sort(others, std::ranges::greater{},
                           [&](const Tenant* tenant) { return plan.rank(*tenant); });
  return others;
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

std::size_t ResidencyPlan::rank(const Tenant& tenant) const {
  return static_cast<std::size_t>(std::ranges::find(next_use, &tenant) - next_use.begin());
}

std::size_t ResidencyPlan::allowance(const Tenant& tenant) const {
  const auto found = movable.find(&tenant);
  if (found == movable.end()) return std::numeric_limits<std::size_t>::max();
  std::size_t away = 0;
  for (const auto& region : tenant.regions) {
    if (region->policy == Policy::discard) continue;
    for (const auto& slot : region->slots) away += slot.frame == kNoFrame ? 1 : 0;
  }
  return found->second - std::min(found->second, away);
}

Victims choose_victims(const std::vector<std::shared_ptr<Tenant>>& tenants, const Tenant& incoming,
                       std::size_t count, const ResidencyPlan& plan) {
  std::vector<SlotRef> candidates;
  std::map<const Tenant*, std::size_t> allowance;
  for (const Tenant* tenant : others_by_next_use(tenants, incoming, plan)) {
    auto slots = slots_on_device(*tenant);
    std::erase_if(slots, [&](const SlotRef& ref) {
      return tenant->uses(*ref.region) || !ref.region->may_leave();
    });
    candidates.insert(candidates.end(), slots.rbegin(), slots.rend());
    allowance[tenant] = plan.allowance(*tenant);
  }
  std::ranges::stable_sort(candidates, {}, [](const SlotRef& candidate) {
    return cost_of(*candidate.region, candidate.get());
  });
  Victims victims;
  std::vector<SlotRef> beyond;
  for (const auto& candidate : candidates) {
    if (victims.slots.size() == count) return victims;
    auto& left = allowance[candidate.region->tenant.lock().get()];
    const bool costs = cost_of(*candidate.region, candidate.get()) != Cost::nothing;
    if (costs && left == 0) {
      beyond.push_back(candidate);
      continue;
    }
    left -= costs ? 1 : 0;
    victims.slots.push_back(candidate);
  }
  for (const auto& candidate : beyond) {
    if (victims.slots.size() == count) break;
    victims.slots.push_back(candidate);
    ++victims.beyond_plan;
  }
  return victims;
}

std::optional<SlotRef> next_victim(const std::vector<std::shared_ptr<Tenant>>& tenants,
                                   const Tenant& incoming, const ResidencyPlan& plan,
                                   const Turns& turns, Cost least, Cost most) {
  std::optional<SlotRef> best;
  Cost best_cost = most;
  for (const Tenant* tenant : others_by_next_use(tenants, incoming, plan)) {
    const bool comes_later =
        plan.rank(*tenant) == plan.next_use.size() || plan.rank(*tenant) > plan.rank(incoming);
    if (!turns.is_drained(*tenant) || !comes_later) continue;
    const bool has_allowance = plan.allowance(*tenant) > 0;
    for (const auto& region : tenant->regions | std::views::reverse) {
      if (!region->may_leave()) continue;
      for (std::size_t slot = region->slots.size(); slot-- > 0;) {
        if (region->slots[slot].frame == kNoFrame) continue;
        const Cost cost = cost_of(*region, region->slots[slot]);
        if (cost < least || cost > best_cost || (best && cost == best_cost)) continue;
        if (cost != Cost::nothing && !has_allowance) continue;
        best = {region, slot};
        best_cost = cost;
        if (cost == least) return best;
      }
    }
  }
  return best;
}

}  // namespace weave

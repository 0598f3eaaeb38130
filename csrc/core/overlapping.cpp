// core/overlapping.cpp: Device operations that run beside a phase: plan, prefetch, write-back; and
// Foreground, by which all others hold them up.
#include <algorithm>

#include "core/device.hpp"

namespace weave {

Device::Foreground::Foreground(Device& device) : device_(device) {
  const std::int64_t began_ns = device.driver_->table.now_ns();
  lock_ = std::unique_lock(device.mutex_);
  if (device.background_ != nullptr) device.background_->pause(lock_);
  device.operation_began_ns_ = began_ns;
}

Device::Foreground::~Foreground() {
  if (device_.background_ != nullptr) device_.background_->go_on();
}

void Device::set_plan(const std::map<std::shared_ptr<Tenant>, std::size_t>& movable,
                      const std::vector<std::shared_ptr<Tenant>>& next_use) {
  const std::lock_guard lock(mutex_);
  ResidencyPlan plan;
  for (const auto& [tenant, blocks] : movable) {
    require_usable(*tenant);
    plan.movable.emplace(tenant.get(), blocks);
  }
  plan.next_use = order_of(next_use);
  plan_ = std::move(plan);
}

// As the plans hold it. A tenant may come only once.
std::vector<const Tenant*> Device::order_of(
    const std::vector<std::shared_ptr<Tenant>>& tenants) const {
  std::vector<const Tenant*> order;
  for (const auto& tenant : tenants) {
    require_usable(*tenant);
    if (std::ranges::find(order, tenant.get()) != order.end()) {
      throw UsageError("tenant " + tenant->label() + " is twice in the order of next use");
    }
    order.push_back(tenant.get());
  }
  return order;
}

std::shared_ptr<BackgroundCopy> Device::prefetch(
    const std::shared_ptr<Tenant>& tenant, const std::vector<std::shared_ptr<Tenant>>& next_use,
    Bytes limit) {
  const std::lock_guard lock(mutex_);
  require_usable(*tenant);
  std::size_t blocks = limit == 0 ? static_cast<std::size_t>(frames_->total())
                                  : static_cast<std::size_t>(limit / block_bytes_);
  if (staging_) blocks = 0;  // the switch compares what leaves; nothing goes behind its back
  return background_->prefetch(tenant, order_of(next_use), blocks);
}

std::shared_ptr<BackgroundCopy> Device::write_back(const std::shared_ptr<Tenant>& tenant,
                                                   const std::string& tag) {
  const std::lock_guard lock(mutex_);
  require_usable(*tenant);
  for (const auto& region : tenant->regions) {
    if (region->tag != tag) continue;
    if (region->policy == Policy::discard) {
      throw UsageError("region " + tag + " of tenant " + tenant->label() +
                       " is discarded; there is nothing to write back");
    }
    // Nor could mark_dirty() take it back.
    if (region->policy == Policy::reload) {
      throw UsageError("region " + tag + " of tenant " + tenant->label() +
                       " is reload; its host copy is what was published, nothing is written back");
    }
    require_running(*region);
    return background_->write_back(tenant, region);
  }
  throw UsageError("tenant " + tenant->label() + " has no region " + tag);
}

void Device::cancel(const std::shared_ptr<BackgroundCopy>& copy) noexcept {
  const std::lock_guard lock(mutex_);
  if (background_ != nullptr) background_->cancel(*copy);
}

void Device::run_background() {
  Background* background = nullptr;
  {
    const std::lock_guard lock(mutex_);
    require_open();
    background = background_.get();
  }
  background->run_pending();
}

}  // namespace weave

// core/policies.cpp: Device operations that say how a region's bytes are treated: clean or dirty,
// pinned, filled, by pages, verified.
#include "core/device.hpp"

namespace weave {

std::shared_ptr<Tenant> Device::require_tenant(const Region& region) const {
  auto tenant = region.tenant.lock();
  if (tenant == nullptr) throw UsageError("the tenant of region " + region.tag + " is gone");
  require_usable(*tenant);
  return tenant;
}

void Device::mark_clean(const std::shared_ptr<Region>& region) {
  const std::lock_guard lock(mutex_);
  require_tenant(*region);
  if (region->policy != Policy::keep) {
    throw UsageError("region " + region->tag + " is not keep, so it has no clean or dirty bytes");
  }
  region->clean = true;
}

void Device::mark_dirty(const std::shared_ptr<Region>& region) {
  const std::lock_guard lock(mutex_);
  const auto tenant = require_tenant(*region);
  if (region->policy != Policy::keep) {
    throw UsageError("region " + region->tag + " is not keep, so it has no clean or dirty bytes");
  }
  region->clean = false;
  // Idle, nobody has written: what is valid stays so until the tenant runs again.
  if (!tenant->uses(*region)) return;
  region->invalidate_host(0, region->slots.size() * block_bytes_);
  background_->take_back(*region);
}

void Device::pin(const std::shared_ptr<Region>& region) {
  const std::lock_guard lock(mutex_);
  require_tenant(*region);
  ++region->pins;
}

void Device::unpin(const std::shared_ptr<Region>& region) {
  const std::lock_guard lock(mutex_);
  require_tenant(*region);
  if (region->pins == 0) throw UsageError("region " + region->tag + " is not pinned");
  --region->pins;
}

void Device::set_fill(const std::shared_ptr<Region>& region, Fill fill) {
  const std::lock_guard lock(mutex_);
  require_tenant(*region);
  if (region->policy != Policy::discard) {
    throw UsageError("region " + region->tag + " keeps its bytes; only a discard region is filled");
  }
  if (fill != Fill::none && driver_->table.memset_d8_async == nullptr) {
    throw UsageError("this driver has no cuMemsetD8Async, which fills blocks");
  }
  region->fill = fill;
}

void Device::set_pages(const std::shared_ptr<Region>& region,
                       const std::optional<std::vector<Piece>>& pages) {
  const auto table = [&]() -> std::optional<PageTable> {
    require_running(*region);
    if (region->policy != Policy::keep) {
      throw UsageError("region " + region->tag + " is not keep; none of its pages leaves");
    }
    if (!pages) return std::nullopt;
    return PageTable(*pages, region->slots.size() * block_bytes_, block_bytes_, region->tag);
  };
  {
    const std::lock_guard lock(mutex_);
    if (region->keep_pages(table())) return;
  }
  with_host_room(region->tenant.lock().get(), [&] {
    const Foreground lock(*this);
    auto wanted = table();
    const ContextScope scope(*context_);
    retry_unfinished();
    place_pages(*region, std::move(wanted));
  });
}

// The memory that the table needs, and the table. Throws Refusal (host_memory), DriverError; then
// the old one holds. pre: Foreground, the context is current, unfinished work was retried.
void Device::place_pages(Region& region, std::optional<PageTable> pages) {
  // A copy that nobody could wait for may still write where another page will be.
  background_->require_settled();
  if (!engine_->settle()) engine_->finish();
  const std::size_t needed = region.extents_needed(pages);
  const std::size_t held = region.extents_held();
  std::vector<Extent> more;
  if (needed > held) {
    more = host_pool_->allocate(region.tenant.lock()->job, block_bytes_, needed - held, host_node_);
  }
  region.set_pages(std::move(pages), std::move(more));
  background_->touched(region, 0, region.slots.size() * block_bytes_);
}

void Device::forget_pages(const std::shared_ptr<Region>& region) {
  const std::lock_guard lock(mutex_);
  require_running(*region);
  region->forget_pages();
}

// Idle regions other than those that come in with `incoming`, of which nobody has said which pages
// are in use: all of them are, and then there is a place for them. True if there was such a region.
// Throws as above.
bool Device::place_outdated(const Tenant& incoming) {
  bool any = false;
  for (const auto& tenant : tenants_) {
    for (const auto& region : tenant->regions) {
      const bool enters = tenant.get() == &incoming && region->selected;
      if (!region->pages_outdated() || tenant->failed || tenant->uses(*region) || enters) continue;
      place_pages(*region, std::nullopt);
      any = true;
    }
  }
  return any;
}

void Device::set_verify(bool on) {
  with_host_room(nullptr, [&] {
    const Foreground lock(*this);
    require_open();
    if (on == static_cast<bool>(staging_)) return;
    const ContextScope scope(*context_);
    retry_unfinished();
    staging_ = Extent{};
    if (!on) return;
    staging_ = std::move(host_pool_->allocate("weave-verify", block_bytes_, 1, host_node_).front());
  });
}

bool Device::verifies() const {
  const std::lock_guard lock(mutex_);
  return static_cast<bool>(staging_);
}

void Device::require_unpinned(const Tenant& tenant, const std::vector<Region*>& regions) const {
  for (const Region* region : regions) {
    if (region->pins == 0 || region->slots.empty()) continue;
    Refusal refusal(Refusal::Kind::region_pinned,
                    "region " + region->tag + " of tenant " + tenant.label() +
                        " is pinned to the device; unpin it before its tenant is suspended");
    refusal.job = tenant.job;
    refusal.tenant = tenant.name;
    refusal.tag = region->tag;
    throw refusal;
  }
}

}  // namespace weave

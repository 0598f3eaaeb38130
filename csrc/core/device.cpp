// core/device.cpp: a device's life: opening, tenants, regions and their growth, closing.
#include "core/device.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace weave {

namespace {

bool attribute(const Driver& driver, int which) {
  int value = 0;
  cu::check(driver.table.device_get_attribute(&value, which, driver.ordinal),
            cu::Call::device_get_attribute);
  return value != 0;
}

// The host's node that is closest to the device; -1 where the driver does not know.
int host_node(const Driver& driver) {
  int node = HostPool::kAnyNode;
  const auto status =
      driver.table.device_get_attribute(&node, cu::kAttributeHostNumaId, driver.ordinal);
  return status == cu::kSuccess ? node : HostPool::kAnyNode;
}

}  // namespace

Device::Device(DriverRef driver, Options options)
    : process_(getpid()), driver_(std::move(driver)), context_(std::make_shared<Context>(driver_)) {
  if (!attribute(*driver_, cu::kAttributeVirtualMemoryManagement)) {
    throw UsageError("this device does not support virtual memory management, which Weave needs");
  }
  const ContextScope scope(*context_);
  std::size_t free = 0;
  std::size_t total = 0;
  cu::check(driver_->table.mem_get_info(&free, &total), cu::Call::mem_get_info);
  capacity_ = total;
  block_bytes_ = round_up(options.block_bytes, granularity(*driver_));
  // F of the design: what is free beside our context, less 2 % of the capacity for what is not
  // ours.
  const Bytes margin = capacity_ / 50;
  Bytes usable = free > margin ? free - margin : 0;
  if (options.usable_bytes != 0) usable = std::min(usable, options.usable_bytes);
  const auto blocks = static_cast<int>(usable / block_bytes_);
  if (blocks == 0) {
    throw UsageError("the device has " + megabytes(usable) +
                     " for tenants, less than one block of " + megabytes(block_bytes_));
  }
  if (options.host_pool != nullptr &&
      options.host_pool->context()->driver().table.mem_host_register !=
          driver_->table.mem_host_register) {
    throw UsageError("a host pool can be shared only by devices of one driver");
  }
  host_pool_ = options.host_pool != nullptr
                   ? options.host_pool
                   : std::make_shared<HostPool>(context_, options.host_budget);
  host_pool_->expect_unit(block_bytes_);
  host_node_ = host_node(*driver_);
  frames_ = std::make_unique<Frames>(driver_, block_bytes_, blocks,
                                     attribute(*driver_, cu::kAttributeGpuDirectRdmaWithVmm));
  engine_ = std::make_unique<CopyEngine>(context_);
  drain_ = std::make_unique<Drain>(context_);
  background_ = std::make_unique<Background>(
      Background::Tools{mutex_, context_, *frames_, *drain_, *engine_, tenants_, plan_, turns_},
      options.background_thread);
  if (options.verify) set_verify(true);
  if (!options.spill_directory.empty()) {
    prepare_spill_directory(options.spill_directory);
    spill_directory_ = options.spill_directory;
    host_pool_->join(*this);  // last: nothing throws after it
  }
}

Device::~Device() { close(); }

void Device::require_open() const {
  if (frames_ == nullptr) throw UsageError("the device is closed");
}

void Device::require_usable(const Tenant& tenant) const {
  require_open();
  if (tenant.closed) throw UsageError("tenant " + tenant.label() + " is closed");
  if (std::ranges::none_of(tenants_, [&](const auto& own) { return own.get() == &tenant; })) {
    throw UsageError("tenant " + tenant.label() + " belongs to another device");
  }
  if (tenant.failed) {
    Refusal refusal(Refusal::Kind::tenant_failed,
                    "tenant " + tenant.label() +
                        " failed in a switch that could not be undone; "
                        "save what is readable with tenant.rescue(path) and close it");
    refusal.tenant = tenant.name;
    refusal.job = tenant.job;
    throw refusal;
  }
}

// First thing in each operation: undo calls that failed, and a roll-back that could not finish.
void Device::retry_unfinished() noexcept {
  driver_->retry_buried();
  const bool settled = engine_->settle();
  std::erase_if(stuck_links_, [&](const auto& link) { return link->settle() && settled; });
  if (background_->settle() && settled && !limbo_.empty()) {
    for (const FrameId frame : limbo_.frames) frames_->give_back(frame);
    limbo_ = {};
  }
  std::erase_if(unfinished_, [&](const auto& transaction) {
    if (transaction->undo(tools()) == Transaction::Undone::impossible) return false;
    for (const auto& tenant : transaction->tenants()) {
      tenant->failed = false;
      // Slots of a growth that failed were kept for the undo; they never held anything.
      for (const auto& region : tenant->regions) {
        region->slots.resize(region->bytes_held / block_bytes_);
      }
      tenant->refresh_states();
    }
    return true;
  });
}

std::shared_ptr<Tenant> Device::add_tenant(const std::string& name, const std::string& job) {
  const std::lock_guard lock(mutex_);
  require_open();
  if (name.empty()) throw UsageError("a tenant needs a name");
  for (const auto& tenant : tenants_) {
    if (tenant->name == name && tenant->job == job) {
      throw UsageError("tenant " + name + " of job '" + job + "' exists on this device");
    }
  }
  tenants_.push_back(std::make_shared<Tenant>(name, job));
  return tenants_.back();
}

std::shared_ptr<Region> Device::region(const std::shared_ptr<Tenant>& tenant,
                                       const std::string& tag, Policy policy, Bytes reserve) {
  const std::lock_guard lock(mutex_);
  require_usable(*tenant);
  for (const auto& region : tenant->regions) {
    if (region->tag != tag) continue;
    if (region->policy != policy) {
      throw UsageError("region " + tag + " of tenant " + tenant->label() + " has another policy");
    }
    return region;
  }
  const Bytes usable = static_cast<Bytes>(frames_->limit()) * block_bytes_;
  if (reserve > usable) {
    Refusal refusal(Refusal::Kind::growth_refused,
                    "region " + tag + " of tenant " + tenant->label() + " asks for " +
                        megabytes(reserve) + ", the device has " + megabytes(usable));
    refusal.bytes_needed = reserve;
    refusal.bytes_available = refusal.bytes_usable = usable;
    throw refusal;
  }
  const ContextScope scope(*context_);
  driver_->retry_buried();
  const Bytes most =
      static_cast<Bytes>(frames_->total()) * block_bytes_;  // also when F grows again
  const Bytes reserved = reserve == 0 ? most : round_up(reserve, block_bytes_);
  tenant->regions.push_back(std::make_shared<Region>(
      tenant, tag, policy, std::make_shared<Reservation>(driver_, reserved), block_bytes_));
  return tenant->regions.back();
}

// Growing and allocating are for a tenant whose phase holds the device.
void Device::require_running(const Region& region) const {
  const auto tenant = require_tenant(region);
  if (tenant->uses(region)) return;
  Refusal refusal(Refusal::Kind::not_resident,
                  "tenant " + tenant->label() + " must run" + (tenant->running ? " with " : "") +
                      (tenant->running ? region.tag : "") + " to grow its region " + region.tag +
                      "; resume it first");
  refusal.job = tenant->job;
  refusal.tenant = tenant->name;
  refusal.tag = region.tag;
  throw refusal;
}

std::shared_ptr<Span> Device::allocate(const std::shared_ptr<Region>& region, Bytes bytes,
                                       Bytes alignment) {
  if (bytes == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) {
    throw UsageError("allocate needs at least one byte and an alignment that is a power of two");
  }
  {
    const std::lock_guard lock(mutex_);
    require_running(*region);
    if (auto span = take(region, bytes, alignment)) return span;
  }
  return with_host_room(region->tenant.lock().get(), [&] {
    const Foreground lock(*this);
    require_running(*region);
    if (auto span = take(region, bytes, alignment)) return span;
    grow(region, region->shortage(bytes, alignment));
    auto span = take(region, bytes, alignment);
    WEAVE_ASSERT(span != nullptr, "a region grew and still had no room");
    return span;
  });
}

// From what the region has; null where that is not enough.
std::shared_ptr<Span> Device::take(const std::shared_ptr<Region>& region, Bytes bytes,
                                   Bytes alignment) {
  for (const auto& part : region->tenant.lock()->committed) {
    if (part.region != region) continue;
    throw UsageError("region " + region->tag +
                     " has a newer version waiting; its tenant must leave before it grows");
  }
  const auto offset = region->take(bytes, alignment);
  if (!offset) return nullptr;
  // The owner writes there now: what the host has of these blocks is old.
  region->invalidate_host(*offset, bytes);
  background_->touched(*region, *offset, bytes);
  return std::make_shared<Span>(region, *offset, bytes);
}

void Device::prepare(const std::shared_ptr<Region>& region, Bytes bytes) {
  with_host_room(region->tenant.lock().get(), [&] {
    const Foreground lock(*this);
    require_running(*region);
    if (bytes == 0) return;
    if (const Bytes shortage = region->shortage(bytes, 1); shortage > 0) grow(region, shortage);
  });
}

void Device::grow(const std::shared_ptr<Region>& region, Bytes bytes_more) {
  const auto tenant = region->tenant.lock();
  const ContextScope scope(*context_);
  retry_unfinished();
  const std::size_t before = region->slots.size();
  // Of what cannot be counted in bytes, as many as can: it is refused below.
  const std::size_t blocks =
      std::min(round_up(bytes_more, block_bytes_), ~Bytes{0} / 2) / block_bytes_;
  const Bytes needed = (tenant->slots() + blocks) * block_bytes_;
  const Bytes usable = static_cast<Bytes>(frames_->limit()) * block_bytes_;
  std::size_t held_by_others = 0;
  for (const auto& other : tenants_) {
    if (other == tenant) continue;
    held_by_others += static_cast<std::size_t>(std::ranges::count_if(
        slots_on_device(*other),
        [&](const SlotRef& ref) { return other->failed || other->uses(*ref.region); }));
  }
  const Bytes available = usable - std::min<Bytes>(usable, held_by_others * block_bytes_);
  const Bytes region_bytes = (before + blocks) * block_bytes_;
  if (needed > available || region_bytes > region->reservation->bytes()) {
    const bool too_long = region_bytes > region->reservation->bytes();
    Refusal refusal(Refusal::Kind::growth_refused,
                    "tenant " + tenant->label() + " needs " +
                        megabytes(too_long ? region_bytes : needed) +
                        (too_long ? " in region " + region->tag + ", whose addresses end at "
                                  : ", it can have ") +
                        megabytes(too_long ? region->reservation->bytes() : available) +
                        " of the " + megabytes(usable) + " that the device has for tenants");
    refusal.bytes_needed = needed;
    refusal.bytes_available = available;
    refusal.bytes_usable = usable;
    throw refusal;
  }
  std::vector<Extent> extents;
  // With a page table there is nothing in use of what comes to it.
  if (region->policy != Policy::discard && !region->pages())
    extents = host_pool_->allocate(tenant->job, block_bytes_, blocks, host_node_);
  std::vector<SlotRef> ins;
  region->slots.resize(before + blocks);
  for (std::size_t index = 0; index < blocks; ++index) {
    if (!extents.empty()) region->slots[before + index].host = std::move(extents[index]);
    ins.push_back({region, before + index});
  }
  try {
    bring_in(ins, nullptr, *tenant, 60.0);
  } catch (...) {
    // A roll-back that could not finish still names the new slots; they hold nothing yet.
    if (!is_unfinished(*tenant)) {
      region->slots.resize(before);
      tenant->refresh_states();
    }
    throw;
  }
  region->grow_space();
}

// `settled`: no copy is in flight; else frames and extents wait until that is known.
void Device::drop_slots(Tenant& tenant, bool settled) noexcept {
  std::vector<Mapping*> mappings;
  for (const auto& ref : slots_on_device(tenant)) {
    if (ref.get().mapping) mappings.push_back(&ref.get().mapping);
  }
  try {
    Mapping::unmap_all(mappings);
  } catch (const DriverError&) {
    // Each mapping that is left undoes itself below, and is retried if that fails too.
  }
  for (const auto& region : tenant.regions) {
    for (auto& slot : region->slots) {
      slot.mapping = Mapping{};
      slot.frame_valid = false;
      const FrameId frame = std::exchange(slot.frame, kNoFrame);
      if (!settled) {
        if (slot.host) limbo_.extents.push_back(std::move(slot.host));
        if (frame != kNoFrame) limbo_.frames.push_back(frame);
      } else if (frame != kNoFrame) {
        frames_->give_back(frame);
      }
      slot.host = Extent{};
    }
    if (!settled) std::ranges::move(region->packed, std::back_inserter(limbo_.extents));
    region->packed.clear();
    region->slots.clear();
    region->bytes_held = 0;
    region->state = RegionState::discarded;
  }
}

void Device::close_tenant(const std::shared_ptr<Tenant>& tenant) noexcept {
  const Foreground lock(*this);
  if (tenant->closed || frames_ == nullptr) return;
  std::optional<ContextScope> scope;
  try {
    scope.emplace(*context_);
    // Its last kernels must not run into an unmapped range, also those of a phase that has ended.
    if (tenant->slots_on_device() > 0 && !turns_.is_drained(*tenant)) drain(60.0);
  } catch (const std::exception&) {
    // A lost context or a stuck kernel: closing goes on, nothing can be saved by waiting.
  }
  retry_unfinished();
  background_->forget(*tenant);
  plan_.movable.erase(tenant.get());
  std::erase(plan_.next_use, tenant.get());
  // The undo goes on for the other tenants that it concerns.
  for (const auto& transaction : unfinished_) transaction->forget(*tenant, limbo_);
  std::erase_if(unfinished_,
                [](const auto& transaction) { return transaction->tenants().empty(); });
  tenant->running = false;
  tenant->closed = true;
  tenant->committed.clear();
  for (const auto& region : tenant->regions) region->spare.clear();
  const bool settled = engine_->settle();
  drop_slots(*tenant, background_->settle() && settled);
  tenant->regions.clear();  // spans that are still out keep their region's addresses, unmapped
  std::erase(tenants_, tenant);
  // Its pieces are of no use to another job.
  if (std::ranges::none_of(tenants_, [&](const auto& own) { return own->job == tenant->job; })) {
    host_pool_->trim(tenant->job);
  }
}

void Device::close() noexcept {
  if (getpid() != process_) return;
  const std::lock_guard once(closing_);
  // Waits for a spill that another device has asked for. Without our lock: the pool's is above it.
  if (const auto pool = [&] {
        const std::lock_guard lock(mutex_);
        return host_pool_;
      }()) {
    pool->leave(*this);
  }
  Background* background = nullptr;
  {
    const std::lock_guard lock(mutex_);
    background = background_.get();
  }
  if (background != nullptr) background->stop();
  for (const auto& tenant : tenants()) close_tenant(tenant);
  const std::lock_guard lock(mutex_);
  if (frames_ == nullptr) {
    driver_->retry_buried();  // what the driver refused when the device was closed
    return;
  }
  drain_.reset();
  {
    std::optional<ContextScope> scope;
    try {
      scope.emplace(*context_);
    } catch (const DriverError&) {
      // The context is lost; releasing it takes streams and events along.
    }
    // Copies of a switch that failed, whose end nobody saw, may still use what goes now.
    const bool settled = engine_->settle();
    if (scope && !(background_->settle() && settled)) driver_->table.ctx_synchronize();
    note_background(stats_);
    background_.reset();
    plain_link_.reset();
    stuck_links_.clear();
    unfinished_.clear();
    engine_.reset();
    limbo_ = {};
    staging_ = {};
    frames_.reset();
    driver_->retry_buried();
  }
  host_pool_->trim();
  host_pool_.reset();
  context_.reset();
  driver_->retry_buried();
}

}  // namespace weave

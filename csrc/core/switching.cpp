// core/switching.cpp: Device operations that hand frames from one tenant to another: resume,
// suspend, hand_over and release, and what they share: making room, the transfer, the roll-back.
#include <algorithm>
#include <utility>

#include "core/device.hpp"

namespace weave {

namespace {

// The regions of these tags. Throws UsageError.
std::vector<Region*> regions_of(const Tenant& tenant, const Tags& tags) {
  std::vector<Region*> found;
  if (!tags) {
    for (const auto& region : tenant.regions) found.push_back(region.get());
    return found;
  }
  if (tags->empty()) throw UsageError("no tag is named; leave `tags` out for all of them");
  for (const auto& tag : *tags) {
    const auto region = std::ranges::find(tenant.regions, tag, &Region::tag);
    if (region == tenant.regions.end()) {
      throw UsageError("tenant " + tenant.label() + " has no region " + tag);
    }
    if (std::ranges::find(found, region->get()) == found.end()) found.push_back(region->get());
  }
  return found;
}

bool contains(const std::vector<Region*>& regions, const Region* region) {
  return std::ranges::find(regions, region) != regions.end();
}

bool is_whole(const Region& region) {
  return std::ranges::all_of(region.slots,
                             [](const Slot& slot) { return static_cast<bool>(slot.mapping); });
}

// Its tenant's own frame still holds what the host has a newer version of.
bool is_overwritten(const SlotRef& ref) {
  return ref.get().frame != kNoFrame && !ref.get().frame_valid;
}

// Which regions a tenant runs with, put back where it was unless kept.
class Selection {
 public:
  explicit Selection(const Tenant& tenant) {
    for (const auto& region : tenant.regions) before_.emplace_back(region.get(), region->selected);
  }
  ~Selection() {
    for (const auto& [region, selected] : before_) region->selected = selected;
  }
  Selection(const Selection&) = delete;
  Selection& operator=(const Selection&) = delete;
  void keep() { before_.clear(); }
  void keep_broken() {  // only of those that are not whole on the device
    std::erase_if(before_, [](const auto& entry) { return !is_whole(*entry.first); });
  }

 private:
  std::vector<std::pair<Region*, bool>> before_;
};

}  // namespace

// Victims for `frames_needed` frames; throws what the caller shows when idle tenants cannot give
// it.
std::vector<SlotRef> Device::make_room(const Tenant& incoming, std::size_t frames_needed) {
  const auto free = static_cast<std::size_t>(frames_->available());
  if (frames_needed <= free) return {};
  std::vector<SlotRef> victims;
  std::size_t beyond_plan = 0;
  const auto choose = [&] {
    auto chosen = choose_victims(tenants_, incoming, frames_needed - free, plan_);
    victims = std::move(chosen.slots);
    beyond_plan = chosen.beyond_plan;
    // Then its own tags that do not come in now, from the end.
    auto own = slots_on_device(incoming);
    std::erase_if(
        own, [](const SlotRef& ref) { return ref.region->selected || !ref.region->may_leave(); });
    while (victims.size() < frames_needed - free && !own.empty()) {
      victims.push_back(own.back());
      own.pop_back();
    }
    return victims.size() == frames_needed - free;
  };
  if (choose() || (place_outdated(incoming) && choose())) {
    stats_.blocks_beyond_plan += beyond_plan;
    return victims;
  }
  Refusal refusal(Refusal::Kind::resume_failed, "");
  const Bytes missing = (frames_needed - free - victims.size()) * block_bytes_;
  std::string names;
  for (const auto& tenant : tenants_) {
    const bool holds =
        tenant->running || tenant->failed ||
        std::ranges::any_of(tenant->regions, [](const auto& region) { return region->pins > 0; });
    if (tenant.get() == &incoming || !holds) continue;
    refusal.holders.push_back(tenant->label());
    names += (names.empty() ? "" : ", ") + tenant->label();
  }
  refusal.text = "tenant " + incoming.label() + " cannot come in: " + megabytes(missing) +
                 " are missing, held by " +
                 (names.empty() ? "nobody; it is larger than the device"
                                : names + "; suspend or release it first");
  refusal.bytes_needed = missing;
  throw refusal;
}

// `entered`: regions that the tenant did not use before.
void Device::start(Tenant& tenant, const std::vector<Region*>& entered) {
  for (Region* region : entered) {
    if (!region->keeps_host_copies())
      region->invalidate_host(0, region->slots.size() * block_bytes_);
  }
  tenant.running = true;
  tenant.last_turn = ++turns_.now;
  tenant.refresh_states();
}

void Device::stop(Tenant& tenant) {
  tenant.running = false;
  tenant.last_turn = ++turns_.now;
  tenant.stopped_ns = driver_->table.now_ns();
}

SwitchReport Device::resume(const std::shared_ptr<Tenant>& tenant, double drain_timeout_s,
                            const Tags& tags) {
  return hand_over(nullptr, tenant, drain_timeout_s, tags);
}

SwitchReport Device::hand_over_once(const std::shared_ptr<Tenant>& outgoing,
                                    const std::shared_ptr<Tenant>& incoming, double drain_timeout_s,
                                    const Tags& tags) {
  const Foreground lock(*this);
  require_open();
  const ContextScope scope(*context_);
  retry_unfinished();
  if (outgoing != nullptr) require_usable(*outgoing);
  require_usable(*incoming);
  if (outgoing == incoming) throw UsageError("a tenant cannot be switched to itself");
  apply_committed(*incoming);
  auto entering = regions_of(*incoming, tags);
  std::erase_if(entering, [&](const Region* region) { return incoming->uses(*region); });
  const bool outgoing_ran = outgoing != nullptr && outgoing->running;
  if (incoming->running && entering.empty() && !outgoing_ran) {
    ++stats_.noop_resumes;
    SwitchReport report;
    report.incoming = incoming->label();
    report.started_ns = driver_->table.now_ns();
    return report;
  }
  Selection selection(*incoming);
  for (const auto& region : incoming->regions) {
    if (!incoming->uses(*region)) region->selected = contains(entering, region.get());
  }
  load_spilled(*incoming);
  auto ins = missing_slots(*incoming);
  std::erase_if(ins, [](const SlotRef& ref) { return !ref.region->selected; });
  auto report = bring_in(ins, outgoing_ran ? outgoing : nullptr, *incoming, drain_timeout_s);
  selection.keep();
  for (const auto& tenant : {incoming, outgoing}) {
    if (tenant != nullptr) report.bytes_background += std::exchange(tenant->background_bytes, 0);
  }
  start(*incoming, entering);
  ++stats_.switches;
  return report;
}

// Make room for `ins` and move. The driver may have less memory than when the device was opened
// (torch took it since): then once more, with the frames that exist.
SwitchReport Device::bring_in(const std::vector<SlotRef>& ins,
                              const std::shared_ptr<Tenant>& outgoing, Tenant& incoming,
                              double drain_timeout_s) {
  const auto frames_needed = static_cast<std::size_t>(
      std::ranges::count_if(ins, [](const SlotRef& ref) { return ref.get().frame == kNoFrame; }));
  const auto once = [&](const std::shared_ptr<Tenant>& leaving) {
    if (leaving != nullptr) stop(*leaving);
    try {
      std::vector<SlotRef> outs;
      try {
        outs = make_room(incoming, frames_needed);
      } catch (const DriverError&) {
        if (leaving != nullptr) leaving->running = true;  // nothing was moved
        throw;
      }
      return transfer(std::move(outs), ins, leaving, &incoming, drain_timeout_s);
    } catch (const Refusal& refusal) {
      // Nothing was moved, or it was rolled back, which says itself who runs.
      if (leaving != nullptr && refusal.kind != Refusal::Kind::verify_failed) {
        leaving->running = true;
      }
      throw;
    }
  };
  try {
    return once(outgoing);
  } catch (const OutOfMemory&) {
    struct Existing {
      Frames& frames;
      explicit Existing(Frames& of) : frames(of) { frames.allow_creating(false); }
      ~Existing() { frames.allow_creating(true); }
    } const only(*frames_);
    if (incoming.failed || static_cast<int>(frames_needed) <= frames_->available()) throw;
    // Where the roll-back could not let it go on it stays suspended, whatever comes of this.
    const bool runs = outgoing != nullptr && outgoing->running;
    try {
      return once(runs ? outgoing : nullptr);
    } catch (const Refusal&) {
      // Idle tenants cannot give enough either: the driver's word is the reason.
    }
    throw;
  }
}

SwitchReport Device::suspend(const std::shared_ptr<Tenant>& tenant, double drain_timeout_s,
                             const Tags& tags) {
  return with_host_room(tenant.get(), [&] { return suspend_once(tenant, drain_timeout_s, tags); });
}

SwitchReport Device::suspend_once(const std::shared_ptr<Tenant>& tenant, double drain_timeout_s,
                                  const Tags& tags) {
  const Foreground lock(*this);
  require_open();
  const ContextScope scope(*context_);
  retry_unfinished();
  require_usable(*tenant);
  const auto leaving = regions_of(*tenant, tags);
  auto outs = slots_on_device(*tenant);
  std::erase_if(outs, [&](const SlotRef& ref) { return !contains(leaving, ref.region.get()); });
  const bool ran = tenant->running;
  const auto stays = [&](const auto& region) {
    return tenant->uses(*region) && !contains(leaving, region.get());
  };
  const bool goes_on = std::ranges::any_of(tenant->regions, stays);
  const bool uses_any =
      std::ranges::any_of(leaving, [&](const Region* region) { return tenant->uses(*region); });
  if (outs.empty() && !uses_any && (!ran || tags)) {
    ++stats_.noop_suspends;
    SwitchReport report;
    report.outgoing = {tenant->label()};
    report.started_ns = driver_->table.now_ns();
    return report;
  }
  require_unpinned(*tenant, leaving);
  for (Region* region : leaving) {
    if (region->pages_outdated()) place_pages(*region, std::nullopt);
  }
  Selection selection(*tenant);
  if (goes_on) {
    for (Region* region : leaving) region->selected = false;
  } else if (ran) {
    stop(*tenant);
  }
  // Rolled back, tags that are not whole on the device stay away while the others are used; which
  // of them are, is as it was.
  const auto rolled_back = [&] {
    if (goes_on) selection.keep_broken();
  };
  try {
    auto report = transfer(outs, {}, ran ? tenant : nullptr, nullptr, drain_timeout_s);
    selection.keep();
    tenant->refresh_states();
    report.bytes_background = std::exchange(tenant->background_bytes, 0);
    ++stats_.switches;
    return report;
  } catch (const Refusal& refusal) {
    if (refusal.kind == Refusal::Kind::verify_failed) {
      rolled_back();
    } else {
      tenant->running = ran;  // nothing was moved
    }
    throw;
  } catch (const DriverError&) {
    rolled_back();
    throw;
  }
}

void Device::release(const std::shared_ptr<Tenant>& tenant) {
  const std::lock_guard lock(mutex_);
  require_open();
  if (tenant->closed || !tenant->running) return;
  stop(*tenant);
}

// Whether work that nobody has waited for may use what a hand-over touches. Where a phase begins,
// whatever idle tenants left counts: later, beside the phase, nobody may wait for the context,
// since that breaks a capture of the trainer's, and the background may take only what is drained.
bool Device::needs_drain(const std::vector<SlotRef>& outs, const std::vector<SlotRef>& ins,
                         const std::shared_ptr<Tenant>& outgoing, const Tenant* incoming) const {
  if (outgoing != nullptr) return true;
  const auto is_drained = [&](const SlotRef& ref) {
    const auto tenant = ref.region->tenant.lock();
    return tenant == nullptr || turns_.is_drained(*tenant);
  };
  if (!std::ranges::all_of(outs, is_drained)) return true;
  // Also where a version was published: work of the tenant's last phase may still read the old.
  if (std::ranges::any_of(
          ins, [&](const SlotRef& ref) { return is_overwritten(ref) && !is_drained(ref); })) {
    return true;
  }
  if (incoming == nullptr || incoming->running) return false;
  return std::ranges::any_of(tenants_, [&](const auto& tenant) {
    return !tenant->running && !turns_.is_drained(*tenant) && tenant->slots_on_device() > 0;
  });
}

// All work of the context is complete: that of everybody who does not run. pre: Foreground.
void Device::drain(double timeout_s) {
  drain_->wait(timeout_s);
  turns_.drained = turns_.now;
}

// Drain, move, report. On failure the roll-back is done (or kept for later) and the error goes on.
SwitchReport Device::transfer(std::vector<SlotRef> outs, std::vector<SlotRef> ins,
                              const std::shared_ptr<Tenant>& outgoing, const Tenant* incoming,
                              double drain_timeout_s) {
  const auto now = driver_->table.now_ns;
  SwitchReport report;
  report.started_ns = operation_began_ns_;  // waiting for the background's chunk is draining too
  if (incoming != nullptr) report.incoming = incoming->label();
  if (outgoing != nullptr) report.outgoing.push_back(outgoing->label());
  try {
    background_->require_settled();
    if (needs_drain(outs, ins, outgoing, incoming)) drain(drain_timeout_s);
  } catch (const DriverError&) {
    if (outgoing != nullptr) outgoing->running = true;  // nothing was moved
    throw;
  }
  const std::int64_t drained = now();
  report.drain_s = seconds_between(report.started_ns, drained);
  auto transaction = std::make_unique<Transaction>(outs, ins);
  const auto concerned = transaction->tenants();
  try {
    transaction->run(tools(), report);
  } catch (const DriverError&) {
    roll_back(std::move(transaction), outgoing);
  } catch (const Refusal&) {
    roll_back(std::move(transaction), outgoing);  // other bytes than expected
  }
  Bytes concerned_bytes = 0;
  for (const auto& tenant : concerned) {
    tenant->refresh_states();
    concerned_bytes += tenant->slots() * block_bytes_;
    if (tenant.get() != incoming && tenant != outgoing) report.outgoing.push_back(tenant->label());
  }
  if (report.bytes_out > 0 && report.bytes_in > 0) {
    report.mode = engine_->sequential() ? "sequential" : "duplex";
  }
  report.bytes_skipped =
      concerned_bytes - std::min(concerned_bytes, report.bytes_out + report.bytes_in);
  report.seconds = seconds_between(report.started_ns, now());
  if (rates_ && report.bytes_out + report.bytes_in > 0) {
    report.limit_s = limit_seconds(*rates_, report.bytes_out, report.bytes_in);
  }
  stats_.bytes_out += report.bytes_out;
  stats_.bytes_in += report.bytes_in;
  return report;
}

bool Device::is_unfinished(const Tenant& tenant) const {
  return std::ranges::any_of(
      unfinished_, [&](const auto& transaction) { return transaction->concerns(tenant); });
}

// pre: called from the handler of the failure, which it passes on.
void Device::roll_back(std::unique_ptr<Transaction> transaction,
                       const std::shared_ptr<Tenant>& outgoing) {
  const auto undone = transaction->undo(tools());
  if (outgoing != nullptr && undone == Transaction::Undone::restored) outgoing->running = true;
  for (const auto& tenant : transaction->tenants()) {
    if (undone == Transaction::Undone::impossible) {
      tenant->running = false;
      tenant->failed = true;
    }
    tenant->refresh_states();
  }
  if (undone == Transaction::Undone::impossible) unfinished_.push_back(std::move(transaction));
  throw;
}

}  // namespace weave

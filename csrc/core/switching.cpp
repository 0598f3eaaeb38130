// core/switching.cpp: Device operations that hand frames from one tenant to another: resume,
// suspend, hand_over and release, and what they share: making room, the transfer, the roll-back.
#include <algorithm>

#include "core/device.hpp"

namespace weave {

// Victims for `frames_needed` frames; throws what the caller shows when idle tenants cannot give
// it.
std::vector<SlotRef> Device::make_room(const Tenant& incoming, std::size_t frames_needed) {
  const auto free = static_cast<std::size_t>(frames_->available());
  if (frames_needed <= free) return {};
  auto victims = choose_victims(tenants_, incoming, frames_needed - free);
  if (victims.size() == frames_needed - free) return victims;
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

void Device::start(Tenant& tenant) {
  for (const auto& region : tenant.regions) {
    if (region->keeps_host_copies()) continue;
    for (auto& slot : region->slots) slot.host_valid = false;
  }
  tenant.running = true;
  tenant.last_turn = ++turn_;
  tenant.refresh_states();
}

void Device::stop(Tenant& tenant) {
  tenant.running = false;
  tenant.last_turn = ++turn_;
  tenant.stopped_ns = driver_->table.now_ns();
}

SwitchReport Device::resume(const std::shared_ptr<Tenant>& tenant, double drain_timeout_s) {
  return hand_over(nullptr, tenant, drain_timeout_s);
}

SwitchReport Device::hand_over_once(const std::shared_ptr<Tenant>& outgoing,
                                    const std::shared_ptr<Tenant>& incoming,
                                    double drain_timeout_s) {
  const std::lock_guard lock(mutex_);
  require_open();
  const ContextScope scope(*context_);
  retry_unfinished();
  if (outgoing != nullptr) require_usable(*outgoing);
  require_usable(*incoming);
  if (outgoing == incoming) throw UsageError("a tenant cannot be switched to itself");
  if (incoming->running && (outgoing == nullptr || !outgoing->running)) {
    ++stats_.noop_resumes;
    SwitchReport report;
    report.incoming = incoming->label();
    report.started_ns = driver_->table.now_ns();
    return report;
  }
  load_spilled(*incoming);
  const bool outgoing_ran = outgoing != nullptr && outgoing->running;
  auto report = bring_in(missing_slots(*incoming), outgoing_ran ? outgoing : nullptr, *incoming,
                         drain_timeout_s);
  start(*incoming);
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
  const auto once = [&] {
    if (outgoing != nullptr) stop(*outgoing);
    try {
      return transfer(make_room(incoming, frames_needed), ins, outgoing, &incoming,
                      drain_timeout_s);
    } catch (const Refusal&) {
      if (outgoing != nullptr) outgoing->running = true;  // nothing was moved
      throw;
    }
  };
  try {
    return once();
  } catch (const OutOfMemory&) {
    struct Existing {
      Frames& frames;
      explicit Existing(Frames& of) : frames(of) { frames.allow_creating(false); }
      ~Existing() { frames.allow_creating(true); }
    } const only(*frames_);
    if (incoming.failed || static_cast<int>(frames_needed) <= frames_->available()) throw;
    try {
      return once();
    } catch (const Refusal&) {
      // Idle tenants cannot give enough either: the driver's word is the reason.
    }
    throw;
  }
}

SwitchReport Device::suspend(const std::shared_ptr<Tenant>& tenant, double drain_timeout_s) {
  const std::lock_guard lock(mutex_);
  require_open();
  const ContextScope scope(*context_);
  retry_unfinished();
  require_usable(*tenant);
  const auto outs = slots_on_device(*tenant);
  if (!tenant->running && outs.empty()) {
    ++stats_.noop_suspends;
    SwitchReport report;
    report.outgoing = {tenant->label()};
    report.started_ns = driver_->table.now_ns();
    return report;
  }
  require_unpinned(*tenant);
  const bool ran = tenant->running;
  if (ran) stop(*tenant);
  try {
    auto report = transfer(outs, {}, ran ? tenant : nullptr, nullptr, drain_timeout_s);
    ++stats_.switches;
    return report;
  } catch (const Refusal&) {
    tenant->running = ran;
    throw;
  }
}

void Device::release(const std::shared_ptr<Tenant>& tenant) {
  const std::lock_guard lock(mutex_);
  require_open();
  if (tenant->closed || !tenant->running) return;
  stop(*tenant);
}

// Drain, move, report. On failure the roll-back is done (or kept for later) and the error goes on.
SwitchReport Device::transfer(std::vector<SlotRef> outs, std::vector<SlotRef> ins,
                              const std::shared_ptr<Tenant>& outgoing, const Tenant* incoming,
                              double drain_timeout_s) {
  const auto now = driver_->table.now_ns;
  SwitchReport report;
  report.started_ns = now();
  if (incoming != nullptr) report.incoming = incoming->label();
  if (outgoing != nullptr) report.outgoing.push_back(outgoing->label());
  if (outgoing != nullptr || !outs.empty()) {
    try {
      drain_->wait(drain_timeout_s);
    } catch (const DriverError&) {
      if (outgoing != nullptr) outgoing->running = true;  // nothing was moved
      throw;
    }
  }
  const std::int64_t drained = now();
  report.drain_s = seconds_between(report.started_ns, drained);
  auto transaction = std::make_unique<Transaction>(outs, ins);
  const auto concerned = transaction->tenants();
  try {
    transaction->run(tools(), report);
  } catch (const DriverError&) {
    roll_back(std::move(transaction), outgoing);
  }
  Bytes concerned_bytes = 0;
  for (const auto& tenant : concerned) {
    tenant->refresh_states();
    concerned_bytes += tenant->slots() * block_bytes_;
    if (tenant.get() != incoming && tenant != outgoing) report.outgoing.push_back(tenant->label());
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

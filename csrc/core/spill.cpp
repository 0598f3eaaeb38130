// core/spill.cpp: Device operations beyond the budget of pinned memory. The tenant that has been
// idle for longest goes to a file and comes back when it resumes. A file has every byte, on the
// disk, before the memory is given up; a slot refers to the file until its bytes are back and their
// checksum is right. So whatever fails, the bytes are in one of the two, and known to be.
#include <algorithm>
#include <map>

#include "core/device.hpp"

namespace weave {

namespace {

// In pinned memory, and there are bytes of it.
bool is_in_memory_only(const Region& region, std::size_t slot) {
  const Slot& one = region.slots[slot];
  return one.frame == kNoFrame && one.host_valid && region.host_bytes(slot) > 0;
}

std::vector<SlotRef> spillable(const Tenant& tenant) {
  std::vector<SlotRef> found;
  for (const auto& region : tenant.regions) {
    for (std::size_t slot = 0; slot < region->slots.size(); ++slot) {
      if (is_in_memory_only(*region, slot)) found.push_back({region, slot});
    }
  }
  return found;
}

// Memory for slots that come from files. It becomes theirs when all bytes are there.
class Incoming {
 public:
  explicit Incoming(const std::vector<SlotRef>& slots) : slots_(slots), own_(slots.size()) {
    for (const auto& ref : slots_) {
      if (!ref.region->pages()) {
        ++needed_;
      } else if (!packed_.contains(ref.region.get())) {
        const auto& packed = ref.region->packed;
        packed_[ref.region.get()].resize(packed.size());
        needed_ += static_cast<std::size_t>(
            std::ranges::count_if(packed, [](const Extent& extent) { return !extent; }));
      }
    }
  }
  std::size_t extents_needed() const { return needed_; }
  // pre: so many.
  void place(std::vector<Extent> extents) {
    auto next = extents.begin();
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      if (!slots_[index].region->pages()) own_[index] = std::move(*next++);
    }
    for (auto& [region, fresh] : packed_) {
      for (std::size_t index = 0; index < fresh.size(); ++index) {
        if (!region->packed[index]) fresh[index] = std::move(*next++);
      }
    }
  }
  // Where the bytes of a slot go.
  std::vector<Range> ranges(std::size_t index) const {
    const auto& [region, slot] = slots_[index];
    if (!region->pages()) return {{0, region->block_bytes, own_[index].data()}};
    const auto& fresh = packed_.at(region.get());
    std::vector<Range> found;
    for (const auto& part : region->pages()->parts(slot)) {
      const Extent& extent = fresh[part.extent] ? fresh[part.extent] : region->packed[part.extent];
      found.push_back({part.offset, part.bytes, extent.data() + part.at});
    }
    return found;
  }
  // Returns their bytes.
  Bytes accept() {
    for (auto& [region, fresh] : packed_) {
      for (std::size_t index = 0; index < fresh.size(); ++index) {
        if (fresh[index]) region->packed[index] = std::move(fresh[index]);
      }
    }
    Bytes bytes = 0;
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      const auto& [region, number] = slots_[index];
      Slot& slot = slots_[index].get();
      if (own_[index]) slot.host = std::move(own_[index]);
      slot.host_valid = true;
      slot.file.reset();  // the last one removes the file
      const auto whole = region->host_ranges(number);
      for (auto& range : slot.checked) range.host = host_at(whole, range.offset);
      bytes += region->host_bytes(number);
    }
    return bytes;
  }

 private:
  static std::byte* host_at(const std::vector<Range>& whole, Bytes offset) {
    auto holder = std::ranges::upper_bound(whole, offset, {}, &Range::offset);
    --holder;
    return holder->host + (offset - holder->offset);
  }

  const std::vector<SlotRef>& slots_;
  std::size_t needed_ = 0;
  std::vector<Extent> own_;                        // of slots that have one each
  std::map<Region*, std::vector<Extent>> packed_;  // at the places of those that are missing
};

bool keeps_on_device(const Tenant& tenant) {
  return std::ranges::any_of(tenant.regions, [](const auto& region) {
    if (region->policy == Policy::discard || !region->may_leave()) return false;
    for (std::size_t slot = 0; slot < region->slots.size(); ++slot) {
      // Not where a page table says that nothing is in use: evicting that would give no memory.
      if (region->slots[slot].frame != kNoFrame && region->host_bytes(slot) > 0) return true;
    }
    return false;
  });
}

}  // namespace

Bytes Device::spill(const std::shared_ptr<Tenant>& tenant) {
  const Foreground lock(*this);
  require_open();
  if (spill_directory_.empty())
    throw UsageError("this device was opened without a spill directory");
  const ContextScope scope(*context_);
  retry_unfinished();
  require_usable(*tenant);
  if (tenant->running) {
    throw UsageError("tenant " + tenant->label() + " runs; release or suspend it before it spills");
  }
  return spill_slots(*tenant);
}

// To one file, all or nothing. pre: idle, not failed, nothing of a switch in flight.
Bytes Device::spill_slots(Tenant& tenant) {
  background_->require_settled();
  apply_committed(tenant);  // the version that it replaces need not be kept
  const auto slots = spillable(tenant);
  if (slots.empty()) return 0;
  std::vector<StateTensor> tensors;
  for (const auto& ref : slots) {
    if (tensors.empty() || tensors.back().tag != ref.region->tag) {
      tensors.push_back({ref.region->tag});
    }
    tensors.back().bytes += ref.region->host_bytes(ref.slot);
  }
  StateWriter writer(spill_path(spill_directory_),
                     {{"job", tenant.job}, {"tenant", tenant.name}, {"version", "1"}},
                     std::move(tensors), 0600);
  for (const auto& ref : slots) {
    for (const auto& range : ref.region->host_ranges(ref.slot)) {
      writer.write(range.host, range.bytes);
    }
  }
  writer.commit();
  const std::shared_ptr<const StateFile> file = writer.keep_as_temporary();
  Bytes bytes = 0;
  Bytes offset = 0;
  const Region* last = nullptr;
  for (const auto& ref : slots) {
    if (std::exchange(last, ref.region.get()) != ref.region.get()) offset = 0;
    const Bytes own = ref.region->host_bytes(ref.slot);
    bytes += own;
    Slot& slot = ref.get();
    slot.file = file;
    slot.file_offset = std::exchange(offset, offset + own);
    slot.host_valid = false;
    for (auto& range : slot.checked) range.host = nullptr;
    slot.host = Extent{};
  }
  for (const auto& region : tenant.regions) {
    region->spare.clear();  // has no contents
    region->drop_spilled();
  }
  ++stats_.spills;
  stats_.bytes_spilled += bytes;
  return bytes;
}

// What the tenant has in files of the regions that it is to run with, back into pinned memory; all
// or nothing. Throws Refusal (host_memory, state_file), DriverError.
void Device::load_spilled(Tenant& tenant) {
  std::vector<SlotRef> slots;
  for (const auto& region : tenant.regions) {
    if (!region->selected) continue;
    for (std::size_t slot = 0; slot < region->slots.size(); ++slot) {
      if (region->slots[slot].file != nullptr) slots.push_back({region, slot});
    }
  }
  if (slots.empty()) return;
  // One tag of one file after the other, each from its start: a tensor is checked as a whole.
  std::ranges::stable_sort(slots, [](const SlotRef& a, const SlotRef& b) {
    return std::pair(a.region.get(), a.get().file.get()) <
           std::pair(b.region.get(), b.get().file.get());
  });
  Incoming incoming(slots);
  incoming.place(
      host_pool_->allocate(tenant.job, block_bytes_, incoming.extents_needed(), host_node_));
  for (std::size_t begin = 0; begin < slots.size();) {
    const StateFile& file = *slots[begin].get().file;
    const std::string& tag = slots[begin].region->tag;
    const StateTensor& tensor = file.tensor(tag);
    file.check(tag);
    ContentHash hash;
    Bytes at = 0;
    for (; at < tensor.bytes; ++begin) {
      WEAVE_ASSERT(begin < slots.size() && slots[begin].get().file_offset == at,
                   "a spilled tensor was taken apart");
      for (const auto& range : incoming.ranges(begin)) {
        file.read(tensor, at, range.host, range.bytes);
        hash.add(range.host, range.bytes);
        at += range.bytes;
      }
    }
    if (hash.text() != tensor.checksum) {
      refuse_state_file("its contents were changed (checksum " + hash.text() + ", written was " +
                            tensor.checksum + ")",
                        file.path(), tag);
    }
  }
  ++stats_.loads;
  stats_.bytes_loaded += incoming.accept();
}

// The idle tenant that stopped first.
std::shared_ptr<Tenant> Device::find_coldest(const void* keep, bool evict) const {
  std::shared_ptr<Tenant> found;
  for (const auto& tenant : tenants_) {
    if (tenant.get() == keep || tenant->running || tenant->failed || is_unfinished(*tenant)) {
      continue;
    }
    if (spillable(*tenant).empty() && !(evict && keeps_on_device(*tenant))) continue;
    if (found == nullptr || tenant->stopped_ns < found->stopped_ns) found = tenant;
  }
  return found;
}

std::optional<Spiller::Candidate> Device::coldest(const void* keep, bool evict) {
  const std::lock_guard lock(mutex_);
  if (frames_ == nullptr) return std::nullopt;
  const auto tenant = find_coldest(keep, evict);
  if (tenant == nullptr) return std::nullopt;
  return Candidate{tenant->stopped_ns};
}

Bytes Device::spill_coldest(const void* keep, bool evict) {
  const Foreground lock(*this);
  if (frames_ == nullptr) return 0;
  const ContextScope scope(*context_);
  retry_unfinished();
  const auto tenant = find_coldest(keep, evict);
  if (tenant == nullptr) return 0;
  if (evict) {
    auto outs = slots_on_device(*tenant);
    std::erase_if(outs, [](const SlotRef& ref) {
      return !ref.region->may_leave() || ref.region->policy == Policy::discard;
    });
    if (!outs.empty()) transfer(outs, {}, nullptr, nullptr, 60.0);
  }
  return spill_slots(*tenant);
}

// How many bytes went to a file to make room; nothing where that is no answer to the refusal. A
// spill that failed for reasons of the disk becomes part of the refusal: the caller asked for
// memory and does not get it.
std::optional<Bytes> Device::spill_for(const Refusal& refusal, const Tenant* keep) {
  if (refusal.kind != Refusal::Kind::host_memory) return std::nullopt;
  const auto pool = [&] {
    const std::lock_guard lock(mutex_);
    return spill_directory_.empty() ? nullptr : host_pool_;
  }();
  if (pool == nullptr) return std::nullopt;
  try {
    return pool->spill_one(keep);
  } catch (const Refusal& failed) {
    if (failed.kind != Refusal::Kind::state_file) throw;
    Refusal both = refusal;
    both.text += "; spilling to make room failed: " + failed.text;
    both.path = failed.path;
    throw both;
  }
}

const char* Device::advice(bool spills) {
  return spills ? "; no idle tenant is left to spill"
                : "; with a spill directory idle tenants make room";
}

namespace {

// Two reports of one switch that was made in two steps.
SwitchReport joined(const SwitchReport& first, SwitchReport second) {
  second.started_ns = first.started_ns;
  second.outgoing.insert(second.outgoing.begin(), first.outgoing.begin(), first.outgoing.end());
  second.bytes_out += first.bytes_out;
  second.bytes_in += first.bytes_in;
  second.bytes_background += first.bytes_background;
  second.bytes_skipped += first.bytes_skipped;
  second.blocks_remapped += first.blocks_remapped;
  second.seconds += first.seconds;
  second.drain_s += first.drain_s;
  second.map_s += first.map_s;
  second.out_s += first.out_s;
  second.in_s += first.in_s;
  second.verify_s += first.verify_s;
  if (first.limit_s) second.limit_s = second.limit_s.value_or(0) + *first.limit_s;
  return second;
}

}  // namespace

SwitchReport Device::hand_over(const std::shared_ptr<Tenant>& outgoing,
                               const std::shared_ptr<Tenant>& incoming, double drain_timeout_s,
                               const Tags& tags) {
  try {
    return with_host_room(
        incoming.get(), [&] { return hand_over_once(outgoing, incoming, drain_timeout_s, tags); });
  } catch (const Refusal& refusal) {
    const std::lock_guard lock(mutex_);
    const bool may_go_first = refusal.kind == Refusal::Kind::host_memory && refusal.path.empty() &&
                              outgoing != nullptr && outgoing->running && frames_ != nullptr &&
                              !spill_directory_.empty() &&
                              refusal.bytes_needed <= host_pool_->budget();
    if (!may_go_first) throw;
  }
  // Pinned memory does not hold both of them: the outgoing one goes to its file before the incoming
  // one comes from its own. If that fails, both are suspended with every byte.
  const auto first = suspend(outgoing, drain_timeout_s);
  return joined(first, with_host_room(incoming.get(), [&] {
                  return hand_over_once(nullptr, incoming, drain_timeout_s, tags);
                }));
}

// --- the pool's part: whose turn it is, over all devices

void HostPool::join(Spiller& spiller) {
  const std::lock_guard lock(spillers_mutex_);
  spillers_.push_back(&spiller);
  // Memory is given back by whole pieces. Of a real device sixteen blocks are a gigabyte; of a
  // small model of one a piece would hold all of a job, and what is spilled would free nothing.
  constexpr Bytes kBlocks = 16;
  const std::lock_guard pool_lock(mutex_);
  if (unit_ != 0) piece_max_ = std::min(piece_max_, kBlocks * unit_);
}

void HostPool::leave(Spiller& spiller) {
  const std::lock_guard lock(spillers_mutex_);
  std::erase(spillers_, &spiller);
}

Bytes HostPool::spill_one(const void* keep) {
  const std::lock_guard lock(spillers_mutex_);
  for (const bool evict : {false, true}) {
    Spiller* coldest = nullptr;
    std::int64_t since = 0;
    for (Spiller* spiller : spillers_) {
      const auto candidate = spiller->coldest(keep, evict);
      if (!candidate || (coldest != nullptr && candidate->stopped_ns >= since)) continue;
      coldest = spiller;
      since = candidate->stopped_ns;
    }
    if (coldest == nullptr) continue;
    if (const Bytes bytes = coldest->spill_coldest(keep, evict); bytes > 0) return bytes;
  }
  return 0;
}

}  // namespace weave

#include "core/transaction.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/chunking.hpp"

namespace weave {

namespace {

Mapping map_slot(const Frames& frames, const SlotRef& ref, FrameId frame) {
  return {ref.region->reservation, frames.block(frame),
          static_cast<Bytes>(ref.slot) * frames.block_bytes()};
}

// The byte of a fill, -1 for none.
int fill_of(const Region& region) {
  if (region.policy != Policy::discard) return -1;
  const Fill fill = region.fill;
  return fill == Fill::none ? -1 : fill == Fill::zero ? 0 : kPoison;
}

}  // namespace

Transaction::Transaction(const std::vector<SlotRef>& outs, const std::vector<SlotRef>& ins) {
  for (const auto& ref : outs) {
    const Slot& slot = ref.get();
    const bool copies = ref.region->policy != Policy::discard && !slot.host_valid;
    WEAVE_ASSERT(!copies || slot.frame_valid, "a slot whose bytes are nowhere leaves");
    WEAVE_ASSERT(!ref.region->pages_outdated(), "a slot leaves and nobody knows its pages");
    outs_.push_back({ref, slot.frame, copies, ref.region->ranges(ref.slot)});
    block_bytes_ = ref.region->block_bytes;
    if (slot.host_valid) outs_.back().bytes_copied = block_bytes_;
  }
  for (const auto& ref : ins) {
    const Slot& slot = ref.get();
    WEAVE_ASSERT(slot.file == nullptr, "a slot comes in whose bytes are still in a file");
    In in{ref, slot.frame, !slot.frame_valid && slot.host_valid, {}};
    if (in.copies) in.ranges = ref.region->ranges(ref.slot);
    if (slot.frame == kNoFrame) in.fill = fill_of(*ref.region);
    ins_.push_back(std::move(in));
    block_bytes_ = ref.region->block_bytes;
  }
  // Frames that are free at once go to slots that must be copied in; those that come late, to
  // slots that only need a place.
  std::ranges::stable_partition(outs_, [](const Out& out) { return !out.copies; });
  std::ranges::stable_partition(ins_, [](const In& in) { return in.copies; });
}

std::vector<std::shared_ptr<Tenant>> Transaction::tenants() const {
  std::set<std::shared_ptr<Tenant>> found;
  for (const auto& out : outs_) found.insert(out.ref.region->tenant.lock());
  for (const auto& in : ins_) found.insert(in.ref.region->tenant.lock());
  found.erase(nullptr);
  return {found.begin(), found.end()};
}

bool Transaction::concerns(const Tenant& tenant) const {
  return std::ranges::any_of(tenants(), [&](const auto& other) { return other.get() == &tenant; });
}

void Transaction::run(const Tools& tools, SwitchReport& report) {
  for (const auto& out : outs_) out.ref.region->state = RegionState::leaving;
  for (const auto& in : ins_) in.ref.region->state = RegionState::entering;
  const auto now = tools.driver.table.now_ns;
  Bytes bytes_out = 0;
  Bytes bytes_in = 0;
  for (const auto& out : outs_) bytes_out += out.copies ? bytes_of(out.ranges) : 0;
  for (const auto& in : ins_) bytes_in += bytes_of(in.ranges);

  const std::int64_t started = now();
  unmap_outs();
  assign_frames(tools);
  const std::int64_t unmapped = now();
  const Bytes chunk = tools.engine.chunk_bytes(std::max(bytes_out, bytes_in), block_bytes_);
  if (tools.staging != nullptr) {
    copy_verified(tools, chunk, report);
  } else {
    copy(tools, chunk);
  }
  const std::int64_t queued = now();
  map_ins(tools);
  const std::int64_t mapped = now();
  const auto taken = tools.engine.finish();

  report.map_s += seconds_between(started, unmapped) + seconds_between(queued, mapped);
  report.out_s += taken.out;
  report.in_s += taken.in;
  report.bytes_out += bytes_out;
  report.bytes_in += bytes_in;
  commit(tools, report);
}

void Transaction::unmap_outs() {
  std::vector<Mapping*> mappings;
  for (const auto& out : outs_) {
    if (out.ref.get().mapping) mappings.push_back(&out.ref.get().mapping);
  }
  Mapping::unmap_all(mappings);
}

void Transaction::assign_frames(const Tools& tools) {
  int next_out = 0;
  for (auto& in : ins_) {
    if (in.frame != kNoFrame) continue;  // on the device already, only unmapped
    const bool out_is_free = next_out < static_cast<int>(outs_.size()) &&
                             !outs_[static_cast<std::size_t>(next_out)].copies;
    if (!out_is_free && tools.frames.available() > 0) {
      in.frame = tools.frames.take();
      in.from_pool = true;
    } else {
      WEAVE_ASSERT(next_out < static_cast<int>(outs_.size()), "a switch was planned without room");
      in.out = next_out++;
      in.frame = outs_[static_cast<std::size_t>(in.out)].frame;
    }
  }
}

Transaction::Plan Transaction::plan_copies(const Tools& tools, Bytes chunk) {
  Plan plan;
  plan.chunk = chunk;
  for (std::size_t index = 0; index < outs_.size(); ++index) {
    Out& out = outs_[index];
    if (!out.copies) continue;
    cut(out.ranges, chunk, tools.frames.home(out.frame), [&](const Chunk& part, Bytes end) {
      out.last_chunk = static_cast<int>(plan.outs.size());
      plan.outs.push_back(part);
      plan.out_owner.push_back(index);
      plan.out_end.push_back(end);
    });
  }
  for (std::size_t index = 0; index < ins_.size(); ++index) {
    const In& in = ins_[index];
    const auto ranges = in.fill >= 0 ? std::vector<Range>{{0, block_bytes_, nullptr}} : in.ranges;
    int after = -1;  // the first chunk that is not known to end before this one does
    int last = -1;
    if (in.out >= 0) {
      last = outs_[static_cast<std::size_t>(in.out)].last_chunk;
      after = last;
      while (after > 0 && plan.out_owner[static_cast<std::size_t>(after) - 1] ==
                              static_cast<std::size_t>(in.out)) {
        --after;
      }
    }
    cut(ranges, chunk, tools.frames.home(in.frame), [&](Chunk part, Bytes end) {
      // On one grid: the outgoing chunks before `end` are those that end there or earlier.
      while (after >= 0 && after < last && plan.out_end[static_cast<std::size_t>(after)] < end) {
        ++after;
      }
      part.after = after;
      part.fill = in.fill;
      plan.ins.push_back(part);
      plan.in_owner.push_back(index);
      plan.in_end.push_back(end);
    });
  }
  return plan;
}

void Transaction::copy(const Tools& tools, Bytes chunk) {
  if (block_bytes_ == 0) return;  // nothing leaves and nothing enters
  const Plan plan = plan_copies(tools, chunk);
  CopyEngine::Progress progress;
  try {
    tools.engine.run(plan.outs, plan.ins, progress, {.batch_bytes = chunk});
  } catch (...) {
    note_progress(plan, progress);
    throw;
  }
  note_progress(plan, progress);
}

// Which bytes of each Out have a copy on the host by the time the engine is settled, and which may
// be gone from its frame.
void Transaction::note_progress(const Plan& plan, const CopyEngine::Progress& progress) {
  for (std::size_t index = 0; index < progress.outs_issued; ++index) {
    Out& out = outs_[plan.out_owner[index]];
    const bool is_last = static_cast<int>(index) == out.last_chunk;
    out.bytes_copied = is_last ? block_bytes_ : plan.out_end[index];
  }
  for (std::size_t index = 0; index < progress.ins_issued; ++index) {
    const In& in = ins_[plan.in_owner[index]];
    if (in.out >= 0) outs_[static_cast<std::size_t>(in.out)].bytes_overwritten = plan.in_end[index];
  }
  for (auto& out : outs_) {
    if (out.copies && out.last_chunk < 0) out.bytes_copied = block_bytes_;  // nothing to keep
  }
}

void Transaction::map_ins(const Tools& tools) {
  std::vector<Mapping*> mapped;
  for (auto& in : ins_) {
    if (in.ref.get().mapping) continue;  // it only had other bytes than the host
    in.mapping = map_slot(tools.frames, in.ref, in.frame);
    mapped.push_back(&in.mapping);
  }
  Mapping::set_access_all(tools.driver, mapped);
}

void Transaction::commit(const Tools& tools, SwitchReport& report) noexcept {
  std::vector<bool> taken(outs_.size(), false);
  for (auto& in : ins_) {
    Slot& slot = in.ref.get();
    slot.frame = in.frame;
    slot.frame_valid = true;
    if (in.mapping) slot.mapping = std::move(in.mapping);
    if (in.out >= 0) taken[static_cast<std::size_t>(in.out)] = true;
  }
  std::set<Region*> discarded;
  for (std::size_t index = 0; index < outs_.size(); ++index) {
    Slot& slot = outs_[index].ref.get();
    slot.frame = kNoFrame;
    slot.frame_valid = false;
    slot.host_valid = slot.host_valid || outs_[index].copies;
    if (outs_[index].copies) {
      slot.checked = verified_ ? outs_[index].ranges : std::vector<Range>{};
      slot.checksum = outs_[index].checksum;
    }
    if (!slot.host_valid) discarded.insert(outs_[index].ref.region.get());
    if (!taken[index]) tools.frames.give_back(outs_[index].frame);
  }
  for (Region* region : discarded) ++region->generation;
  report.blocks_remapped += outs_.size() + ins_.size();
}

Transaction::Undone Transaction::undo(const Tools& tools) noexcept {
  if (!tools.engine.settle()) return Undone::impossible;
  for (auto& in : ins_) {
    in.mapping = Mapping{};
    if (in.from_pool) tools.frames.give_back(std::exchange(in.frame, kNoFrame));
    in.from_pool = false;
  }
  try {
    restore(tools);
    return Undone::restored;
  } catch (const DriverError&) {
    if (!tools.engine.settle()) return Undone::impossible;
  }
  try {
    keep_on_host(tools);
    return Undone::on_host;
  } catch (const DriverError&) {
    return Undone::impossible;
  }
}

void Transaction::forget(const Tenant& tenant, Limbo& limbo) noexcept {
  const auto is_its = [&](const auto& part) {
    return part.ref.region->tenant.lock().get() == &tenant;
  };
  const auto take_extents = [&](const SlotRef& ref) {
    if (ref.get().host) limbo.extents.push_back(std::move(ref.get().host));
    std::ranges::move(ref.region->packed, std::back_inserter(limbo.extents));
    ref.region->packed.clear();
  };
  for (auto& in : ins_) {
    if (!is_its(in)) continue;
    in.mapping = Mapping{};
    if (in.from_pool) limbo.frames.push_back(in.frame);
    take_extents(in.ref);
  }
  for (auto& out : outs_) {
    if (!is_its(out)) continue;
    limbo.frames.push_back(std::exchange(out.ref.get().frame, kNoFrame));
    out.ref.get().frame_valid = false;
    take_extents(out.ref);
  }
  std::erase_if(ins_, is_its);
  std::erase_if(outs_, is_its);
}

// Bring back what was overwritten, then map what was unmapped.
void Transaction::restore(const Tools& tools) {
  std::vector<Chunk> chunks;
  for (auto& out : outs_) {
    if (out.bytes_overwritten == 0) continue;
    const cu::DevicePtr home = tools.frames.home(out.frame);
    if (out.ref.region->policy == Policy::discard) {
      // Given up with the hand-over; its place comes back empty.
      if (!std::exchange(out.lost, true)) ++out.ref.region->generation;
      if (const int fill = fill_of(*out.ref.region); fill >= 0) {
        chunks.push_back({.device = home, .bytes = block_bytes_, .fill = fill});
      }
      continue;
    }
    for (const auto& range : out.ranges) {
      if (const auto part = part_of(range, 0, out.bytes_overwritten, home)) chunks.push_back(*part);
    }
  }
  if (!chunks.empty()) {
    CopyEngine::Progress progress;
    tools.engine.run({}, chunks, progress);
    tools.engine.finish();
  }
  for (auto& out : outs_) out.bytes_overwritten = 0;
  std::vector<std::pair<Slot*, Mapping>> mappings;
  for (const auto& out : outs_) {
    if (out.ref.get().mapping) continue;
    mappings.emplace_back(&out.ref.get(), map_slot(tools.frames, out.ref, out.frame));
  }
  std::vector<Mapping*> mapped;
  for (auto& [slot, mapping] : mappings) mapped.push_back(&mapping);
  Mapping::set_access_all(tools.driver, mapped);
  for (auto& [slot, mapping] : mappings) slot->mapping = std::move(mapping);
}

// What is no longer whole in its frame becomes whole on the host. The rest stays in its frame,
// mapped or not, and is mapped when its tenant resumes.
void Transaction::keep_on_host(const Tools& tools) {
  std::vector<Chunk> chunks;
  for (const auto& out : outs_) {
    if (out.bytes_overwritten == 0 || out.lost) continue;
    for (const auto& range : out.ranges) {
      const auto part =
          part_of(range, out.bytes_copied, block_bytes_, tools.frames.home(out.frame));
      if (part) chunks.push_back(*part);
    }
  }
  CopyEngine::Progress progress;
  tools.engine.run(chunks, {}, progress);
  tools.engine.finish();
  for (auto& out : outs_) {
    if (out.bytes_overwritten == 0) continue;
    Slot& slot = out.ref.get();
    slot.frame = kNoFrame;
    slot.frame_valid = false;
    slot.host_valid = !out.lost;
    slot.checked.clear();
    out.bytes_overwritten = 0;
    tools.frames.give_back(out.frame);
  }
}

}  // namespace weave

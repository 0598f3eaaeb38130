#include "core/transaction.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace weave {

namespace {

Mapping map_slot(const Frames& frames, const SlotRef& ref, FrameId frame) {
  return {ref.region->reservation, frames.block(frame),
          static_cast<Bytes>(ref.slot) * frames.block_bytes()};
}

}  // namespace

Transaction::Transaction(const std::vector<SlotRef>& outs, const std::vector<SlotRef>& ins) {
  for (const auto& ref : outs) {
    const Slot& slot = ref.get();
    const bool copies = ref.region->policy == Policy::keep && !slot.host_valid;
    outs_.push_back({ref, slot.frame, copies});
    block_bytes_ = ref.region->block_bytes;
    if (slot.host_valid) outs_.back().bytes_copied = block_bytes_;
  }
  for (const auto& ref : ins) {
    const Slot& slot = ref.get();
    ins_.push_back({ref, slot.frame, slot.frame == kNoFrame && slot.host_valid});
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
  for (const auto& out : outs_) bytes_out += out.copies ? block_bytes_ : 0;
  for (const auto& in : ins_) bytes_in += in.copies ? block_bytes_ : 0;

  const std::int64_t started = now();
  unmap_outs();
  assign_frames(tools);
  const std::int64_t unmapped = now();
  copy(tools, tools.engine.chunk_bytes(std::max(bytes_out, bytes_in), block_bytes_));
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

void Transaction::copy(const Tools& tools, Bytes chunk) {
  if (block_bytes_ == 0) return;  // nothing leaves and nothing enters
  const auto per_block = static_cast<int>((block_bytes_ + chunk - 1) / chunk);
  std::vector<Chunk> outs;
  std::vector<Chunk> ins;
  std::vector<int> first_chunk(outs_.size(), -1);  // of each Out that copies
  const auto split = [&](std::vector<Chunk>& into, FrameId frame, const Slot& slot, int after) {
    for (int index = 0; index < per_block; ++index) {
      const Bytes offset = static_cast<Bytes>(index) * chunk;
      into.push_back({tools.frames.home(frame) + offset, slot.host.data() + offset,
                      std::min(chunk, block_bytes_ - offset), after < 0 ? -1 : after + index});
    }
  };
  for (std::size_t index = 0; index < outs_.size(); ++index) {
    if (!outs_[index].copies) continue;
    first_chunk[index] = static_cast<int>(outs.size());
    split(outs, outs_[index].frame, outs_[index].ref.get(), -1);
  }
  for (const auto& in : ins_) {
    if (!in.copies) continue;
    split(ins, in.frame, in.ref.get(),
          in.out < 0 ? -1 : first_chunk[static_cast<std::size_t>(in.out)]);
  }
  CopyEngine::Progress progress;
  try {
    tools.engine.run(outs, ins, progress);
  } catch (...) {
    note_progress(progress, chunk);
    throw;
  }
  note_progress(progress, chunk);
}

// Which bytes of each Out have a copy on the host by the time the engine is settled, and which may
// be gone from its frame.
void Transaction::note_progress(const CopyEngine::Progress& progress, Bytes chunk) {
  const std::size_t per_block = (block_bytes_ + chunk - 1) / chunk;
  const auto part = [&](std::size_t issued, std::size_t block_index) {
    const std::size_t before = block_index * per_block;
    const std::size_t chunks = std::min(per_block, issued > before ? issued - before : 0);
    return std::min(block_bytes_, static_cast<Bytes>(chunks) * chunk);
  };
  std::size_t copied = 0;
  for (auto& out : outs_) {
    if (out.copies) out.bytes_copied = part(progress.outs_issued, copied++);
  }
  std::size_t entered = 0;
  for (const auto& in : ins_) {
    if (!in.copies) continue;
    const Bytes written = part(progress.ins_issued, entered++);
    if (in.out >= 0) outs_[static_cast<std::size_t>(in.out)].bytes_overwritten = written;
  }
}

void Transaction::map_ins(const Tools& tools) {
  std::vector<Mapping*> mapped;
  for (auto& in : ins_) {
    in.mapping = map_slot(tools.frames, in.ref, in.frame);
    mapped.push_back(&in.mapping);
  }
  Mapping::set_access_all(tools.driver, mapped);
}

void Transaction::commit(const Tools& tools, SwitchReport& report) noexcept {
  std::vector<bool> taken(outs_.size(), false);
  for (auto& in : ins_) {
    in.ref.get().frame = in.frame;
    in.ref.get().mapping = std::move(in.mapping);
    if (in.out >= 0) taken[static_cast<std::size_t>(in.out)] = true;
  }
  std::set<Region*> discarded;
  for (std::size_t index = 0; index < outs_.size(); ++index) {
    Slot& slot = outs_[index].ref.get();
    slot.frame = kNoFrame;
    slot.host_valid = slot.host_valid || outs_[index].copies;
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
  for (auto& in : ins_) {
    if (!is_its(in)) continue;
    in.mapping = Mapping{};
    if (in.from_pool) limbo.frames.push_back(in.frame);
    if (in.ref.get().host) limbo.extents.push_back(std::move(in.ref.get().host));
  }
  for (auto& out : outs_) {
    if (!is_its(out)) continue;
    limbo.frames.push_back(std::exchange(out.ref.get().frame, kNoFrame));
    if (out.ref.get().host) limbo.extents.push_back(std::move(out.ref.get().host));
  }
  std::erase_if(ins_, is_its);
  std::erase_if(outs_, is_its);
}

// Bring back what was overwritten, then map what was unmapped.
void Transaction::restore(const Tools& tools) {
  std::vector<Chunk> chunks;
  for (auto& out : outs_) {
    if (out.bytes_overwritten == 0) continue;
    if (out.ref.region->policy == Policy::discard) {
      ++out.ref.region->generation;  // given up with the hand-over; its place comes back empty
      out.bytes_overwritten = 0;
      continue;
    }
    chunks.push_back(
        {tools.frames.home(out.frame), out.ref.get().host.data(), out.bytes_overwritten});
  }
  if (!chunks.empty()) {
    CopyEngine::Progress progress;
    tools.engine.run({}, chunks, progress);
    tools.engine.finish();
    for (auto& out : outs_) out.bytes_overwritten = 0;
  }
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
    if (out.bytes_overwritten == 0 || out.bytes_copied == block_bytes_) continue;
    chunks.push_back({tools.frames.home(out.frame) + out.bytes_copied,
                      out.ref.get().host.data() + out.bytes_copied,
                      block_bytes_ - out.bytes_copied});
  }
  CopyEngine::Progress progress;
  tools.engine.run(chunks, {}, progress);
  tools.engine.finish();
  for (auto& out : outs_) {
    if (out.bytes_overwritten == 0) continue;
    Slot& slot = out.ref.get();
    slot.frame = kNoFrame;
    slot.host_valid = true;
    out.bytes_overwritten = 0;
    tools.frames.give_back(out.frame);
  }
}

}  // namespace weave

// core/verify.cpp: the switch that trusts nobody. What was copied out is read back from its frame
// and compared with the host copy before anything overwrites it; what stays behind because its host
// copy is valid, likewise, so a write that nobody announced is caught; what comes in is compared on
// the host with what left, and read back from its frame. One after the other: for finding faults,
// not for speed.
#include <cstring>

#include "core/checksum.hpp"
#include "core/transaction.hpp"

namespace weave {

namespace {

[[noreturn]] void fail(const SlotRef& ref, Bytes offset, const std::string& what) {
  const auto tenant = ref.region->tenant.lock();
  const std::string owner = tenant == nullptr ? "" : tenant->label();
  Refusal refusal(Refusal::Kind::verify_failed, "block " + std::to_string(ref.slot) +
                                                    " of region " + ref.region->tag +
                                                    " of tenant " + owner + " " + what);
  refusal.job = tenant == nullptr ? "" : tenant->job;
  refusal.tenant = tenant == nullptr ? "" : tenant->name;
  refusal.tag = ref.region->tag;
  refusal.offset = static_cast<Bytes>(ref.slot) * ref.region->block_bytes + offset;
  throw refusal;
}

// Where the two first differ, from the start of the block.
Bytes first_difference(std::span<const Range> ranges, const std::byte* at) {
  for (const auto& range : ranges) {
    for (Bytes index = 0; index < range.bytes; ++index) {
      if (range.host[index] != at[range.offset + index]) return range.offset + index;
    }
  }
  return ranges.empty() ? 0 : ranges.front().offset;
}

// Compares a frame with the host copy of its slot, by reading it back; returns the checksum.
std::uint64_t compare(const Transaction::Tools& tools, const SlotRef& ref, FrameId frame,
                      const std::vector<Range>& ranges, const std::string& what) {
  std::vector<Chunk> chunks;
  for (const auto& range : ranges) {
    chunks.push_back(
        {tools.frames.home(frame) + range.offset, tools.staging + range.offset, range.bytes});
  }
  CopyEngine::Progress progress;
  tools.engine.run(chunks, {}, progress);
  tools.engine.finish();
  const std::uint64_t wanted = block_checksum(ranges);
  if (block_checksum(ranges, tools.staging) != wanted) {
    fail(ref, first_difference(ranges, tools.staging), what);
  }
  return wanted;
}

// The host copy is what left.
void check_host(const SlotRef& ref) {
  const Slot& slot = ref.get();
  if (slot.checked.empty() || !slot.host_valid) return;
  if (block_checksum(slot.checked) != slot.checksum) {
    fail(ref, slot.checked.front().offset, "was changed in host memory since it left the device");
  }
}

}  // namespace

void Transaction::run_noted(const Tools& tools, const Plan& plan, std::span<const Chunk> outs,
                            std::span<const Chunk> ins, SwitchReport& report) {
  CopyEngine::Progress progress;
  const auto note = [&] {
    // Outgoing chunks are all complete once incoming ones are run.
    if (!ins.empty()) progress.outs_issued = plan.outs.size();
    note_progress(plan, progress);
  };
  try {
    tools.engine.run(outs, ins, progress, {.batch_bytes = plan.chunk});
  } catch (...) {
    note();
    throw;
  }
  note();
  const auto taken = tools.engine.finish();
  report.out_s += taken.out;
  report.in_s += taken.in;
}

void Transaction::copy_verified(const Tools& tools, Bytes chunk, SwitchReport& report) {
  if (block_bytes_ == 0) return;
  verified_ = true;
  const auto now = tools.driver.table.now_ns;
  const auto timed = [&](const auto& check) {
    const std::int64_t began = now();
    check();
    report.verify_s += seconds_between(began, now());
  };
  Plan plan = plan_copies(tools, chunk);
  for (auto& part : plan.ins) part.after = -1;
  timed([&] {
    for (const auto& in : ins_) {
      if (in.copies) check_host(in.ref);
    }
    for (const auto& out : outs_) {
      const Slot& slot = out.ref.get();
      if (out.copies || !slot.host_valid || !slot.frame_valid) continue;
      check_host(out.ref);
      compare(tools, out.ref, out.frame, out.ranges,
              out.ref.region->policy == Policy::reload
                  ? "was written on the device; of a reload tag the copy on the host counts, and "
                    "only publishing writes that"
                  : "was written after its host copy was made (mark_clean or write_back) and "
                    "nobody called mark_dirty");
    }
  });
  run_noted(tools, plan, plan.outs, {}, report);
  timed([&] {
    for (auto& out : outs_) {
      if (!out.copies) continue;
      out.checksum = compare(tools, out.ref, out.frame, out.ranges, "arrived changed on the host");
    }
  });
  run_noted(tools, plan, {}, plan.ins, report);
  timed([&] {
    for (const auto& in : ins_) {
      if (in.copies) compare(tools, in.ref, in.frame, in.ranges, "arrived changed on the device");
    }
  });
}

}  // namespace weave

// core/background_steps.cpp: one step of the background: which block goes out and which comes in,
// the copies, and what holds afterwards. Called by Background::advance().
#include <algorithm>
#include <utility>

#include "core/background.hpp"
#include "core/chunking.hpp"

namespace weave {

Background::Step Background::choose(const std::shared_ptr<BackgroundCopy>& copy) {
  Step step;
  step.copy = copy;
  if (copy->cancelled_ || copy->tenant_->failed || copy->tenant_->closed) return step;
  try {
    copy->region_ != nullptr ? choose_write_back(step) : choose_prefetch(step);
  } catch (...) {
    abandon(step);
    throw;
  }
  prepare_chunks(step);
  return step;
}

// Each block once: one that may have been written since, or was not there when the promise was
// made, is left to the switch.
void Background::choose_write_back(Step& step) {
  BackgroundCopy& copy = *step.copy;
  // A promise is for one phase.
  if (!copy.tenant_->uses(*copy.region_) || copy.tenant_->last_turn != copy.phase_) return;
  const auto& slots = copy.region_->slots;
  const std::size_t end = std::min(copy.promised_.size(), slots.size());
  while (copy.next_slot_ < end && (!copy.promised_[copy.next_slot_] ||
                                   !is_only_on_device(*copy.region_, slots[copy.next_slot_]))) {
    ++copy.next_slot_;
  }
  if (copy.next_slot_ < end) step.out = {copy.region_, copy.next_slot_};
}

void Background::choose_prefetch(Step& step) {
  BackgroundCopy& copy = *step.copy;
  const Tenant& tenant = *copy.tenant_;
  if (tenant.running || copy.blocks_left_ == 0) return;
  const bool drained = tools_.turns.is_drained(tenant);  // what reads its own frames is over
  for (const auto& region : tenant.regions) {
    for (std::size_t slot = 0; slot < region->slots.size() && !step.in; ++slot) {
      const Slot& one = region->slots[slot];
      if (lacks_bytes(*region, one) && (drained || one.frame == kNoFrame)) step.in = {region, slot};
    }
  }
  if (!step.in) return;
  step.in_frame = step.in->get().frame;  // a place may be there already
  if (step.in_frame == kNoFrame) {
    step.in_frame = free_frame(copy);
    step.in_frame_is_new = step.in_frame != kNoFrame;
  }
  const std::size_t more = copy.blocks_left_ - (step.in_frame == kNoFrame ? 0 : 1);
  if (step.in_frame == kNoFrame) step.in.reset();
  // On a link that is slower both ways at once, one way at a time.
  if (more == 0 || (step.in && tools_.foreground.sequential())) return;
  ResidencyPlan plan{tools_.plan.movable, copy.next_use_};
  if (has_free_frame(copy) ||
      next_victim(tools_.tenants, tenant, plan, tools_.turns, Cost::nothing, Cost::load)) {
    return;  // the next one finds a place without that
  }
  const auto victim = next_victim(tools_.tenants, tenant, plan, tools_.turns, Cost::store_and_load,
                                  Cost::store_and_load);
  if (!victim) return;
  Mapping* const mapping = &victim->get().mapping;
  if (*mapping) Mapping::unmap_all({&mapping, 1});
  victim->region->tenant.lock()->refresh_states();
  step.out = victim;
}

bool Background::has_free_frame(const BackgroundCopy& copy) const {
  const Frames& frames = tools_.frames;
  return frames.available() > 0 && (copy.may_create_ || frames.free() > 0);
}

// A frame that nobody's bytes need: a free one, or one of a slot that costs nothing to take out.
FrameId Background::free_frame(BackgroundCopy& copy) {
  Frames& frames = tools_.frames;
  try {
    if (has_free_frame(copy)) return frames.take();
  } catch (const OutOfMemory&) {
    copy.may_create_ = false;  // somebody else has the memory now
  }
  const ResidencyPlan plan{tools_.plan.movable, copy.next_use_};
  const auto victim =
      next_victim(tools_.tenants, *copy.tenant_, plan, tools_.turns, Cost::nothing, Cost::load);
  if (!victim) return kNoFrame;
  Slot& slot = victim->get();
  Mapping* const mapping = &slot.mapping;
  if (*mapping) Mapping::unmap_all({&mapping, 1});
  if (victim->region->policy == Policy::discard) ++victim->region->generation;
  slot.frame_valid = false;
  const FrameId frame = std::exchange(slot.frame, kNoFrame);
  victim->region->tenant.lock()->refresh_states();
  return frame;
}

// Small enough that who comes in the foreground hardly waits.
Bytes Background::chunk_bytes() const {
  const Bytes block = tools_.frames.block_bytes();
  return std::min(block, std::clamp<Bytes>(block / 8, Bytes{64} << 10, Bytes{8} << 20));
}

void Background::prepare_chunks(Step& step) const {
  const auto prepare = [&](std::vector<Chunk>& into, const SlotRef& ref, FrameId frame) {
    cut(ref.region->ranges(ref.slot), chunk_bytes(), tools_.frames.home(frame),
        [&](const Chunk& part, Bytes) { into.push_back(part); });
  };
  if (step.out) prepare(step.outs, *step.out, step.out->get().frame);
  if (step.in) prepare(step.ins, *step.in, step.in_frame);
}

// Without the lock: nothing that a step names can go away, since who would take it pauses first.
Background::Copied Background::move(const Step& step) noexcept {
  CopyEngine::Progress progress;
  try {
    engine_->run(step.outs, step.ins, progress,
                 {.batch_bytes = chunk_bytes(), .stop = &stop_copying_});
    engine_->finish();
  } catch (...) {
    if (!engine_->settle()) unsettled_ = true;
    return {false, false, std::current_exception()};
  }
  return {progress.outs_issued == step.outs.size(), progress.ins_issued == step.ins.size()};
}

void Background::commit(Step& step, const Copied& copied) noexcept {
  const Bytes block = tools_.frames.block_bytes();
  BackgroundCopy& copy = *step.copy;
  const auto sum = [](const std::vector<Chunk>& chunks) {
    Bytes bytes = 0;
    for (const auto& chunk : chunks) bytes += chunk.bytes;
    return bytes;
  };
  if (step.out && copied.out) {
    step.out->get().host_valid = !step.out_is_stale;
    step.out->get().checked.clear();  // of an older copy
    stats_.bytes_out += sum(step.outs);
    copy.tenant_->background_bytes += sum(step.outs);
    if (copy.region_ != nullptr) {
      copy.bytes_done_ += block;
      ++copy.next_slot_;
    }
  }
  if (step.in && copied.in) {
    enter(*step.in, std::exchange(step.in_frame, kNoFrame));
    stats_.bytes_in += sum(step.ins);
    copy.tenant_->background_bytes += sum(step.ins);
    copy.bytes_done_ += block;
    --copy.blocks_left_;
  }
  abandon(step);
}

// The block shows its tenant's bytes from now on. Where the driver refuses to map it, the switch
// does that.
void Background::enter(const SlotRef& ref, FrameId frame) noexcept {
  Slot& slot = ref.get();
  slot.frame = frame;
  slot.frame_valid = true;
  try {
    if (!slot.mapping) {
      Mapping mapping(ref.region->reservation, tools_.frames.block(frame),
                      static_cast<Bytes>(ref.slot) * tools_.frames.block_bytes());
      set_access(tools_.context->driver(), mapping.address(), mapping.bytes());
      slot.mapping = std::move(mapping);
    }
  } catch (const DriverError&) {
    // Not an error of the copy: all bytes are there.
  }
  ref.region->tenant.lock()->refresh_states();
}

// The frame of a block that did not come in whole.
void Background::abandon(Step& step) noexcept {
  const FrameId frame = std::exchange(step.in_frame, kNoFrame);
  if (frame == kNoFrame || !step.in_frame_is_new) return;
  if (unsettled_) {
    set_aside_ = frame;
  } else {
    tools_.frames.give_back(frame);
  }
}

}  // namespace weave

// core/rescue.cpp: Device operations that read contents or the link: rescue() and calibrate().
#include <algorithm>
#include <cstring>

#include "core/device.hpp"

namespace weave {

namespace {

// The largest part of `wanted` frames that can be had for a measurement, at least one.
std::vector<FrameId> take_frames(Frames& frames, std::size_t wanted) {
  std::vector<FrameId> taken;
  while (taken.size() < wanted && frames.available() > 0) taken.push_back(frames.take());
  return taken;
}

}  // namespace

std::map<std::string, std::vector<std::byte>> Device::rescue(
    const std::shared_ptr<Tenant>& tenant) {
  const std::lock_guard lock(mutex_);
  require_open();
  if (tenant->closed) throw UsageError("tenant " + tenant->name + " is closed");
  std::map<std::string, std::vector<std::byte>> saved;
  const ContextScope scope(*context_);
  retry_unfinished();
  if (tenant->running) drain_->wait(60.0);
  for (const auto& region : tenant->regions) {
    if (region->policy != Policy::keep) continue;
    std::vector<std::byte> bytes(region->slots.size() * block_bytes_);
    bool complete = true;
    for (std::size_t index = 0; index < region->slots.size() && complete; ++index) {
      Slot& slot = region->slots[index];
      const bool concerned = unfinished_ != nullptr && unfinished_->concerns(*tenant);
      if (!slot.host_valid && (slot.frame == kNoFrame || concerned)) {
        complete = false;
        break;
      }
      if (!slot.host_valid) {
        const Chunk chunk{frames_->home(slot.frame), slot.host.data(), block_bytes_};
        CopyEngine::Progress progress;
        engine_->run({&chunk, 1}, {}, progress);
        engine_->finish();
      }
      std::memcpy(bytes.data() + index * block_bytes_, slot.host.data(), block_bytes_);
    }
    if (complete) saved.emplace(region->tag, std::move(bytes));
  }
  return saved;
}

LinkRates Device::calibrate(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  require_open();
  for (const auto& tenant : tenants_) {
    if (tenant->slots_on_device() > 0) {
      throw UsageError("calibrate needs a device that no tenant is on; suspend " + tenant->name);
    }
  }
  const ContextScope scope(*context_);
  retry_unfinished();
  const auto count = std::max<std::size_t>(
      1, std::min<std::size_t>(bytes / block_bytes_,
                               static_cast<std::size_t>(frames_->available()) / 2));
  if (frames_->available() < 2) throw UsageError("calibrate needs a device of at least two blocks");
  // Host memory of its own, beside any job's; it goes back to the host at the end.
  const auto extents = host_pool_->allocate("weave-calibration", block_bytes_, 2 * count);
  std::vector<FrameId> frames;
  struct Return {
    Frames& pool;
    std::vector<FrameId>& frames;
    ~Return() {
      for (const FrameId frame : frames) pool.give_back(frame);
    }
  } give_back{*frames_, frames};
  frames = take_frames(*frames_, 2 * count);

  // Plain copies: whole blocks, one stream a direction, no events between them.
  const Stream out(context_);
  const Stream in(context_);
  const auto& table = driver_->table;
  const auto measure = [&](bool outwards, bool inwards) {
    const std::int64_t started = table.now_ns();
    for (std::size_t index = 0; index < count; ++index) {
      if (outwards) {
        cu::check(table.memcpy_dtoh_async(extents[index].data(), frames_->home(frames[index]),
                                          block_bytes_, out.raw()),
                  cu::Call::memcpy_dtoh_async, block_bytes_);
      }
      if (inwards) {
        cu::check(table.memcpy_htod_async(frames_->home(frames[count + index]),
                                          extents[count + index].data(), block_bytes_, in.raw()),
                  cu::Call::memcpy_htod_async, block_bytes_);
      }
    }
    cu::check(table.stream_synchronize(out.raw()), cu::Call::stream_synchronize);
    cu::check(table.stream_synchronize(in.raw()), cu::Call::stream_synchronize);
    return static_cast<double>(count * block_bytes_) * 1e9 /
           static_cast<double>(table.now_ns() - started);
  };
  measure(true, true);  // the first copies after idle see a sleeping link
  LinkRates rates;
  rates.d2h = measure(true, false);
  rates.h2d = measure(false, true);
  // Equal bytes both ways: the slower direction bounds both.
  rates.d2h_duplex = rates.h2d_duplex = measure(true, true);
  rates_ = rates;
  return rates;
}

}  // namespace weave

// core/rescue.cpp: Device::rescue(), which reads contents in whatever state a tenant is.
#include <cstring>

#include "core/device.hpp"

namespace weave {

namespace {

// Tried more than once: what is not read now may be lost. False when the driver says no each time.
template <class Action>
bool attempt(Action action) {
  for (int left = 3; left > 0; --left) {
    try {
      action();
      return true;
    } catch (const DriverError&) {
      // Said by the result; the caller gives what can still be read.
    }
  }
  return false;
}

}  // namespace

// The bytes of a slot on the device, into its own extent, which does not become valid by that.
bool Device::read_out(Slot& slot) noexcept {
  return attempt([&] {
    const Chunk chunk{frames_->home(slot.frame), slot.host.data(), block_bytes_};
    CopyEngine::Progress progress;
    try {
      engine_->run({&chunk, 1}, {}, progress);
      engine_->finish();
    } catch (const DriverError&) {
      engine_->settle();
      throw;
    }
  });
}

std::map<std::string, std::vector<std::byte>> Device::rescue(
    const std::shared_ptr<Tenant>& tenant) {
  const Foreground lock(*this);
  require_open();
  if (tenant->closed) throw UsageError("tenant " + tenant->name + " is closed");
  std::map<std::string, std::vector<std::byte>> saved;
  std::optional<ContextScope> scope;
  bool readable = attempt([&] { scope.emplace(*context_); });
  if (readable) {
    retry_unfinished();
    // Also after a release: the last kernels of its phase may still be running.
    if (tenant->slots_on_device() > 0) readable = attempt([&] { drain_->wait(60.0); });
  }
  readable = readable && !is_unfinished(*tenant);
  if (!tenant->failed) apply_committed(*tenant);
  for (const auto& region : tenant->regions) {
    if (region->policy == Policy::discard) continue;
    std::vector<std::byte> bytes(region->bytes_held);
    bool complete = true;
    for (std::size_t index = 0; index * block_bytes_ < bytes.size() && complete; ++index) {
      Slot& slot = region->slots[index];
      complete = slot.host_valid || (readable && slot.frame_valid && read_out(slot));
      if (!complete) break;
      std::memcpy(bytes.data() + index * block_bytes_, slot.host.data(), block_bytes_);
    }
    if (complete) saved.emplace(region->tag, std::move(bytes));
  }
  return saved;
}

}  // namespace weave

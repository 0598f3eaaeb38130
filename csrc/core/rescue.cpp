// core/rescue.cpp: reading contents in whatever state a tenant is, one region at a time: what is
// not in memory yet passes through its own extents or a small buffer.
#include <algorithm>
#include <cstring>
#include <utility>

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

// One pass over a tensor.
bool is_intact(const StateFile& file, const std::string& tag) {
  const StateTensor& tensor = file.tensor(tag);
  std::vector<std::byte> staging(std::min(StateWriter::kPiece, tensor.bytes));
  ContentHash hash;
  try {
    file.check(tag);
    for (Bytes at = 0; at < tensor.bytes; at += staging.size()) {
      const Bytes piece = std::min<Bytes>(staging.size(), tensor.bytes - at);
      file.read(tensor, at, staging.data(), piece);
      hash.add(staging.data(), piece);
    }
  } catch (const Refusal&) {
    return false;
  }
  return hash.text() == tensor.checksum;
}

// The slots that hold something; those of a growth that failed may still wait for its undo.
std::span<Slot> held_slots(Region& region) {
  return std::span(region.slots).first(region.bytes_held / region.block_bytes);
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

// Calls action(readable) under the lock, with the context current: whether what is on the device
// can be read. Never throws what the driver says.
template <class Action>
auto Device::reading(const std::shared_ptr<Tenant>& tenant, Action action) {
  const Foreground lock(*this);
  require_open();
  if (tenant->closed) throw UsageError("tenant " + tenant->name + " is closed");
  std::optional<ContextScope> scope;
  bool readable = attempt([&] { scope.emplace(*context_); });
  if (readable) {
    retry_unfinished();
    // Also after a release: the last kernels of its phase may still be running.
    if (tenant->slots_on_device() > 0) readable = attempt([&] { drain_->wait(60.0); });
  }
  readable = readable && !is_unfinished(*tenant);
  if (!tenant->failed) apply_committed(*tenant);
  return action(readable);
}

// Whether every byte can be read in memory or in a file now. Those on the device are copied to
// their extents: what is read is what the tenant itself would read, so a frame counts for more than
// its host copy, which is older where somebody wrote without mark_dirty. Not so for `reload`.
bool Device::bring_to_host(Region& region, bool readable) {
  const StateFile* checked = nullptr;
  for (auto& slot : held_slots(region)) {
    if (slot.file != nullptr) {
      if (std::exchange(checked, slot.file.get()) == slot.file.get()) continue;
      if (!is_intact(*slot.file, region.tag)) return false;
      continue;
    }
    const bool reads = slot.frame_valid && !(slot.host_valid && region.policy == Policy::reload);
    if (reads && readable && read_out(slot)) continue;
    if (!slot.host_valid) return false;
  }
  return true;
}

// take(data, bytes) for the whole region, in pieces. pre: bring_to_host() said yes.
template <class Take>
void Device::read_region(Region& region, Take take) const {
  std::vector<std::byte> staging;
  for (const auto& slot : held_slots(region)) {
    if (slot.file == nullptr) {
      take(slot.host.data(), block_bytes_);
      continue;
    }
    staging.resize(std::min(StateWriter::kPiece, block_bytes_));
    for (Bytes at = 0; at < block_bytes_; at += staging.size()) {
      const Bytes piece = std::min<Bytes>(staging.size(), block_bytes_ - at);
      slot.file->read(slot.file->tensor(region.tag), slot.file_offset + at, staging.data(), piece);
      take(staging.data(), piece);
    }
  }
}

std::vector<Device::Rescuable> Device::rescuable(const std::shared_ptr<Tenant>& tenant) {
  const std::lock_guard lock(mutex_);
  require_open();
  if (tenant->closed) throw UsageError("tenant " + tenant->name + " is closed");
  std::vector<Rescuable> found;
  for (const auto& region : tenant->regions) {
    if (region->policy != Policy::discard) found.push_back({region->tag, region->bytes_held});
  }
  return found;
}

bool Device::rescue_into(const std::shared_ptr<Tenant>& tenant, const std::string& tag,
                         std::span<std::byte> into) {
  return reading(tenant, [&](bool readable) {
    const auto region = std::ranges::find(tenant->regions, tag, &Region::tag);
    if (region == tenant->regions.end() || (*region)->policy == Policy::discard ||
        (*region)->bytes_held != into.size() || !bring_to_host(**region, readable)) {
      return false;
    }
    std::byte* to = into.data();
    read_region(**region, [&](const std::byte* data, Bytes bytes) {
      std::memcpy(to, data, bytes);
      to += bytes;
    });
    return true;
  });
}

std::map<std::string, std::vector<std::byte>> Device::rescue(
    const std::shared_ptr<Tenant>& tenant) {
  std::map<std::string, std::vector<std::byte>> saved;
  for (const auto& [tag, bytes] : rescuable(tenant)) {
    std::vector<std::byte> contents(bytes);
    if (rescue_into(tenant, tag, contents)) saved.emplace(tag, std::move(contents));
  }
  return saved;
}

std::vector<std::string> Device::rescue_to(const std::shared_ptr<Tenant>& tenant,
                                           const std::string& path,
                                           StateWriter::Metadata metadata) {
  return reading(tenant, [&](bool readable) {
    std::vector<Region*> complete;
    std::vector<StateTensor> tensors;
    for (const auto& region : tenant->regions) {
      if (region->policy == Policy::discard || !bring_to_host(*region, readable)) continue;
      complete.push_back(region.get());
      tensors.push_back({region->tag, region->bytes_held});
    }
    StateWriter writer(path, std::move(metadata), std::move(tensors), 0666);
    std::vector<std::string> tags;
    for (Region* region : complete) {
      read_region(*region, [&](const std::byte* data, Bytes bytes) { writer.write(data, bytes); });
      tags.push_back(region->tag);
    }
    writer.commit();
    return tags;
  });
}

}  // namespace weave

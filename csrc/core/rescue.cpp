// core/rescue.cpp: reading contents in whatever state a tenant is, one region at a time: what is
// not in memory yet passes through its own extents or a small buffer.
#include <algorithm>
#include <cstring>
#include <set>
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
std::size_t held_slots(const Region& region) { return region.bytes_held / region.block_bytes; }

// Of a slot with pages: whether its host copy has all that is in use. While the tenant runs other
// pages may have come into use.
bool is_whole_on_host(const Region& region, const Slot& slot) {
  const auto tenant = region.tenant.lock();
  return slot.host_valid && !region.pages_outdated() && !(tenant && tenant->uses(region));
}

}  // namespace

// The bytes of a slot on the device.
bool Device::read_out(const Slot& slot, std::byte* into) noexcept {
  return attempt([&] {
    const Chunk chunk{frames_->home(slot.frame), into, block_bytes_};
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
    if (tenant->slots_on_device() > 0 && !turns_.is_drained(*tenant)) {
      readable = attempt([&] { drain(60.0); });
    }
  }
  readable = readable && !is_unfinished(*tenant);
  if (!tenant->failed) apply_committed(*tenant);
  return action(readable);
}

// Whether every byte can be read in memory or in a file now, as far as that is known. Those on the
// device are copied to their extents, or are left there where a page table has none for them: what
// is read is what the tenant itself would read, so a frame counts for more than its host copy,
// which is older where somebody wrote without mark_dirty. Not so for `reload`.
bool Device::bring_to_host(Region& region, bool readable) {
  const StateFile* checked = nullptr;
  for (std::size_t index = 0; index < held_slots(region); ++index) {
    Slot& slot = region.slots[index];
    if (slot.file != nullptr) {
      if (std::exchange(checked, slot.file.get()) == slot.file.get()) continue;
      if (!is_intact(*slot.file, region.tag)) return false;
      continue;
    }
    if (region.pages()) {
      if (!(readable && slot.frame_valid) && !is_whole_on_host(region, slot)) return false;
      continue;
    }
    const bool reads = slot.frame_valid && !(slot.host_valid && region.policy == Policy::reload);
    if (reads && readable && read_out(slot, slot.host.data())) continue;
    if (!slot.host_valid) return false;
  }
  return true;
}

// take(data, bytes) for the whole region, in pieces; zeros for what is in no page. False where a
// frame could not be read after all. pre: bring_to_host() said yes.
template <class Take>
bool Device::read_region(Region& region, bool readable, Take take) {
  std::vector<std::byte> staging;
  const auto read_file = [&](const Slot& slot, Bytes at, Bytes bytes) {
    staging.resize(std::min(StateWriter::kPiece, block_bytes_));
    const StateTensor& tensor = slot.file->tensor(region.tag);
    for (Bytes done = 0; done < bytes; done += staging.size()) {
      const Bytes piece = std::min<Bytes>(staging.size(), bytes - done);
      slot.file->read(tensor, slot.file_offset + at + done, staging.data(), piece);
      take(staging.data(), piece);
    }
  };
  const auto take_zeros = [&](Bytes bytes) {
    staging.assign(std::min(StateWriter::kPiece, bytes), std::byte{0});
    for (Bytes done = 0; done < bytes; done += staging.size()) {
      take(staging.data(), std::min<Bytes>(staging.size(), bytes - done));
    }
  };
  for (std::size_t index = 0; index < held_slots(region); ++index) {
    const Slot& slot = region.slots[index];
    if (readable && region.pages() && slot.frame_valid) {
      Extent extent = staging_for(region);
      staging.resize(extent ? 0 : block_bytes_);
      std::byte* const into = extent ? extent.data() : staging.data();
      if (read_out(slot, into)) {
        take(into, block_bytes_);
        continue;
      }
      if (extent) limbo_.extents.push_back(std::move(extent));  // a copy may still arrive
      if (!is_whole_on_host(region, slot)) return false;
    }
    Bytes at = 0;    // in the slot
    Bytes done = 0;  // of what is in its file
    for (const auto& range : region.host_ranges(index)) {
      take_zeros(range.offset - at);
      if (slot.file != nullptr) {
        read_file(slot, done, range.bytes);
      } else {
        take(range.host, range.bytes);
      }
      done += range.bytes;
      at = range.offset + range.bytes;
    }
    take_zeros(block_bytes_ - at);
  }
  return true;
}

// Pinned, if there is any: ordinary memory does, too.
Extent Device::staging_for(const Region& region) noexcept {
  try {
    const auto tenant = region.tenant.lock();
    return std::move(host_pool_->allocate(tenant->job, block_bytes_, 1, host_node_).front());
  } catch (const std::exception&) {
    return {};
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
    return read_region(**region, readable, [&](const std::byte* data, Bytes bytes) {
      std::memcpy(to, data, bytes);
      to += bytes;
    });
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
                                           const StateWriter::Metadata& metadata) {
  return reading(tenant, [&](bool readable) {
    std::set<const Region*> lost;  // could not be read to their end
    while (true) {
      std::vector<Region*> complete;
      std::vector<StateTensor> tensors;
      for (const auto& region : tenant->regions) {
        if (region->policy == Policy::discard || lost.contains(region.get()) ||
            !bring_to_host(*region, readable)) {
          continue;
        }
        complete.push_back(region.get());
        tensors.push_back({region->tag, region->bytes_held});
      }
      StateWriter writer(path, metadata, std::move(tensors), 0666);
      std::vector<std::string> tags;
      for (Region* region : complete) {
        if (!read_region(*region, readable,
                         [&](const std::byte* data, Bytes bytes) { writer.write(data, bytes); })) {
          lost.insert(region);
          break;
        }
        tags.push_back(region->tag);
      }
      if (tags.size() < complete.size()) continue;  // once more, without it
      writer.commit();
      return tags;
    }
  });
}

}  // namespace weave

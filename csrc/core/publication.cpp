#include "core/publication.hpp"

#include <algorithm>
#include <functional>
#include <list>
#include <utility>

#include "core/checksum.hpp"
#include "core/device.hpp"

namespace weave {

Publication::Writing::Writing(Publication& publication) : publication_(publication) {
  const std::lock_guard lock(publication_.mutex_);
  if (publication_.state_ != State::open) {
    throw UsageError("this version was committed or dropped already");
  }
  ++publication_.writing_;
}

Publication::Writing::~Writing() {
  const std::lock_guard lock(publication_.mutex_);
  if (--publication_.writing_ == 0) publication_.written_.notify_all();
}

// The part of `region`, which has these bytes. pre: locked.
std::size_t Publication::find(const Region& region, Bytes offset, Bytes bytes) const {
  if (state_ == State::ended) throw UsageError("this version was committed or dropped already");
  const auto part = std::ranges::find_if(
      parts_, [&](const Part& candidate) { return candidate.region.get() == &region; });
  if (part == parts_.end()) {
    throw UsageError("region " + region.tag + " is not a reload region of tenant " +
                     tenant->label() + " that existed when publishing began");
  }
  const Bytes size = part->extents.size() * region.block_bytes;
  if (bytes == 0 || offset > size || bytes > size - offset) {
    throw UsageError("bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) +
                     " are outside region " + region.tag);
  }
  return static_cast<std::size_t>(part - parts_.begin());
}

std::vector<Publication::Place> Publication::place(const std::shared_ptr<Region>& region,
                                                   Bytes offset, Bytes bytes) const {
  const std::lock_guard lock(mutex_);
  const Part& part = parts_[find(*region, offset, bytes)];
  const Bytes block = region->block_bytes;
  std::vector<Place> places;
  for (Bytes at = offset; at < offset + bytes;) {
    const Bytes inside = at % block;
    const Bytes length = std::min(block - inside, offset + bytes - at);
    places.push_back({part.extents[at / block].data() + inside, length});
    at += length;
  }
  return places;
}

void Publication::wrote(const std::shared_ptr<Region>& region, Bytes offset, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  Bytes& written = parts_[find(*region, offset, bytes)].written[offset];
  written = std::max(written, bytes);
}

std::vector<Extent> Publication::forfeit(const std::shared_ptr<Region>& region, Bytes offset,
                                         Bytes bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<Extent> extents;
  if (state_ == State::ended) return extents;
  Part& part = parts_[find(*region, offset, bytes)];
  for (Bytes at = offset / region->block_bytes; at * region->block_bytes < offset + bytes; ++at) {
    extents.push_back(std::move(part.extents[at]));
  }
  state_ = State::ended;
  return extents;
}

void Publication::seal() {
  std::unique_lock lock(mutex_);
  if (state_ != State::open) throw UsageError("this version was committed or dropped already");
  state_ = State::sealed;
  written_.wait(lock, [&] { return writing_ == 0; });
  try {
    require_complete();
  } catch (...) {
    if (state_ == State::sealed) state_ = State::open;
    throw;
  }
}

void Publication::reopen() noexcept {
  const std::lock_guard lock(mutex_);
  if (state_ == State::sealed) state_ = State::open;
}

// pre: locked.
void Publication::require_complete() const {
  // Who wrote last may have had to forfeit it.
  if (state_ == State::ended) throw UsageError("a copy into this version failed; publish again");
  for (const auto& part : parts_) {
    const Region& region = *part.region;
    if (part.extents.size() != region.slots.size()) {
      throw UsageError("region " + region.tag + " of tenant " + tenant->label() +
                       " grew while a version was published; publish again");
    }
    // Spans are allocated in steps, so a piece may be written up to a step short of its span.
    const Bytes missing = region.unwritten(part.written);
    if (missing == 0) continue;
    throw UsageError(std::to_string(missing) + " bytes of region " + region.tag + " of tenant " +
                     tenant->label() + " were not published; the old version stays");
  }
}

bool Publication::ended() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::ended;
}

std::vector<Publication::Part> Publication::take() noexcept {
  std::unique_lock lock(mutex_);
  state_ = State::ended;
  written_.wait(lock, [&] { return writing_ == 0; });
  return std::move(parts_);
}

std::shared_ptr<Publication> Device::begin_publish(const std::shared_ptr<Tenant>& tenant) {
  return with_host_room(tenant.get(), [&] { return begin_publish_once(tenant); });
}

std::shared_ptr<Publication> Device::begin_publish_once(const std::shared_ptr<Tenant>& tenant) {
  const Foreground lock(*this);
  require_usable(*tenant);
  if (const auto open = tenant->publication.lock(); open != nullptr && !open->ended()) {
    throw UsageError("a version of tenant " + tenant->label() +
                     " is being published already; commit or drop it first");
  }
  const ContextScope scope(*context_);
  retry_unfinished();
  std::vector<Publication::Part> parts;
  for (const auto& region : tenant->regions) {
    if (region->policy != Policy::reload) continue;
    const std::size_t had = region->spare.size();
    if (had < region->slots.size()) {
      auto more =
          host_pool_->allocate(tenant->job, block_bytes_, region->slots.size() - had, host_node_);
      std::ranges::move(more, std::back_inserter(region->spare));
    }
    parts.push_back({region, {}, {}});
  }
  if (parts.empty()) throw UsageError("tenant " + tenant->label() + " has no reload region");
  for (auto& part : parts) part.extents = std::exchange(part.region->spare, {});
  auto made = std::make_shared<Publication>(tenant, std::move(parts));
  tenant->publication = made;
  return made;
}

void Device::commit_together(const std::vector<Version>& versions) {
  std::vector<Device*> devices;
  for (const auto& version : versions) devices.push_back(version.device);
  std::ranges::sort(devices, std::less<>{});
  devices.erase(std::ranges::unique(devices).begin(), devices.end());
  std::list<Foreground> locks;
  for (Device* device : devices) locks.emplace_back(*device);
  // First all that can be refused, then what cannot.
  std::size_t sealed = 0;
  try {
    for (const auto& [device, publication] : versions) {
      device->require_usable(*publication->tenant);
      publication->seal();
      ++sealed;
    }
  } catch (...) {
    for (std::size_t index = 0; index < sealed; ++index) versions[index].publication->reopen();
    throw;
  }
  for (const auto& [device, publication] : versions) {
    // Not under a tenant that runs: it gets the version when it next comes in.
    Tenant& tenant = *publication->tenant;
    device->drop_spare(tenant.committed);
    tenant.committed = publication->take();
  }
  for (const auto& [device, publication] : versions) device->apply_committed(*publication->tenant);
}

void Device::abort(const std::shared_ptr<Publication>& publication) noexcept {
  const std::lock_guard lock(mutex_);
  auto parts = publication->take();
  if (!publication->tenant->closed) drop_spare(parts);
}

// What is left of a version that nobody needs serves the next one.
void Device::drop_spare(std::vector<Publication::Part>& parts) noexcept {
  for (auto& part : parts) {
    // There is none where the old version was in a file, or a copy may still arrive.
    std::erase_if(part.extents, [](const Extent& extent) { return !extent; });
    part.region->spare = std::move(part.extents);
  }
  parts.clear();
}

// The version that waits becomes the one that counts, unless its regions are in use. Frames keep
// the old one until they are copied into.
void Device::apply_committed(Tenant& tenant) {
  auto& parts = tenant.committed;
  if (parts.empty()) return;
  if (std::ranges::any_of(parts, [&](const auto& part) { return tenant.uses(*part.region); })) {
    return;
  }
  for (auto& part : parts) {
    Region& region = *part.region;
    for (std::size_t index = 0; index < part.extents.size(); ++index) {
      Slot& slot = region.slots[index];
      std::swap(slot.host, part.extents[index]);
      slot.host_valid = true;
      slot.frame_valid = false;
      slot.file.reset();
      slot.checked.clear();
      if (!staging_) continue;
      slot.checked = region.ranges(index);
      slot.checksum = block_checksum(slot.checked);
    }
    ++region.version;
  }
  drop_spare(parts);
}

void Device::read(const std::shared_ptr<Region>& region, Bytes offset, Bytes bytes, Publication& to,
                  const std::shared_ptr<Region>& to_region, Bytes to_offset) {
  const Foreground lock(*this);
  require_running(*region);
  const Bytes size = region->slots.size() * block_bytes_;
  if (offset > size || bytes > size - offset) {
    throw UsageError("bytes outside region " + region->tag + " were asked for");
  }
  const ContextScope scope(*context_);
  retry_unfinished();
  drain(60.0);  // the trainer's kernels have written what is read
  const Publication::Writing writing(to);
  const Bytes chunk = engine_->chunk_bytes(bytes, block_bytes_);
  std::vector<Chunk> chunks;
  cu::DevicePtr at = region->address() + offset;
  for (const auto& place : to.place(to_region, to_offset, bytes)) {
    for (Bytes done = 0; done < place.bytes; done += chunk) {
      const Bytes length = std::min(chunk, place.bytes - done);
      chunks.push_back({at + done, place.host + done, length});
    }
    at += place.bytes;
  }
  CopyEngine::Progress progress;
  try {
    engine_->run(chunks, {}, progress);
    engine_->finish();
  } catch (const DriverError&) {
    if (!engine_->settle()) {
      // Not for the next version before it is known that nothing arrives there any more.
      std::ranges::move(to.forfeit(to_region, to_offset, bytes),
                        std::back_inserter(limbo_.extents));
    }
    throw;
  }
  to.wrote(to_region, to_offset, bytes);
}

}  // namespace weave

// core/region.hpp: a tenant and its regions, as data. What happens to them is decided in
// residency.cpp and done in transaction.cpp; only the owning Device calls those, under its lock.
// Flags that another thread may ask for at any time are atomic.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/host_pool.hpp"
#include "core/page_table.hpp"
#include "core/space.hpp"
#include "core/state_file.hpp"
#include "core/vmm.hpp"

namespace weave {

class Tenant;

// Bytes of one slot that are copied as one: from `offset` in the slot, to and from `host`.
struct Range {
  Bytes offset = 0;
  Bytes bytes = 0;
  std::byte* host = nullptr;
};

// One block's worth of a region. Where its bytes are:
//   frame_valid  in the frame
//   host_valid   in the extent. With both, the two are equal and the frame is free to go. That
//                holds for a slot of which a page table says that nothing is in use, too
//   file         in a file (spilled): not in memory, until load_spilled()
//   none         lost (discard), or never there
// A frame that is not valid is only a place: it is copied into before the tenant runs. `frame` set
// and unmapped only in a suspended tenant.
struct Slot {
  FrameId frame = kNoFrame;
  Mapping mapping;  // of the frame's block at the region's own address
  Extent host;      // taken with the slot, so that a switch never allocates; none if `discard`, and
                    // none with a page table: then the region has them (Region::packed)
  bool host_valid = false;
  bool frame_valid = false;
  // With verification: what was copied to the host, and its block checksum. Empty: not known. While
  // the bytes are in a file, `host` of these is null.
  std::vector<Range> checked;
  std::uint64_t checksum = 0;
  std::shared_ptr<const StateFile> file;  // its only copy is there, and it has no extent
  Bytes file_offset = 0;                  // in the tensor of its tag
};

class Region {
 public:
  Region(std::weak_ptr<Tenant> tenant, std::string tag, Policy policy,
         std::shared_ptr<Reservation> reservation, Bytes block_bytes);

  const std::string tag;
  const Policy policy;
  const std::weak_ptr<Tenant> tenant;
  const Bytes block_bytes;
  const std::shared_ptr<Reservation> reservation;
  std::vector<Slot> slots;
  std::atomic<RegionState> state{RegionState::resident};
  std::atomic<std::uint64_t> generation{0};  // +1 whenever `discard` lost contents
  std::atomic<Bytes> bytes_held{0};          // slots * block bytes, for readers without the lock
  // Its tenant runs with it; a tenant may run with some of its tags while the others are away.
  std::atomic<bool> selected{true};
  // The owner promised not to change the bytes, so host copies outlive a turn.
  std::atomic<bool> clean{false};
  std::atomic<int> pins{0};  // while not 0 its blocks stay on the device
  std::atomic<Fill> fill{Fill::none};
  // For `reload`: a second extent per slot, for the version being published; and how many were.
  std::vector<Extent> spare;
  std::atomic<std::uint64_t> version{0};
  // With a page table: the host copies of all slots, pages in use one behind the other. An empty
  // extent: everything in it is in files.
  std::vector<Extent> packed;

  cu::DevicePtr address() const { return reservation->address(); }
  cu::DevicePtr slot_address(std::size_t slot) const {
    return address() + static_cast<Bytes>(slot) * block_bytes;
  }
  // pre for the two: the tenant runs; both are called under the Device's lock.
  std::optional<Bytes> take(Bytes bytes, Bytes alignment);
  Bytes shortage(Bytes bytes, Bytes alignment) const;
  // Any thread, also after the device closed: a dropped tensor gives its bytes back.
  void give_back(Bytes offset, Bytes bytes);
  void grow_space();
  Bytes bytes_allocated() const;
  // The first bytes of a slot that anybody may have written: up to the end of its last span.
  Bytes used_in(std::size_t slot) const;
  // Bytes of spans that are in none of `pieces`; tensors end up to 511 bytes before their span.
  Bytes unwritten(const std::map<Bytes, Bytes>& pieces) const;

  // Page tables. pre for these: under the Device's lock; to change them: the tenant runs with the
  // region.

  // The bytes that are worth anything (the pages in use of a paged KV cache); nothing: all of them.
  const std::optional<PageTable>& pages() const { return pages_; }
  // Take another table, and the extents that it needs beyond those that are there; what is over
  // goes back to the pool. No host copy is valid afterwards. pre: no copy is in flight.
  void set_pages(std::optional<PageTable> pages, std::vector<Extent> more);
  // Which pages are in use has changed; nobody knows how, until set_pages() or keep_pages() says.
  // Nothing leaves meanwhile, since there is no place for pages that the table does not name.
  void forget_pages();
  bool pages_outdated() const { return pages_outdated_; }
  // True where these are the pages that it has: then host copies are as good as they were.
  bool keep_pages(const std::optional<PageTable>& pages);
  // The extents that set_pages() would need and have.
  std::size_t extents_needed(const std::optional<PageTable>& pages) const;
  std::size_t extents_held() const;
  // What a whole host copy of the slot takes.
  Bytes host_bytes(std::size_t slot) const;
  // Give up extents of `packed` that only slots in files use.
  void drop_spilled();
  bool may_leave() const { return pins == 0 && !pages_outdated_; }

  Bytes bytes_in_pages() const;  // any thread
  // What has to be copied of a slot. Sorted, apart from each other, each in one extent.
  std::vector<Range> ranges(std::size_t slot) const;
  // All of its host copy, likewise.
  std::vector<Range> host_ranges(std::size_t slot) const;
  // Host copies stay valid while the tenant runs.
  bool keeps_host_copies() const { return clean || policy == Policy::reload; }
  // The host copies of slots with bytes in [offset, offset + bytes) are older than the frames now.
  // pre: the tenant runs; under the Device's lock.
  void invalidate_host(Bytes offset, Bytes bytes);

 private:
  mutable std::mutex space_mutex_;  // leaf lock
  Space space_;
  std::optional<PageTable> pages_;  // to write: both locks
  bool pages_outdated_ = false;     // likewise
};

// The next version of a reload region, in extents of its own; see publication.hpp.
struct NextVersion {
  std::shared_ptr<Region> region;
  std::vector<Extent> extents;     // one per slot
  std::map<Bytes, Bytes> written;  // offset -> bytes: pieces of the region that were written
};
class Publication;

class Tenant {
 public:
  Tenant(std::string name_, std::string job_) : name(std::move(name_)), job(std::move(job_)) {}

  const std::string name;
  const std::string job;
  // "job/name", or the name alone; what messages and reports show.
  std::string label() const { return job.empty() ? name : job + "/" + name; }
  std::vector<std::shared_ptr<Region>> regions;
  std::atomic<bool> running{false};
  std::atomic<bool> failed{false};
  std::atomic<bool> closed{false};
  std::uint64_t last_turn = 0;             // the device's turn counter when it last ran
  std::weak_ptr<Publication> publication;  // the one that was begun last
  std::vector<NextVersion> committed;      // counts as soon as the tenant does not run
  Bytes background_bytes = 0;              // copied in the background for it since its last switch
  std::int64_t stopped_ns = 0;             // when it last ran; compared between devices

  std::size_t slots() const;
  std::size_t slots_on_device() const;
  bool all_mapped() const;
  // It runs, and with this region: nobody may take its blocks, and its bytes may be touched.
  bool uses(const Region& region) const { return running && region.selected; }
  std::size_t slots_spilled() const;
  // Bring every region's `state` in line with its slots.
  void refresh_states();
};

// Part of a region handed to a tensor; dropping it gives the bytes back.
class Span {
 public:
  Span(std::shared_ptr<Region> region, Bytes offset, Bytes bytes)
      : region_(std::move(region)), offset_(offset), bytes_(bytes) {}
  ~Span() { region_->give_back(offset_, bytes_); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  const std::shared_ptr<Region>& region() const { return region_; }
  cu::DevicePtr address() const { return region_->address() + offset_; }
  Bytes offset() const { return offset_; }
  Bytes bytes() const { return bytes_; }

 private:
  std::shared_ptr<Region> region_;
  Bytes offset_;
  Bytes bytes_;
};

}  // namespace weave

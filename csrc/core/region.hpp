// core/region.hpp: a tenant and its regions, as data. What happens to them is decided in
// residency.cpp and done in transaction.cpp; only the owning Device calls those, under its lock.
// Flags that another thread may ask for at any time are atomic.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/host_pool.hpp"
#include "core/space.hpp"
#include "core/state_file.hpp"
#include "core/vmm.hpp"

namespace weave {

class Tenant;

// One block's worth of a region. Where its bytes are:
//   frame_valid  in the frame
//   host_valid   in the extent. With both, the two are equal and the frame is free to go
//   file         in a file (spilled): not in memory, until load_spilled()
//   none         lost (discard), or never there
// A frame that is not valid is only a place: it is copied into before the tenant runs. `frame` set
// and unmapped only in a suspended tenant.
struct Slot {
  FrameId frame = kNoFrame;
  Mapping mapping;  // of the frame's block at the region's own address
  Extent host;      // unless `discard`; taken with the slot, so that a switch never allocates
  bool host_valid = false;
  bool frame_valid = false;
  std::shared_ptr<const StateFile> file;  // its only copy is there, and it has no extent
  Bytes file_offset = 0;                  // in the tensor of its tag
};

// Bytes of one slot that are copied as one: from `offset` in the slot, to and from `host`.
struct Range {
  Bytes offset = 0;
  Bytes bytes = 0;
  std::byte* host = nullptr;
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
  // The owner promised not to change the bytes, so host copies outlive a turn.
  std::atomic<bool> clean{false};
  std::atomic<int> pins{0};  // while not 0 its blocks stay on the device
  std::atomic<Fill> fill{Fill::none};

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
  // What has to be copied of a slot. Sorted, apart from each other. pre: it has an extent, or is of
  // a `discard` region.
  std::vector<Range> ranges(std::size_t slot) const;
  // Host copies stay valid while the tenant runs.
  bool keeps_host_copies() const { return clean || policy == Policy::reload; }
  // The host copies of slots with bytes in [offset, offset + bytes) are older than the frames now.
  // pre: the tenant runs; under the Device's lock.
  void invalidate_host(Bytes offset, Bytes bytes);

 private:
  mutable std::mutex space_mutex_;  // leaf lock
  Space space_;
};

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
  std::uint64_t last_turn = 0;  // the device's turn counter when it last ran
  std::int64_t stopped_ns = 0;  // when it last ran; compared between devices

  std::size_t slots() const;
  std::size_t slots_on_device() const;
  bool all_mapped() const;
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

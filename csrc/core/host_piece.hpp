// core/host_piece.hpp: one piece of the host pool: pages of one job, registered on their own, and
// cut into extents of one size. Owned by HostPool, under whose lock extents are taken and given
// back; making and dropping one calls the driver and needs no lock.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/driver.hpp"
#include "core/host_pages.hpp"

namespace weave {

class HostPiece {
 public:
  // Throws Refusal (host_memory), DriverError, HostPages::Cancelled; then nothing is left.
  HostPiece(std::string job, Bytes unit, const HostPages::Options& pages, ContextRef context);
  ~HostPiece();
  HostPiece(const HostPiece&) = delete;
  HostPiece& operator=(const HostPiece&) = delete;

  const std::string job;
  const HostPages& pages() const { return *pages_; }
  Bytes bytes() const { return pages_->bytes(); }
  Bytes unit() const { return unit_; }
  bool is_free() const { return free_.size() == bytes() / unit_; }
  std::size_t free_count() const { return free_.size(); }
  std::byte* take();
  void give_back(std::byte* taken) { free_.push_back(taken); }
  // Cut into extents of another size. pre: is_free().
  void cut(Bytes unit);
  // Whether extents of `unit` would waste at most 2 % of it.
  bool suits(Bytes unit) const { return bytes() % unit <= bytes() / 50 && bytes() >= unit; }

  std::uint64_t growth = 0;      // the growth in the background that made it; 0: none
  bool reserved = false;         // asked for ahead, and never used yet
  std::uint64_t free_since = 0;  // the pool's count when it was last free

 private:
  const ContextRef context_;
  std::unique_ptr<HostPages> pages_;
  Bytes unit_;
  std::vector<std::byte*> free_;
};

}  // namespace weave

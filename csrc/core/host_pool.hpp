// core/host_pool.hpp: pinned host memory. Pieces are memfds of at most 1 GiB, each given to one job
// (so that one job's process can never map another's bytes) and registered PORTABLE on its own (one
// registration of 512 GiB fails on r580 drivers, and a huge one blocks every other process).
// Tenants take extents from the pieces of their job; an extent never crosses a registration's edge.
// Simple form: one NUMA node, small pages. Lock: its own mutex, below Device's.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/driver.hpp"

namespace weave {

class HostPool;

// `bytes` of pinned memory; goes back to its pool when dropped. Move-only.
class Extent {
 public:
  Extent() = default;
  ~Extent() { drop(); }
  Extent(Extent&& other) noexcept { *this = std::move(other); }
  Extent& operator=(Extent&& other) noexcept;
  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }

 private:
  friend class HostPool;
  void drop() noexcept;
  std::shared_ptr<HostPool> pool_;
  void* piece_ = nullptr;
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  // budget 0: what the host and its cgroup have free now, less a tenth. Registrations are made
  // under `context`, which the pool keeps alive.
  HostPool(ContextRef context, Bytes budget);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // `count` extents of `bytes` each for `job`, growing the pool as needed; all or none. Throws
  // Refusal (host_memory) over the budget, DriverError if registering fails.
  std::vector<Extent> allocate(const std::string& job, Bytes bytes, std::size_t count);

  Bytes budget() const { return budget_; }
  Bytes registered() const;
  Bytes used() const;
  std::size_t pieces() const;
  // The context under which pieces are registered.
  const ContextRef& context() const { return context_; }

 private:
  friend class Extent;
  class Piece;
  void grow(const std::string& job, Bytes bytes, Bytes unit);
  void give_back(void* piece, std::byte* data, Bytes bytes) noexcept;

  const ContextRef context_;
  const Bytes budget_;
  mutable std::mutex mutex_;
  std::list<std::unique_ptr<Piece>> pieces_;
  Bytes registered_ = 0;
  Bytes used_ = 0;
};

}  // namespace weave

// core/host_pool.hpp: pinned host memory. Pieces are memfds of at most 1 GiB, each given to one job
// for its life (so that one job's process can never map another's bytes) and registered PORTABLE on
// its own, with pauses (one registration of 512 GiB fails on r580 drivers, and a huge one blocks
// every other process); a piece that the driver refuses is tried in halves (host_pinning.cpp).
// Tenants take extents from the pieces of their job; an extent never crosses a registration's edge.
// Each piece lies on one NUMA node.
//
// A piece that becomes free is kept for its job, because pinning is dear, but only so long as all
// that are kept are at most an eighth of the budget; a growth that needs the memory, trim() and the
// end of the job give them back. One that was asked for ahead, by reserve(), does not count and
// makes no room for a growth until it was used once.
//
// Lock: its own mutex, below Device's; the list of spillers has one above it. Growing (mapping,
// touching, registering) is done without it.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/driver.hpp"
#include "core/host_growth.hpp"
#include "core/host_piece.hpp"

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
  HostPiece* piece_ = nullptr;
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

// Who can move what it keeps in pinned memory to a file: a Device with a spill directory.
class Spiller {
 public:
  virtual ~Spiller() = default;
  struct Candidate {
    std::int64_t stopped_ns = 0;  // when it last ran
  };
  // The tenant that has been idle for longest, other than `keep`, of those that
  // have bytes in pinned memory only; with `evict` of those too that are on the device.
  virtual std::optional<Candidate> coldest(const void* keep, bool evict) = 0;
  // Spill it. Returns the bytes given back to the pool; 0 when there is none any more.
  virtual Bytes spill_coldest(const void* keep, bool evict) = 0;
};

class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  static constexpr int kAnyNode = -1;
  static constexpr Bytes kPieceMax = Bytes{1} << 30;

  // budget 0: what the host and its cgroup have free now, less a tenth. Registrations are made
  // under `context`, which the pool keeps alive.
  HostPool(ContextRef context, Bytes budget, Bytes piece_max = kPieceMax);
  // Cancels growths that still run.
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // `count` extents of `bytes` each for `job`, on `node` where it has memory, growing the pool as
  // needed; all or none. Waits for a growth of that job that runs in the background, instead of
  // pinning twice. Throws Refusal (host_memory) over the budget, DriverError if registering fails.
  std::vector<Extent> allocate(const std::string& job, Bytes bytes, std::size_t count,
                               int node = kAnyNode);
  // Grow for `job` by `bytes`, rounded up to whole extents, on a thread of the pool. Throws Refusal
  // at once where the budget or the host cannot give that much.
  std::shared_ptr<HostGrowth> reserve(const std::string& job, Bytes bytes, int node = kAnyNode);
  // Give back what nobody uses: of one job, or of all. Returns the bytes.
  Bytes trim(const std::string& job);
  Bytes trim();
  // Spill one tenant of the devices that joined, the coldest that can be had without moving
  // anything off a device, else the coldest. pre: no lock of a device is held. Returns the bytes
  // given back, 0 when nobody can give any. Throws what the spiller throws.
  Bytes spill_one(const void* keep);
  void join(Spiller& spiller);
  void leave(Spiller& spiller);
  // Extents will be this large (devices say so when they join): growths ahead are cut to suit.
  void expect_unit(Bytes unit);

  struct NodeStats {
    int node = 0;
    Bytes bytes = 0;
    std::size_t pieces = 0;
  };
  struct Stats {
    Bytes registered = 0, used = 0, growing = 0;
    Bytes free = 0;                   // registered and used by nobody
    Bytes reserved = 0;               // of these, asked for ahead
    Bytes huge = 0;                   // mapped by huge pages
    PageKind kind = PageKind::small;  // of most bytes
    std::size_t pieces = 0;
    std::uint64_t registrations = 0;  // ever made
    std::uint64_t refused = 0;        // that the driver refused and that were tried in halves
    std::uint64_t waits = 0;          // allocations that waited for a growth in the background
    std::vector<NodeStats> nodes;     // pieces by node; -1: where the kernel does not confirm it
  };
  Stats stats() const;
  Bytes budget() const { return budget_; }
  Bytes registered() const;
  Bytes used() const;
  std::size_t pieces() const;
  // The context under which pieces are registered.
  const ContextRef& context() const { return context_; }

 private:
  friend class Extent;
  using Pieces = std::list<std::unique_ptr<HostPiece>>;
  struct Background {
    std::shared_ptr<HostGrowth> growth;
    std::string job;
    std::jthread thread;
  };

  std::size_t free_extents(const std::string& job, Bytes unit) const;
  std::vector<Extent> take(const std::string& job, Bytes unit, std::size_t count, int node);
  Bytes claim(std::unique_lock<std::mutex>& lock, const std::string& job, Bytes bytes, Bytes unit,
              bool headroom);
  template <class Predicate>
  Bytes evict(Pieces& into, Bytes wanted, Predicate may);
  void note_gone(const HostPiece& piece);
  void grow(std::unique_lock<std::mutex>& lock, const std::string& job, Bytes bytes, Bytes unit,
            int node);
  void grow_in_background(HostGrowth& growth, const std::string& job, Bytes unit, int node);
  bool is_growing(const std::string& job) const;
  std::unique_ptr<HostPiece> make_piece(const std::string& job, Bytes bytes, Bytes unit, int node,
                                        const std::atomic<bool>* cancel);
  void give_back(HostPiece* piece, std::byte* data, Bytes bytes) noexcept;

  const ContextRef context_;
  const Bytes budget_;
  Bytes piece_max_;
  const std::vector<NumaNode> nodes_;
  std::mutex spillers_mutex_;  // above Device's: held while a device spills
  std::vector<Spiller*> spillers_;
  mutable std::mutex mutex_;
  std::condition_variable grown_;
  Pieces pieces_;
  std::list<Background> background_;
  Bytes registered_ = 0;
  Bytes growing_ = 0;  // claimed from the budget, not registered yet
  Bytes used_ = 0;
  Bytes unit_ = 0;
  std::uint64_t frees_ = 0;
  std::uint64_t registrations_ = 0;
  std::uint64_t growths_ = 0;  // in the background, ever: their ids
  std::uint64_t waits_ = 0;
  std::atomic<std::uint64_t> refused_{0};  // counted without the lock
};

}  // namespace weave

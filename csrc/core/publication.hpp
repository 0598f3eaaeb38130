// core/publication.hpp: the next version of a tenant's `reload` regions while it is being written:
// a second set of extents, filled by the trainer's side while another job may own the device, and
// swapped in as a whole by Device::commit_together(), with those of other tenants, on other devices
// too. Dropped without that, the old version stays. Lock: its own mutex, a leaf; Device's
// operations on a publication (begin_publish, commit, abort, read) take it under Device::mutex_,
// place() and wrote() without.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "core/region.hpp"

namespace weave {

class Publication {
 public:
  using Part = NextVersion;
  // pre: one extent per slot of each region.
  Publication(std::shared_ptr<Tenant> tenant_, std::vector<Part> parts)
      : tenant(std::move(tenant_)), parts_(std::move(parts)) {}

  const std::shared_ptr<Tenant> tenant;

  // Held from before place() until after the last byte is there: ending a version waits for it, so
  // that no late byte reaches whom the extents go to.
  class Writing {
   public:
    explicit Writing(Publication& publication);  // throws UsageError after the end
    ~Writing();
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    Publication& publication_;
  };

  // Where bytes [offset, offset + bytes) of a region are to be written, in order; they count when
  // wrote() says that they are there. Throw UsageError: another tenant's region, outside it, after
  // the end.
  struct Place {
    std::byte* host;
    Bytes bytes;
  };
  std::vector<Place> place(const std::shared_ptr<Region>& region, Bytes offset, Bytes bytes) const;
  void wrote(const std::shared_ptr<Region>& region, Bytes offset, Bytes bytes);
  // A copy into these bytes may still arrive, whoever has their extents: those go to the caller,
  // and the version can only be dropped.
  std::vector<Extent> forfeit(const std::shared_ptr<Region>& region, Bytes offset, Bytes bytes);

  // Nobody begins to write any more, who does has ended, and every byte is there. Throws
  // UsageError: ended already, or a region has bytes that were not written, or has grown since;
  // then it can be written on, as after reopen().
  void seal();
  void reopen() noexcept;
  bool ended() const;
  // The end: what was written is handed over.
  std::vector<Part> take() noexcept;

 private:
  enum class State { open, sealed, ended };

  std::size_t find(const Region& region, Bytes offset, Bytes bytes) const;
  void require_complete() const;

  mutable std::mutex mutex_;  // leaf lock
  std::condition_variable written_;
  int writing_ = 0;
  std::vector<Part> parts_;
  State state_ = State::open;
};

}  // namespace weave

// core/background.hpp: copies while a phase runs. One thread per device takes what is asked of it
// (a prefetch of the tenant that comes next, a write-back of a tag that will not change any more)
// block by block, chunk by chunk: copies only, never kernels or memsets, two chunks in flight per
// direction, on streams of its own.
//
// The device's lock is held to choose a step and to commit it, never while bytes move. Every
// foreground operation pauses the thread first (Device::Foreground): the chunk in flight ends, a
// half-copied block is forgotten (its frame goes back), and the thread goes on afterwards with what
// there is to do then. A step touches only idle tenants whose last phase is drained, never a block
// of one that runs (a write-back reads those of its own tenant, once its work so far is complete).
// An owner loses access first: a block is unmapped, copied out, and then handed over.
//
// Lock order: Device::mutex_ -> the one of a BackgroundCopy.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/copy_engine.hpp"
#include "core/drain.hpp"
#include "core/frames.hpp"
#include "core/residency.hpp"

namespace weave {

// What was asked of the background, and how far it is. Any thread.
class BackgroundCopy {
 public:
  BackgroundCopy(std::shared_ptr<Tenant> tenant, std::shared_ptr<Region> region);
  ~BackgroundCopy();
  BackgroundCopy(const BackgroundCopy&) = delete;
  BackgroundCopy& operator=(const BackgroundCopy&) = delete;

  // In whole blocks. What could be copied when it was asked for; less is done where room or time
  // ran out, or where what was promised was taken back.
  Bytes bytes_total() const { return bytes_total_; }
  Bytes bytes_done() const { return bytes_done_; }
  // When its first block began to move and its last one had moved, by the device's clock; 0 while
  // none has moved whole.
  std::int64_t began_ns() const { return ended_ns_ == 0 ? 0 : began_ns_.load(); }
  std::int64_t ended_ns() const { return ended_ns_; }
  bool finished() const;
  bool failed() const;  // finished by an error, which wait() throws
  bool cancelled() const { return cancelled_; }
  // False when it is not finished within that time. Throws what ended it, to every waiter.
  bool wait(double timeout_s);

 private:
  friend class Background;
  void finish(std::exception_ptr error) noexcept;

  std::atomic<Bytes> bytes_total_{0};
  std::atomic<Bytes> bytes_done_{0};
  std::atomic<std::int64_t> began_ns_{0};
  std::atomic<std::int64_t> ended_ns_{0};
  std::atomic<bool> cancelled_{false};

  // Guarded by the device's lock.
  std::shared_ptr<Tenant> tenant_;  // until it is finished
  std::shared_ptr<Region> region_;  // of a write-back; none for a prefetch
  std::size_t blocks_left_ = 0;     // of a prefetch
  std::size_t next_slot_ = 0;       // of a write-back
  std::vector<bool> promised_;      // of one: slots that will not change, when it was asked
  std::uint64_t drain_ = 0;         // number of a drain that was asked for
  std::uint64_t drain_turn_ = 0;    // newest turn that it covers
  std::uint64_t phase_ = 0;         // of a write-back: the turn in which it was promised
  bool drained_ = false;            // of a write-back: work so far is complete
  bool may_create_ = true;          // false once the driver had no memory for a frame
  std::vector<const Tenant*> next_use_ = {};  // of a prefetch

  mutable std::mutex mutex_;  // leaf lock
  std::condition_variable changed_;
  bool finished_ = false;
  bool reported_ = false;
  std::exception_ptr error_;
};

class Background {
 public:
  // The owning Device's; all guarded by `mutex`.
  struct Tools {
    std::mutex& mutex;
    ContextRef context;
    Frames& frames;
    Drain& drain;
    const CopyEngine& foreground;  // duplex or sequential
    const std::vector<std::shared_ptr<Tenant>>& tenants;
    const ResidencyPlan& plan;
    Turns& turns;
  };
  struct Stats {  // bytes that were copied in blocks that arrived whole
    Bytes bytes_out = 0, bytes_in = 0;
    std::uint64_t errors = 0;
  };

  // threaded: false leaves the work to callers of run_pending().
  Background(Tools tools, bool threaded);
  ~Background();  // pre: stop() was called; the context is current
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // pre for these, unless said otherwise: the device's lock is held.

  // Bring blocks of `tenant` in while others run, at most `limit` of them: as many as fit beside
  // those that run now.
  std::shared_ptr<BackgroundCopy> prefetch(const std::shared_ptr<Tenant>& tenant,
                                           std::vector<const Tenant*> next_use, std::size_t limit);
  // Copy out what `region` of a running tenant has on the device only.
  std::shared_ptr<BackgroundCopy> write_back(const std::shared_ptr<Tenant>& tenant,
                                             const std::shared_ptr<Region>& region);
  // It ends after the chunk in flight, or at once.
  void cancel(BackgroundCopy& copy) noexcept;
  // The contents of these bytes change: a copy of their block in flight is void, and no request
  // copies that block any more.
  void touched(const Region& region, Bytes offset, Bytes bytes) noexcept;
  // All of the region changes: requests to write it back are cancelled.
  void take_back(const Region& region) noexcept;

  // Wait for the chunk in flight and hold still until go_on(). Counted.
  void pause(std::unique_lock<std::mutex>& lock) noexcept;
  void go_on() noexcept;
  // Whether every copy that was started is known to be complete. While it is not, its frame is kept
  // aside. pre: paused; the context is current.
  bool settle() noexcept;
  void require_settled();  // throws DriverError
  // A tenant closes: nothing of it is touched any more. pre: paused.
  void forget(const Tenant& tenant) noexcept;

  // Do what is asked for in the caller's thread; it, too, holds still while the foreground is at
  // work. pre: the lock is not held, no thread of its own.
  void run_pending();
  // End everything and the thread. pre: the lock is not held. Twice is fine.
  void stop() noexcept;
  const Stats& stats() const { return stats_; }

 private:
  // One block out and one in, at once, each of its own.
  struct Step {
    std::shared_ptr<BackgroundCopy> copy;
    std::optional<SlotRef> out;
    std::optional<SlotRef> in;
    FrameId in_frame = kNoFrame;
    bool in_frame_is_new = false;  // and goes back if the block does not come in whole
    std::vector<Chunk> outs, ins;
    bool out_is_stale = false;  // its bytes changed meanwhile
  };
  struct Copied {
    bool out = false, in = false;  // whole
    std::exception_ptr error = nullptr;
  };
  void serve();
  void advance(std::unique_lock<std::mutex>& lock) noexcept;
  bool drain_first(std::unique_lock<std::mutex>& lock, const std::shared_ptr<BackgroundCopy>& copy);
  bool needs_drain(const BackgroundCopy& copy) const;
  void ask(BackgroundCopy& copy);
  Step choose(const std::shared_ptr<BackgroundCopy>& copy);
  void choose_write_back(Step& step);
  void choose_prefetch(Step& step);
  bool has_free_frame(const BackgroundCopy& copy) const;
  FrameId free_frame(BackgroundCopy& copy);
  Bytes chunk_bytes() const;
  void prepare_chunks(Step& step) const;
  Copied move(const Step& step) noexcept;
  void commit(Step& step, const Copied& copied) noexcept;
  void enter(const SlotRef& ref, FrameId frame) noexcept;
  void end(const std::shared_ptr<BackgroundCopy>& copy, std::exception_ptr error) noexcept;
  std::shared_ptr<BackgroundCopy> queue(std::shared_ptr<BackgroundCopy> copy);
  void abandon(Step& step) noexcept;

  Tools tools_;
  const bool threaded_;
  std::condition_variable changed_;
  std::thread thread_;
  std::unique_ptr<CopyEngine> engine_;  // made with the first copy
  std::deque<std::shared_ptr<BackgroundCopy>> queue_;
  Step* step_ = nullptr;              // whose bytes move now
  std::optional<FrameId> set_aside_;  // a copy into it could not be waited for
  bool unsettled_ = false;
  std::atomic<bool> stop_copying_{false};
  int pauses_ = 0;
  bool stopping_ = false;
  Stats stats_;
};

}  // namespace weave

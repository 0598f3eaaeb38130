// core/host_growth.hpp: a growth of the host pool that runs in the background: how far it is, how
// it ended, and a way to stop it. Shared by the pool's thread and whoever asked; lock: its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>

#include "core/types.hpp"

namespace weave {

class HostGrowth {
 public:
  // id: no other growth of the pool has or gets it.
  HostGrowth(std::uint64_t id, Bytes total) : id_(id), total_(total) {}

  Bytes total() const { return total_; }
  // Bytes that are registered by now and were not given back before it ended.
  Bytes done() const { return done_; }
  bool finished() const {
    const std::lock_guard lock(mutex_);
    return finished_;
  }
  // Ended before it was complete because cancel() was called.
  bool cancelled() const { return finished() && cancel_ && done_ < total_; }
  // Stop before the next step, at most a few MiB later. What is not used by then is given back.
  void cancel() { cancel_ = true; }
  // False when the time is over; negative: no limit. Throws what the growth threw.
  bool wait(double timeout_s);
  std::exception_ptr error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  friend class HostPool;
  void end(std::exception_ptr error);

  const std::uint64_t id_;
  const Bytes total_;
  std::atomic<Bytes> done_{0};
  std::atomic<bool> cancel_{false};
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool finished_ = false;
  std::exception_ptr error_;
};

}  // namespace weave

// core/drain.hpp: a context synchronise with a timeout. The driver has none, so a thread of the
// device makes the call and the caller waits for it as long as it likes. A drain that timed out is
// still running: the next one waits for it first. Lock: its own mutex, below Device's.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/driver.hpp"

namespace weave {

class Drain {
 public:
  explicit Drain(ContextRef context);
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  // Wait until all work of the context is complete. Throws Refusal (drain_timeout), DriverError.
  void wait(double timeout_s);

 private:
  void serve();

  ContextRef context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t asked_ = 0;
  std::uint64_t answered_ = 0;
  cu::Status status_ = cu::kSuccess;
  cu::Call failed_call_ = cu::Call::ctx_synchronize;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace weave

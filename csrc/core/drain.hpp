// core/drain.hpp: a context synchronise with a timeout. The driver has none, so a thread of the
// device makes the call and the caller waits for it as long as it likes. A drain that timed out is
// still running: the next one waits for it first. Lock: its own mutex, below Device's.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "core/driver.hpp"

namespace weave {

class Drain {
 public:
  explicit Drain(ContextRef context);
  // Waits a moment for a drain in progress, then leaves its thread behind: closing a device must
  // not hang on a kernel that never ends.
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  // Wait until all work of the context is complete. Throws Refusal (drain_timeout), DriverError.
  void wait(double timeout_s);
  // The same in parts: ask() begins it, answered() waits a while for the number that ask() gave.
  // Throws DriverError.
  std::uint64_t ask();
  bool answered(std::uint64_t number, double timeout_s);

 private:
  // Shared with the thread, which may outlive this object.
  struct Desk {
    explicit Desk(ContextRef context_) : context(std::move(context_)) {}
    const ContextRef context;
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t asked = 0;
    std::uint64_t answered = 0;
    cu::Status status = cu::kSuccess;
    cu::Call failed_call = cu::Call::ctx_synchronize;
    bool stopping = false;
    bool stopped = false;
  };
  static void serve(Desk& desk);

  std::shared_ptr<Desk> desk_;
  std::thread thread_;
};

}  // namespace weave

#include "core/drain.hpp"

#include <chrono>

namespace weave {

Drain::Drain(ContextRef context) : context_(std::move(context)), thread_([this] { serve(); }) {}

Drain::~Drain() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Drain::wait(double timeout_s) {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = ++asked_;
  changed_.notify_all();
  if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                         [&] { return answered_ >= mine; })) {
    throw Refusal(Refusal::Kind::drain_timeout, "work on the device did not finish within " +
                                                    std::to_string(timeout_s) +
                                                    " s; nothing was moved");
  }
  cu::check(status_, failed_call_);
}

void Drain::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || answered_ < asked_; });
    if (stopping_) return;
    const std::uint64_t serving = asked_;
    lock.unlock();
    cu::Status status = cu::kSuccess;
    cu::Call call = cu::Call::ctx_synchronize;
    try {
      const ContextScope scope(*context_);
      status = context_->driver().table.ctx_synchronize();
    } catch (const DriverError& error) {
      status = error.code;
      call = error.call;
    }
    lock.lock();
    status_ = status;
    failed_call_ = call;
    answered_ = serving;
    changed_.notify_all();
  }
}

}  // namespace weave

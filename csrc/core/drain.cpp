#include "core/drain.hpp"

#include <algorithm>
#include <chrono>

namespace weave {

Drain::Drain(ContextRef context)
    : desk_(std::make_shared<Desk>(std::move(context))),
      thread_([desk = desk_] { serve(*desk); }) {}

Drain::~Drain() {
  std::unique_lock lock(desk_->mutex);
  desk_->stopping = true;
  desk_->changed.notify_all();
  const bool stopped =
      desk_->changed.wait_for(lock, std::chrono::seconds(10), [&] { return desk_->stopped; });
  lock.unlock();
  if (stopped) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Drain::wait(double timeout_s) {
  if (answered(ask(), timeout_s)) return;
  throw Refusal(Refusal::Kind::drain_timeout, "work on the device did not finish within " +
                                                  std::to_string(timeout_s) +
                                                  " s; nothing was moved");
}

std::uint64_t Drain::ask() {
  const std::lock_guard lock(desk_->mutex);
  desk_->changed.notify_all();
  return ++desk_->asked;
}

bool Drain::answered(std::uint64_t number, double timeout_s) {
  Desk& desk = *desk_;
  std::unique_lock lock(desk.mutex);
  // Thirty years are for ever, and no deadline overflows.
  const std::chrono::duration<double> patience(std::clamp(timeout_s, 0.0, 1e9));
  if (!desk.changed.wait_for(lock, patience, [&] { return desk.answered >= number; })) return false;
  cu::check(desk.status, desk.failed_call);
  return true;
}

void Drain::serve(Desk& desk) {
  std::unique_lock lock(desk.mutex);
  while (true) {
    desk.changed.wait(lock, [&] { return desk.stopping || desk.answered < desk.asked; });
    if (desk.stopping) break;
    const std::uint64_t serving = desk.asked;
    lock.unlock();
    cu::Status status = cu::kSuccess;
    cu::Call call = cu::Call::ctx_synchronize;
    try {
      const ContextScope scope(*desk.context);
      status = desk.context->driver().table.ctx_synchronize();
    } catch (const DriverError& error) {
      status = error.code;
      call = error.call;
    }
    lock.lock();
    desk.status = status;
    desk.failed_call = call;
    desk.answered = serving;
    desk.changed.notify_all();
  }
  desk.stopped = true;
  desk.changed.notify_all();
}

}  // namespace weave

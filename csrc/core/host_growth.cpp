#include "core/host_growth.hpp"

#include <chrono>
#include <utility>

namespace weave {

bool HostGrowth::wait(double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return finished_; };
  if (timeout_s < 0) {
    ended_.wait(lock, is_over);
  } else if (!ended_.wait_for(lock, std::chrono::duration<double>(timeout_s), is_over)) {
    return false;
  }
  if (error_) std::rethrow_exception(error_);
  return true;
}

void HostGrowth::end(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    error_ = std::move(error);
  }
  ended_.notify_all();
}

}  // namespace weave

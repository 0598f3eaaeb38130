#include "core/background.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace weave {

namespace {

constexpr std::size_t kInFlight = 2;  // chunks per direction
constexpr double kSlice = 0.1;  // seconds between two looks at whether a drain is still wanted

std::size_t slots_lacking_bytes(const Tenant& tenant) {
  std::size_t count = 0;
  for (const auto& region : tenant.regions) {
    for (const auto& slot : region->slots) count += lacks_bytes(*region, slot) ? 1 : 0;
  }
  return count;
}

}  // namespace

BackgroundCopy::BackgroundCopy(std::shared_ptr<Tenant> tenant, std::shared_ptr<Region> region)
    : tenant_(std::move(tenant)), region_(std::move(region)) {}

// An error that no waiter saw is said once, like all errors that nobody can catch.
BackgroundCopy::~BackgroundCopy() {
  if (error_ == nullptr || reported_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const DriverError& error) {
    cu::report(error.code, error.call);
  } catch (...) {
  }
}

bool BackgroundCopy::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

bool BackgroundCopy::failed() const {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

bool BackgroundCopy::wait(double timeout_s) {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> patience(std::clamp(timeout_s, 0.0, 1e9));
  if (!changed_.wait_for(lock, patience, [&] { return finished_; })) return false;
  reported_ = true;
  if (error_ != nullptr) std::rethrow_exception(error_);
  return true;
}

void BackgroundCopy::finish(std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  error_ = std::move(error);
  changed_.notify_all();
}

Background::Background(Tools tools, bool threaded)
    : tools_(std::move(tools)), threaded_(threaded) {}

Background::~Background() {
  if (set_aside_) tools_.frames.give_back(*set_aside_);
}

std::shared_ptr<BackgroundCopy> Background::prefetch(const std::shared_ptr<Tenant>& tenant,
                                                     std::vector<const Tenant*> next_use,
                                                     std::size_t limit) {
  auto copy = std::make_shared<BackgroundCopy>(tenant, nullptr);
  std::size_t taken = tenant->slots_on_device();
  for (const auto& other : tools_.tenants) {
    if (other == tenant) continue;
    if (other->failed) taken += other->slots_on_device();
    for (const auto& region : other->regions) {
      taken += other->uses(*region) ? region->slots.size() : 0;
    }
  }
  const auto frames = static_cast<std::size_t>(tools_.frames.limit());
  const std::size_t room = frames - std::min(frames, taken);
  copy->next_use_ = std::move(next_use);
  copy->blocks_left_ = tenant->running ? 0 : std::min({slots_lacking_bytes(*tenant), room, limit});
  copy->bytes_total_ = copy->blocks_left_ * tools_.frames.block_bytes();
  return queue(std::move(copy));
}

std::shared_ptr<BackgroundCopy> Background::write_back(const std::shared_ptr<Tenant>& tenant,
                                                       const std::shared_ptr<Region>& region) {
  auto copy = std::make_shared<BackgroundCopy>(tenant, region);
  const auto blocks = static_cast<Bytes>(std::ranges::count_if(
      region->slots, [&](const Slot& slot) { return is_only_on_device(*region, slot); }));
  copy->bytes_total_ = blocks * region->block_bytes;
  copy->phase_ = tenant->last_turn;
  copy->promised_.assign(region->slots.size(), true);  // not those of a later growth
  // Here, where its owner is: later it may capture a graph, which a drain that begins then breaks.
  if (blocks > 0) ask(*copy);
  return queue(std::move(copy));
}

std::shared_ptr<BackgroundCopy> Background::queue(std::shared_ptr<BackgroundCopy> copy) {
  if (stopping_) throw UsageError("the device is closed");
  if (copy->bytes_total_ == 0) {
    end(copy, nullptr);
    return copy;
  }
  if (threaded_ && !thread_.joinable()) thread_ = std::thread([this] { serve(); });
  queue_.push_back(copy);
  changed_.notify_all();
  return copy;
}

void Background::cancel(BackgroundCopy& copy) noexcept {
  copy.cancelled_ = true;
  if (step_ != nullptr && step_->copy.get() == &copy) {
    stop_copying_ = true;  // its step is ended by the thread
    return;
  }
  const auto found = std::ranges::find(queue_, &copy, &std::shared_ptr<BackgroundCopy>::get);
  if (found != queue_.end()) end(*found, nullptr);
}

void Background::touched(const Region& region, Bytes offset, Bytes bytes) noexcept {
  const auto begin = static_cast<std::size_t>(offset / region.block_bytes);
  const auto end =
      static_cast<std::size_t>(round_up(offset + bytes, region.block_bytes) / region.block_bytes);
  for (const auto& copy : queue_) {
    if (copy->region_.get() != &region) continue;
    auto& promised = copy->promised_;
    for (std::size_t slot = begin; slot < std::min(end, promised.size()); ++slot) {
      promised[slot] = false;
    }
  }
  if (step_ == nullptr || !step_->out || step_->out->region.get() != &region) return;
  if (begin <= step_->out->slot && step_->out->slot < end) step_->out_is_stale = true;
}

void Background::take_back(const Region& region) noexcept {
  touched(region, 0, region.slots.size() * region.block_bytes);
  const auto asked = queue_;
  for (const auto& copy : asked) {
    if (copy->region_.get() == &region) cancel(*copy);
  }
}

void Background::pause(std::unique_lock<std::mutex>& lock) noexcept {
  ++pauses_;
  stop_copying_ = true;
  changed_.wait(lock, [&] { return step_ == nullptr; });
}

void Background::go_on() noexcept {
  if (--pauses_ == 0) changed_.notify_all();
}

bool Background::settle() noexcept {
  if (unsettled_ && engine_->settle()) {
    unsettled_ = false;
    if (set_aside_) tools_.frames.give_back(*std::exchange(set_aside_, std::nullopt));
  }
  return !unsettled_;
}

void Background::require_settled() {
  if (settle()) return;
  engine_->finish();  // throws what the driver says, or finds that all is well now
  settle();
}

void Background::forget(const Tenant& tenant) noexcept {
  const auto asked = queue_;
  for (const auto& copy : asked) {
    if (copy->tenant_.get() == &tenant) {
      copy->cancelled_ = true;
      end(copy, nullptr);
    } else {
      std::erase(copy->next_use_, &tenant);
    }
  }
}

void Background::run_pending() {
  std::unique_lock lock(tools_.mutex);
  while (true) {
    // As in serve(): whoever comes in the foreground does not wait for the whole queue.
    changed_.wait(lock, [&] { return stopping_ || pauses_ == 0; });
    if (stopping_ || queue_.empty()) return;
    advance(lock);
  }
}

void Background::stop() noexcept {
  std::thread ended;
  {
    std::unique_lock lock(tools_.mutex);
    stopping_ = true;
    pause(lock);
    while (!queue_.empty()) {
      queue_.front()->cancelled_ = true;
      end(queue_.front(), nullptr);
    }
    changed_.notify_all();
    ended = std::move(thread_);
  }
  if (ended.joinable()) ended.join();
}

void Background::serve() {
  std::unique_lock lock(tools_.mutex);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (pauses_ == 0 && !queue_.empty()); });
    if (stopping_) return;
    advance(lock);
  }
}

// One step of the first in the queue: choose, copy without the lock, commit.
void Background::advance(std::unique_lock<std::mutex>& lock) noexcept {
  const auto copy = queue_.front();
  Step step;
  try {
    const ContextScope scope(*tools_.context);
    if (unsettled_) require_settled();
    if (engine_ == nullptr) engine_ = std::make_unique<CopyEngine>(tools_.context, kInFlight, true);
    if (needs_drain(*copy) && !drain_first(lock, copy)) return;
    step = choose(copy);
    if (!step.out && !step.in) {
      end(copy, nullptr);
      return;
    }
    step_ = &step;
    stop_copying_ = false;
    const auto now = tools_.context->driver().table.now_ns;
    if (copy->began_ns_ == 0) copy->began_ns_ = now();
    lock.unlock();
    const Copied copied = move(step);
    lock.lock();
    if (copied.in || copied.out) copy->ended_ns_ = now();
    commit(step, copied);
    // What was taken back while it was copied was copied for nothing.
    if (copy->region_ != nullptr && copied.out && step.out_is_stale) {
      copy->bytes_done_ -= tools_.frames.block_bytes();
    }
    if (copied.error != nullptr) {
      end(copy, copied.error);
    } else if (copy->cancelled_) {
      end(copy, nullptr);
    }
  } catch (...) {
    end(copy, std::current_exception());
  }
  step_ = nullptr;
  changed_.notify_all();
}

// Work that was submitted before now may still use what a step would touch: the frame of a victim,
// or one with an older version that the tenant itself holds. Beside a phase nobody waits for it: a
// context that is synchronised while one of its streams is captured breaks the capture, in whatever
// mode. A step then takes what is drained, which is all that was idle when the phase began.
bool Background::needs_drain(const BackgroundCopy& copy) const {
  if (copy.region_ != nullptr) return !copy.drained_;
  const auto runs = [](const auto& tenant) { return tenant->running.load(); };
  if (std::ranges::any_of(tools_.tenants, runs)) return false;
  return std::ranges::any_of(tools_.tenants, [&](const auto& tenant) {
    return !tools_.turns.is_drained(*tenant) && tenant->slots_on_device() > 0;
  });
}

void Background::ask(BackgroundCopy& copy) {
  copy.drain_ = tools_.drain.ask();
  copy.drain_turn_ = tools_.turns.now;
}

// A part of the wait. True when the drain is over; the lock is free meanwhile, so that whoever
// comes in the foreground need not wait for a kernel.
bool Background::drain_first(std::unique_lock<std::mutex>& lock,
                             const std::shared_ptr<BackgroundCopy>& copy) {
  if (copy->drain_ == 0) ask(*copy);
  struct Unlocked {
    std::unique_lock<std::mutex>& lock;
    explicit Unlocked(std::unique_lock<std::mutex>& held) : lock(held) { lock.unlock(); }
    ~Unlocked() { lock.lock(); }
  };
  bool over = false;
  {
    const Unlocked unlocked(lock);
    over = tools_.drain.answered(copy->drain_, kSlice);
  }
  if (!over) return false;
  tools_.turns.drained = std::max(tools_.turns.drained, copy->drain_turn_);
  copy->drained_ = true;
  copy->drain_ = 0;
  // Somebody may have been in between, or waits: choose anew.
  return false;
}

void Background::end(const std::shared_ptr<BackgroundCopy>& copy,
                     std::exception_ptr error) noexcept {
  const auto keep = copy;  // `copy` may be the queue's own
  if (error != nullptr) ++stats_.errors;
  std::erase(queue_, keep);
  keep->tenant_.reset();  // a handle that somebody keeps holds no memory
  keep->region_.reset();
  keep->finish(std::move(error));
}

}  // namespace weave

#include "core/driver.hpp"

#include <algorithm>

namespace weave {

namespace {

// A destroyed context has taken its streams, events and registrations with it. Blocks, mappings and
// reservations belong to no context: there the code only says what is current on this thread.
bool is_gone(cu::Status status, cu::Call call) {
  const bool of_context = call == cu::Call::stream_destroy || call == cu::Call::event_destroy ||
                          call == cu::Call::mem_host_unregister;
  return status == cu::kInvalidHandle || (of_context && status == cu::kContextIsDestroyed);
}

// Contexts of ours that this thread could not pop, by the table whose stack they are on. The next
// scope of that table pops them first, so that a failed pop does not leave a trainer's thread on
// our device for longer than it must.
using Pop = decltype(cu::Table::ctx_pop_current);
thread_local std::vector<Pop> unpopped;

bool pop(const cu::Table& table) {
  cu::Context popped = nullptr;
  const cu::Status status = table.ctx_pop_current(&popped);
  if (status != cu::kSuccess) cu::report(status, cu::Call::ctx_pop_current);
  return status == cu::kSuccess;
}

}  // namespace

Driver::~Driver() {
  // Nobody is left to retry: say what stays behind, unless removing the device takes it along.
  if (retry_buried() != 0 && !closer_) {
    for (const auto& grave : buried_) cu::report(cu::kUnknown, grave.call);
  }
  if (closer_) closer_();
}

void Driver::undo(cu::Call call, Undo undo) noexcept {
  const cu::Status status = undo(table);
  if (status == cu::kSuccess || status == cu::kDeinitialized) return;
  if (is_gone(status, call)) return;
  const std::lock_guard lock(mutex_);
  buried_.push_back({call, std::move(undo)});
}

std::size_t Driver::retry_buried() noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(buried_, [&](const Grave& grave) {
    const cu::Status status = grave.undo(table);
    return status == cu::kSuccess || is_gone(status, grave.call);
  });
  return buried_.size();
}

Context::Context(DriverRef driver) : driver_(std::move(driver)) {
  cu::check(driver_->table.primary_ctx_retain(&context_, driver_->ordinal),
            cu::Call::primary_ctx_retain);
}

Context::~Context() {
  driver_->undo(cu::Call::primary_ctx_release,
                [ordinal = driver_->ordinal](const cu::Table& table) {
                  return table.primary_ctx_release(ordinal);
                });
}

cu::Status end_registration(const cu::Table& table, cu::Device ordinal,
                            const std::weak_ptr<Context>& context, void* data) noexcept {
  const auto end = [&] {
    const cu::Status status = table.mem_host_unregister(data);
    const bool gone = status == cu::kHostMemoryNotRegistered || status == cu::kContextIsDestroyed;
    return gone ? cu::kSuccess : status;
  };
  if (const auto alive = context.lock()) {
    try {
      const ContextScope scope(*alive);
      return end();
    } catch (const DriverError& error) {
      return error.code;
    }
  }
  cu::Context primary = nullptr;
  cu::Status status = table.primary_ctx_retain(&primary, ordinal);
  if (status != cu::kSuccess) return status;
  status = table.ctx_push_current(primary);
  if (status == cu::kSuccess) {
    status = end();
    pop(table);
  }
  table.primary_ctx_release(ordinal);
  return status;
}

ContextScope::ContextScope(const Context& context) : table_(context.driver().table) {
  for (auto one = std::ranges::find(unpopped, table_.ctx_pop_current); one != unpopped.end();
       one = std::ranges::find(unpopped, table_.ctx_pop_current)) {
    if (!pop(table_)) break;
    unpopped.erase(one);
  }
  cu::check(table_.ctx_push_current(context.raw()), cu::Call::ctx_push_current);
  if (table_.thread_exchange_capture_mode != nullptr) {
    mode_exchanged_ = table_.thread_exchange_capture_mode(&capture_mode_) == cu::kSuccess;
  }
}

ContextScope::~ContextScope() {
  if (mode_exchanged_) {
    if (const auto status = table_.thread_exchange_capture_mode(&capture_mode_)) {
      cu::report(status, cu::Call::thread_exchange_capture_mode);
    }
  }
  if (!pop(table_)) unpopped.push_back(table_.ctx_pop_current);
}

}  // namespace weave

// core/driver.hpp: one device's driver as the owners below hold it: the table, the ordinal, and the
// graveyard. A Driver outlives every block, mapping and reservation made through it, because each
// of them holds it; whoever opened an emulated device passes a `closer` that removes it at the end.
//
// Graveyard: an owner whose undo call fails in its destructor cannot throw and must not forget.
// It buries the undo here; the device tries again before its next operation and when it closes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/types.hpp"
#include "driver/status.hpp"

namespace weave {

class Driver {
 public:
  Driver(const cu::Table& table_, cu::Device ordinal_, std::function<void()> closer = {})
      : table(table_), ordinal(ordinal_), closer_(std::move(closer)) {}
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Make `undo`, and bury it when it fails. Never throws. Any thread.
  using Undo = std::function<cu::Status(const cu::Table&)>;
  void undo(cu::Call call, Undo undo) noexcept;
  // Retry what is buried, in the order of burial. Returns how many remain.
  std::size_t retry_buried() noexcept;

  const cu::Table table;
  const cu::Device ordinal;

 private:
  struct Grave {
    cu::Call call;
    Undo undo;
  };
  std::function<void()> closer_;
  std::mutex mutex_;  // leaf lock
  std::vector<Grave> buried_;
};

using DriverRef = std::shared_ptr<Driver>;

// The device's primary context, retained. Shared by everything that needs it current.
class Context {
 public:
  explicit Context(DriverRef driver);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  const Driver& driver() const { return *driver_; }
  const DriverRef& driver_ref() const { return driver_; }
  cu::Context raw() const { return context_; }

 private:
  DriverRef driver_;
  cu::Context context_ = nullptr;
};

using ContextRef = std::shared_ptr<Context>;

// Ends a registration of host memory that was made in the context, for an undo: success when it is
// known to be gone, by this call, an earlier one, or with its context. The context may be released
// by us and still live, if others of the process hold it; then so does the registration.
cu::Status end_registration(const cu::Table& table, cu::Device ordinal,
                            const std::weak_ptr<Context>& context, void* data) noexcept;

// Makes a context current on this thread, in relaxed capture mode (so that a trainer can capture a
// graph in the global mode beside us), and restores both. A failed restore is reported.
class ContextScope {
 public:
  explicit ContextScope(const Context& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const cu::Table& table_;
  int capture_mode_ = cu::kCaptureModeRelaxed;
  bool mode_exchanged_ = false;
};

}  // namespace weave

// driver/faults.hpp: a counting wrapper around any Table, the real one too, that can be told to
// fail calls. Core and emulator contain no fault code. A driver call carries no context argument,
// so there is one fault plan per process: FaultScope arms it and disarms it.
#pragma once

#include <array>
#include <cstdint>

#include "driver/table.hpp"

namespace weave::cu {

// Which table a wrapper stands in front of. Each kind has wrappers of its own, so the real and the
// emulated driver can be counted side by side.
enum class Upstream : int { loaded = 0, emulated = 1 };
inline constexpr int kUpstreamCount = 2;

// The same calls as `table`, counted, and failed while a FaultScope says so. A null optional entry
// stays null. pre: one table per upstream for the life of the process.
Table counted(Upstream upstream, const Table& table);

// How often each call was made through `upstream` since the process started.
std::array<std::uint64_t, kCallCount> call_counts(Upstream upstream);

// Fails driver calls while it lives: the nth one (1 is the next), or every call from the nth on.
// `only` limits both counting and failing to one call. pre: one scope at a time.
class FaultScope {
 public:
  struct Plan {
    std::uint64_t nth = 0;  // 0 only counts
    bool from_then_on = false;
    Call only = Call::kCount;  // kCount: any call
    Status status = kUnknown;
  };
  explicit FaultScope(const Plan& plan);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

  std::uint64_t calls_seen() const;
  std::uint64_t calls_failed() const;
};

}  // namespace weave::cu

// driver/faults.hpp: a counting wrapper around any Table, the real one too, that can be told to
// fail or delay calls. Core and emulator contain no fault code. A driver call carries no context
// argument, so there is one fault plan per process: FaultScope arms it and disarms it.
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

// Whether a call is about the work or the memory of the current context, so that it fails in a
// context that was lost (700, 719, 214). Device queries, the context stack and virtual memory are
// not.
bool is_context_bound(Call call);

// Disturbs driver calls while it lives. A call is hit when it is the nth one (1 is the next), any
// one from the nth on, or, with a probability, when the seed says so. A hit call first waits
// `delay_ns` on the driver's clock, then returns `status` without being made; with kSuccess it is
// made. `only` limits counting and hitting to one call.
//
// sticky: the hit loses the context that is current. From then on every context-bound call in it
// returns `status`, until its primary context is reset or released by its last holder. Only
// context-bound calls are counted then.
//
// pre: one scope at a time.
class FaultScope {
 public:
  struct Plan {
    std::uint64_t nth = 0;  // 0: never by number
    bool from_then_on = false;
    Call only = Call::kCount;  // kCount: any call
    Status status = kUnknown;
    double probability = 0;  // of a hit, for each call, drawn from `seed` and the call's number
    std::uint64_t seed = 0;
    std::int64_t delay_ns = 0;
    bool sticky = false;
  };
  // Throws UsageError for a plan that makes no sense.
  explicit FaultScope(const Plan& plan);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

  static void check(const Plan& plan);

  std::uint64_t calls_seen() const;
  std::uint64_t calls_failed() const;
  std::uint64_t calls_delayed() const;
};

}  // namespace weave::cu

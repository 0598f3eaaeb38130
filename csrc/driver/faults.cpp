#include "driver/faults.hpp"

#include <atomic>

#include "driver/status.hpp"

namespace weave::cu {

namespace {

Table upstream_table[kUpstreamCount];
std::atomic<std::uint64_t> counts[kUpstreamCount][kCallCount];

// The armed plan. Written only while `armed` is false, read only while it is true.
FaultScope::Plan plan;
std::atomic<bool> armed{false};
std::atomic<std::uint64_t> seen{0};
std::atomic<std::uint64_t> failed{0};

// Success to let the call through, else the status to return instead of making it.
Status verdict(Call call) {
  if (!armed.load(std::memory_order_acquire)) return kSuccess;
  if (plan.only != Call::kCount && plan.only != call) return kSuccess;
  const std::uint64_t index = seen.fetch_add(1, std::memory_order_relaxed) + 1;
  const bool fails = plan.nth != 0 && (plan.from_then_on ? index >= plan.nth : index == plan.nth);
  if (!fails) return kSuccess;
  failed.fetch_add(1, std::memory_order_relaxed);
  return plan.status;
}

template <int kUpstream, Call kCall, auto kField, class Signature>
struct Wrapper;

template <int kUpstream, Call kCall, auto kField, class... Args>
struct Wrapper<kUpstream, kCall, kField, Status (*)(Args...)> {
  static Status call(Args... args) {
    counts[kUpstream][static_cast<int>(kCall)].fetch_add(1, std::memory_order_relaxed);
    if (const Status status = verdict(kCall); status != kSuccess) return status;
    return (upstream_table[kUpstream].*kField)(args...);
  }
};

template <int kUpstream>
Table wrap(const Table& table) {
  upstream_table[kUpstream] = table;
  Table wrapped = table;
#define WEAVE_CALL(field, need, symbol, exported, version, parameters)                           \
  if (table.field != nullptr) {                                                                  \
    wrapped.field = &Wrapper<kUpstream, Call::field, &Table::field, Status(*) parameters>::call; \
  }
#include "driver/calls.def"
#undef WEAVE_CALL
  return wrapped;
}

}  // namespace

Table counted(Upstream upstream, const Table& table) {
  return upstream == Upstream::loaded ? wrap<0>(table) : wrap<1>(table);
}

std::array<std::uint64_t, kCallCount> call_counts(Upstream upstream) {
  std::array<std::uint64_t, kCallCount> result{};
  for (int call = 0; call < kCallCount; ++call) {
    result[static_cast<std::size_t>(call)] =
        counts[static_cast<int>(upstream)][call].load(std::memory_order_relaxed);
  }
  return result;
}

FaultScope::FaultScope(const Plan& wanted) {
  if (armed.load(std::memory_order_relaxed)) throw UsageError("a fault plan is already armed");
  plan = wanted;
  seen.store(0, std::memory_order_relaxed);
  failed.store(0, std::memory_order_relaxed);
  armed.store(true, std::memory_order_release);
}

FaultScope::~FaultScope() { armed.store(false, std::memory_order_release); }

std::uint64_t FaultScope::calls_seen() const { return seen.load(std::memory_order_relaxed); }
std::uint64_t FaultScope::calls_failed() const { return failed.load(std::memory_order_relaxed); }

}  // namespace weave::cu

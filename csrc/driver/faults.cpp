#include "driver/faults.hpp"

#include <atomic>
#include <map>
#include <mutex>

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
std::atomic<std::uint64_t> delayed{0};
std::atomic<Context> lost{nullptr};  // by a sticky plan; null: none, or recovered

// Who holds primary contexts, so that the end of a lost one is seen.
struct Holders {
  Context context = nullptr;
  int count = 0;
};
std::mutex holders_mutex;  // leaf lock
std::map<Device, Holders> holders[kUpstreamCount];

// A draw in [0, 1) that depends on the seed and the number of the call alone.
double draw(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t mixed = seed * 0x9E3779B97F4A7C15u + index;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((mixed ^ (mixed >> 31)) >> 11) / 9007199254740992.0;
}

bool is_hit(std::uint64_t index) {
  if (plan.nth != 0 && (plan.from_then_on ? index >= plan.nth : index == plan.nth)) return true;
  return plan.probability > 0 && draw(plan.seed, index) < plan.probability;
}

Context current_context(const Table& table) {
  Context context = nullptr;
  return table.ctx_get_current(&context) == kSuccess ? context : nullptr;
}

Status fail() {
  failed.fetch_add(1, std::memory_order_relaxed);
  return plan.status;
}

// Success to let the call through, else the status to return instead of making it.
Status verdict(Call call, const Table& table) {
  if (!armed.load(std::memory_order_acquire)) return kSuccess;
  if (plan.sticky) {
    if (!is_context_bound(call)) return kSuccess;
    const Context gone = lost.load(std::memory_order_acquire);
    if (gone != nullptr && gone == current_context(table)) return fail();
  }
  if (plan.only != Call::kCount && plan.only != call) return kSuccess;
  const std::uint64_t index = seen.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!is_hit(index)) return kSuccess;
  if (plan.delay_ns > 0) {
    delayed.fetch_add(1, std::memory_order_relaxed);
    table.sleep_until_ns(table.now_ns() + plan.delay_ns);
  }
  if (plan.status == kSuccess) return kSuccess;
  if (plan.sticky) {
    const Context context = current_context(table);
    if (context == nullptr) return kSuccess;  // nothing to lose
    lost.store(context, std::memory_order_release);
  }
  return fail();
}

void recovered(Context context) {
  Context expected = context;
  if (context != nullptr) lost.compare_exchange_strong(expected, nullptr);
}

// Followed after each successful call: the primary contexts and their ends.
template <Call kCall, class... Args>
void follow(int upstream, Args... args) {
  if constexpr (kCall == Call::primary_ctx_retain) {
    const auto note = [&](Context* context, Device device) {
      const std::lock_guard lock(holders_mutex);
      Holders& own = holders[upstream][device];
      own = {*context, own.count + 1};
    };
    note(args...);
  } else if constexpr (kCall == Call::primary_ctx_release || kCall == Call::primary_ctx_reset) {
    const auto note = [&](Device device) {
      const std::lock_guard lock(holders_mutex);
      Holders& own = holders[upstream][device];
      if constexpr (kCall == Call::primary_ctx_release) own.count -= own.count > 0 ? 1 : 0;
      if (kCall == Call::primary_ctx_reset || own.count == 0) recovered(own.context);
      if (own.count == 0) holders[upstream].erase(device);
    };
    note(args...);
  }
}

template <int kUpstream, Call kCall, auto kField, class Signature>
struct Wrapper;

template <int kUpstream, Call kCall, auto kField, class... Args>
struct Wrapper<kUpstream, kCall, kField, Status (*)(Args...)> {
  static Status call(Args... args) {
    counts[kUpstream][static_cast<int>(kCall)].fetch_add(1, std::memory_order_relaxed);
    const Table& table = upstream_table[kUpstream];
    if (const Status status = verdict(kCall, table); status != kSuccess) return status;
    const Status status = (table.*kField)(args...);
    if (status == kSuccess) follow<kCall>(kUpstream, args...);
    return status;
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

bool is_context_bound(Call call) {
  // By name, so that a call added to the list is sorted without a second list to keep.
  for (const std::string_view prefix : {"ctx_synchronize", "mem_get_info", "mem_host_", "memcpy_",
                                        "memset_", "stream_", "event_", "launch_"}) {
    if (info(call).field.starts_with(prefix)) return true;
  }
  return false;
}

void FaultScope::check(const Plan& wanted) {
  if (!(wanted.probability >= 0 && wanted.probability <= 1)) {
    throw UsageError("the probability of a fault is between 0 and 1");
  }
  if (wanted.delay_ns < 0) throw UsageError("the delay of a fault is 0 ns or more");
  if (wanted.status == kSuccess && wanted.delay_ns == 0) {
    throw UsageError("a fault needs a status other than 0, or a delay");
  }
  if (!wanted.sticky) return;
  if (!is_sticky(wanted.status)) {
    throw UsageError("a lost context returns 214, 700, 709 or 719; " +
                     std::to_string(wanted.status) + " is not sticky");
  }
  if (wanted.only != Call::kCount && !is_context_bound(wanted.only)) {
    throw UsageError("a context cannot be lost by " + std::string(info(wanted.only).field) +
                     ", which does not depend on one");
  }
}

FaultScope::FaultScope(const Plan& wanted) {
  check(wanted);
  if (armed.load(std::memory_order_relaxed)) throw UsageError("a fault plan is already armed");
  plan = wanted;
  seen.store(0, std::memory_order_relaxed);
  failed.store(0, std::memory_order_relaxed);
  delayed.store(0, std::memory_order_relaxed);
  lost.store(nullptr, std::memory_order_relaxed);
  armed.store(true, std::memory_order_release);
}

FaultScope::~FaultScope() { armed.store(false, std::memory_order_release); }

std::uint64_t FaultScope::calls_seen() const { return seen.load(std::memory_order_relaxed); }
std::uint64_t FaultScope::calls_failed() const { return failed.load(std::memory_order_relaxed); }
std::uint64_t FaultScope::calls_delayed() const { return delayed.load(std::memory_order_relaxed); }

}  // namespace weave::cu

// The failure sweep: for n = 1, 2, ... fail the n-th driver call of an operation, once and from
// there on. Afterwards the state is one that transaction.hpp allows, nothing is leaked, a retry
// works, and every `keep` byte of every tenant is what it was. Prints how many points it visited.
#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

struct Operation {
  const char* name;
  // Brings the pair to where the operation starts.
  std::function<void(Pair&)> prepare;
  std::function<void(Pair&)> act;
};

void check_state(const Pair& pair, bool succeeded) {
  for (const Patterned* one : {&pair.a, &pair.b}) {
    if (one->tenant == nullptr || one->tenant->failed) continue;
    // A tenant that runs has every block, mapped, with its bytes.
    if (one->tenant->running) {
      CHECK(one->tenant->all_mapped());
      if (succeeded && one->keep != nullptr) CHECK(one->intact());
    }
    for (const auto& region : one->tenant->regions) {
      if (region->policy != Policy::keep || one->tenant->running) continue;
      for (const auto& slot : region->slots) CHECK(slot.frame != kNoFrame || slot.host_valid);
    }
  }
}

// After the fault: the operation works when tried again, and nothing was lost on the way.
void retry_and_compare(Pair& pair, const Operation& operation) {
  operation.act(pair);
  for (const auto* names : {"ab", "ba"}) {
    for (const char* name = names; *name != '\0'; ++name) {
      Patterned& one = *name == 'a' ? pair.a : pair.b;
      Patterned& other = *name == 'a' ? pair.b : pair.a;
      if (one.tenant == nullptr || one.keep == nullptr) continue;
      if (other.tenant != nullptr) pair.device->release(other.tenant);
      pair.device->resume(one.tenant, 60);
      CHECK(one.intact());
    }
  }
}

struct Visited {
  std::uint64_t points = 0, restored = 0, failed_states = 0;
};

// One point of the sweep; false when the operation makes fewer than `nth` calls.
bool visit(const Operation& operation, std::uint64_t nth, bool from_then_on, Visited& visited) {
  const auto descriptors = open_descriptors();
  bool fired = false;
  {
    Pair pair;
    operation.prepare(pair);
    {
      const cu::FaultScope fault({nth, from_then_on});
      bool threw = false;
      try {
        operation.act(pair);
      } catch (const DriverError& error) {
        threw = true;
        CHECK_EQ(error.code, cu::kUnknown);
      }
      fired = fault.calls_failed() > 0;
      visited.points += fired ? 1 : 0;
      if (!from_then_on && fired) {
        // One failing call never leaves a tenant in a state that cannot be used.
        for (const Patterned* one : {&pair.a, &pair.b}) {
          CHECK(one->tenant == nullptr || !one->tenant->failed);
        }
      }
      for (const Patterned* one : {&pair.a, &pair.b}) {
        visited.failed_states += one->tenant != nullptr && one->tenant->failed ? 1 : 0;
      }
      visited.restored += threw && pair.a.tenant != nullptr && pair.a.tenant->running ? 1 : 0;
      check_state(pair, !threw && !fired);
    }
    if (fired) retry_and_compare(pair, operation);
    pair.device->close();
    const auto census = emu::census(pair.emulated.ordinal);
    CHECK_EQ(census.handles, 0u);
    CHECK_EQ(census.mappings, 0u);
    CHECK_EQ(census.registrations, 0u);
    CHECK_EQ(census.streams, 0u);
    CHECK_EQ(census.events, 0u);
    CHECK_EQ(census.bytes_used, 0u);
  }
  CHECK_EQ(open_descriptors(), descriptors);
  return fired;
}

void sweep(const Operation& operation) {
  for (const bool from_then_on : {false, true}) {
    Visited visited;
    for (std::uint64_t nth = 1; visit(operation, nth, from_then_on, visited); ++nth) {
    }
    CHECK(visited.points > 0);
    std::printf("sweep %-8s %-13s %4lu points, %4lu with a still running, %lu failed tenants\n",
                operation.name, from_then_on ? "from then on" : "once",
                static_cast<unsigned long>(visited.points),
                static_cast<unsigned long>(visited.restored),
                static_cast<unsigned long>(visited.failed_states));
  }
}

void prepare_both(Pair& pair) { pair.attach_both(); }

}  // namespace

TEST(sweep_attach) {
  sweep({"attach",
         [](Pair& pair) {
           attach(*pair.device, pair.a, "a", 1, 8, 3);
           pair.device->release(pair.a.tenant);
         },
         [](Pair& pair) { attach(*pair.device, pair.b, "b", 2, 8, 3); }});
}

TEST(sweep_suspend) {
  sweep({"suspend", prepare_both, [](Pair& pair) { pair.device->suspend(pair.a.tenant, 60); }});
}

TEST(sweep_resume) {
  sweep({"resume",
         [](Pair& pair) {
           pair.attach_both();
           pair.device->release(pair.a.tenant);
         },
         [](Pair& pair) { pair.device->resume(pair.b.tenant, 60); }});
}

TEST(sweep_switch) {
  sweep({"switch", prepare_both, [](Pair& pair) {
           pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
         }});
}

TEST(sweep_open) {
  for (const bool from_then_on : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      const auto descriptors = open_descriptors();
      bool fired = false;
      {
        Emulated emulated;
        const cu::FaultScope fault({nth, from_then_on});
        try {
          Device device(emulated.driver, options_with());
        } catch (const DriverError&) {
        }
        fired = fault.calls_failed() > 0;
      }
      CHECK_EQ(open_descriptors(), descriptors);
      if (!fired) break;
    }
  }
}

TEST(sweep_close) {
  for (const bool from_then_on : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      const auto descriptors = open_descriptors();
      bool fired = false;
      {
        Pair pair;
        pair.attach_both();
        const cu::FaultScope fault({nth, from_then_on});
        pair.device->close();
        fired = fault.calls_failed() > 0;
      }
      CHECK_EQ(open_descriptors(), descriptors);
      if (!fired) break;
    }
  }
}

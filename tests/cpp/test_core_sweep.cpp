// The failure sweep: for n = 1, 2, ... fail the n-th driver call of an operation, once, from there
// on, and by losing the context there. Afterwards the state is one that transaction.hpp allows,
// nothing is leaked, a retry works, and every `keep` byte of every tenant is what it was. Prints
// how many points it visited.
#include <algorithm>
#include <span>

#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

enum class Mode { once, from_then_on, out_of_memory, lost_context };
constexpr Mode kModes[] = {Mode::once, Mode::from_then_on, Mode::lost_context};

const char* name_of(Mode mode) {
  switch (mode) {
    case Mode::once:
      return "once";
    case Mode::from_then_on:
      return "from then on";
    case Mode::out_of_memory:  // which an operation may answer by trying with less
      return "out of memory from then on";
    case Mode::lost_context:
      return "context lost";
  }
  return "";
}

cu::FaultScope::Plan plan_of(Mode mode, std::uint64_t nth) {
  if (mode == Mode::once || mode == Mode::from_then_on) return {nth, mode == Mode::from_then_on};
  if (mode == Mode::out_of_memory) {
    return {.nth = nth, .from_then_on = true, .status = cu::kOutOfMemory};
  }
  return {.nth = nth, .status = cu::kLaunchFailed, .sticky = true};
}

struct Operation {
  const char* name;
  // Brings the pair to where the operation starts.
  std::function<void(Pair&)> prepare;
  std::function<void(Pair&)> act;
  // Whether one failing call may make it fail; rescue and close go on.
  bool may_fail = true;
};

void check_state(const Pair& pair, bool succeeded) {
  for (const Patterned* one : {&pair.a, &pair.b}) {
    if (one->tenant == nullptr || one->tenant->failed) continue;
    // A tenant that runs has every block of the tags it runs with, mapped, with its bytes.
    if (one->tenant->running) {
      for (const auto& region : one->tenant->regions) {
        if (!region->selected) continue;
        for (const auto& slot : region->slots) CHECK(slot.mapping && slot.frame_valid);
        CHECK(region->state == RegionState::resident);
        CHECK_EQ(region->bytes_held, region->slots.size() * kBlock);
      }
      if (succeeded && one->keep != nullptr && one->keep->selected) CHECK(one->intact());
      if (one->discard != nullptr && one->discard->fill == Fill::poison && one->discard->selected) {
        CHECK(one->discard_is_own());
      }
    }
    for (const auto& region : one->tenant->regions) {
      if (region->policy != Policy::keep || one->tenant->running) continue;
      for (const auto& slot : region->slots) CHECK(slot.frame != kNoFrame || slot.host_valid);
    }
  }
}

// Which tags the tenants run with before an operation that throws.
class Uses {
 public:
  explicit Uses(const Pair& pair) {
    for (const Patterned* one : {&pair.a, &pair.b}) {
      if (one->tenant == nullptr) continue;
      for (const auto& region : one->tenant->regions) {
        before_.emplace_back(region, one->tenant->uses(*region));
      }
    }
  }
  // A tenant that still runs does so with the same tags, but for those that are not whole.
  void check_restored() const {
    for (const auto& [region, used] : before_) {
      const auto tenant = region->tenant.lock();
      if (tenant == nullptr || !tenant->running) continue;
      const bool whole = std::ranges::all_of(
          region->slots, [](const Slot& slot) { return static_cast<bool>(slot.mapping); });
      CHECK_EQ(tenant->uses(*region), used && whole);
    }
  }

 private:
  std::vector<std::pair<std::shared_ptr<Region>, bool>> before_;
};

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
      if (one.discard->fill == Fill::poison) CHECK(one.discard_is_own());
    }
  }
  // No frame was lost either: alone, a tenant can have the whole device.
  CHECK_EQ(pair.device->stats().blocks_total, 16);
  std::size_t held = 0;
  for (const auto& tenant : pair.device->tenants()) held += tenant->slots_on_device();
  CHECK_EQ(held + static_cast<std::size_t>(pair.device->stats().blocks_free), 16u);
}

struct Visited {
  std::uint64_t points = 0, failed = 0, restored = 0, failed_states = 0;
};

// One point of the sweep; false when the operation makes fewer than `nth` calls.
bool visit(const Operation& operation, std::uint64_t nth, Mode mode, Visited& visited) {
  const auto descriptors = open_descriptors();
  bool fired = false;
  {
    Pair pair;
    operation.prepare(pair);
    const Uses before(pair);
    const bool a_ran = pair.a.tenant != nullptr && pair.a.tenant->running;
    {
      const auto plan = plan_of(mode, nth);
      const cu::FaultScope fault(plan);
      bool threw = false;
      try {
        operation.act(pair);
      } catch (const DriverError& error) {
        threw = true;
        CHECK_EQ(error.code, plan.status);
      }
      fired = fault.calls_failed() > 0;
      visited.points += fired ? 1 : 0;
      visited.failed += threw ? 1 : 0;
      if (mode == Mode::once && fired) {
        // One failing call never leaves a tenant in a state that cannot be used.
        for (const Patterned* one : {&pair.a, &pair.b}) {
          CHECK(one->tenant == nullptr || !one->tenant->failed);
        }
        CHECK(operation.may_fail || !threw);
      }
      for (const Patterned* one : {&pair.a, &pair.b}) {
        visited.failed_states += one->tenant != nullptr && one->tenant->failed ? 1 : 0;
      }
      visited.restored += threw && a_ran && pair.a.tenant->running ? 1 : 0;
      check_state(pair, !threw && !fired);
      if (threw) before.check_restored();
    }
    if (fired) retry_and_compare(pair, operation);
    pair.device->close();
    check_nothing_left(pair.emulated.ordinal);
  }
  CHECK_EQ(open_descriptors(), descriptors);
  return fired;
}

void print(const char* name, Mode mode, const Visited& visited) {
  std::printf(
      "sweep %-9s %-12s %4lu points, %4lu failed it, %4lu with a still running, "
      "%4lu failed tenants\n",
      name, name_of(mode), static_cast<unsigned long>(visited.points),
      static_cast<unsigned long>(visited.failed), static_cast<unsigned long>(visited.restored),
      static_cast<unsigned long>(visited.failed_states));
}

void sweep(const Operation& operation, std::span<const Mode> modes = kModes) {
  for (const Mode mode : modes) {
    Visited visited;
    for (std::uint64_t nth = 1; visit(operation, nth, mode, visited); ++nth) {
    }
    CHECK(visited.points > 0);
    print(operation.name, mode, visited);
  }
}

// The same for the two ends of a device's life, which have no retry.
void sweep_life(const char* name, const std::function<bool(const cu::FaultScope::Plan&)>& fires) {
  for (const Mode mode : kModes) {
    Visited visited;
    for (std::uint64_t nth = 1;; ++nth) {
      const auto descriptors = open_descriptors();
      const bool fired = fires(plan_of(mode, nth));
      CHECK_EQ(open_descriptors(), descriptors);
      if (!fired) break;
      ++visited.points;
    }
    print(name, mode, visited);
  }
}

void prepare_both(Pair& pair) { pair.attach_both(); }

void prepare_keeping(Pair& pair) {
  pair.keep_blocks = 11;
  pair.attach_both();
}

// b's weights are clean and have a host copy; what is discarded comes back as poison.
void prepare_mixed(Pair& pair) {
  pair.keep_blocks = 7;
  pair.attach_both();
  for (const Patterned* one : {&pair.a, &pair.b}) {
    pair.device->set_fill(one->discard, Fill::poison);
  }
  pair.device->mark_clean(pair.b.keep);
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
}

}  // namespace

TEST(sweep_attach) {
  sweep({"attach",
         [](Pair& pair) {
           attach(*pair.device, pair.a, "a", 1, 8, 3);
           pair.device->release(pair.a.tenant);
         },
         [](Pair& pair) { attach(*pair.device, pair.b, "b", 2, 8, 3); }});
}

TEST(sweep_grow) {
  // a runs on 11 of 16 blocks; the three more come from b, which has them copied out.
  sweep({"grow", prepare_both, [](Pair& pair) {
           pair.device->resume(pair.a.tenant, 60);
           if (pair.extra == nullptr) {
             pair.extra = pair.device->allocate(pair.a.keep, 3 * kBlock, 512);
           }
         }});
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
  const auto act = [](Pair& pair) { pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60); };
  sweep({"switch", prepare_both, act});
  sweep({"switch 11", prepare_keeping, act});
  sweep({"to clean",
         [](Pair& pair) {
           prepare_mixed(pair);
           pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
         },
         act});
  sweep({"from clean", prepare_mixed,
         [](Pair& pair) { pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60); }});
}

// Tried again with the frames that exist: what the first try could not map back is suspended and
// stays so.
TEST(sweep_switch_without_memory) {
  constexpr Mode kMemory[] = {Mode::out_of_memory};
  const auto act = [](Pair& pair) { pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60); };
  sweep({"switch", prepare_both, act}, kMemory);
  sweep({"switch 11", prepare_keeping, act}, kMemory);
}

TEST(sweep_verified_switch) {
  sweep({"verified",
         [](Pair& pair) {
           prepare_mixed(pair);
           pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
           pair.device->set_verify(true);
         },
         [](Pair& pair) { pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60); }});
}

// Of a's eight blocks pages of 300 bytes are in use: several in a block, some in two of them.
void use_pages(Pair& pair) {
  pair.a.pages.clear();
  for (Bytes at = 40; at + 300 <= 6 * kBlock; at += 900) pair.a.pages.push_back({at, 300});
  pair.device->set_pages(pair.a.keep, pair.a.pages);
}

TEST(sweep_paged_switch) {
  const auto prepare = [](Pair& pair) {
    pair.attach_both();
    use_pages(pair);
  };
  sweep({"pages out", prepare,
         [](Pair& pair) { pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60); }});
  sweep({"pages in",
         [&](Pair& pair) {
           prepare(pair);
           pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
         },
         [](Pair& pair) { pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60); }});
  sweep({"verified",
         [&](Pair& pair) {
           prepare(pair);
           pair.device->set_verify(true);
         },
         [](Pair& pair) { pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60); }});
  sweep({"pages read", prepare,
         [](Pair& pair) { CHECK(pair.a.matches(pair.device->rescue(pair.a.tenant))); }, false});
}

TEST(sweep_page_tables) {
  // a has a third tag of three blocks, none of which has a page yet.
  const auto prepare = [](Pair& pair) {
    pair.attach_both();
    use_pages(pair);
    const auto cache = pair.device->region(pair.a.tenant, "other", Policy::keep, 0);
    pair.device->set_pages(cache, std::vector<Piece>{});
    pair.extra = pair.device->allocate(cache, 3 * kBlock, 512);
    pair.device->host_pool()->trim();  // what was given back is not there to be taken again
  };
  sweep({"set pages", prepare, [](Pair& pair) {
           pair.device->resume(pair.a.tenant, 60);
           pair.device->set_pages(pair.extra->region(), {{{0, 700}, {900, 2 * kBlock}}});
         }});
  // Nobody says which of them are in use: pinned memory for all of it is taken in the switch.
  sweep({"no pages",
         [&](Pair& pair) {
           prepare(pair);
           pair.device->forget_pages(pair.extra->region());
         },
         [](Pair& pair) { pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60); }});
  sweep({"none out",
         [&](Pair& pair) {
           prepare(pair);
           pair.device->forget_pages(pair.extra->region());
         },
         [](Pair& pair) { pair.device->suspend(pair.a.tenant, 60); }});
}

TEST(sweep_tags) {
  sweep({"kv out", prepare_both,
         [](Pair& pair) { pair.device->suspend(pair.a.tenant, 60, Tags{{"kv_cache"}}); }});
  sweep({"weights out", prepare_both, [](Pair& pair) {
           pair.device->resume(pair.a.tenant, 60);
           pair.device->suspend(pair.a.tenant, 60, Tags{{"weights"}});
         }});
  // a has given its KV up already and goes on with a third tag.
  sweep(
      {"both out",
       [](Pair& pair) {
         pair.attach_both();
         const auto other = pair.device->region(pair.a.tenant, "other", Policy::keep, 0);
         pair.extra = pair.device->allocate(other, 2 * kBlock, 512);
         pair.device->suspend(pair.a.tenant, 60, Tags{{"kv_cache"}});
       },
       [](Pair& pair) { pair.device->suspend(pair.a.tenant, 60, Tags{{"weights", "kv_cache"}}); }});
  // b runs with its KV alone; a, idle, gives up what b's weights need.
  sweep({"weights in",
         [](Pair& pair) {
           pair.attach_both();
           pair.device->suspend(pair.b.tenant, 60);
           pair.device->release(pair.a.tenant);
           pair.device->resume(pair.b.tenant, 60, Tags{{"kv_cache"}});
         },
         [](Pair& pair) { pair.device->resume(pair.b.tenant, 60, Tags{{"weights"}}); }});
}

TEST(sweep_rescue) {
  for (const bool running : {true, false}) {
    sweep({running ? "rescue a" : "rescue b", prepare_both,
           [running](Pair& pair) {
             const Patterned& one = running ? pair.a : pair.b;
             const auto saved = pair.device->rescue(one.tenant);
             CHECK(one.matches(saved));
           },
           false});
  }
}

TEST(sweep_calibrate) {
  sweep({"calibrate",
         [](Pair& pair) {
           pair.attach_both();
           pair.device->suspend(pair.a.tenant, 60);
           pair.device->suspend(pair.b.tenant, 60);
         },
         [](Pair& pair) { pair.device->calibrate(2 * kBlock); }});
}

TEST(sweep_slowdown) {
  sweep({"slowdown",
         [](Pair& pair) {
           pair.attach_both();
           pair.device->suspend(pair.a.tenant, 60);
           pair.device->suspend(pair.b.tenant, 60);
         },
         [](Pair& pair) { pair.device->slowdown(2 * kBlock, 0); }});
}

TEST(sweep_close_tenant) {
  const auto act = [](Pair& pair) {
    if (pair.b.tenant == nullptr) return;
    pair.device->close_tenant(pair.b.tenant);
    pair.b = {};
  };
  // b has just stopped: its work has to be waited for.
  const auto prepare = [](Pair& pair) {
    pair.attach_both();
    pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
    pair.device->release(pair.b.tenant);
  };
  sweep({"close b", prepare, act, false});
}

TEST(sweep_open) {
  sweep_life("open", [](const cu::FaultScope::Plan& plan) {
    Emulated emulated;
    const cu::FaultScope fault(plan);
    try {
      Device device(emulated.driver, options_with());
    } catch (const DriverError&) {
    }
    return fault.calls_failed() > 0;
  });
}

TEST(sweep_close) {
  sweep_life("close", [](const cu::FaultScope::Plan& plan) {
    Pair pair;
    pair.attach_both();
    const cu::FaultScope fault(plan);
    pair.device->close();
    return fault.calls_failed() > 0;
  });
}

// The failure sweep over background copies: fail the n-th driver call of a prefetch, a write-back,
// or a switch with both behind it, once, from there on, and by losing the context. The work is done
// in the test's own thread, so that the n-th call is the same in every run.
#include "core_fleet.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// 8 + 2, 7 and 9 on 20: four blocks and more cross the link each way, and caches are given up.
constexpr const char* kTwentyBlocks =
    "h20?scale=4096&speed=1000&seed=3&capacity=88KiB&granularity=4KiB&block=4KiB&context=4KiB"
    "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns";

struct World : Fleet {
  explicit World(bool paged) : Fleet(20, {{8, 2}, {7}, {9}}, false, kTwentyBlocks) {
    if (paged) use_pages(2);
    turn(1);
    turn(0);
    if (paged) use_pages(0);
  }
  // Pages of 300 bytes, several in a block, some in two of them.
  void use_pages(std::size_t index) {
    turn(index);
    auto& one = members[index];
    for (Bytes at = 40; at + 300 <= one.bytes; at += 900) one.pages.push_back({at, 300});
    device->set_pages(one.keep, one.pages);
  }
};

struct Operation {
  const char* name;
  std::function<void(World&)> act;
};

void work(World& world, const std::shared_ptr<BackgroundCopy>& copy) {
  world.device->run_background();
  copy->wait(0);
}

const Operation kOperations[] = {
    {"prefetch", [](World& world) { work(world, world.prefetch(2)); }},
    {"write-back",
     [](World& world) {
       if (!world.tenant(0)->running) world.enter(0);
       work(world, world.device->write_back(world.tenant(0), "weights"));
     }},
    // The memory of pages changes hands behind a copy that may have failed.
    {"pages change",
     [](World& world) {
       auto& one = world.members[0];
       if (!one.tenant->running) world.enter(0);
       const auto copy = world.device->write_back(one.tenant, "weights");
       world.device->run_background();
       try {
         copy->wait(0);
       } catch (const DriverError&) {
       }
       auto pages = one.pages;
       if (!pages.empty()) pages.erase(pages.begin());
       if (!pages.empty()) world.device->set_pages(one.keep, pages);
       one.pages = std::move(pages);
     }},
    {"both, switch",
     [](World& world) {
       if (world.tenant(0)->running) {
         const auto written = world.device->write_back(world.tenant(0), "weights");
         const auto copy = world.prefetch(2);
         world.device->run_background();
         try {
           written->wait(0);
         } catch (const DriverError&) {
         }
         copy->wait(0);
       }
       world.enter(2);
     }},
};

enum class Mode { once, from_then_on, lost_context };

cu::FaultScope::Plan plan_of(Mode mode, std::uint64_t nth) {
  if (mode != Mode::lost_context) return {nth, mode == Mode::from_then_on};
  return {.nth = nth, .status = cu::kLaunchFailed, .sticky = true};
}

void check_state(const World& world) {
  for (const auto& one : world.members) {
    if (one.tenant->failed) continue;
    if (one.tenant->running) CHECK(one.tenant->all_mapped());
    for (const auto& slot : one.keep->slots) CHECK(slot.frame_valid || slot.host_valid);
    for (const auto& region : one.tenant->regions) {
      for (const auto& slot : region->slots) {
        CHECK(!slot.mapping || slot.frame != kNoFrame);
        CHECK(!slot.frame_valid || slot.frame != kNoFrame);
      }
    }
  }
}

bool visit(const Operation& operation, bool paged, std::uint64_t nth, Mode mode,
           std::uint64_t& raised) {
  const auto descriptors = open_descriptors();
  bool fired = false;
  {
    World world(paged);
    {
      const auto plan = plan_of(mode, nth);
      const cu::FaultScope fault(plan);
      try {
        operation.act(world);
      } catch (const DriverError& error) {
        CHECK_EQ(error.code, plan.status);
        ++raised;
      }
      fired = fault.calls_failed() > 0;
      check_state(world);
      if (mode == Mode::once) {
        for (const auto& one : world.members) CHECK(!one.tenant->failed);
      }
    }
    if (fired) {
      operation.act(world);
      check_state(world);
      world.check_all();
    }
    world.device->close();
    check_nothing_left(world.emulated.ordinal);
  }
  CHECK_EQ(open_descriptors(), descriptors);
  return fired;
}

void sweep(bool paged) {
  for (const auto& operation : kOperations) {
    for (const Mode mode : {Mode::once, Mode::from_then_on, Mode::lost_context}) {
      std::uint64_t raised = 0;
      std::uint64_t nth = 1;
      while (visit(operation, paged, nth, mode, raised)) ++nth;
      CHECK(nth > 1);
      const char* const names[] = {"once", "from then on", "context lost"};
      std::printf("sweep %-12s %-12s %4lu points, %4lu raised\n", operation.name,
                  names[static_cast<int>(mode)], static_cast<unsigned long>(nth - 1),
                  static_cast<unsigned long>(raised));
    }
  }
}

}  // namespace

TEST(sweep_background) { sweep(false); }

TEST(sweep_background_pages) { sweep(true); }

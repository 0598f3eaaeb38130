// The host pool: pieces per job, growth ahead and in the background, what is kept and what goes
// back, failures that leave nothing, pages, nodes and forked children.
#include <sys/mman.h>
#include <sys/wait.h>

#include <fstream>
#include <thread>

#include "core/host_pages.hpp"
#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

struct Pool {
  explicit Pool(Bytes budget = 64 * kMiB, Bytes piece_max = HostPool::kPieceMax)
      : context(std::make_shared<Context>(emulated.driver)),
        pool(std::make_shared<HostPool>(context, budget, piece_max)) {}
  std::size_t registrations() const { return emu::census(emulated.ordinal).registrations; }
  Emulated emulated;
  ContextRef context;
  std::shared_ptr<HostPool> pool;
};

cu::FaultScope::Plan failing_register(std::uint64_t nth, bool from_then_on) {
  cu::FaultScope::Plan plan;
  plan.nth = nth;
  plan.from_then_on = from_then_on;
  plan.status = cu::kOutOfMemory;
  plan.only = cu::Call::mem_host_register;
  return plan;
}

// What could not be undone is tried again.
void emulated_retry(Pool& host) {
  const ContextScope scope(*host.context);
  CHECK_EQ(host.emulated.driver->retry_buried(), 0u);
}

}  // namespace

TEST(extents_of_a_job_come_from_its_own_pieces) {
  Pool host;
  auto a = host.pool->allocate("a", kBlock, 3);
  auto b = host.pool->allocate("b", kBlock, 2);
  CHECK_EQ(host.pool->pieces(), 2u);
  CHECK_EQ(host.pool->used(), 5 * kBlock);
  a.pop_back();
  const auto again = host.pool->allocate("b", kBlock, 1);  // a's free place is not for b
  CHECK_EQ(host.pool->pieces(), 3u);
  for (const auto& extent : again) CHECK(extent.data() != nullptr);
}

TEST(a_free_piece_is_kept_for_its_job_and_trimmed) {
  Pool host;
  host.pool->allocate("a", kBlock, 4);  // dropped at once
  CHECK_EQ(host.registrations(), 1u);
  CHECK_EQ(host.pool->stats().free, 4 * kBlock);
  const auto again = host.pool->allocate("a", 2 * kBlock, 2);  // cut anew, not pinned anew
  CHECK_EQ(host.pool->stats().registrations, 1u);
  CHECK_EQ(host.pool->trim(), 0u);  // in use
  host.pool->allocate("b", kBlock, 8);
  CHECK_EQ(host.pool->trim("a"), 0u);
  CHECK_EQ(host.pool->trim("b"), 8 * kBlock);
  CHECK_EQ(host.registrations(), 1u);
}

TEST(at_most_an_eighth_of_the_budget_is_kept) {
  Pool host(64 * kBlock);
  for (const char* job : {"a", "b", "c"}) host.pool->allocate(job, kBlock, 4);
  CHECK_EQ(host.pool->registered(), 8 * kBlock);  // a's, the longest free, is gone
  CHECK_EQ(host.pool->trim("a"), 0u);
}

TEST(what_is_kept_makes_room_for_others) {
  Pool host(64 * kBlock);
  host.pool->allocate("a", kBlock, 8);
  CHECK_EQ(host.pool->registered(), 8 * kBlock);
  const auto all = host.pool->allocate("b", kBlock, 64);
  CHECK_EQ(host.pool->registered(), 64 * kBlock);
  CHECK_EQ(host.pool->trim("a"), 0u);
  try {
    host.pool->allocate("a", kBlock, 1);
    CHECK(false);
  } catch (const Refusal& refusal) {
    CHECK(refusal.kind == Refusal::Kind::host_memory);
    CHECK_EQ(refusal.bytes_needed, kBlock);
    CHECK_EQ(refusal.bytes_available, 0u);
  }
}

TEST(growth_in_small_steps_costs_two_percent_and_few_registrations) {
  Pool host;
  std::vector<Extent> held;
  for (int step = 0; step < 1000; ++step) {
    auto more = host.pool->allocate("a", kBlock, 1);
    held.push_back(std::move(more.front()));
  }
  CHECK(host.pool->registered() - host.pool->used() <= host.pool->used() / 50);
  CHECK(host.pool->stats().registrations < 300);
}

TEST(a_growth_in_the_background_is_used_as_it_comes) {
  Pool host;
  host.pool->expect_unit(kBlock);
  const auto growth = host.pool->reserve("a", 5 * kBlock - 1);
  CHECK_EQ(growth->total(), 5 * kBlock);
  const auto extents = host.pool->allocate("a", kBlock, 5);  // waits, and pins nothing more
  CHECK(growth->wait(-1));
  CHECK_EQ(growth->done(), growth->total());
  CHECK(!growth->cancelled());
  CHECK_EQ(host.pool->stats().registrations, 1u);
  CHECK_EQ(host.pool->registered(), 5 * kBlock);
}

TEST(what_was_asked_for_ahead_is_kept_until_it_was_used) {
  Pool host(64 * kBlock);
  host.pool->expect_unit(kBlock);
  host.pool->reserve("a", 32 * kBlock)->wait(-1);
  host.pool->allocate("b", kBlock, 8);
  CHECK_EQ(host.pool->stats().reserved, 32 * kBlock);
  CHECK_THROWS(host.pool->allocate("b", kBlock, 33), Refusal, "at its budget");
  CHECK_THROWS(host.pool->reserve("b", 33 * kBlock), Refusal, "at its budget");
  CHECK_EQ(host.pool->stats().reserved, 32 * kBlock);
  CHECK_EQ(host.pool->stats().growing, 0u);
  CHECK_EQ(host.pool->trim(), 40 * kBlock);
  CHECK_EQ(host.registrations(), 0u);
}

TEST(a_cancelled_growth_gives_back_what_nobody_uses) {
  Pool host(64 * kMiB, kBlock);
  host.pool->expect_unit(kBlock);
  const auto growth = host.pool->reserve("a", 16 * kMiB);  // 4096 pieces
  const auto used = host.pool->allocate("b", kBlock, 1);
  while (growth->done() == 0) std::this_thread::yield();
  growth->cancel();
  CHECK(growth->wait(-1));
  CHECK(growth->cancelled());
  CHECK_EQ(growth->done(), 0u);
  CHECK_EQ(host.pool->registered(), kBlock);
  CHECK_EQ(host.registrations(), 1u);
  CHECK_EQ(host.pool->stats().growing, 0u);
}

TEST(a_cancelled_growth_gives_back_its_own_pieces_only) {
  Pool host(64 * kMiB, kBlock);
  host.pool->expect_unit(kBlock);
  host.pool->reserve("a", 8 * kBlock)->wait(-1);
  for (int round = 0; round < 50; ++round) {  // one may be made where an earlier one was
    const auto growth = host.pool->reserve("b", 16 * kMiB);
    growth->cancel();
    growth->wait(-1);
    CHECK(growth->cancelled());
    CHECK_EQ(growth->done(), 0u);
    CHECK_EQ(host.pool->stats().reserved, 8 * kBlock);
  }
}

TEST(what_is_trimmed_while_it_grows_is_not_done) {
  Pool host(64 * kMiB, kBlock);
  host.pool->expect_unit(kBlock);
  const auto growth = host.pool->reserve("a", 16 * kMiB);
  while (growth->done() < 10 * kBlock) std::this_thread::yield();
  CHECK(host.pool->trim() >= 10 * kBlock);
  {
    const auto used = host.pool->allocate("a", kBlock, 1);
  }  // kept, not reserved any more
  host.pool->trim("a");
  growth->wait(-1);
  CHECK(growth->done() < growth->total());
  CHECK(!growth->cancelled());
  CHECK_EQ(growth->done(), host.pool->registered());
}

TEST(a_registration_that_fails_at_piece_k_leaves_nothing) {
  constexpr std::uint64_t kPieces = 4;
  for (const bool ahead : {false, true}) {
    for (std::uint64_t nth = 1; nth <= kPieces; ++nth) {
      Pool host(64 * kMiB, 2 * kBlock);
      host.pool->expect_unit(kBlock);
      const std::size_t before = open_descriptors();
      {
        const cu::FaultScope fault(failing_register(nth, true));
        if (ahead) {
          const auto growth = host.pool->reserve("a", 2 * kBlock * kPieces);
          CHECK_THROWS(growth->wait(-1), OutOfMemory, "cuMemHostRegister");
          CHECK_EQ(growth->done(), 0u);
          CHECK(!growth->cancelled());
        } else {
          CHECK_THROWS(host.pool->allocate("a", kBlock, 2 * kPieces), OutOfMemory,
                       "cuMemHostRegister");
        }
      }
      CHECK_EQ(host.pool->registered(), 0u);
      CHECK_EQ(host.pool->stats().growing, 0u);
      CHECK_EQ(host.registrations(), 0u);
      CHECK_EQ(open_descriptors(), before);
      const auto extents = host.pool->allocate("a", kBlock, 2 * kPieces);  // a retry works
      CHECK_EQ(host.registrations(), kPieces);
      std::map<std::byte*, int> seen;  // none lies across a piece's edge, none twice
      for (const auto& extent : extents) CHECK_EQ(++seen[extent.data()], 1);
    }
  }
}

TEST(a_piece_that_is_refused_is_made_in_halves_for_the_rest_of_its_growth) {
  for (const bool ahead : {false, true}) {
    Pool host(64 * kMiB, 8 * kBlock);
    host.pool->expect_unit(kBlock);
    const auto grow = [&] {
      if (ahead) host.pool->reserve("a", 19 * kBlock)->wait(-1);
      return host.pool->allocate("a", kBlock, 19);
    };
    {
      const cu::FaultScope fault(failing_register(2, false));  // 8, then not 8 but 4, 4, 3
      CHECK_EQ(grow().size(), 19u);
    }
    const auto stats = host.pool->stats();
    CHECK_EQ(stats.pieces, 4u);
    CHECK_EQ(stats.refused, 1u);
    CHECK_EQ(stats.registered, 19 * kBlock);
    CHECK_EQ(stats.growing, 0u);
    CHECK_EQ(host.pool->trim(), 19 * kBlock);
    CHECK_EQ(grow().size(), 19u);  // the next one is not held back
    CHECK_EQ(host.pool->pieces(), 3u);
    CHECK_EQ(host.pool->stats().refused, 1u);
  }
}

TEST(one_extent_is_the_least_that_is_tried_and_then_it_is_an_error) {
  Pool host;
  const cu::FaultScope fault(failing_register(1, true));
  try {
    host.pool->allocate("a", kBlock, 13);  // 13, 7, 4, 2, 1
    CHECK(false);
  } catch (const OutOfMemory& error) {
    CHECK(error.call == cu::Call::mem_host_register);
    CHECK_EQ(error.bytes, 13 * kBlock);
    CHECK(std::string(error.what()).find("was refused too") != std::string::npos);
  }
  CHECK_EQ(host.pool->stats().refused, 4u);
  CHECK_EQ(fault.calls_failed(), 5u);
}

TEST(a_context_that_is_lost_is_not_asked_again) {
  Pool host;
  auto plan = failing_register(1, true);
  plan.status = cu::kIllegalAddress;
  const cu::FaultScope fault(plan);
  CHECK_THROWS(host.pool->allocate("a", kBlock, 8), DriverError, "cuMemHostRegister");
  CHECK_EQ(fault.calls_failed(), 1u);
}

TEST(a_growth_survives_every_failing_call_with_all_or_nothing) {
  std::uint64_t points = 0;
  for (const bool ahead : {false, true}) {
    for (const bool from_then_on : {false, true}) {
      for (std::uint64_t nth = 1;; ++nth) {
        Pool host(64 * kMiB, 4 * kBlock);
        host.pool->expect_unit(kBlock);
        const std::size_t before = open_descriptors();
        std::vector<Extent> extents;
        bool fired = false;
        {
          const cu::FaultScope fault({nth, from_then_on});
          try {
            if (ahead) host.pool->reserve("a", 11 * kBlock)->wait(-1);
            extents = host.pool->allocate("a", kBlock, 11);
          } catch (const DriverError&) {
          }
          fired = fault.calls_failed() > 0;
        }
        CHECK_EQ(host.pool->used(), extents.size() * kBlock);
        CHECK(extents.empty() || extents.size() == 11);
        CHECK_EQ(host.pool->stats().growing, 0u);
        if (extents.empty()) {
          host.pool->trim();
          emulated_retry(host);
          CHECK_EQ(host.registrations(), 0u);
          CHECK_EQ(open_descriptors(), before);
        }
        if (!fired) break;
        ++points;
        extents.clear();
        CHECK_EQ(host.pool->allocate("a", kBlock, 11).size(), 11u);
      }
    }
  }
  std::printf("%lu points\n", static_cast<unsigned long>(points));
  CHECK(points > 20);
}

TEST(a_pool_that_goes_away_stops_its_growth) {
  Pool host;
  host.pool->expect_unit(kBlock);
  const auto growth = host.pool->reserve("a", 16 * kMiB);
  host.pool.reset();
  CHECK(growth->finished());
  CHECK_EQ(host.registrations(), 0u);
}

TEST(jobs_grow_beside_each_other) {
  Pool host(256 * kMiB);
  host.pool->expect_unit(kBlock);
  const auto ahead = host.pool->reserve("a", 8 * kMiB);
  std::vector<std::jthread> team;
  for (const char* job : {"a", "a", "b", "c"}) {
    team.emplace_back([&, job] {
      for (int round = 0; round < 20; ++round) {
        auto some = host.pool->allocate(job, kBlock, 40);
        std::memset(some.front().data(), round, kBlock);
      }
    });
  }
  team.clear();
  ahead->wait(-1);
  CHECK_EQ(host.pool->used(), 0u);
  host.pool->trim();
  CHECK_EQ(host.pool->registered(), 0u);
  CHECK_EQ(host.registrations(), 0u);
}

TEST(a_forked_child_cannot_touch_pinned_memory) {
  Pool host;
  const auto extents = host.pool->allocate("a", kBlock, 1);
  auto* const byte = reinterpret_cast<volatile unsigned char*>(extents.front().data());
  *byte = 7;
  const pid_t child = fork();
  if (child == 0) {
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    sigaction(SIGSEGV, &plain, nullptr);
    *byte = 9;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  CHECK_EQ(static_cast<int>(*byte), 7);
}

// --- pages and nodes

TEST(page_kinds_are_what_is_mapped) {
  HostPages::Options options;
  options.bytes = 4 * kMiB;
  options.node = numa_nodes().front();
  options.threads = 2;
  const HostPages pages(options);
  CHECK(reinterpret_cast<std::uintptr_t>(pages.data()) % HostPages::kHugeBytes == 0);
  CHECK_EQ(huge_bytes_mapped(pages.data(), pages.bytes()),
           pages.kind() == PageKind::hugetlb ? 0 : pages.bytes_huge());
  CHECK_EQ(pages.kind() == PageKind::small, 2 * pages.bytes_huge() <= pages.bytes());
  std::vector<unsigned char> present(pages.bytes() / 4096);
  CHECK_EQ(mincore(pages.data(), pages.bytes(), present.data()), 0);
  for (const unsigned char page : present) CHECK_EQ(page & 1, 1);
  options.huge = false;
  const HostPages small(options);
  CHECK(small.kind() == PageKind::small);
}

TEST(huge_bytes_are_those_of_the_range) {
  const std::string path = "/tmp/weave-smaps-" + std::to_string(getpid());
  std::ofstream(path) << "1000-2000 rw-s 00000000 00:01 1 /memfd:weave\n"
                         "ShmemPmdMapped:     2048 kB\nFilePmdMapped: 7 kB\n"
                         "2000-3000 rw-s 00000000 00:01 1 /memfd:weave\n"
                         "ShmemPmdMapped:     4096 kB\n"
                         "4000-5000 rw-s 00000000 00:01 1 /memfd:weave\n"
                         "ShmemPmdMapped:     8192 kB\n";
  auto* const data = reinterpret_cast<const std::byte*>(0x2000);
  CHECK_EQ(huge_bytes_mapped(data, 0x1000, path), 4 * kMiB);
  CHECK_EQ(huge_bytes_mapped(data - 0x1000, 0x2000, path), 6 * kMiB);
  CHECK_EQ(huge_bytes_mapped(data + 0x1000, 0x1000, path), 0u);
  std::remove(path.c_str());
}

TEST(pages_that_are_not_there_are_refused) {
  HostPages::Options options;
  options.bytes = Bytes{1} << 62;
  options.node = numa_nodes().front();
  CHECK_THROWS(HostPages(options), Refusal, "pinned host memory");
  const std::atomic<bool> cancel{true};
  options.bytes = kMiB;
  options.cancel = &cancel;
  const std::size_t before = open_descriptors();
  try {
    const HostPages pages(options);
    CHECK(false);
  } catch (const HostPages::Cancelled&) {
  }
  CHECK_EQ(open_descriptors(), before);
}

TEST(nodes_are_read_and_verified) {
  CHECK_EQ(parse_cpu_list("0-2,7\n"), (std::vector<int>{0, 1, 2, 7}));
  CHECK(parse_cpu_list("").empty());
  CHECK_EQ(numa_nodes("/nonexistent").size(), 1u);
  HostPages::Options options;
  options.bytes = 64 * 4096;
  options.node = numa_nodes().front();
  options.bind = true;
  const HostPages bound(options);
  const auto where = nodes_of(bound.data(), bound.bytes(), 8);
  for (const int node : where) CHECK_EQ(node, options.node.id);
  CHECK_EQ(bound.node(), where.empty() ? -1 : options.node.id);
  // Where binding is refused the touching threads are pinned; the same pages come of it.
  options.node.id = 4096;
  CHECK(!bind_to_node(bound.data(), bound.bytes(), options.node.id));
  const HostPages touched(options);
  CHECK_EQ(touched.node(), -1);  // no such node: said to be unknown, not claimed
}

// Failures that users of other runtimes met, tried on the core: frees, pauses and map changes while
// work is on the device, and ends of life in odd contexts. tests/cases.md says which row is which.
#include <sys/mman.h>

#include <thread>

#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// Copies take 0.1 s per 100 KB, so that work is still on the device when something else is asked.
const std::string kSlow = std::string(kSixteenBlocks) + "&h2d=100KB/s&d2h=1GB/s&pageable=100KB/s";

// A trainer's own work: a copy on a side stream (or the default one) into a region of a tenant.
class Work {
 public:
  Work(const Pair& pair, const Patterned& into, Bytes bytes, bool default_stream = false)
      : table_(counted_table()), bytes_(bytes) {
    CHECK_EQ(table_.primary_ctx_retain(&context_, pair.emulated.ordinal), 0);
    ordinal_ = pair.emulated.ordinal;
    data_ = static_cast<unsigned char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    CHECK_EQ(table_.ctx_push_current(context_), 0);
    CHECK_EQ(table_.mem_host_register(data_, bytes, cu::kHostRegisterPortable), 0);
    if (!default_stream) {
      CHECK_EQ(table_.stream_create(&stream_, cu::kStreamNonBlocking), 0);
    }
    for (Bytes offset = 0; offset < bytes; ++offset) data_[offset] = into.byte_at(offset);
    CHECK_EQ(table_.memcpy_htod_async(into.keep->address(), data_, bytes, stream_), 0);
  }
  ~Work() {
    table_.stream_synchronize(stream_);
    if (stream_ != nullptr) table_.stream_destroy(stream_);
    table_.mem_host_unregister(data_);
    cu::Context popped = nullptr;
    table_.ctx_pop_current(&popped);
    CHECK(popped == context_);
    table_.primary_ctx_release(ordinal_);
    munmap(data_, bytes_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  bool is_done() const { return table_.stream_query(stream_) == cu::kSuccess; }

 private:
  const cu::Table& table_;
  cu::Context context_ = nullptr;
  int ordinal_ = 0;
  cu::Stream stream_ = nullptr;
  Bytes bytes_;
  unsigned char* data_ = nullptr;
};

}  // namespace

TEST(freeing_memory_while_work_uses_it_unmaps_nothing) {
  Pair pair(kSlow.c_str());
  pair.attach_both();
  const auto mappings = emu::census(pair.emulated.ordinal).mappings;
  pair.a.seed += 10;
  const Work work(pair, pair.a, 4 * kBlock);
  pair.a.spans.clear();
  CHECK_EQ(emu::census(pair.emulated.ordinal).mappings, mappings);
  const auto again = pair.device->allocate(pair.a.keep, kBlock, 512);
  CHECK_EQ(again->address(), pair.a.keep->address());
}

TEST(suspending_waits_for_work_on_every_stream) {
  for (const bool default_stream : {false, true}) {
    Pair pair(kSlow.c_str());
    pair.attach_both();
    pair.a.seed += 10;
    {
      const Work work(pair, pair.a, pair.a.bytes, default_stream);
      // Only copies out: nothing of it would wait for the work's own direction of the link.
      pair.device->suspend(pair.a.tenant, 60);
      CHECK(work.is_done());
    }
    pair.device->resume(pair.a.tenant, 60);
    CHECK(pair.a.intact());
  }
}

TEST(closing_and_growing_at_the_cost_of_another_wait_for_work_too) {
  Pair pair(kSlow.c_str());
  pair.attach_both();
  pair.a.seed += 10;
  {
    const Work work(pair, pair.a, 2 * kBlock);
    // Takes the place of b's blocks.
    const auto more = pair.device->allocate(pair.a.keep, 3 * kBlock, 512);
    CHECK(work.is_done());
  }
  const Work work(pair, pair.a, 2 * kBlock);
  pair.device->close_tenant(pair.a.tenant);
  CHECK(work.is_done());
}

TEST(work_that_does_not_end_in_time_is_a_refusal_that_changes_nothing) {
  if (seed() != 0) return;  // a stepped device never makes anybody wait
  Pair pair(kSlow.c_str());
  pair.attach_both();
  pair.a.seed += 10;
  {
    const Work work(pair, pair.a, pair.a.bytes);
    CHECK_THROWS(pair.device->suspend(pair.a.tenant, 0.001), Refusal, "did not finish");
    CHECK_THROWS(pair.device->hand_over(pair.a.tenant, pair.b.tenant, 0.001), Refusal,
                 "did not finish");
    CHECK(pair.a.tenant->running && pair.a.tenant->all_mapped());
  }
  CHECK(pair.a.intact());
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
}

TEST(growing_does_not_wait_for_the_default_stream) {
  Pair pair(kSlow.c_str());
  attach(*pair.device, pair.a, "a", 1, 8, 1);
  const auto& table = counted_table();
  const auto started = table.now_ns();
  const Work work(pair, pair.a, pair.a.bytes, true);
  const auto more = pair.device->allocate(pair.a.keep, 3 * kBlock, 512);
  // Frames were free: nothing leaves, so nothing is drained.
  CHECK(!work.is_done() || table.now_ns() - started > 300'000'000);
}

TEST(memory_of_a_suspended_tenant_can_be_freed_and_its_place_is_used_again) {
  Pair pair;
  pair.attach_both();
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  const auto census = emu::census(pair.emulated.ordinal);
  const auto addresses = pair.a.spans.front()->address();
  pair.a.spans.erase(pair.a.spans.begin(), pair.a.spans.begin() + 4);
  CHECK(emu::census(pair.emulated.ordinal) == census);
  pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
  CHECK(pair.a.intact());  // what was not freed; what was keeps its bytes until it is used again
  const auto again = pair.device->allocate(pair.a.keep, kBlock, 512);
  CHECK_EQ(again->address(), addresses);
  CHECK_EQ(pair.a.keep->slots.size(), 8u);
}

TEST(everything_is_freed_whatever_context_is_current) {
  for (const int current : {0, 1, 2}) {
    const auto& table = counted_table();
    const auto descriptors = open_descriptors();
    {
      Pair pair, other;
      pair.attach_both();
      cu::Context context = nullptr;
      if (current > 0) {
        const int ordinal = current == 1 ? pair.emulated.ordinal : other.emulated.ordinal;
        CHECK_EQ(table.primary_ctx_retain(&context, ordinal), 0);
        CHECK_EQ(table.ctx_push_current(context), 0);
      }
      pair.device->close_tenant(pair.b.tenant);
      pair.b = {};
      pair.device->close();
      cu::Context now = nullptr;
      CHECK_EQ(table.ctx_get_current(&now), 0);
      CHECK(now == context);
      check_nothing_left(pair.emulated.ordinal);
      if (current > 0) {
        const int ordinal = current == 1 ? pair.emulated.ordinal : other.emulated.ordinal;
        table.ctx_pop_current(&context);
        CHECK_EQ(table.primary_ctx_release(ordinal), 0);
      }
    }
    CHECK_EQ(open_descriptors(), descriptors);
  }
}

namespace {

// Real drivers refuse registrations from 512 GiB on; this one from five blocks on.
cu::Status register_four_blocks(void* address, std::size_t bytes, unsigned flags) {
  if (bytes > 4 * kBlock) return cu::kOutOfMemory;
  return counted_table().mem_host_register(address, bytes, flags);
}

}  // namespace

TEST(a_driver_that_refuses_large_registrations_is_given_small_ones) {
  static_assert(HostPool::kPieceMax <= Bytes{1} << 30);
  const int ordinal = emu::add_device(emu::Spec::parse(spec_with_seed(kSixteenBlocks)));
  cu::Table table = counted_table();
  table.mem_host_register = register_four_blocks;
  {
    const auto driver = std::make_shared<Driver>(table, ordinal, [] {});
    auto options = options_with();
    options.host_pool =
        std::make_shared<HostPool>(std::make_shared<Context>(driver), Bytes{1} << 30, 4 * kBlock);
    Device device(driver, options);
    Patterned a;
    attach(device, a, "a", 1, 14, 0);
    CHECK(device.host_pool()->pieces() >= 4);
    device.suspend(a.tenant, 60);
    device.resume(a.tenant, 60);
    CHECK(a.intact());
  }
  check_nothing_left(ordinal);
  emu::remove_device(ordinal);
}

TEST(several_threads_may_close_a_device_at_once) {
  for (int round = 0; round < 50; ++round) {
    Pair pair;
    pair.attach_both();
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] { pair.device->close(); });
    }
    threads.clear();
    CHECK(pair.device->closed());
    check_nothing_left(pair.emulated.ordinal);
  }
}

// torch holds the primary context too, so it outlives the device, and with it what was registered:
// memory that is unmapped then would be taken for pinned when its addresses come again.
TEST(registrations_end_before_their_memory_whoever_else_holds_the_context) {
  const auto& table = counted_table();
  for (const std::uint64_t failing : {1u, 2u, 5u}) {
    Pair pair;
    pair.attach_both();
    cu::Context context = nullptr;
    CHECK_EQ(table.primary_ctx_retain(&context, pair.emulated.ordinal), 0);
    CHECK(emu::census(pair.emulated.ordinal).registrations > 0);
    for (std::uint64_t nth = 1; nth <= failing; ++nth) {
      const cu::FaultScope fault({1, true, cu::Call::mem_host_unregister});
      pair.device->close();
    }
    pair.device->close();
    CHECK_EQ(emu::census(pair.emulated.ordinal).registrations, 0u);
    CHECK_EQ(table.primary_ctx_release(pair.emulated.ordinal), 0);
    check_nothing_left(pair.emulated.ordinal);
  }
}

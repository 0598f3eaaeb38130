// The copy pipeline where it is hardest: blocks of several chunks, tenants that keep everything, so
// that every block that enters takes the frame of one that leaves, and copies are undone half-way.
// Also what a device must wait for, and what it does when the driver has less memory than before.
#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr Bytes kLarge = Bytes{256} << 10;  // four chunks of 64 KiB
constexpr const char* kLargeBlocks =
    "h20?scale=4096&speed=400&seed=5&capacity=4608KiB&granularity=4KiB&block=256KiB&context=4KiB"
    "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns";

struct Keeper {
  std::shared_ptr<Tenant> tenant;
  std::shared_ptr<Region> region;
  std::shared_ptr<Span> span;
  std::uint64_t seed = 0;

  std::uint64_t* words() const {
    emu::host_view(region->address(), true);
    return reinterpret_cast<std::uint64_t*>(region->address());
  }
  std::size_t count() const { return region->slots.size() * kLarge / 8; }
  void write(std::uint64_t new_seed) {
    seed = new_seed;
    for (std::size_t i = 0; i < count(); ++i) words()[i] = (i * 0x9E3779B97F4A7C15u) ^ seed;
  }
  std::size_t wrong_words() const {
    std::size_t wrong = 0;
    const std::uint64_t* data = words();
    for (std::size_t i = 0; i < count(); ++i)
      wrong += data[i] != ((i * 0x9E3779B97F4A7C15u) ^ seed);
    return wrong;
  }
};

// Two tenants of 11 blocks on 16 or 17: five or six blocks leave and enter at every switch.
struct Keepers {
  Keepers() : emulated(kLargeBlocks) {
    Device::Options options;
    options.block_bytes = kLarge;
    options.host_budget = Bytes{1} << 30;
    device = std::make_shared<Device>(emulated.driver, options);
    for (Keeper* one : {&a, &b}) {
      one->tenant = device->add_tenant(one == &a ? "a" : "b", "job");
      device->resume(one->tenant, 60);
      one->region = device->region(one->tenant, "weights", Policy::keep, 0);
      one->span = device->allocate(one->region, 11 * kLarge, 512);
      one->write(one == &a ? 1 : 2);
      device->release(one->tenant);
    }
    device->resume(a.tenant, 60);
  }
  Emulated emulated;
  std::shared_ptr<Device> device;
  Keeper a, b;
};

}  // namespace

TEST(a_chunk_enters_only_when_the_one_before_it_has_left) {
  Keepers pair;
  for (std::uint64_t turn = 0; turn < 12; ++turn) {
    CHECK_EQ(pair.a.wrong_words(), 0u);
    pair.a.write(100 + turn);
    const auto report = pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
    CHECK(report.bytes_out >= 5 * kLarge && report.bytes_in == report.bytes_out);
    CHECK_EQ(pair.b.wrong_words(), 0u);
    pair.b.write(200 + turn);
    pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
  }
}

TEST(a_switch_that_fails_half_way_brings_overwritten_bytes_back) {
  std::uint64_t restored = 0;
  for (const auto call : {cu::Call::memcpy_htod_async, cu::Call::memcpy_dtoh_async,
                          cu::Call::event_record, cu::Call::stream_wait_event, cu::Call::mem_map}) {
    for (std::uint64_t nth = 1;; nth += call == cu::Call::mem_map ? 1 : 3) {
      Keepers pair;
      bool fired = false;
      {
        const cu::FaultScope fault({.nth = nth, .only = call});
        try {
          pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
        } catch (const DriverError&) {
          CHECK(pair.a.tenant->running);
          CHECK_EQ(pair.a.wrong_words(), 0u);
          ++restored;
        }
        fired = fault.calls_failed() > 0;
      }
      if (!fired) break;
      if (pair.a.tenant->running) pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
      CHECK_EQ(pair.b.wrong_words(), 0u);
      pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
      CHECK_EQ(pair.a.wrong_words(), 0u);
    }
  }
  std::printf("%lu switches were undone with bytes already overwritten or blocks unmapped\n",
              static_cast<unsigned long>(restored));
  CHECK(restored > 20);
}

TEST(what_cannot_be_brought_back_is_completed_on_the_host) {
  std::uint64_t on_host = 0;
  // The way in is broken from there on, so nothing can be restored; the way out still works.
  for (std::uint64_t nth = 1;; nth += 2) {
    Keepers pair;
    bool fired = false;
    {
      const cu::FaultScope fault(
          {.nth = nth, .from_then_on = true, .only = cu::Call::memcpy_htod_async});
      try {
        pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
      } catch (const DriverError&) {
        CHECK(!pair.a.tenant->failed && !pair.b.tenant->failed);
        on_host += pair.a.tenant->running ? 0 : 1;
      }
      fired = fault.calls_failed() > 0;
    }
    if (!fired) break;
    for (Keeper* one : {&pair.a, &pair.b}) {
      if (pair.a.tenant->running) pair.device->release(pair.a.tenant);
      pair.device->resume(one->tenant, 60);
      CHECK_EQ(one->wrong_words(), 0u);
      pair.device->release(one->tenant);
    }
  }
  CHECK(on_host > 3);
}

TEST(reading_and_closing_wait_for_work_of_a_phase_that_has_ended) {
  // 8 blocks at 100 kB/s take a third of a second: far longer than the calls below.
  Emulated emulated(
      "h20?scale=4096&speed=1&seed=3&capacity=72KiB&granularity=4KiB&block=4KiB&context=4KiB"
      "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns&h2d=100KB/s&d2h=10GB/s");
  Device device(emulated.driver, options_with());
  Patterned a;
  attach(device, a, "a", 1, 8, 0);
  const auto& table = counted_table();
  cu::Context context = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&context, emulated.ordinal), cu::kSuccess);
  CHECK_EQ(table.ctx_push_current(context), cu::kSuccess);
  cu::Stream stream = nullptr;
  CHECK_EQ(table.stream_create(&stream, cu::kStreamNonBlocking), cu::kSuccess);
  void* pinned = aligned_alloc(4096, 8 * kBlock);
  std::memset(pinned, 0xAB, 8 * kBlock);
  CHECK_EQ(table.mem_host_register(pinned, 8 * kBlock, cu::kHostRegisterPortable), cu::kSuccess);

  // The trainer's own asynchronous work, queued in the phase and still running at its end.
  const auto work = [&] {
    for (Bytes block = 0; block < 8; ++block) {
      CHECK_EQ(table.memcpy_htod_async(a.keep->address() + block * kBlock, pinned, kBlock, stream),
               cu::kSuccess);
    }
  };
  work();
  device.release(a.tenant);
  const auto saved = device.rescue(a.tenant);
  for (const auto byte : saved.at("weights")) CHECK_EQ(static_cast<unsigned>(byte), 0xABu);

  device.resume(a.tenant, 60);
  work();
  device.release(a.tenant);
  device.close_tenant(a.tenant);
  CHECK_EQ(table.stream_synchronize(stream), cu::kSuccess);  // not 700: nothing ran into a hole

  CHECK_EQ(table.mem_host_unregister(pinned), cu::kSuccess);
  CHECK_EQ(table.stream_destroy(stream), cu::kSuccess);
  CHECK_EQ(table.ctx_pop_current(&context), cu::kSuccess);
  CHECK_EQ(table.primary_ctx_release(emulated.ordinal), cu::kSuccess);
  std::free(pinned);
}

TEST(when_the_driver_has_less_memory_idle_tenants_make_room) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  Patterned a, b;
  attach(device, a, "a", 1, 8, 0);
  device.release(a.tenant);
  // Somebody else takes 6 of the 9 blocks that are left (8 of our 16, and the margin).
  cu::MemAllocationProp prop{};
  prop.type = cu::kAllocationPinned;
  prop.location = {cu::kLocationDevice, emulated.ordinal};
  std::vector<cu::AllocHandle> taken(6);
  for (auto& handle : taken) {
    CHECK_EQ(counted_table().mem_create(&handle, kBlock, &prop, 0), cu::kSuccess);
  }
  attach(device, b, "b", 2, 8, 0);
  CHECK(b.intact());
  device.hand_over(b.tenant, a.tenant, 60);
  CHECK(a.intact());
  CHECK_THROWS(device.allocate(a.keep, 8 * kBlock, 512), OutOfMemory, "cuMemCreate");
  CHECK(a.intact());
  for (const auto handle : taken) CHECK_EQ(counted_table().mem_release(handle), cu::kSuccess);
  // The memory is back, and so is what the tenant may have.
  const auto span = device.allocate(a.keep, 8 * kBlock, 512);
  device.hand_over(a.tenant, b.tenant, 60);
  CHECK(b.intact());
}

TEST(a_drain_without_limit_is_allowed) {
  Pair pair;
  pair.attach_both();
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, std::numeric_limits<double>::infinity());
  CHECK(pair.b.intact());
}

TEST(a_host_pool_belongs_to_one_driver) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  auto other = counted_table();
  other.mem_host_register = emu::table().mem_host_register;
  const auto foreign = std::make_shared<Driver>(other, emulated.ordinal);
  auto options = options_with();
  options.host_pool = device.host_pool();
  CHECK_THROWS(Device(foreign, options), UsageError, "one driver");
}

// The core on an undisturbed device: bytes, addresses, counters, refusals, and ends of life.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>

#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

Refusal::Kind refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Refusal& refusal) {
    return refusal.kind;
  }
  CHECK(false && "no refusal was thrown");
  return Refusal::Kind::device_not_found;
}

}  // namespace

TEST(bytes_and_addresses_survive_many_switches) {
  Pair pair;
  pair.attach_both();
  const auto address_a = pair.a.keep->address();
  for (int turn = 0; turn < 20; ++turn) {
    CHECK(pair.a.intact());
    pair.a.seed += 2;
    pair.a.write();
    const auto report = pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
    CHECK(report.bytes_out > 0);
    CHECK_EQ(report.incoming, "job/b");
    CHECK(pair.b.intact());
    pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
  }
  CHECK_EQ(pair.a.keep->address(), address_a);
  CHECK_EQ(emu::census(pair.emulated.ordinal).pageable_copies, 0u);
}

TEST(only_the_excess_moves_and_discard_costs_nothing) {
  Pair pair;
  pair.attach_both();
  // b needs 11 of 16 frames and has 5, so a gives up 6. Its three discard blocks go first and are
  // not copied.
  const auto generation = pair.a.discard->generation.load();
  const auto report = pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK_EQ(report.bytes_out, 3 * kBlock);
  CHECK(report.bytes_in <= 6 * kBlock);
  CHECK_EQ(pair.a.discard->generation.load(), generation + 1);
}

TEST(steady_state_creates_and_registers_nothing) {
  Pair pair;
  pair.attach_both();
  const auto cycle = [&] {
    pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
    pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
  };
  cycle();
  const auto before = cu::call_counts(cu::Upstream::emulated);
  const auto census = emu::census(pair.emulated.ordinal);
  for (int turn = 0; turn < 20; ++turn) cycle();
  const auto after = cu::call_counts(cu::Upstream::emulated);
  for (const auto call : {cu::Call::mem_create, cu::Call::mem_release, cu::Call::mem_host_register,
                          cu::Call::mem_host_unregister, cu::Call::mem_address_reserve,
                          cu::Call::stream_create, cu::Call::event_create}) {
    CHECK_EQ(after[static_cast<std::size_t>(call)], before[static_cast<std::size_t>(call)]);
  }
  CHECK(emu::census(pair.emulated.ordinal) == census);
}

TEST(tenants_that_fit_together_never_move_a_byte) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  Patterned a, b;
  attach(device, a, "a", 1, 4, 1);
  device.release(a.tenant);
  attach(device, b, "b", 2, 4, 1);
  for (int turn = 0; turn < 5; ++turn) {
    const auto there = device.hand_over(b.tenant, a.tenant, 60);
    const auto back = device.hand_over(a.tenant, b.tenant, 60);
    CHECK_EQ(there.bytes_out + there.bytes_in + back.bytes_out + back.bytes_in, 0u);
    CHECK_EQ(there.blocks_remapped, 0u);
  }
  CHECK_EQ(a.discard->generation.load(), 0u);
}

TEST(suspend_and_resume_twice_are_counted_no_ops) {
  Pair pair;
  pair.attach_both();
  pair.device->suspend(pair.a.tenant, 60);
  CHECK(pair.a.keep->state == RegionState::host);
  CHECK(pair.a.discard->state == RegionState::discarded);
  pair.device->suspend(pair.a.tenant, 60);
  pair.device->resume(pair.a.tenant, 60);
  pair.device->resume(pair.a.tenant, 60);
  CHECK(pair.a.intact());
  CHECK_EQ(pair.device->stats().noop_suspends, 1u);
  CHECK_EQ(pair.device->stats().noop_resumes, 1u);
}

TEST(a_running_tenant_is_never_evicted) {
  Pair pair;
  pair.attach_both();
  CHECK(refusal_of([&] { pair.device->resume(pair.b.tenant, 60); }) ==
        Refusal::Kind::resume_failed);
  CHECK(pair.a.tenant->running);
  CHECK(pair.a.intact());
  // Growth of a beyond the device, and of a tenant that does not run.
  CHECK(refusal_of([&] { pair.device->allocate(pair.a.keep, 6 * kBlock, 512); }) ==
        Refusal::Kind::growth_refused);
  CHECK(refusal_of([&] { pair.device->allocate(pair.b.keep, kBlock, 512); }) ==
        Refusal::Kind::not_resident);
  // Up to the device's size it takes from the idle one.
  const auto span = pair.device->allocate(pair.a.keep, 5 * kBlock, 512);
  CHECK_EQ(pair.b.tenant->slots_on_device(), 0u);
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
}

TEST(budget_of_the_host_pool_is_kept) {
  Emulated emulated;
  Device device(emulated.driver, options_with(2 * kBlock));
  const auto tenant = device.add_tenant("a", "job");
  device.resume(tenant, 60);
  const auto region = device.region(tenant, "weights", Policy::keep, 0);
  CHECK(refusal_of([&] { device.allocate(region, 3 * kBlock, 512); }) ==
        Refusal::Kind::host_memory);
  CHECK_EQ(region->slots.size(), 0u);
  const auto span = device.allocate(region, 2 * kBlock, 512);
  CHECK_EQ(device.host_pool()->registered(), 2 * kBlock);
}

TEST(a_dropped_span_is_reused_at_the_same_address) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 4, 1);
  auto first = pair.device->allocate(pair.a.keep, 1000, 512);
  const auto address = first->address();
  CHECK_EQ(address % 512, 0u);
  first.reset();
  const auto second = pair.device->allocate(pair.a.keep, 900, 512);
  CHECK_EQ(second->address(), address);
}

TEST(rescue_gives_every_complete_keep_region) {
  Pair pair;
  pair.attach_both();
  for (const auto& tenant : {pair.a, pair.b}) {
    const auto saved = pair.device->rescue(tenant.tenant);
    CHECK_EQ(saved.size(), 1u);
    const auto& bytes = saved.at("weights");
    CHECK_EQ(bytes.size(), 8 * kBlock);
    for (Bytes offset = 0; offset < bytes.size(); ++offset) {
      CHECK_EQ(static_cast<unsigned char>(bytes[offset]), tenant.byte_at(offset));
    }
  }
  CHECK(pair.a.intact());
}

TEST(the_limit_is_the_duplex_part_and_the_rest_one_way) {
  const LinkRates rates{100, 100, 75, 75};
  CHECK_EQ(limit_seconds(rates, 0, 200), 2.0);
  CHECK_EQ(limit_seconds(rates, 150, 150), 2.0);
  CHECK_EQ(limit_seconds(rates, 150, 250), 3.0);
}

TEST(calibrate_needs_an_empty_device_and_leaves_it_so) {
  Pair pair;
  const auto before = emu::census(pair.emulated.ordinal);
  const auto rates = pair.device->calibrate(8 * kBlock);
  CHECK(rates.h2d > 0 && rates.d2h_duplex > 0);
  CHECK_EQ(emu::census(pair.emulated.ordinal).registrations, before.registrations);
  CHECK_EQ(pair.device->host_pool()->registered(), 0u);
  pair.attach_both();
  CHECK_THROWS(pair.device->calibrate(kBlock), UsageError, "suspend job/a");
  CHECK(pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60).limit_s.has_value());
}

TEST(closing_is_idempotent_and_leaves_nothing) {
  const auto descriptors = open_descriptors();
  int ordinal = 0;
  {
    Pair pair;
    ordinal = pair.emulated.ordinal;
    pair.attach_both();
    pair.device->close();
    pair.device->close();
    CHECK(pair.a.tenant->closed);
    CHECK_THROWS(pair.device->resume(pair.a.tenant, 60), UsageError, "closed");
    const auto census = emu::census(ordinal);
    CHECK_EQ(census.handles + census.mappings + census.registrations + census.streams +
                 census.events + census.bytes_used,
             0u);
  }
  CHECK_EQ(open_descriptors(), descriptors);
}

TEST(a_lost_context_fails_the_tenants_and_closing_still_works) {
  Pair pair;
  pair.attach_both();
  {
    const cu::FaultScope fault({1, true, cu::Call::stream_synchronize, cu::kLaunchFailed});
    CHECK_THROWS(pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60), DriverError, "719");
    CHECK(pair.a.tenant->failed && pair.b.tenant->failed);
    CHECK(pair.a.keep->state == RegionState::failed);
    CHECK(refusal_of([&] { pair.device->resume(pair.a.tenant, 60); }) ==
          Refusal::Kind::tenant_failed);
    pair.device->close();
  }
}

TEST(two_threads_that_switch_and_ask_do_not_disturb_each_other) {
  Pair pair;
  pair.attach_both();
  std::atomic<bool> stop{false};
  std::thread asker([&] {
    while (!stop) {
      CHECK(pair.device->place(pair.a.tenant).blocks >= 11);
      CHECK(pair.device->stats().blocks_total == 16);
    }
  });
  for (int turn = 0; turn < 50; ++turn) {
    pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
    pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
  }
  stop = true;
  asker.join();
  CHECK(pair.a.intact());
}

TEST(bytes_that_were_handed_over_fault) {
  Pair pair;
  pair.attach_both();
  pair.device->suspend(pair.b.tenant, 60);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    const auto value = *reinterpret_cast<volatile unsigned char*>(pair.b.keep->address());
    _exit(value == 0 ? 1 : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TEST(every_tag_is_rescued_as_itself) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 2, 1);
  Patterned second = pair.a;
  second.keep = pair.device->region(pair.a.tenant, "optimizer", Policy::keep, 0);
  second.spans.push_back(pair.device->allocate(second.keep, 3 * kBlock, 512));
  second.bytes = 3 * kBlock;
  second.seed = 9;
  second.write();
  pair.device->suspend(pair.a.tenant, 60);
  auto saved = pair.device->rescue(pair.a.tenant);
  CHECK_EQ(saved.size(), 2u);
  CHECK(pair.a.matches(saved));
  CHECK(second.matches(reinterpret_cast<const unsigned char*>(saved.at("optimizer").data())));
  pair.device->resume(pair.a.tenant, 60);
  CHECK(pair.a.intact() && second.intact());
}

TEST(spans_end_where_the_region_ends) {
  Pair pair;
  attach(*pair.device, pair.a, "a", 1, 4, 1);
  pair.a.spans.clear();
  const auto most = pair.device->allocate(pair.a.keep, 3 * kBlock + 1, 1);
  const auto rest = pair.device->allocate(pair.a.keep, kBlock, 1);
  CHECK(rest->offset() >= most->offset() + most->bytes());
  CHECK(rest->offset() + rest->bytes() <= pair.a.keep->slots.size() * kBlock);
  CHECK_EQ(pair.a.keep->slots.size(), 5u);
}

TEST(what_is_made_is_ended_once) {
  const auto count = [](cu::Call call) {
    return cu::call_counts(cu::Upstream::emulated)[static_cast<std::size_t>(call)];
  };
  const std::pair<cu::Call, cu::Call> ends[] = {
      {cu::Call::mem_create, cu::Call::mem_release},
      {cu::Call::mem_address_reserve, cu::Call::mem_address_free},
      {cu::Call::mem_host_register, cu::Call::mem_host_unregister},
      {cu::Call::stream_create, cu::Call::stream_destroy},
      {cu::Call::event_create, cu::Call::event_destroy},
      {cu::Call::primary_ctx_retain, cu::Call::primary_ctx_release},
      {cu::Call::ctx_push_current, cu::Call::ctx_pop_current}};
  std::vector<std::uint64_t> before;
  for (const auto& [make, end] : ends) before.push_back(count(make) - count(end));
  {
    Pair pair;
    pair.attach_both();
    pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  }
  for (std::size_t index = 0; index < std::size(ends); ++index) {
    CHECK_EQ(count(ends[index].first) - count(ends[index].second), before[index]);
  }
}

TEST(no_byte_overtakes_another_however_uneven_the_link) {
  for (const char* uneven : {"&d2h=1MB/s&h2d=1GB/s", "&d2h=1GB/s&h2d=1MB/s"}) {
    Pair pair((std::string(kSixteenBlocks) + uneven).c_str());
    pair.keep_blocks = 10;
    pair.attach_both();
    for (int turn = 0; turn < 2; ++turn) {
      pair.a.seed += 2;
      pair.a.write();
      pair.a.scribble();
      pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
      CHECK(pair.b.intact());
      pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
      CHECK(pair.a.intact());
    }
  }
}

namespace {

// An engine whose last work, a copy of its weights that takes 160 ms, still runs when it has left
// and a newer version was published. `enter` brings that version into the frames it holds.
void publish_behind_work(
    const std::function<void(Device&, const std::shared_ptr<Tenant>&)>& enter) {
  Emulated emulated((std::string(kSixteenBlocks) + "&d2h=100KB/s").c_str());
  auto options = options_with();
  options.background_thread = false;
  Device device(emulated.driver, options);
  const auto tenant = device.add_tenant("engine", "job");
  device.resume(tenant, 60);
  const auto region = device.region(tenant, "weights", Policy::reload, 0);
  const auto span = device.allocate(region, 4 * kBlock, 512);
  const auto fill = [&](int value) {
    emu::host_view(region->address(), true);
    std::memset(reinterpret_cast<void*>(span->address()), value, span->bytes());
  };
  const auto holds = [&](int value) {
    emu::host_view(region->address(), true);
    const auto* data = reinterpret_cast<const unsigned char*>(span->address());
    return std::all_of(data, data + span->bytes(), [&](int byte) { return byte == value; });
  };
  fill(1);
  const auto& table = counted_table();
  cu::Context context = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&context, emulated.ordinal), cu::kSuccess);
  CHECK_EQ(table.ctx_push_current(context), cu::kSuccess);
  cu::Stream stream = nullptr;
  CHECK_EQ(table.stream_create(&stream, cu::kStreamNonBlocking), cu::kSuccess);
  auto* const pinned = static_cast<unsigned char*>(aligned_alloc(4096, span->bytes()));
  std::memset(pinned, 0, span->bytes());
  CHECK_EQ(table.mem_host_register(pinned, span->bytes(), cu::kHostRegisterPortable), cu::kSuccess);
  CHECK_EQ(table.memcpy_dtoh_async(pinned, span->address(), span->bytes(), stream), cu::kSuccess);
  device.release(tenant);
  const auto open = device.begin_publish(tenant);
  for (const auto& place : open->place(region, 0, span->bytes())) {
    std::memset(place.host, 2, place.bytes);
  }
  open->wrote(region, 0, span->bytes());
  device.commit(open);
  enter(device, tenant);
  CHECK_EQ(table.stream_query(stream), cu::kSuccess);  // it was waited for
  CHECK_EQ(table.stream_synchronize(stream), cu::kSuccess);
  CHECK(std::all_of(pinned, pinned + span->bytes(), [](int byte) { return byte == 1; }));
  CHECK(holds(2));
  CHECK_EQ(table.mem_host_unregister(pinned), cu::kSuccess);
  CHECK_EQ(table.stream_destroy(stream), cu::kSuccess);
  CHECK_EQ(table.ctx_pop_current(&context), cu::kSuccess);
  CHECK_EQ(table.primary_ctx_release(emulated.ordinal), cu::kSuccess);
  std::free(pinned);
}

}  // namespace

TEST(a_new_version_waits_for_the_work_that_reads_the_old_one) {
  publish_behind_work([](Device& device, const std::shared_ptr<Tenant>& tenant) {
    CHECK_EQ(device.resume(tenant, 60).bytes_in, 4 * kBlock);
  });
}

TEST(a_new_version_waits_for_that_in_the_background_too) {
  publish_behind_work([](Device& device, const std::shared_ptr<Tenant>& tenant) {
    const auto copy = device.prefetch(tenant, {tenant}, 0);
    device.run_background();
    CHECK(copy->wait(0));
    CHECK_EQ(copy->bytes_done(), 4 * kBlock);
    CHECK_EQ(device.resume(tenant, 60).bytes_in, 0u);
  });
}

TEST(a_new_version_that_would_wait_too_long_changes_nothing) {
  if (seed() != 0) return;  // a stepped device never makes anybody wait
  publish_behind_work([](Device& device, const std::shared_ptr<Tenant>& tenant) {
    CHECK(refusal_of([&] { device.resume(tenant, 0); }) == Refusal::Kind::drain_timeout);
    CHECK(!tenant->running);
    device.resume(tenant, 60);
  });
}

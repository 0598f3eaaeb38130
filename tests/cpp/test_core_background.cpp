// Copies beside a phase: what they bring, what they never touch, and that the foreground takes over
// at any moment. Where it says so with the thread of the device, else in the test's own thread.
#include "core_fleet.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr Bytes kGiga = kBlock;  // one block stands for 1 GB
const std::vector<Size> kThree = {{60}, {60}, {60}};

// Three tenants of 8, 8 and 12 on 24, of which the first runs and the last lacks 4 blocks. A block
// takes 100 ms: what is asked for is under way for longer than a test needs to go on.
struct SlowFleet : Fleet {
  explicit SlowFleet(bool threaded = true)
      : Fleet(24, {{8}, {8}, {12}}, threaded,
              (std::string(kTwoHundredBlocks) + "&h2d=40KB/s&d2h=40KB/s").c_str()) {
    turn(1);
    turn(0);
  }
  std::shared_ptr<BackgroundCopy> begin() {
    const auto copy = prefetch(2);
    CHECK(copy->bytes_total() == 4 * kBlock);
    return copy;
  }
};

}  // namespace

TEST(a_prefetch_leaves_nothing_for_the_switch) {
  Fleet fleet(140, kThree);
  for (std::size_t step = 0; step < 6; ++step) {
    fleet.turn(step % 3);
    fleet.prefetch((step + 1) % 3);
    fleet.device->run_background();
  }
  const auto before = fleet.device->stats();
  for (std::size_t step = 6; step < 12; ++step) {
    const auto report = fleet.turn(step % 3);
    CHECK_EQ(report.bytes_in + report.bytes_out, 0u);
    CHECK_EQ(report.bytes_background, 80 * kGiga);
    const auto copy = fleet.prefetch((step + 1) % 3);
    CHECK_EQ(copy->bytes_total(), 40 * kGiga);
    fleet.device->run_background();
    CHECK(copy->wait(0));
    CHECK_EQ(copy->bytes_done(), 40 * kGiga);
  }
  const auto after = fleet.device->stats();
  CHECK_EQ(after.bytes_background_in - before.bytes_background_in, 6 * 40 * kGiga);
  CHECK_EQ(after.bytes_background_out - before.bytes_background_out, 6 * 40 * kGiga);
  CHECK_EQ(after.bytes_in, before.bytes_in);
}

TEST(the_thread_of_the_device_does_the_same) {
  Fleet fleet(140, kThree, true);
  Bytes moved = 0;
  for (std::size_t step = 0; step < 12; ++step) {
    const auto report = fleet.turn(step % 3);
    if (step >= 6) moved += report.bytes_in + report.bytes_out;
    CHECK(fleet.prefetch((step + 1) % 3)->wait(60));
  }
  CHECK_EQ(moved, 0u);
}

TEST(as_much_comes_in_as_fits_beside_the_phase) {
  // x and y have 60 on 80: 20 of y stay anyway, and no more fits. On 100 it is 40.
  Fleet none(80, {{60}, {60}});
  CHECK_EQ(none.prefetch(0)->bytes_total(), 0u);
  CHECK(none.prefetch(0)->finished());

  Fleet some(100, {{60}, {60}, {60}});
  some.turn(0);
  const auto copy = some.prefetch(1);
  some.device->run_background();
  CHECK_EQ(some.resident(0), 60u);
  CHECK_EQ(some.resident(1), 40u);
  CHECK_EQ(copy->bytes_done(), copy->bytes_total());
  CHECK_EQ(some.turn(1).bytes_in, 20 * kGiga);
  some.check_all();
}

TEST(a_limit_is_kept) {
  Fleet fleet(140, kThree);
  fleet.turn(0);
  const auto missing = 60 - fleet.resident(1);
  CHECK(missing > 5);
  const auto copy = fleet.device->prefetch(fleet.tenant(1), {}, 5 * kBlock);
  fleet.device->run_background();
  CHECK_EQ(copy->bytes_done(), 5 * kGiga);
  CHECK_EQ(60 - fleet.resident(1), missing - 5);
}

TEST(a_plan_holds_in_the_background_without_exception) {
  Fleet fleet(140, kThree);
  fleet.plan({20, 20, 20});
  for (std::size_t step = 0; step < 3; ++step) fleet.turn(step);
  for (std::size_t step = 0; step < 4; ++step) {
    fleet.turn(step % 3);
    const auto copy = fleet.prefetch((step + 1) % 3);
    fleet.device->run_background();
    CHECK(copy->finished());
    CHECK_EQ(copy->bytes_done(), 0u);
    for (std::size_t each = 0; each < 3; ++each) CHECK(fleet.resident(each) >= 40);
  }
}

TEST(who_comes_sooner_gives_nothing_up) {
  Fleet fleet(140, kThree);
  fleet.turn(0);
  fleet.prefetch(1);
  fleet.device->run_background();
  CHECK_EQ(fleet.resident(1), 60u);
  // For c, while b is next: neither a, which runs, nor b may give.
  const auto copy = fleet.device->prefetch(fleet.tenant(2), {fleet.tenant(1), fleet.tenant(2)}, 0);
  CHECK(copy->bytes_total() > 0);
  fleet.device->run_background();
  CHECK_EQ(copy->bytes_done(), 0u);
  CHECK_EQ(fleet.resident(0), 60u);
  CHECK_EQ(fleet.resident(1), 60u);
  fleet.check_all();
}

TEST(discard_goes_first_then_clean_then_keep) {
  Fleet fleet(100, {{30, 10}, {30, 20}, {50}});
  fleet.turn(2);  // a or b made room: 50 of 100 are left for 90
  fleet.turn(0);
  const auto generation = fleet.members[1].discard->generation.load();
  const auto out = fleet.device->stats().bytes_background_out;
  CHECK(fleet.resident(1) + fleet.resident(2) == 60);
  const auto copy = fleet.prefetch(1);
  fleet.device->run_background();
  CHECK(copy->wait(0));
  const auto moved = fleet.device->stats().bytes_background_out - out;
  CHECK(moved <= copy->bytes_done());
  CHECK(fleet.members[1].discard->generation == generation);  // its own is not given up
  fleet.check_all();
}

TEST(undrained_work_holds_everything_back) {
  // The trainer's own copy into a's memory, queued in its phase, still runs when the phase is over.
  SlowFleet fleet(false);
  const auto& table = counted_table();
  cu::Context context = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&context, fleet.emulated.ordinal), cu::kSuccess);
  CHECK_EQ(table.ctx_push_current(context), cu::kSuccess);
  cu::Stream stream = nullptr;
  CHECK_EQ(table.stream_create(&stream, cu::kStreamNonBlocking), cu::kSuccess);
  auto* const pinned = static_cast<unsigned char*>(aligned_alloc(4096, 4 * kBlock));
  auto& a = fleet.members[0];
  a.seed = 77;
  for (Bytes offset = 0; offset < 4 * kBlock; ++offset) pinned[offset] = a.byte_at(offset);
  CHECK_EQ(table.mem_host_register(pinned, 4 * kBlock, cu::kHostRegisterPortable), cu::kSuccess);
  a.write();
  std::memset(reinterpret_cast<void*>(a.keep->address()), 0, 4 * kBlock);
  CHECK_EQ(table.memcpy_htod_async(a.keep->address(), pinned, 4 * kBlock, stream), cu::kSuccess);
  fleet.enter(1);  // both are here: nothing moves, and yet it is waited for
  CHECK_EQ(table.stream_query(stream), cu::kSuccess);
  const auto copy = fleet.prefetch(2);
  fleet.device->run_background();
  CHECK(copy->wait(0));
  CHECK(copy->bytes_done() > 0);
  CHECK_EQ(table.mem_host_unregister(pinned), cu::kSuccess);
  CHECK_EQ(table.stream_destroy(stream), cu::kSuccess);
  CHECK_EQ(table.ctx_pop_current(&context), cu::kSuccess);
  CHECK_EQ(table.primary_ctx_release(fleet.emulated.ordinal), cu::kSuccess);
  std::free(pinned);
  fleet.enter(2);
  fleet.enter(0);
  CHECK(a.intact());
}

TEST(what_was_written_back_crosses_the_link_once) {
  Fleet fleet(80, {{60}, {60}});
  fleet.turn(0);
  const auto copy = fleet.device->write_back(fleet.tenant(0), "weights");
  CHECK_EQ(copy->bytes_total(), 60 * kGiga);
  fleet.device->run_background();
  CHECK(copy->wait(0));
  CHECK_EQ(copy->bytes_done(), 60 * kGiga);
  CHECK(fleet.members[0].intact());
  const auto again = fleet.device->write_back(fleet.tenant(0), "weights");
  CHECK_EQ(again->bytes_total(), 0u);
  const auto report = fleet.device->hand_over(fleet.tenant(0), fleet.tenant(1), 60);
  fleet.running = fleet.tenant(1);
  CHECK_EQ(report.bytes_out, 0u);
  CHECK_EQ(report.bytes_in, 40 * kGiga);
  CHECK_EQ(report.bytes_background, 60 * kGiga);
  // The next turn starts from scratch.
  fleet.turn(0);
  CHECK_EQ(fleet.turn(1).bytes_out, 40 * kGiga);
  fleet.check_all();
}

TEST(a_new_tensor_makes_its_block_old) {
  Fleet fleet(80, {{60}, {60}});
  fleet.turn(0);
  auto& a = fleet.members[0];
  fleet.device->write_back(fleet.tenant(0), "weights");
  fleet.device->run_background();
  a.spans.clear();
  a.spans.push_back(fleet.device->allocate(a.keep, 3 * kBlock + 1, 512));
  a.seed = 99;
  a.bytes = 4 * kBlock;
  a.write();
  const auto report = fleet.device->hand_over(fleet.tenant(0), fleet.tenant(1), 60);
  CHECK(report.bytes_out <= 4 * kGiga);
  fleet.device->hand_over(fleet.tenant(1), fleet.tenant(0), 60);
  CHECK(a.intact());
}

TEST(a_write_back_is_for_one_phase) {
  Fleet fleet(80, {{60}, {60}});
  fleet.turn(0);
  const auto copy = fleet.device->write_back(fleet.tenant(0), "weights");
  fleet.turn(1);
  fleet.turn(0);  // writes other bytes, of which nothing was promised
  fleet.device->run_background();
  CHECK(copy->finished());
  CHECK_EQ(copy->bytes_done(), 0u);
  CHECK_EQ(fleet.turn(1).bytes_out, 40 * kGiga);
}

TEST(mark_dirty_takes_the_promise_back) {
  Fleet fleet(80, {{60}, {60}});
  fleet.turn(0);
  auto& a = fleet.members[0];
  fleet.device->write_back(a.tenant, "weights");
  fleet.device->run_background();
  a.seed = 98;
  a.write();
  fleet.device->mark_dirty(a.keep);
  CHECK_EQ(fleet.turn(1).bytes_out, 40 * kGiga);
  fleet.turn(0);
}

TEST(mark_dirty_reaches_a_block_in_flight) {
  SlowFleet fleet;
  auto& a = fleet.members[0];
  const auto copy = fleet.device->write_back(a.tenant, "weights");
  // Each of the 8 blocks takes 100 ms; every one that is or was under way is void.
  while (copy->bytes_done() < 2 * kBlock) std::this_thread::yield();
  fleet.device->mark_dirty(a.keep);
  a.seed = 97;
  fleet.device->cancel(copy);
  CHECK(copy->wait(60));
  fleet.device->mark_dirty(a.keep);
  a.write();
  fleet.turn(2);
  fleet.turn(1);
  fleet.turn(0);
}

TEST(clean_and_pinned_blocks_in_the_background) {
  Fleet fleet(140, kThree);
  fleet.turn(1);
  fleet.turn(0);
  fleet.device->pin(fleet.members[1].keep);
  fleet.device->pin(fleet.members[2].keep);
  const auto before = fleet.resident(1) + fleet.resident(2);
  for (const std::size_t next : {1u, 2u}) fleet.prefetch(next);
  fleet.device->run_background();
  CHECK_EQ(fleet.resident(1) + fleet.resident(2), before);
  fleet.device->unpin(fleet.members[1].keep);
  fleet.device->unpin(fleet.members[2].keep);
  fleet.check_all();
}

TEST(write_back_refuses_what_makes_no_sense) {
  Fleet fleet(80, {{60}, {20, 10}});
  CHECK_THROWS(fleet.device->write_back(fleet.tenant(0), "weights"), Refusal, "must run");
  CHECK_THROWS(fleet.device->write_back(fleet.tenant(1), "kv_cache"), UsageError, "discarded");
  CHECK_THROWS(fleet.device->write_back(fleet.tenant(1), "grads"), UsageError, "no region");
  CHECK_THROWS(fleet.device->prefetch(fleet.tenant(0), {fleet.tenant(1), fleet.tenant(1)}, 0),
               UsageError, "twice");
}

TEST(the_foreground_takes_over_a_half_copied_block) {
  SlowFleet fleet;
  const auto copy = fleet.begin();
  fleet.turn(2);
  CHECK(copy->wait(60));  // it runs now: there is nothing left to bring
  CHECK(copy->bytes_done() < copy->bytes_total() || copy->finished());
  fleet.check_all();
}

TEST(half_a_block_is_no_block) {
  // Four chunks a block, 3 ms each: the foreground comes when the first has been queued.
  constexpr Bytes kLarge = Bytes{256} << 10;
  constexpr const char* kLargeBlocks =
      "h20?scale=4096&speed=400&seed=5&capacity=6400KiB&granularity=4KiB&block=256KiB&context=4KiB"
      "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns&h2d=20MB/s&d2h=20MB/s";
  const auto made = [](cu::Call call) {
    return cu::call_counts(cu::Upstream::emulated)[static_cast<std::size_t>(call)];
  };
  for (const auto call : {cu::Call::memcpy_dtoh_async, cu::Call::memcpy_htod_async}) {
    Fleet fleet(16, {{7}, {7}, {9}}, true, kLargeBlocks, kLarge);
    for (int again = 0; again < 3; ++again) {
      fleet.device->suspend(fleet.tenant(2), 60);
      fleet.turn(1);
      fleet.turn(0);  // both are here; two frames are free, for the rest b makes room
      const auto before = made(call);
      const auto copy = fleet.prefetch(2);
      CHECK(copy->bytes_total() > 0);
      // The first two blocks find frames in which their own bytes may still be; not the third.
      const auto skipped = call == cu::Call::memcpy_htod_async ? 8u : 0u;
      while (made(call) <= before + skipped && !copy->finished()) std::this_thread::yield();
      if (again == 1) fleet.device->cancel(copy);
      fleet.turn(2);
    }
    fleet.check_all();
  }
}

TEST(the_foreground_need_not_wait_for_all_that_is_asked_for) {
  if (seed() != 0) return;  // a stepped device never makes anybody wait
  SlowFleet fleet(false);
  bool came_between = false;
  // Again if the copy had ended before this thread came.
  for (int again = 0; again < 20 && !came_between; ++again) {
    const auto copy = fleet.device->write_back(fleet.tenant(0), "weights");
    CHECK_EQ(copy->bytes_total(), 8 * kBlock);
    std::thread worker([&] { fleet.device->run_background(); });
    while (copy->bytes_done() == 0) std::this_thread::yield();
    fleet.device->prepare(fleet.members[0].keep, 0);  // does nothing, as a foreground operation
    came_between = !copy->finished();
    worker.join();
    CHECK(copy->wait(0));  // the worker went on afterwards
    CHECK_EQ(copy->bytes_done(), 8 * kBlock);
    fleet.device->mark_dirty(fleet.members[0].keep);
  }
  CHECK(came_between);
  fleet.check_all();
}

TEST(cancel_ends_after_the_chunk_in_flight) {
  SlowFleet fleet;
  auto copy = fleet.begin();
  for (int again = 0; again < 2; ++again) {
    // What was in flight when it was withdrawn, at most a chunk each way, may have come in.
    CHECK(copy->bytes_total() >= (again == 0 ? 4 : 2) * kBlock);
    const auto queued = fleet.prefetch(2);
    fleet.device->cancel(queued);
    CHECK(queued->finished());
    fleet.device->cancel(copy);
    CHECK(copy->wait(60));
    CHECK(copy->cancelled());
    fleet.device->cancel(copy);
    copy = fleet.prefetch(2);
  }
  fleet.device->cancel(copy);
  fleet.check_all();
}

TEST(a_tenant_closes_while_it_is_prefetched) {
  SlowFleet fleet;
  const auto copy = fleet.begin();
  const auto other = fleet.device->prefetch(fleet.tenant(1), {fleet.tenant(1), fleet.tenant(2)}, 0);
  fleet.device->close_tenant(fleet.tenant(2));
  CHECK(copy->finished() && copy->cancelled());
  CHECK(other->wait(60));
  fleet.members.pop_back();
  fleet.check_all();
}

TEST(a_device_closes_while_it_copies) {
  const auto descriptors = open_descriptors();
  {
    SlowFleet fleet;
    const auto copy = fleet.begin();
    fleet.device->close();
    CHECK(copy->finished() && copy->cancelled());
    check_nothing_left(fleet.emulated.ordinal);
    CHECK_THROWS(fleet.prefetch(2), UsageError, "closed");
    fleet.device->cancel(copy);
    fleet.device->close();
  }
  CHECK_EQ(open_descriptors(), descriptors);
}

TEST(an_error_of_the_thread_reaches_every_waiter) {
  Fleet fleet(140, kThree, true);
  fleet.turn(0);
  {
    const cu::FaultScope fault({1, true, cu::Call::memcpy_dtoh_async});
    const auto copy = fleet.prefetch(1);
    CHECK_THROWS(copy->wait(60), DriverError, "cuMemcpyDtoHAsync");
    CHECK_THROWS(copy->wait(60), DriverError, "cuMemcpyDtoHAsync");
    const auto reported = cu::reported_count();
    {
      const auto nobody_looks = fleet.prefetch(1);
      while (!nobody_looks->finished()) std::this_thread::yield();
    }
    for (int patience = 0; cu::reported_count() == reported && patience < 10'000; ++patience) {
      std::this_thread::yield();  // the thread may let go of it last
    }
    CHECK_EQ(cu::reported_count(), reported + 1);
  }
  CHECK_EQ(fleet.device->stats().background_errors, 2u);
  CHECK(fleet.prefetch(1)->wait(60));
  CHECK_EQ(fleet.turn(1).bytes_in, 0u);
  fleet.check_all();
}

TEST(a_block_that_cannot_be_mapped_is_mapped_by_the_switch) {
  Fleet fleet(140, kThree);
  fleet.turn(0);
  const auto copy = fleet.prefetch(1);
  {
    const cu::FaultScope fault({1, true, cu::Call::mem_map});
    fleet.device->run_background();
  }
  CHECK(copy->wait(0));
  CHECK_EQ(fleet.resident(1), 60u);
  CHECK(!fleet.device->place(fleet.tenant(1)).all_mapped);
  CHECK_EQ(fleet.turn(1).bytes_in, 0u);
}

TEST(copies_that_nobody_could_wait_for_are_kept_aside) {
  Fleet fleet(140, kThree);
  fleet.turn(0);
  const auto copy = fleet.prefetch(1);
  {
    const cu::FaultScope fault({1, true, cu::Call::stream_synchronize});
    fleet.device->run_background();
    CHECK_THROWS(copy->wait(0), DriverError, "cuStreamSynchronize");
    // Nothing may use what such a copy may still write.
    CHECK_THROWS(fleet.device->resume(fleet.tenant(1), 60), DriverError, "cuStreamSynchronize");
    CHECK(fleet.tenant(0)->running == false || fleet.members[0].intact());
  }
  fleet.check_all();
}

TEST(two_hundred_turns_create_nothing) {
  Fleet fleet(140, kThree, true);
  fleet.plan({60, 60, 60});
  std::vector<cu::DevicePtr> addresses;
  for (const auto& one : fleet.members) addresses.push_back(one.keep->address());
  const auto turn = [&](std::size_t step) {
    fleet.turn(step % 3);
    const auto written = fleet.device->write_back(fleet.tenant(step % 3), "weights");
    CHECK(fleet.prefetch((step + 1) % 3)->wait(60));
    CHECK(written->wait(60));
  };
  for (std::size_t step = 0; step < 6; ++step) turn(step);
  const auto before = cu::call_counts(cu::Upstream::emulated);
  const auto census = emu::census(fleet.emulated.ordinal);
  const auto registered = fleet.device->host_pool()->registered();
  for (std::size_t step = 6; step < 206; ++step) turn(step);
  const auto after = cu::call_counts(cu::Upstream::emulated);
  for (const auto call : {cu::Call::mem_create, cu::Call::mem_release, cu::Call::mem_host_register,
                          cu::Call::mem_host_unregister, cu::Call::mem_address_reserve,
                          cu::Call::stream_create, cu::Call::event_create}) {
    CHECK_EQ(after[static_cast<std::size_t>(call)], before[static_cast<std::size_t>(call)]);
  }
  CHECK_EQ(emu::census(fleet.emulated.ordinal).handles, census.handles);
  CHECK_EQ(emu::census(fleet.emulated.ordinal).pageable_copies, 0u);
  CHECK_EQ(fleet.device->host_pool()->registered(), registered);
  for (std::size_t index = 0; index < 3; ++index) {
    CHECK_EQ(fleet.members[index].keep->address(), addresses[index]);
  }
}

TEST(turns_prefetches_and_cancels_in_any_order_keep_every_byte) {
  const auto seed_of = seed() != 0 ? static_cast<unsigned>(seed()) : 11u;
  Fleet fleet(40, {{12, 4}, {14}, {16, 2}, {9}}, true);
  std::mt19937 random(seed_of);
  std::vector<std::shared_ptr<BackgroundCopy>> copies;
  std::atomic<bool> stop{false};
  std::thread asker([&] {
    while (!stop) {
      CHECK(fleet.device->stats().blocks_total == 40);
      std::this_thread::yield();
    }
  });
  std::size_t current = 3;
  for (std::uint64_t step = 0; step < option("turns", 150); ++step) {
    // Another one: a write-back promises that nothing changes before the phase ends.
    current = (current + 1 + random() % 3) % 4;
    fleet.turn(current);
    for (int more = 0; more < 2; ++more) {
      switch (random() % 4) {
        case 0:
          copies.push_back(fleet.prefetch(random() % 4));
          break;
        case 1:
          copies.push_back(fleet.device->write_back(fleet.running, "weights"));
          break;
        case 2:
          if (!copies.empty()) fleet.device->cancel(copies[random() % copies.size()]);
          break;
        default:
          if (!copies.empty()) copies.back()->wait(60);
      }
    }
  }
  for (const auto& copy : copies) CHECK(copy->wait(60));
  stop = true;
  asker.join();
  fleet.check_all();
}

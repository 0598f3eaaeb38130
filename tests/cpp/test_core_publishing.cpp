// Publishing a version: it counts as a whole or not at all, whatever fails on the way and whatever
// the engine does meanwhile.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

unsigned char* bytes_of(const std::shared_ptr<Span>& span) {
  emu::host_view(span->region()->address(), true);
  return reinterpret_cast<unsigned char*>(span->address());
}

// A tenant whose weights are reloaded, filled with a number.
struct Engine {
  std::shared_ptr<Tenant> tenant;
  std::shared_ptr<Region> region;
  std::shared_ptr<Span> span;
  Engine(Device& device, Bytes blocks) : tenant(device.add_tenant("engine", "job")) {
    device.resume(tenant, 60);
    region = device.region(tenant, "weights", Policy::reload, 0);
    span = device.allocate(region, blocks * kBlock, 512);
    std::memset(bytes_of(span), 1, span->bytes());
    device.release(tenant);
  }
  bool holds(int value) const {
    const unsigned char* data = bytes_of(span);
    return std::all_of(data, data + span->bytes(), [&](int byte) { return byte == value; });
  }
  std::shared_ptr<Publication> write(Device& device, int value) const {
    auto made = device.begin_publish(tenant);
    for (const auto& place : made->place(region, 0, span->bytes())) {
      std::memset(place.host, value, place.bytes);
    }
    made->wrote(region, 0, span->bytes());
    return made;
  }
};

// An engine whose weights are published from a tenant of another device, with one host pool.
struct Published {
  Published() : device(emulated.driver, options_with()), engine(device, 4) {
    auto options = options_with();
    options.host_pool = device.host_pool();
    trainer = std::make_unique<Device>(trainer_device.driver, options);
    attach(*trainer, policy, "policy", 1, 4, 0);
  }
  void read(Publication& into) const {
    trainer->read(policy.keep, 0, 4 * kBlock, into, engine.region, 0);
  }
  std::set<std::byte*> places(const Publication& open) const {
    std::set<std::byte*> found;
    for (const auto& place : open.place(engine.region, 0, 4 * kBlock)) found.insert(place.host);
    return found;
  }
  Emulated emulated, trainer_device;
  Device device;
  Engine engine;
  std::unique_ptr<Device> trainer;
  Patterned policy;
};

// Runs something before the n-th driver call that copies or maps.
std::function<void()> at_call;
int calls_left = 0;
void count_call() {
  if (calls_left > 0 && --calls_left == 0) at_call();
}

DriverRef hooked_driver(const Emulated& emulated) {
  cu::Table table = counted_table();
  table.memcpy_htod_async = [](cu::DevicePtr target, const void* source, std::size_t bytes,
                               cu::Stream stream) {
    count_call();
    return counted_table().memcpy_htod_async(target, source, bytes, stream);
  };
  table.mem_map = [](cu::DevicePtr address, std::size_t bytes, std::size_t offset,
                     cu::AllocHandle handle, unsigned long long flags) {
    count_call();
    return counted_table().mem_map(address, bytes, offset, handle, flags);
  };
  return std::make_shared<Driver>(table, emulated.ordinal, [] {});
}

}  // namespace

TEST(a_version_counts_as_a_whole_and_from_the_next_resume) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  Engine engine(device, 4);
  // Uncommitted, it is not there; dropped, it never was.
  auto open = engine.write(device, 7);
  device.resume(engine.tenant, 60);
  CHECK(engine.holds(1));
  device.abort(open);
  CHECK_THROWS(device.commit(open), UsageError, "dropped already");
  // Committed under a running tenant it waits; frames hold the old one until it comes in again.
  device.commit(engine.write(device, 8));
  CHECK(engine.holds(1));
  device.release(engine.tenant);
  CHECK_EQ(device.resume(engine.tenant, 60).bytes_in, 4 * kBlock);  // into the frames it holds
  CHECK(engine.holds(8));
  CHECK_EQ(engine.region->version.load(), 1u);
  device.release(engine.tenant);
  device.commit(engine.write(device, 9));
  CHECK_EQ(device.suspend(engine.tenant, 60).bytes_out, 0u);
  device.resume(engine.tenant, 60);
  CHECK(engine.holds(9));
  const auto used = device.host_pool()->used();
  for (int version = 10; version < 20; ++version) {
    device.suspend(engine.tenant, 60);
    device.commit(engine.write(device, version));
    device.resume(engine.tenant, 60);
    CHECK(engine.holds(version));
    CHECK_EQ(device.host_pool()->used(), used);
  }
  device.close();
  CHECK_THROWS(device.begin_publish(engine.tenant), UsageError, "closed");
  check_nothing_left(emulated.ordinal);
}

TEST(publishing_by_the_other_devices_engine_survives_every_failing_call) {
  std::uint64_t points = 0;
  for (const bool from_then_on : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      Emulated emulated;
      Device device(emulated.driver, options_with());
      Engine engine(device, 4);
      auto options = options_with();
      options.host_pool = device.host_pool();
      Emulated trainer_device;
      Device trainer(trainer_device.driver, options);
      Patterned policy;
      attach(trainer, policy, "policy", 1, 4, 0);
      device.suspend(engine.tenant, 60);
      device.resume(engine.tenant, 60);
      bool committed = false;
      bool fired = false;
      const auto publish = [&] {
        const auto open = device.begin_publish(engine.tenant);
        try {
          trainer.read(policy.keep, 0, 4 * kBlock, *open, engine.region, 0);
          device.release(engine.tenant);
          device.commit(open);
          committed = true;
          device.resume(engine.tenant, 60);
        } catch (...) {
          device.abort(open);
          throw;
        }
      };
      const auto is_policy = [&] { return policy.matches(bytes_of(engine.span)); };
      {
        const cu::FaultScope fault({nth, from_then_on});
        try {
          publish();
        } catch (const DriverError&) {
        }
        fired = fault.calls_failed() > 0;
      }
      if (!fired) break;
      ++points;
      device.resume(engine.tenant, 60);
      trainer.resume(policy.tenant, 60);
      CHECK(committed ? is_policy() : engine.holds(1));
      if (!committed) publish();
      CHECK(is_policy());
      CHECK(policy.intact());
    }
  }
  std::printf("%lu points\n", static_cast<unsigned long>(points));
  CHECK(points > 20);
}

// Two engines on devices of their own, and who trains for both.
struct TwoEngines {
  TwoEngines() : device(emulated.driver, options_with()), engine(device, 4) {
    auto options = options_with();
    options.host_pool = device.host_pool();
    other = std::make_unique<Device>(other_device.driver, options);
    second = std::make_unique<Engine>(*other, 3);
    trainer = std::make_unique<Device>(trainer_device.driver, options);
    attach(*trainer, policy, "policy", 1, 4, 0);
  }
  std::vector<Device::Version> begin() {
    std::vector<Device::Version> versions;
    try {
      versions.push_back({&device, device.begin_publish(engine.tenant)});
      versions.push_back({other.get(), other->begin_publish(second->tenant)});
    } catch (...) {
      abort(versions);
      throw;
    }
    return versions;
  }
  void read(const Device::Version& into) {
    const Engine& to = into.device == &device ? engine : *second;
    trainer->read(policy.keep, 0, to.span->bytes(), *into.publication, to.region, 0);
  }
  static void abort(const std::vector<Device::Version>& versions) {
    for (const auto& version : versions) version.device->abort(version.publication);
  }
  // Which of them have the policy's bytes; the others have the first version.
  int count_new() {
    int found = 0;
    for (const Engine* one : std::initializer_list<const Engine*>{&engine, second.get()}) {
      Device& on = one == &engine ? device : *other;
      on.resume(one->tenant, 60);
      const bool old = one->holds(1);
      const unsigned char* data = bytes_of(one->span);
      for (Bytes at = 0; !old && at < one->span->bytes(); ++at) {
        CHECK_EQ(data[at], policy.byte_at(at));
      }
      found += old ? 0 : 1;
      on.release(one->tenant);
    }
    return found;
  }
  Emulated emulated, other_device, trainer_device;
  Device device;
  Engine engine;
  std::unique_ptr<Device> other, trainer;
  std::unique_ptr<Engine> second;
  Patterned policy;
};

TEST(versions_of_several_engines_count_all_or_none_whatever_fails) {
  std::uint64_t points = 0;
  for (const bool from_then_on : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      TwoEngines world;
      const auto publish = [&] {
        const auto versions = world.begin();
        try {
          for (const auto& version : versions) world.read(version);
          Device::commit_together(versions);
        } catch (...) {
          TwoEngines::abort(versions);
          throw;
        }
      };
      bool fired = false;
      bool committed = false;
      {
        const cu::FaultScope fault({nth, from_then_on});
        try {
          publish();
          committed = true;
        } catch (const DriverError&) {
        }
        fired = fault.calls_failed() > 0;
      }
      CHECK_EQ(world.count_new(), committed ? 2 : 0);
      if (!fired) break;
      ++points;
      publish();
      CHECK_EQ(world.count_new(), 2);
    }
  }
  std::printf("%lu points\n", static_cast<unsigned long>(points));
  CHECK(points > 20);
}

TEST(a_version_that_is_refused_holds_up_the_others_and_nothing_is_lost) {
  TwoEngines world;
  auto versions = world.begin();
  world.read(versions[0]);
  CHECK_THROWS(Device::commit_together(versions), UsageError, "were not published");
  CHECK_EQ(world.count_new(), 0);
  CHECK(!versions[0].publication->ended());
  world.read(versions[0]);  // is open still
  world.read(versions[1]);
  const auto twice = {versions[0], versions[1], versions[0]};
  CHECK_THROWS(Device::commit_together(twice), UsageError, "committed or dropped already");
  CHECK_EQ(world.count_new(), 0);
  Device::commit_together(versions);
  CHECK_EQ(world.count_new(), 2);
  CHECK_THROWS(Device::commit_together(versions), UsageError, "committed or dropped already");

  versions = world.begin();
  for (const auto& version : versions) world.read(version);
  world.other->close_tenant(world.second->tenant);
  CHECK_THROWS(Device::commit_together(versions), UsageError, "closed");
  CHECK(!versions[0].publication->ended());
  world.device.abort(versions[0].publication);
  Device::commit_together({});
}

TEST(several_commits_and_switches_at_once_keep_the_versions_together) {
  TwoEngines world;
  std::thread switching([&] {
    for (int turn = 0; turn < 20; ++turn) {
      world.device.resume(world.engine.tenant, 60);
      world.other->resume(world.second->tenant, 60);
      world.device.suspend(world.engine.tenant, 60);
      world.other->release(world.second->tenant);
    }
  });
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<Device::Version> versions{{world.other.get(), world.second->write(*world.other, 4)},
                                          {&world.device, world.engine.write(world.device, 4)}};
    if (turn % 2 == 0) std::swap(versions[0], versions[1]);
    Device::commit_together(versions);
  }
  switching.join();
  world.device.resume(world.engine.tenant, 60);
  world.other->resume(world.second->tenant, 60);
  CHECK(world.engine.holds(4));
  CHECK(world.second->holds(4));
}

TEST(bytes_that_have_not_arrived_are_not_committed) {
  Published world;
  const auto open = world.device.begin_publish(world.engine.tenant);
  open->place(world.engine.region, 0, 4 * kBlock);
  CHECK_THROWS(world.device.commit(open), UsageError, "were not published");
  world.trainer->release(world.policy.tenant);
  CHECK_THROWS(world.read(*open), Refusal, "policy");
  CHECK_THROWS(world.device.commit(open), UsageError, "were not published");
  CHECK_THROWS(open->wrote(world.engine.region, kBlock, 4 * kBlock), UsageError, "outside region");
  world.trainer->resume(world.policy.tenant, 60);
  world.read(*open);
  world.device.commit(open);
  world.device.resume(world.engine.tenant, 60);
  CHECK(world.policy.matches(bytes_of(world.engine.span)));
}

TEST(a_version_that_is_dropped_waits_for_who_writes_it) {
  Published world;
  Device& device = world.device;
  const auto open = device.begin_publish(world.engine.tenant);
  std::byte* const late = open->place(world.engine.region, 0, kBlock).front().host;
  auto writing = std::make_unique<Publication::Writing>(*open);
  std::shared_ptr<Publication> next;
  std::thread other([&] {
    device.abort(open);
    next = world.engine.write(device, 7);  // gets the same extents
  });
  while (!open->ended()) std::this_thread::yield();
  CHECK_THROWS(Publication::Writing(*open), UsageError, "dropped already");
  std::memset(late, 3, kBlock);
  writing.reset();
  other.join();
  device.commit(next);
  device.resume(world.engine.tenant, 60);
  CHECK(world.engine.holds(7));
}

TEST(extents_that_a_copy_may_still_reach_are_not_used_again) {
  for (const bool known : {true, false}) {
    Published world;
    Device& device = world.device;
    device.abort(device.begin_publish(world.engine.tenant));
    const Bytes used = device.host_pool()->used();
    const auto open = device.begin_publish(world.engine.tenant);
    const auto places = world.places(*open);
    {
      cu::FaultScope::Plan plan;
      plan.nth = 1;
      plan.from_then_on = !known;
      plan.only = cu::Call::stream_synchronize;
      const cu::FaultScope fault(plan);
      CHECK_THROWS(world.read(*open), DriverError, "cuStreamSynchronize");
      if (known) {
        CHECK_THROWS(device.commit(open), UsageError, "were not published");
      } else {
        CHECK_THROWS(device.commit(open), UsageError, "dropped already");
        CHECK_THROWS(open->place(world.engine.region, 0, kBlock), UsageError, "dropped already");
      }
      device.abort(open);
    }
    const auto next = device.begin_publish(world.engine.tenant);
    const auto now = world.places(*next);
    CHECK_EQ(known, places == now);
    if (!known) {
      for (std::byte* place : now) CHECK(!places.contains(place));
      CHECK_EQ(device.host_pool()->used(), used + 4 * kBlock);
    }
    world.read(*next);  // settles: what was kept aside is free
    CHECK_EQ(device.host_pool()->used(), used);
    device.commit(next);
    device.resume(world.engine.tenant, 60);
    CHECK(world.policy.matches(bytes_of(world.engine.span)));
  }
}

TEST(publishing_while_the_engine_comes_in_gives_one_version_or_the_other) {
  int points = 0;
  for (const bool begun_before : {false, true}) {
    for (std::uint64_t failing = 0; failing < 8; ++failing) {  // 0: no call fails
      for (int nth = 1;; ++nth) {
        Emulated emulated;
        Device device(hooked_driver(emulated), options_with());
        Engine engine(device, 4);
        device.suspend(engine.tenant, 60);
        const auto open = begun_before ? engine.write(device, 7) : nullptr;
        std::atomic<bool> committed = false;
        std::jthread publisher;
        at_call = [&] {
          std::atomic<bool> there = false;
          publisher = std::jthread([&, open] {
            there = true;
            there.notify_one();
            try {
              device.commit(open != nullptr ? open : engine.write(device, 7));
              committed = true;
            } catch (const DriverError&) {
              // Hit by the fault; the old version stays.
            }
          });
          there.wait(false);
        };
        calls_left = nth;
        {
          cu::FaultScope::Plan plan;
          plan.nth = failing;
          const cu::FaultScope fault(plan);
          try {
            device.resume(engine.tenant, 60);
            CHECK(engine.holds(1) || engine.holds(7));
          } catch (const DriverError&) {
            CHECK(failing > 0);
          }
          if (publisher.joinable()) publisher.join();
        }
        const bool reached = std::exchange(calls_left, 0) == 0;
        device.resume(engine.tenant, 60);
        CHECK(engine.holds(1) || (committed && engine.holds(7)));
        device.release(engine.tenant);
        device.resume(engine.tenant, 60);
        CHECK(engine.holds(committed ? 7 : 1));
        if (!reached) break;
        ++points;
        CHECK(committed || failing > 0);
      }
    }
  }
  std::printf("%d points\n", points);
  CHECK(points > 40);
}

// tests/cpp/core_fleet.hpp: several tenants that keep everything, on a device with room for so many
// blocks. One block stands for 1 GB of the sizes that the design names.
#pragma once

#include <random>

#include "core_device.hpp"

namespace weave::test {

// 4 KiB blocks, 200 of them.
inline constexpr const char* kTwoHundredBlocks =
    "h20?scale=4096&speed=1000&seed=3&capacity=864KiB&granularity=4KiB&block=4KiB&context=4KiB"
    "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns";

struct Size {
  int keep = 0, discard = 0;
};

struct Fleet {
  Fleet(int usable_blocks, const std::vector<Size>& sizes, bool threaded = false,
        const char* spec = kTwoHundredBlocks, Bytes block = kBlock,
        const std::string& spill_directory = "")
      : emulated(spec) {
    auto options = options_with();
    options.block_bytes = block;
    options.usable_bytes = static_cast<Bytes>(usable_blocks) * block;
    const auto blocks = [&](int count) { return static_cast<Bytes>(count) * block; };
    options.background_thread = threaded;
    options.spill_directory = spill_directory;
    device = std::make_shared<Device>(emulated.driver, options);
    members.resize(sizes.size());
    const char* const names[] = {"a", "b", "c", "d", "e"};
    for (std::size_t index = 0; index < sizes.size(); ++index) {
      if (running != nullptr) device->release(running);
      const auto [keep, discard] = sizes[index];
      auto& one = members[index];
      one.tenant = device->add_tenant(names[index], "job");
      running = one.tenant;
      device->resume(one.tenant, 60);
      one.keep = device->region(one.tenant, "weights", Policy::keep, 0);
      one.discard = device->region(one.tenant, "kv_cache", Policy::discard, 0);
      if (keep > 0) one.spans.push_back(device->allocate(one.keep, blocks(keep), 512));
      if (discard > 0) one.spans.push_back(device->allocate(one.discard, blocks(discard), 512));
      one.bytes = blocks(keep);
      one.seed = static_cast<unsigned>(index) + 1;
      one.write();
    }
  }
  static Bytes blocks(int count) { return static_cast<Bytes>(count) * kBlock; }
  const std::shared_ptr<Tenant>& tenant(std::size_t index) const { return members[index].tenant; }

  // What a turn does: the other one is released, this one comes in, finds its bytes, writes new
  // ones.
  SwitchReport turn(std::size_t index) {
    const auto report = enter(index);
    CHECK(members[index].intact());
    members[index].seed += 7;
    members[index].write();
    return report;
  }
  SwitchReport enter(std::size_t index) {
    if (running != nullptr && running != tenant(index)) device->release(running);
    running = tenant(index);
    return device->resume(running, 60);
  }
  // By hand, as a planner would: at most so many blocks of each may leave.
  void plan(const std::vector<std::size_t>& movable) {
    std::map<std::shared_ptr<Tenant>, std::size_t> by_tenant;
    for (std::size_t index = 0; index < movable.size(); ++index) {
      by_tenant[tenant(index)] = movable[index];
    }
    device->set_plan(by_tenant, {});
  }
  // Prefetch `next`; after it come the others in a cycle.
  std::shared_ptr<BackgroundCopy> prefetch(std::size_t next) {
    std::vector<std::shared_ptr<Tenant>> order;
    for (std::size_t step = 0; step < members.size(); ++step) {
      order.push_back(tenant((next + step) % members.size()));
    }
    return device->prefetch(order.front(), order, 0);
  }
  std::size_t resident(std::size_t index) const {
    return device->place(tenant(index)).blocks_on_device;
  }
  // Each gets the device once more and finds its bytes; no frame is lost.
  void check_all() {
    for (std::size_t index = 0; index < members.size(); ++index) turn(index);
    std::size_t held = 0;
    for (const auto& each : device->tenants()) held += each->slots_on_device();
    const auto stats = device->stats();
    CHECK_EQ(static_cast<int>(held) + stats.blocks_free, stats.blocks_total);
  }

  Emulated emulated;
  std::shared_ptr<Device> device;
  std::vector<Patterned> members;
  std::shared_ptr<Tenant> running;
};

}  // namespace weave::test

// tests/cpp/core_device.hpp: a core Device on an emulated one, with two tenants of mixed policies
// that do not fit together, and what a test asks about their bytes.
#pragma once

#include <dirent.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "core/device.hpp"
#include "driver/faults.hpp"
#include "emu/emulator.hpp"

namespace weave::test {

// 4 KiB blocks, 16 of them for tenants, and no latencies: a sweep opens thousands of devices.
inline constexpr const char* kSixteenBlocks =
    "h20?scale=4096&speed=1000&seed=3&capacity=72KiB&granularity=4KiB&block=4KiB&context=4KiB"
    "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns";
inline constexpr Bytes kBlock = 4096;

// Under --seed with the stepper's clock.
inline const cu::Table& counted_table() {
  static const cu::Table table = [] {
    const auto spec = emu::Spec::parse(spec_with_seed(kSixteenBlocks));
    const cu::Table wrapped =
        cu::counted(cu::Upstream::emulated, emu::with_clock(emu::table(), spec));
    cu::check(wrapped.init(0), cu::Call::init);
    return wrapped;
  }();
  return table;
}

inline std::size_t open_descriptors() {
  DIR* directory = opendir("/proc/self/fd");
  std::size_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

inline Device::Options options_with(Bytes host_budget = Bytes{1} << 30) {
  Device::Options options;
  options.block_bytes = kBlock;
  options.host_budget = host_budget;
  return options;
}

// An emulated device that lives until the last owner made through its Driver is gone.
struct Emulated {
  explicit Emulated(const char* spec = kSixteenBlocks)
      : ordinal(emu::add_device(emu::Spec::parse(spec_with_seed(spec)))),
        driver(std::make_shared<Driver>(counted_table(), ordinal,
                                        [id = ordinal] { emu::remove_device(id); })) {}
  int ordinal;
  DriverRef driver;
};

// A tenant with a `keep` region of several blocks and a `discard` region, filled with a pattern.
struct Patterned {
  std::shared_ptr<Tenant> tenant;
  std::shared_ptr<Region> keep, discard;
  std::vector<std::shared_ptr<Span>> spans;
  unsigned seed = 0;
  Bytes bytes = 0;           // of `keep`, from its start, that carry the pattern
  std::vector<Piece> pages;  // if there are any: only these bytes are compared

  unsigned char byte_at(Bytes offset) const {
    return static_cast<unsigned char>((offset * 2654435761u + seed * 97u) >> 7);
  }
  // pre for both: the tenant runs.
  void write() const {
    emu::host_view(keep->address(), true);
    auto* data = reinterpret_cast<unsigned char*>(keep->address());
    for (Bytes offset = 0; offset < bytes; ++offset) data[offset] = byte_at(offset);
  }
  // Fills the frames that only need a place, so that nothing stale in them passes for a copy.
  void scribble() const {
    emu::host_view(discard->address(), true);
    std::memset(reinterpret_cast<void*>(discard->address()), 0xEE, discard->slots.size() * kBlock);
  }
  // With a fill of poison: each byte of `discard` is what was scribbled, or the fill.
  bool discard_is_own() const {
    emu::host_view(discard->address(), true);
    const auto* data = reinterpret_cast<const unsigned char*>(discard->address());
    for (Bytes offset = 0; offset < discard->slots.size() * kBlock; ++offset) {
      if (data[offset] != 0xEE && data[offset] != kPoison) return false;
    }
    return true;
  }
  bool intact() const {
    emu::host_view(keep->address(), true);
    const auto* data = reinterpret_cast<const unsigned char*>(keep->address());
    return matches(data);
  }
  bool matches(const unsigned char* data) const {
    const auto is_exact = [&](Bytes begin, Bytes end) {
      for (Bytes offset = begin; offset < end; ++offset) {
        if (data[offset] != byte_at(offset)) return false;
      }
      return true;
    };
    if (pages.empty()) return is_exact(0, bytes);
    return std::ranges::all_of(
        pages, [&](const Piece& page) { return is_exact(page.offset, page.offset + page.bytes); });
  }
  // What rescue() gave of this tenant is exact, whether or not `keep` is in it.
  bool matches(const std::map<std::string, std::vector<std::byte>>& saved) const {
    const auto found = saved.find("weights");
    return found == saved.end() ||
           (found->second.size() >= bytes &&
            matches(reinterpret_cast<const unsigned char*>(found->second.data())));
  }
};

// pre: room on the device, or idle tenants to take it from. Leaves the tenant running.
inline void attach(Device& device, Patterned& into, const char* name, unsigned seed,
                   int keep_blocks, int discard_blocks) {
  into.seed = seed;
  if (into.tenant == nullptr) into.tenant = device.add_tenant(name, "job");
  device.resume(into.tenant, 60);
  into.keep = device.region(into.tenant, "weights", Policy::keep, 0);
  into.discard = device.region(into.tenant, "kv_cache", Policy::discard, 0);
  const auto fill = [&](const std::shared_ptr<Region>& region, int blocks) {
    while (region->slots.size() < static_cast<std::size_t>(blocks)) {
      into.spans.push_back(device.allocate(region, kBlock, 512));
    }
  };
  fill(into.keep, keep_blocks);
  fill(into.discard, discard_blocks);
  into.bytes = static_cast<Bytes>(keep_blocks) * kBlock;
  into.write();
  into.scribble();
}

// Two tenants of 8 + 3 blocks on 16: at least three blocks move each way in every switch. With 11
// and none every incoming block takes a place that becomes free only behind a copy out.
struct Pair {
  explicit Pair(const char* spec = kSixteenBlocks)
      : emulated(spec), device(std::make_shared<Device>(emulated.driver, options_with())) {}
  void attach_both() {
    attach(*device, a, "a", 1, keep_blocks, 11 - keep_blocks);
    device->release(a.tenant);
    attach(*device, b, "b", 2, keep_blocks, 11 - keep_blocks);
    device->hand_over(b.tenant, a.tenant, 60);
    // Other bytes than the host copies of a's first turn, which are stale from now on.
    a.seed += 10;
    a.write();
    a.scribble();
  }
  Emulated emulated;
  std::shared_ptr<Device> device;
  Patterned a, b;
  std::shared_ptr<Span> extra;  // of a growth
  int keep_blocks = 8;
};

// Nothing is left of a closed device but reservations of spans that are still out.
inline void check_nothing_left(int ordinal) {
  const auto census = emu::census(ordinal);
  CHECK_EQ(census.handles, 0u);
  CHECK_EQ(census.mappings, 0u);
  CHECK_EQ(census.registrations, 0u);
  CHECK_EQ(census.streams, 0u);
  CHECK_EQ(census.events, 0u);
  CHECK_EQ(census.bytes_used, 0u);
}

}  // namespace weave::test

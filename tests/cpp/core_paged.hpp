// A tenant with a page table, its shadow, and another tenant that takes its place.
#pragma once

#include <algorithm>
#include <random>

#include "core_fleet.hpp"

namespace weave::test {

inline std::uint64_t calls(cu::Call call) {
  return cu::call_counts(cu::Upstream::emulated)[static_cast<std::size_t>(call)];
}

inline constexpr Bytes kRegion = 16;  // blocks

// A tenant whose `keep` region has sixteen blocks of pages, and another that takes the whole
// device.
struct Paged {
  explicit Paged(unsigned seed = 1, Bytes host_budget = Bytes{1} << 30,
                 const cu::Table& table = counted_table(), const std::string& spill = "")
      : ordinal(emu::add_device(emu::Spec::parse(spec_with_seed(kSixteenBlocks)))), random(seed) {
    auto options = options_with(host_budget);
    options.background_thread = false;
    options.spill_directory = spill;
    device = std::make_shared<Device>(
        std::make_shared<Driver>(table, ordinal, [id = ordinal] { emu::remove_device(id); }),
        options);
    tenant = device->add_tenant("engine", "job");
    device->resume(tenant, 60);
    region = device->region(tenant, "kv_cache", Policy::keep, 0);
    device->set_pages(region, std::vector<Piece>{});
    span = device->allocate(region, kRegion * kBlock, 512);
    shadow.resize(kRegion * kBlock);
    device->release(tenant);
    other.tenant = device->add_tenant("other", "job");
  }
  // The other one, which keeps `blocks` of the sixteen that it takes.
  void attach_other(int blocks) {
    attach(*device, other, "other", 7, blocks, 16 - blocks);
    device->release(other.tenant);
    base = device->host_pool()->used() - blocks_in_use() * kBlock;
  }

  unsigned char* data() const {
    emu::host_view(region->address(), true);
    return reinterpret_cast<unsigned char*>(region->address());
  }
  Bytes bytes_in_use() const {
    Bytes bytes = 0;
    for (const auto& page : pages) bytes += page.bytes;
    return bytes;
  }
  Bytes blocks_in_use() const { return round_up(bytes_in_use(), kBlock) / kBlock; }
  // pre for these: the tenant runs.
  void write(const Piece& page) {
    for (Bytes at = page.offset; at < page.offset + page.bytes; ++at) {
      shadow[at] = data()[at] = static_cast<unsigned char>(random());
    }
  }
  // Every n-th page of that size, from a random one on, with new bytes; never two adjacent ones.
  void use(Bytes size, Bytes every) {
    pages.clear();
    const Bytes stride = size * std::max<Bytes>(every, 2);
    for (Bytes at = random() % stride; at + size <= kRegion * kBlock; at += stride) {
      if (random() % 4 != 0) pages.push_back({at, size});
    }
    for (const auto& page : pages) write(page);
    std::ranges::shuffle(pages, random);
  }
  void use_any() {
    const Bytes sizes[] = {96, 700, 1000, 4096, 5000, 9000};
    use(sizes[random() % 6], 2 + random() % 8);
  }
  bool intact() const {
    return std::ranges::all_of(pages, [&](const Piece& page) {
      return std::equal(data() + page.offset, data() + page.offset + page.bytes,
                        shadow.data() + page.offset);
    });
  }
  // What has no page is somebody else's or nothing: make sure that nobody lives on it.
  void resume_and_check() {
    device->resume(tenant, 60);
    CHECK(intact());
  }
  void set_pages() {
    device->set_pages(region, pages);
    CHECK_EQ(region->bytes_in_pages(), bytes_in_use());
    CHECK_EQ(region->packed.size(), blocks_in_use());
    CHECK_EQ(device->host_pool()->used(), base + blocks_in_use() * kBlock);
  }

  int ordinal;
  std::shared_ptr<Device> device;
  std::shared_ptr<Tenant> tenant;
  std::shared_ptr<Region> region;
  std::shared_ptr<Span> span;
  Patterned other;
  std::vector<Piece> pages;
  std::vector<unsigned char> shadow;
  Bytes base = 0;  // pinned memory that others use
  std::mt19937 random;
};

}  // namespace weave::test

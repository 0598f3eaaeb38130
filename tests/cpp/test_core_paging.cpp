// Regions of which only pages are in use: their host copies are packed, small copies go out in
// batches, and every byte in use is what it was, whatever took the device meanwhile.
#include <algorithm>
#include <functional>
#include <random>

#include "core_fleet.hpp"
#include "directory.hpp"

using namespace weave;
using namespace weave::test;

namespace {

std::uint64_t calls(cu::Call call) {
  return cu::call_counts(cu::Upstream::emulated)[static_cast<std::size_t>(call)];
}

constexpr Bytes kRegion = 16;  // blocks

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

}  // namespace

TEST(pinned_memory_is_that_of_the_pages_in_use) {
  Paged paged;
  const auto& pool = *paged.device->host_pool();
  CHECK_EQ(pool.used(), 0u);  // it has sixteen blocks, none of them in use
  paged.device->resume(paged.tenant, 60);
  paged.use(1000, 3);
  paged.set_pages();
  CHECK(paged.blocks_in_use() > 2 && paged.blocks_in_use() < 6);
  paged.use(96, 50);
  paged.set_pages();  // fewer: given back
  CHECK_EQ(pool.used(), kBlock);
  paged.pages.clear();
  paged.set_pages();
  CHECK_EQ(pool.used(), 0u);
  paged.device->set_pages(paged.region, std::nullopt);
  CHECK_EQ(pool.used(), kRegion * kBlock);
  CHECK_EQ(paged.region->bytes_in_pages(), kRegion * kBlock);
  paged.use(4096, 4);
  paged.set_pages();
  CHECK_EQ(pool.used(), paged.bytes_in_use());
}

TEST(a_region_that_grows_while_it_is_paged_takes_no_pinned_memory) {
  Fleet fleet(60, {{10}, {40}});
  auto& one = fleet.members[0];
  fleet.turn(0);
  fleet.device->set_pages(one.keep, {{{0, 3 * kBlock}}});
  const auto used = fleet.device->host_pool()->used();
  one.spans.push_back(fleet.device->allocate(one.keep, 20 * kBlock, 512));
  CHECK_EQ(one.keep->slots.size(), 30u);
  CHECK_EQ(fleet.device->host_pool()->used(), used);
  one.bytes = 3 * kBlock;
  const auto report = fleet.device->suspend(one.tenant, 60);
  CHECK_EQ(report.bytes_out, 3 * kBlock);
  CHECK_EQ(report.blocks_remapped, 30u);
  fleet.check_all();
}

TEST(pages_in_use_are_exact_over_many_turns) {
  for (const bool verify : {false, true}) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      const Directory directory;
      Paged paged(seed, Bytes{1} << 30, counted_table(), directory.path);
      paged.device->set_verify(verify);
      paged.attach_other(12);
      for (int turn = 0; turn < 12; ++turn) {
        if (paged.random() % 3 == 0) {  // whoever comes next is brought in ahead
          paged.device->prefetch(paged.tenant, {paged.tenant, paged.other.tenant}, 0);
          paged.device->run_background();
        }
        paged.resume_and_check();
        // Half of the turns the pages stay the same, with other bytes.
        if (paged.random() % 2 == 0) {
          paged.use_any();
        } else {
          for (const auto& page : paged.pages) paged.write(page);
        }
        paged.set_pages();
        if (paged.random() % 3 == 0) {
          paged.device->write_back(paged.tenant, "kv_cache");
          paged.device->run_background();
          if (paged.random() % 2 == 0) {  // something changes after all
            paged.device->mark_dirty(paged.region);
            for (const auto& page : paged.pages) paged.write(page);
          }
        }
        if (paged.random() % 4 == 0) {
          const auto saved = paged.device->rescue(paged.tenant).at("kv_cache");
          for (const auto& page : paged.pages) {
            CHECK(std::memcmp(saved.data() + page.offset, paged.shadow.data() + page.offset,
                              page.bytes) == 0);
          }
        }
        paged.device->release(paged.tenant);
        paged.device->resume(paged.other.tenant, 60);
        CHECK(paged.other.intact());
        paged.other.seed += 1;
        paged.other.write();
        paged.other.scribble();
        if (paged.random() % 3 == 0) {
          const auto spilled = paged.device->spill(paged.tenant);
          CHECK(spilled <= paged.bytes_in_use());
          CHECK_EQ(paged.device->stats().bytes_in_files, spilled);
          const auto saved = paged.device->rescue(paged.tenant).at("kv_cache");
          for (const auto& page : paged.pages) {
            CHECK(std::memcmp(saved.data() + page.offset, paged.shadow.data() + page.offset,
                              page.bytes) == 0);
          }
        }
        paged.device->release(paged.other.tenant);
      }
      paged.resume_and_check();
    }
  }
}

TEST(a_table_may_change_while_the_pages_of_the_old_one_are_written_back) {
  for (Bytes round = 0; round < 4; ++round) {
    // A block takes 10 ms.
    Fleet fleet(24, {{8}, {20}}, true,
                (std::string(kTwoHundredBlocks) + "&h2d=400KB/s&d2h=400KB/s").c_str());
    fleet.enter(0);
    auto& one = fleet.members[0];
    const auto use = [&](Bytes first) {
      one.pages.clear();
      for (Bytes at = first; at + 1500 <= one.bytes; at += 2000) one.pages.push_back({at, 1500});
      fleet.device->set_pages(one.keep, one.pages);
    };
    use(0);
    const auto copy = fleet.device->write_back(one.tenant, "weights");
    while (copy->bytes_done() < round * kBlock && !copy->finished()) copy->wait(0.001);
    use(300 * (round + 1));  // every page has another place in the packed copy
    CHECK(copy->wait(60));
    fleet.device->suspend(one.tenant, 60);
    fleet.check_all();
  }
}

TEST(pages_get_no_other_places_while_a_copy_of_the_old_ones_may_be_in_flight) {
  Paged paged;
  paged.attach_other(0);
  paged.resume_and_check();
  paged.use(1000, 3);
  paged.set_pages();
  const auto before = paged.region->packed.size();
  const auto copy = paged.device->write_back(paged.tenant, "kv_cache");
  const std::vector<Piece> fewer{paged.pages.front()};
  {
    // Nobody can tell whether the background's last copy has ended.
    const cu::FaultScope fault(
        {.nth = 1, .from_then_on = true, .only = cu::Call::stream_synchronize});
    paged.device->run_background();
    CHECK_THROWS(copy->wait(60), DriverError, "cuStreamSynchronize");
    CHECK_THROWS(paged.device->set_pages(paged.region, fewer), DriverError, "cuStreamSynchronize");
    CHECK_EQ(paged.region->packed.size(), before);
  }
  paged.pages = fewer;
  paged.set_pages();
  paged.device->suspend(paged.tenant, 60);
  paged.resume_and_check();
}

TEST(a_table_that_needs_room_makes_idle_tenants_spill) {
  const Directory directory;
  Paged paged(1, 14 * kBlock, counted_table(), directory.path);
  paged.attach_other(8);
  paged.device->suspend(paged.other.tenant, 60);
  paged.device->resume(paged.tenant, 60);
  paged.pages = {{0, 4 * kBlock}, {6 * kBlock, 6 * kBlock}};
  for (const auto& page : paged.pages) paged.write(page);
  paged.device->set_pages(paged.region, paged.pages);
  CHECK_EQ(paged.other.tenant->slots_spilled(), 8u);
  CHECK_EQ(paged.region->packed.size(), 10u);
  paged.device->hand_over(paged.tenant, paged.other.tenant, 60);
  CHECK(paged.other.intact());
  paged.device->hand_over(paged.other.tenant, paged.tenant, 60);
  CHECK(paged.intact());
}

TEST(spilled_pages_give_back_their_pinned_memory) {
  const Directory directory;
  Paged paged(1, Bytes{1} << 30, counted_table(), directory.path);
  paged.attach_other(0);
  paged.resume_and_check();
  paged.use(700, 3);
  paged.set_pages();
  paged.device->suspend(paged.tenant, 60);
  CHECK_EQ(paged.device->spill(paged.tenant), paged.bytes_in_use());
  CHECK_EQ(paged.device->host_pool()->used(), paged.base);
  CHECK_EQ(paged.device->spill(paged.tenant), 0u);
  paged.resume_and_check();
  CHECK_EQ(paged.device->host_pool()->used(), paged.base + paged.blocks_in_use() * kBlock);
  CHECK_EQ(paged.device->stats().bytes_in_files, 0u);
  CHECK(directory.files().empty());

  // Part of it is on the device still: its pages keep their places, so that they can leave.
  paged.set_pages();
  paged.device->release(paged.tenant);
  auto& third = paged.other;
  third = {};
  attach(*paged.device, third, "third", 9, 4, 2);
  CHECK(paged.tenant->slots_on_device() > 0 && paged.tenant->slots_on_device() < kRegion);
  CHECK(paged.device->spill(paged.tenant) > 0);
  CHECK(paged.tenant->slots_spilled() > 0);
  paged.device->release(third.tenant);
  attach(*paged.device, third, "third", 9, 4, 12);  // the rest leaves, without an allocation
  CHECK_EQ(paged.tenant->slots_on_device(), 0u);
  paged.device->release(third.tenant);
  paged.resume_and_check();
}

TEST(a_table_that_needs_more_than_the_budget_is_refused) {
  Paged paged(1, 5 * kBlock);
  paged.device->resume(paged.tenant, 60);
  paged.use(1000, 8);
  paged.set_pages();
  const auto before = paged.pages;
  const auto used = paged.device->host_pool()->used();
  paged.pages = {{0, 3 * kBlock}, {8 * kBlock, 3 * kBlock}};
  CHECK_THROWS(paged.device->set_pages(paged.region, paged.pages), Refusal, "at its budget");
  CHECK_THROWS(paged.device->set_pages(paged.region, std::nullopt), Refusal, "at its budget");
  CHECK_THROWS(paged.device->set_pages(paged.region, std::vector<Piece>{{kRegion * kBlock, 1}}),
               UsageError, "is outside region");
  // The old one holds.
  CHECK(paged.tenant->running);
  CHECK_EQ(paged.device->host_pool()->used(), used);
  paged.pages = before;
  for (const auto& page : paged.pages) paged.write(page);
  CHECK_EQ(paged.region->bytes_in_pages(), paged.bytes_in_use());
  paged.device->suspend(paged.tenant, 60);
  paged.resume_and_check();
}

TEST(pages_that_nobody_names_leave_with_all_of_the_region) {
  Paged paged;
  paged.attach_other(4);
  for (const bool suspended : {false, true}) {
    paged.resume_and_check();
    paged.use(1000, 5);
    paged.set_pages();
    paged.device->forget_pages(paged.region);
    CHECK_EQ(paged.region->bytes_in_pages(), kRegion * kBlock);
    paged.pages = {{0, kRegion * kBlock}};
    paged.write(paged.pages.front());
    CHECK_EQ(paged.device->host_pool()->used() < paged.base + kRegion * kBlock, true);
    if (suspended) {
      CHECK_EQ(paged.device->suspend(paged.tenant, 60).bytes_out, kRegion * kBlock);
    } else {
      paged.device->release(paged.tenant);  // takes nothing: it may stay where it is
      CHECK(paged.device->host_pool()->used() < paged.base + kRegion * kBlock);
    }
    paged.device->resume(paged.other.tenant, 60);
    CHECK(paged.other.intact());
    CHECK_EQ(paged.device->host_pool()->used(), paged.base + kRegion * kBlock);
    paged.device->release(paged.other.tenant);
  }
  paged.resume_and_check();
  // Named again, the memory goes back.
  paged.use(96, 20);
  paged.set_pages();
}

TEST(pages_that_nobody_names_stay_where_there_is_no_memory_for_them) {
  Paged paged(1, 10 * kBlock);
  paged.attach_other(2);
  paged.resume_and_check();
  paged.device->forget_pages(paged.region);
  paged.pages = {{0, kRegion * kBlock}};
  paged.write(paged.pages.front());
  CHECK_THROWS(paged.device->suspend(paged.tenant, 60), Refusal, "at its budget");
  CHECK(paged.tenant->running && paged.tenant->all_mapped());
  CHECK_THROWS(paged.device->hand_over(paged.tenant, paged.other.tenant, 60), Refusal,
               "at its budget");
  CHECK(paged.tenant->running && !paged.other.tenant->running);
  paged.device->release(paged.tenant);
  CHECK_THROWS(paged.device->resume(paged.other.tenant, 60), Refusal, "at its budget");
  // Nor does the background take it.
  paged.device->prefetch(paged.other.tenant, {paged.other.tenant, paged.tenant}, 0);
  paged.device->run_background();
  CHECK_EQ(paged.tenant->slots_on_device(), kRegion);
  paged.resume_and_check();
  paged.use(500, 12);
  paged.set_pages();
  paged.device->hand_over(paged.tenant, paged.other.tenant, 60);
  CHECK(paged.other.intact());
  paged.device->hand_over(paged.other.tenant, paged.tenant, 60);
  CHECK(paged.intact());
}

TEST(a_block_without_a_page_costs_nothing) {
  Paged paged;
  paged.resume_and_check();
  // Two of sixteen blocks have a page.
  paged.pages = {{3 * kBlock + 5, 100}, {9 * kBlock, 50}};
  for (const auto& page : paged.pages) paged.write(page);
  paged.set_pages();
  const auto dtoh = calls(cu::Call::memcpy_dtoh_async) + calls(cu::Call::memcpy_batch_async);
  const auto report = paged.device->suspend(paged.tenant, 60);
  CHECK_EQ(report.bytes_out, 150u);
  CHECK_EQ(calls(cu::Call::memcpy_dtoh_async) + calls(cu::Call::memcpy_batch_async), dtoh + 1);
  CHECK_EQ(paged.device->resume(paged.tenant, 60).bytes_in, 150u);
  CHECK(paged.intact());
  // Such blocks leave first.
  paged.set_pages();
  paged.device->release(paged.tenant);
  attach(*paged.device, paged.other, "other", 7, 0, 14);
  CHECK_EQ(paged.region->slots[3].frame != kNoFrame, true);
  CHECK_EQ(paged.region->slots[9].frame != kNoFrame, true);
}

TEST(the_same_pages_keep_what_was_written_back) {
  Paged paged;
  paged.attach_other(0);
  paged.resume_and_check();
  paged.use(1000, 4);
  paged.set_pages();
  paged.device->write_back(paged.tenant, "kv_cache");
  paged.device->run_background();
  std::ranges::reverse(paged.pages);
  paged.device->forget_pages(paged.region);
  paged.set_pages();
  CHECK_EQ(paged.device->suspend(paged.tenant, 60).bytes_out, 0u);
  paged.resume_and_check();
  // Others do not.
  paged.set_pages();
  paged.device->write_back(paged.tenant, "kv_cache");
  paged.device->run_background();
  paged.pages.pop_back();
  paged.set_pages();
  CHECK_EQ(paged.device->suspend(paged.tenant, 60).bytes_out, paged.bytes_in_use());
  paged.resume_and_check();
}

// The same switch with and without batches: the same bytes, other calls.
TEST(small_copies_go_out_in_batches) {
  std::uint64_t made[2] = {};
  for (const bool batches : {false, true}) {
    auto table = counted_table();
    if (!batches) table.memcpy_batch_async = nullptr;
    Paged paged(5, Bytes{1} << 30, table);
    paged.attach_other(0);
    paged.resume_and_check();
    // 160 pages, ten in each block.
    for (Bytes index = 0; index < 160; ++index) paged.pages.push_back({index * 409, 200});
    for (const auto& page : paged.pages) paged.write(page);
    paged.set_pages();
    const auto before = calls(cu::Call::memcpy_dtoh_async);
    const auto batched = calls(cu::Call::memcpy_batch_async);
    paged.device->hand_over(paged.tenant, paged.other.tenant, 60);
    made[batches] =
        calls(cu::Call::memcpy_dtoh_async) - before + calls(cu::Call::memcpy_batch_async) - batched;
    CHECK_EQ(calls(cu::Call::memcpy_batch_async) > batched, batches);
    paged.device->hand_over(paged.other.tenant, paged.tenant, 60);
    CHECK(paged.intact());
    paged.device->close();
    check_nothing_left(paged.ordinal);
  }
  std::printf("160 pages of 200 bytes left in %lu calls, and in %lu with batches\n",
              static_cast<unsigned long>(made[0]), static_cast<unsigned long>(made[1]));
  CHECK(made[0] >= 160);
  // As many bytes in a batch as in a chunk: twenty pages.
  CHECK(made[1] <= 10);
}

TEST(small_tags_go_out_together_and_large_copies_alone) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  const auto tenant = device.add_tenant("small", "job");
  device.resume(tenant, 60);
  std::vector<std::shared_ptr<Span>> spans;
  std::vector<std::shared_ptr<Region>> regions;
  for (const char* tag : {"weights", "grads", "optimizer", "buffers", "other"}) {
    regions.push_back(device.region(tenant, tag, Policy::keep, 0));
    spans.push_back(device.allocate(regions.back(), 512, 512));
    emu::host_view(regions.back()->address(), true);
    std::memset(reinterpret_cast<void*>(regions.back()->address()), *tag, 512);
  }
  spans.push_back(
      device.allocate(device.region(tenant, "cuda_graph", Policy::keep, 0), 3 * kBlock, 512));
  const auto single = calls(cu::Call::memcpy_dtoh_async);
  const auto batched = calls(cu::Call::memcpy_batch_async);
  CHECK_EQ(device.suspend(tenant, 60).bytes_out, 5 * 512 + 3 * kBlock);
  CHECK_EQ(calls(cu::Call::memcpy_batch_async), batched + 1);
  CHECK_EQ(calls(cu::Call::memcpy_dtoh_async), single + 3);
  device.resume(tenant, 60);
  for (const auto& region : regions) {
    emu::host_view(region->address(), true);
    const auto* data = reinterpret_cast<const char*>(region->address());
    CHECK(std::ranges::all_of(data, data + 512, [&](char c) { return c == region->tag[0]; }));
  }
}

TEST(a_batch_that_fails_is_undone) {
  std::uint64_t fired = 0;
  for (const bool from_then_on : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      Paged paged(5);
      paged.attach_other(8);
      paged.resume_and_check();
      paged.use(300, 2);
      paged.set_pages();
      bool failed = false;
      {
        const cu::FaultScope fault(
            {.nth = nth, .from_then_on = from_then_on, .only = cu::Call::memcpy_batch_async});
        try {
          paged.device->hand_over(paged.tenant, paged.other.tenant, 60);
          paged.device->hand_over(paged.other.tenant, paged.tenant, 60);
        } catch (const DriverError& error) {
          CHECK_EQ(error.call, cu::Call::memcpy_batch_async);
        }
        failed = fault.calls_failed() > 0;
      }
      fired += failed ? 1 : 0;
      for (const auto& each : {paged.tenant, paged.other.tenant}) paged.device->release(each);
      paged.resume_and_check();
      paged.device->hand_over(paged.tenant, paged.other.tenant, 60);
      CHECK(paged.other.intact());
      paged.device->hand_over(paged.other.tenant, paged.tenant, 60);
      CHECK(paged.intact());
      if (!failed) break;
    }
  }
  CHECK(fired > 8);
}

// A driver may have the call and not what it does.
TEST(where_batches_are_not_supported_copies_go_one_by_one) {
  Paged paged(5);
  paged.attach_other(8);
  paged.resume_and_check();
  paged.use(300, 2);
  paged.set_pages();
  {
    cu::FaultScope::Plan plan;
    plan.nth = 1;
    plan.from_then_on = true;
    plan.status = cu::kNotSupported;
    plan.only = cu::Call::memcpy_batch_async;
    const cu::FaultScope fault(plan);
    paged.device->hand_over(paged.tenant, paged.other.tenant, 60);
    CHECK(paged.other.intact());
    paged.device->hand_over(paged.other.tenant, paged.tenant, 60);
    CHECK(paged.intact());
    CHECK_EQ(fault.calls_failed(), 1u);  // nor is it tried again
  }
}

TEST(a_page_table_says_where_each_byte_is) {
  const PageTable table({{4090, 10}, {100, 50}, {140, 20}, {8192, 4096}, {0, 0}}, 3 * kBlock,
                        kBlock, "kv_cache");
  CHECK_EQ(table.bytes(), 4166u);  // the second and third are one
  CHECK_EQ(table.extents(), 2u);
  CHECK_EQ(table.bytes_in(0), 66u);
  CHECK_EQ(table.bytes_in(1), 4u);
  CHECK_EQ(table.bytes_in(2), 4096u);
  const auto first = table.parts(0);
  CHECK_EQ(first.size(), 2u);
  CHECK(first[0].offset == 100 && first[0].bytes == 60 && first[0].at == 0);
  CHECK(first[1].offset == 4090 && first[1].bytes == 6 && first[1].at == 60);
  CHECK_EQ(table.parts(1).front().at, 66u);  // the page goes on in the next block
  const auto last = table.parts(2);
  CHECK_EQ(last.size(), 2u);  // and this one in the next extent
  CHECK(last[0].extent == 0 && last[0].at == 70 && last[0].bytes == 4026);
  CHECK(last[1].extent == 1 && last[1].at == 0 && last[1].offset == 4026 && last[1].bytes == 70);
}

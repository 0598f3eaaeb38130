// Regions of which only pages are in use: their host copies are packed, and every byte in use is
// what it was, whatever took the device meanwhile.
#include <functional>

#include "core_paged.hpp"
#include "directory.hpp"

using namespace weave;
using namespace weave::test;

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

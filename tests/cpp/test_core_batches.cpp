// Small copies go out in batches where the driver can, with the same bytes as one by one.
#include "core_paged.hpp"

using namespace weave;
using namespace weave::test;

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

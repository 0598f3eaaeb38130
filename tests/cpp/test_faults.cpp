// The counting wrapper around a table, and the faults it can be told to make.
#include "driver/faults.hpp"
#include "emulated.hpp"

using namespace weave;
using namespace weave::test;
using cu::Call;
using cu::FaultScope;

namespace {

const cu::Table& wrapped() {
  static const cu::Table table = cu::counted(cu::Upstream::emulated, emu::table());
  return table;
}

std::uint64_t count_of(Call call) {
  return cu::call_counts(cu::Upstream::emulated)[static_cast<std::size_t>(call)];
}

cu::Status ask() {
  int count = 0;
  return wrapped().device_get_count(&count);
}

}  // namespace

TEST(calls_are_counted_and_passed_on) {
  const Opened device;
  const auto before = count_of(Call::device_get_count);
  int count = -1;
  CHECK_EQ(wrapped().device_get_count(&count), 0);
  CHECK_EQ(count, device.ordinal + 1);
  CHECK_EQ(count_of(Call::device_get_count), before + 1);
  CHECK_EQ(count_of(Call::mem_create), 0U);
  CHECK_EQ(cu::call_counts(cu::Upstream::loaded)[static_cast<std::size_t>(Call::device_get_count)],
           0U);
  CHECK(wrapped().now_ns == emu::table().now_ns);
  CHECK(cu::is_complete(wrapped()));
}

TEST(a_null_optional_entry_stays_null) {
  cu::Table table = emu::table();
  table.thread_exchange_capture_mode = nullptr;
  const auto counted = cu::counted(cu::Upstream::loaded, table);
  CHECK(counted.thread_exchange_capture_mode == nullptr);
  CHECK(counted.init != nullptr);
  CHECK(cu::is_complete(counted));
}

TEST(the_nth_call_fails) {
  const Opened device;
  const FaultScope scope({.nth = 2, .status = cu::kOutOfMemory});
  CHECK_EQ(ask(), 0);
  CHECK_EQ(ask(), cu::kOutOfMemory);
  CHECK_EQ(ask(), 0);
  CHECK_EQ(scope.calls_seen(), 3U);
  CHECK_EQ(scope.calls_failed(), 1U);
}

TEST(every_call_from_the_nth_on_fails) {
  const Opened device;
  {
    const FaultScope scope({.nth = 2, .from_then_on = true});
    CHECK_EQ(ask(), 0);
    CHECK_EQ(ask(), cu::kUnknown);
    CHECK_EQ(ask(), cu::kUnknown);
    CHECK_EQ(scope.calls_failed(), 2U);
  }
  CHECK_EQ(ask(), 0);
}

TEST(only_one_call_is_counted_and_failed) {
  Opened device;
  const auto prop = prop_for(device.ordinal);
  const FaultScope scope({.nth = 1, .only = Call::mem_create, .status = cu::kOutOfMemory});
  CHECK_EQ(ask(), 0);
  cu::AllocHandle handle = 0;
  CHECK_EQ(wrapped().mem_create(&handle, device.spec.block_bytes, &prop, 0), cu::kOutOfMemory);
  CHECK_EQ(wrapped().mem_create(&handle, device.spec.block_bytes, &prop, 0), 0);
  CHECK_EQ(scope.calls_seen(), 2U);
  CHECK_EQ(emu::census(device.ordinal).handles, 1U);  // the failed call was not made
  CHECK_EQ(wrapped().mem_release(handle), 0);
}

TEST(zero_only_counts_and_scopes_do_not_nest) {
  const Opened device;
  const FaultScope scope({});
  CHECK_EQ(ask(), 0);
  CHECK_EQ(scope.calls_seen(), 1U);
  CHECK_EQ(scope.calls_failed(), 0U);
  CHECK_THROWS(FaultScope({}), UsageError, "already armed");
  CHECK_EQ(ask(), 0);
  CHECK_EQ(scope.calls_seen(), 2U);
}

TEST(status_texts) {
  CHECK_EQ(cu::status_name(2), "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK_EQ(cu::status_name(12345), "CUDA_ERROR_12345");
  CHECK_THROWS(cu::check(cu::kOutOfMemory, Call::mem_create, 4096, "pool"), OutOfMemory,
               "cuMemCreate failed with CUDA_ERROR_OUT_OF_MEMORY (2), 4096 bytes: pool");
  CHECK_THROWS(cu::check(cu::kIllegalAddress, Call::ctx_synchronize), DriverError, "700");
  CHECK(cu::is_sticky(cu::kIllegalAddress));
  CHECK(!cu::is_sticky(cu::kNotReady));
  const auto before = cu::reported_count();
  cu::report(cu::kSuccess, Call::mem_release);
  cu::report(cu::kDeinitialized, Call::mem_release);
  CHECK_EQ(cu::reported_count(), before);
  cu::report(cu::kInvalidValue, Call::mem_release);
  CHECK_EQ(cu::reported_count(), before + 1);
  CHECK_ABORTS(WEAVE_ASSERT(1 + 1 == 3, "sums are off"), "sums are off");
}

// The counting wrapper around a table, and the faults it can be told to make.
#include <algorithm>

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

TEST(a_seed_decides_which_calls_fail) {
  const Opened device;
  const auto pattern = [&](std::uint64_t seed, double probability) {
    std::string failures;
    const FaultScope scope({.probability = probability, .seed = seed});
    for (int call = 0; call < 400; ++call) failures += ask() == 0 ? '.' : 'x';
    return failures;
  };
  const auto first = pattern(7, 0.25);
  CHECK_EQ(pattern(7, 0.25), first);
  CHECK(pattern(8, 0.25) != first);
  const auto hits = std::count(first.begin(), first.end(), 'x');
  CHECK(hits > 60 && hits < 140);
  CHECK_EQ(pattern(7, 0), std::string(400, '.'));
  CHECK_EQ(pattern(7, 1), std::string(400, 'x'));
}

TEST(a_delayed_call_is_made_later_on_the_driver_clock) {
  const Opened device;
  {
    const FaultScope scope({.nth = 2, .status = cu::kSuccess, .delay_ns = 2'000'000});
    CHECK_EQ(ask(), 0);
    const auto before = wrapped().now_ns();
    CHECK_EQ(ask(), 0);
    CHECK(wrapped().now_ns() - before >= 2'000'000);
    CHECK_EQ(scope.calls_delayed(), 1U);
    CHECK_EQ(scope.calls_failed(), 0U);
  }
  const FaultScope scope({.nth = 1, .delay_ns = 1000});
  CHECK_EQ(ask(), cu::kUnknown);
  CHECK_EQ(scope.calls_delayed(), 1U);
}

TEST(a_lost_context_fails_until_it_is_released) {
  for (const cu::Status status : {cu::kIllegalAddress, cu::kLaunchFailed, cu::kEccUncorrectable}) {
    const int lost = emu::add_device(emu::Spec::parse(kSmall));
    const int other = emu::add_device(emu::Spec::parse(kSmall));
    const auto& table = wrapped();
    cu::Context contexts[2] = {};
    CHECK_EQ(table.primary_ctx_retain(&contexts[0], lost), 0);
    CHECK_EQ(table.primary_ctx_retain(&contexts[0], lost), 0);
    CHECK_EQ(table.primary_ctx_retain(&contexts[1], other), 0);
    {
      const FaultScope scope({.nth = 2, .status = status, .sticky = true});
      CHECK_EQ(ask(), 0);  // not about a context: neither counted nor failed
      CHECK_EQ(table.ctx_push_current(contexts[0]), 0);
      CHECK_EQ(table.ctx_synchronize(), 0);
      CHECK_EQ(table.ctx_synchronize(), status);
      cu::Stream stream = nullptr;
      CHECK_EQ(table.stream_create(&stream, 0), status);
      CHECK_EQ(table.ctx_synchronize(), status);
      CHECK_EQ(ask(), 0);
      // Another context goes on.
      CHECK_EQ(table.ctx_push_current(contexts[1]), 0);
      CHECK_EQ(table.ctx_synchronize(), 0);
      CHECK_EQ(table.ctx_pop_current(&contexts[1]), 0);
      CHECK_EQ(table.ctx_synchronize(), status);
      CHECK_EQ(table.ctx_pop_current(&contexts[0]), 0);
      // Not the last holder, then the last one.
      CHECK_EQ(table.primary_ctx_release(lost), 0);
      CHECK_EQ(table.ctx_push_current(contexts[0]), 0);
      CHECK_EQ(table.ctx_synchronize(), status);
      CHECK_EQ(table.ctx_pop_current(&contexts[0]), 0);
      CHECK_EQ(table.primary_ctx_release(lost), 0);
      CHECK_EQ(table.primary_ctx_retain(&contexts[0], lost), 0);
      CHECK_EQ(table.ctx_push_current(contexts[0]), 0);
      CHECK_EQ(table.ctx_synchronize(), 0);
      CHECK_EQ(table.ctx_pop_current(&contexts[0]), 0);
    }
    CHECK_EQ(table.primary_ctx_release(lost), 0);
    CHECK_EQ(table.primary_ctx_release(other), 0);
    emu::remove_device(lost);
    emu::remove_device(other);
  }
}

TEST(a_reset_ends_the_loss) {
  const int ordinal = emu::add_device(emu::Spec::parse(kSmall));
  const auto& table = wrapped();
  cu::Context context = nullptr;
  CHECK_EQ(table.primary_ctx_retain(&context, ordinal), 0);
  {
    const FaultScope scope({.nth = 1, .status = cu::kLaunchFailed, .sticky = true});
    CHECK_EQ(table.ctx_push_current(context), 0);
    CHECK_EQ(table.ctx_synchronize(), cu::kLaunchFailed);
    CHECK_EQ(table.primary_ctx_reset(ordinal), 0);
    CHECK(table.ctx_synchronize() != cu::kLaunchFailed);
    table.ctx_pop_current(&context);
  }
  table.primary_ctx_release(ordinal);
  emu::remove_device(ordinal);
}

TEST(plans_that_make_no_sense_are_refused) {
  const auto refuses = [](FaultScope::Plan plan, const char* why) {
    CHECK_THROWS(FaultScope{plan}, UsageError, why);
  };
  refuses({.nth = 1, .status = 0}, "other than 0");
  refuses({.probability = 1.5}, "between 0 and 1");
  refuses({.nth = 1, .delay_ns = -1}, "0 ns or more");
  refuses({.nth = 1, .status = cu::kUnknown, .sticky = true}, "not sticky");
  refuses({.nth = 1, .only = Call::mem_map, .status = cu::kLaunchFailed, .sticky = true},
          "mem_map");
}

// The text of a device spec: named specs, scale and speed, explicit values, refusals.
#include "check.hpp"
#include "driver/status.hpp"
#include "emu/emulator.hpp"

using weave::UsageError;
using weave::emu::Spec;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

void check_refused(const char* text, const char* wanted) {
  try {
    Spec::parse(text);
    weave::test::fail(__FILE__, __LINE__, std::string(text) + " was accepted");
  } catch (const UsageError& error) {
    const std::string what = error.what();
    if (what.find(wanted) == std::string::npos || what.find('\n') != std::string::npos) {
      weave::test::fail(__FILE__, __LINE__, std::string(text) + " said: " + what);
    }
  }
}

void check_round_trip(const char* text) {
  const Spec spec = Spec::parse(text);
  const Spec again = Spec::parse(spec.text());
  CHECK_EQ(again.text(), spec.text());
  CHECK_EQ(again.capacity_bytes, spec.capacity_bytes);
  CHECK_EQ(again.block_bytes, spec.block_bytes);
  CHECK_EQ(again.granularity_bytes, spec.granularity_bytes);
  CHECK_EQ(again.context_bytes, spec.context_bytes);
  CHECK_EQ(again.h2d_bytes_per_s, spec.h2d_bytes_per_s);
  CHECK_EQ(again.d2h_bytes_per_s, spec.d2h_bytes_per_s);
  CHECK_EQ(again.pageable_bytes_per_s, spec.pageable_bytes_per_s);
  CHECK_EQ(again.duplex, spec.duplex);
  CHECK_EQ(again.copy_ns, spec.copy_ns);
  CHECK_EQ(again.register_ns, spec.register_ns);
  CHECK_EQ(again.seed, spec.seed);
  CHECK_EQ(again.id, spec.id);
}

}  // namespace

TEST(named_specs) {
  const Spec h20 = Spec::parse("h20");
  CHECK_EQ(h20.name, "h20");
  CHECK_EQ(h20.granularity_bytes, 2 * kMiB);
  CHECK_EQ(h20.block_bytes, 64 * kMiB);
  CHECK_EQ(h20.capacity_bytes, 96'000'000'000 / (2 * kMiB) * (2 * kMiB));
  CHECK_EQ(h20.h2d_bytes_per_s, 55e9);
  CHECK_EQ(h20.d2h_bytes_per_s, 55e9);
  CHECK_EQ(h20.pageable_bytes_per_s, 12e9);
  CHECK_EQ(h20.duplex, 0.75);
  CHECK_EQ(h20.engines, 1);
  CHECK_EQ(h20.context_bytes, 500'000'000U);
  CHECK_EQ(h20.unmanaged_bytes, 0U);
  CHECK_EQ(h20.copy_ns, 5'000);
  CHECK_EQ(h20.map_ns, 20'000);
  CHECK_EQ(h20.access_ns, 23'000);
  CHECK_EQ(h20.unmap_ns, 20'000);
  CHECK_EQ(h20.create_ns, 200'000);
  CHECK_EQ(h20.register_ns, 0);
  CHECK(Spec::parse("h800").capacity_bytes == Spec::parse("h100").capacity_bytes);
  CHECK_EQ(Spec::parse("emulated:h200").capacity_bytes, 141'000'000'000 / (2 * kMiB) * 2 * kMiB);
}

TEST(scale_and_speed) {
  const Spec spec = Spec::parse("emulated:h20?scale=64&speed=2");
  CHECK_EQ(spec.granularity_bytes, 32768U);
  CHECK_EQ(spec.block_bytes, kMiB);
  CHECK_EQ(spec.capacity_bytes, 1'500'000'000 / 32768 * 32768U);
  CHECK_EQ(spec.h2d_bytes_per_s, 55e9 / 64 * 2);
  CHECK_EQ(spec.pageable_bytes_per_s, 12e9 / 64 * 2);
  CHECK_EQ(spec.context_bytes, 500'000'000U / 64);
  CHECK_EQ(spec.map_ns, 20'000);
  const Spec tiny = Spec::parse("h20?scale=4096");
  CHECK_EQ(tiny.granularity_bytes, 4096U);
  CHECK_EQ(tiny.block_bytes, 16384U);
  // The floor is the host page; the number of blocks of a real device is kept above it.
  CHECK_EQ(Spec::parse("h20?scale=100000").block_bytes, 4096U);
  CHECK_EQ(Spec::parse("h20?scale=3").granularity_bytes, kMiB / 2);
}

TEST(explicit_values_are_not_scaled) {
  const Spec spec = Spec::parse("h20?capacity=1GiB&scale=64&h2d=1.5GB/s&d2h=2GB&speed=10&copy=1ms");
  CHECK_EQ(spec.capacity_bytes, 1024 * kMiB);
  CHECK_EQ(spec.h2d_bytes_per_s, 1.5e9);
  CHECK_EQ(spec.d2h_bytes_per_s, 2e9);
  CHECK_EQ(spec.copy_ns, 1'000'000);
  // Capacity is rounded down to the granularity; a block that was not given, up.
  CHECK_EQ(Spec::parse("h20?scale=64&capacity=100000001B").capacity_bytes % 32768, 0U);
  CHECK_EQ(Spec::parse("h20?scale=4096&granularity=64KiB").block_bytes, 65536U);
}

TEST(text_round_trips) {
  CHECK_EQ(Spec::parse("h20?speed=50&seed=1&scale=4096").text(),
           "emulated:h20?scale=4096&speed=50&seed=1");
  CHECK_EQ(Spec::parse("h20").text(), "emulated:h20?scale=1&speed=1");
  CHECK_EQ(Spec::parse("h20?scale=64&capacity=1GiB&h2d=100MB&map=1ms&register=2us").text(),
           "emulated:h20?scale=64&speed=1&capacity=1GiB&h2d=100MB/s&map=1ms&register=2us");
  check_round_trip(
      "h800?scale=3.7&speed=0.3&duplex=0.61&id=node-1.gpu_0&seed=18446744073709551615");
  check_round_trip("h100?scale=64&context=0&unmanaged=12345B&engines=2&copy=0&create=7ns");
  check_round_trip("h20?scale=64&engine=stepped&engines=2&seed=4");
  check_round_trip("h20?scale=64&integrated=1");
  CHECK(!Spec::parse("h20?engine=threads").stepped);
  check_round_trip("h200?h2d=123456.789KB/s&granularity=4MiB&block=8MiB&pageable=1TB/s");
}

TEST(refusals_name_key_value_and_what_is_allowed) {
  check_refused("h21", "'h21' is unknown: allowed is one of h20, h800, h100, h200");
  check_refused("", "unknown");
  check_refused("cuda:0", "unknown");
  check_refused("h20?scale=0", "scale=0 is refused: allowed is 1 to 1000000");
  check_refused("h20?scale=-4", "scale=-4");
  check_refused("h20?scale=nan", "scale=nan");
  check_refused("h20?scale=inf", "scale=inf");
  check_refused("h20?scale=1e300", "scale=1e300");
  check_refused("h20?speed=0", "speed=0");
  check_refused("h20?speed=4x", "speed=4x");
  check_refused("h20?capacity=0", "capacity=0");
  check_refused("h20?capacity=-1GiB", "capacity=-1GiB");
  check_refused("h20?capacity=1Gib", "capacity=1Gib");
  check_refused("h20?capacity=1e30GB", "64 TiB");
  check_refused("h20?capacity=nanGB", "capacity=nanGB");
  check_refused("h20?capacity=1MiB", "at least context + unmanaged + one block");
  check_refused("h20?scale=64&unmanaged=2GB", "at least context + unmanaged + one block");
  check_refused("h20?h2d=0", "h2d=0");
  check_refused("h20?h2d=55GB/h", "h2d=55GB/h");
  check_refused("h20?duplex=1.5", "duplex=1.5");
  check_refused("h20?engine=fast", "engine=fast is refused: allowed is threads or stepped");
  check_refused("h20?engines=0", "engines=0");
  check_refused("h20?engines=1.5", "engines=1.5");
  check_refused("h20?copy=5", "copy=5");
  check_refused("h20?copy=-5us", "copy=-5us");
  check_refused("h20?copy=1000s", "copy=1000s");
  check_refused("h20?granularity=6KiB", "a power of two from the host page");
  check_refused("h20?granularity=1KiB", "a power of two from the host page");
  check_refused("h20?block=3MiB", "a multiple of the granularity, 2097152B");
  check_refused("h20?seed=-1", "seed=-1");
  check_refused("h20?id=", "id=");
  check_refused("h20?id=a/b", "id=a/b");
  check_refused("h20?colour=red", "colour=red is refused: allowed is one of the keys scale");
  check_refused("h20?copy=1us&copy=1us", "each key once");
  check_refused("h20?scale=64&scale=64", "each key once");
  check_refused("h20?scale", "key=value");
  check_refused("h20?&scale=64", "key=value");
}

// What a region's policy promises: clean regions leave once, pinned ones never, discarded blocks
// come back filled, and only bytes that somebody may have written are copied.
#include <algorithm>

#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// Blocks of four chunks, eighteen of them: copies of unequal lengths share frames.
constexpr Bytes kLarge = Bytes{256} << 10;
constexpr const char* kLargeBlocks =
    "h20?scale=4096&speed=4000&seed=5&capacity=4608KiB&granularity=4KiB&block=256KiB&context=4KiB"
    "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns";

unsigned char* bytes_of(const std::shared_ptr<Span>& span) {
  emu::host_view(span->region()->address(), true);
  return reinterpret_cast<unsigned char*>(span->address());
}

struct Marked {
  std::shared_ptr<Span> span;
  unsigned seed;
  // One number per 512 bytes, and the last byte: enough to notice a chunk that is not its own.
  std::uint64_t at(Bytes offset) const { return (offset * 0x9E3779B97F4A7C15u) ^ seed; }
  void write(unsigned new_seed) {
    seed = new_seed;
    unsigned char* data = bytes_of(span);
    for (Bytes i = 0; i + 8 <= span->bytes(); i += 512) {
      const std::uint64_t word = at(i);
      std::memcpy(data + i, &word, 8);
    }
    data[span->bytes() - 1] = static_cast<unsigned char>(seed);
  }
  bool intact() const {
    const unsigned char* data = bytes_of(span);
    for (Bytes i = 0; i + 8 <= span->bytes() - 1; i += 512) {
      const std::uint64_t word = at(i);
      if (std::memcmp(data + i, &word, 8) != 0) return false;
    }
    return data[span->bytes() - 1] == static_cast<unsigned char>(seed);
  }
};

// Tenants whose regions are of odd lengths, so that small copies and whole blocks share frames.
struct Odd {
  explicit Odd(const std::vector<std::vector<Bytes>>& lengths) : emulated(kLargeBlocks) {
    Device::Options options;
    options.block_bytes = kLarge;
    options.host_budget = Bytes{1} << 30;
    device = std::make_shared<Device>(emulated.driver, options);
    unsigned seed = 1;
    for (const auto& mine : lengths) {
      const auto tenant = device->add_tenant("t" + std::to_string(seed), "job");
      device->resume(tenant, 60);
      std::vector<Marked> made;
      for (const Bytes length : mine) {
        const auto region =
            device->region(tenant, "tag" + std::to_string(made.size()), Policy::keep, 0);
        made.push_back({device->allocate(region, length, 512), 0});
        made.back().write(++seed);
      }
      device->release(tenant);
      tenants.push_back(tenant);
      pieces.push_back(std::move(made));
    }
  }
  bool intact(std::size_t tenant) const {
    return std::ranges::all_of(pieces[tenant], [](const Marked& piece) { return piece.intact(); });
  }
  Emulated emulated;
  std::shared_ptr<Device> device;
  std::vector<std::shared_ptr<Tenant>> tenants;
  std::vector<std::vector<Marked>> pieces;
};

const std::vector<Bytes> kSmall(10, 700);
const std::vector<Bytes> kWhole = {11 * kLarge};
const std::vector<Bytes> kMixed = {
    3 * kLarge - 4096, 900, 2 * kLarge + 70'000, 512, kLarge, 65'536 + 512, 130'000, 1, 200'000};

}  // namespace

TEST(a_small_tag_costs_its_bytes_and_not_a_block) {
  Odd odd({kSmall, kWhole});
  odd.device->resume(odd.tenants[0], 60);
  const auto report = odd.device->suspend(odd.tenants[0], 60);
  CHECK_EQ(report.bytes_out, 10 * 700u);
  const auto back = odd.device->resume(odd.tenants[0], 60);
  CHECK_EQ(back.bytes_in, 10 * 700u);
  CHECK(odd.intact(0));
}

TEST(copies_of_unequal_lengths_share_frames_and_lose_nothing) {
  Odd odd({kSmall, kWhole, kMixed});
  unsigned seed = 100;
  for (const std::size_t next : {0, 1, 2, 1, 0, 2, 0, 1, 2, 0}) {
    odd.device->resume(odd.tenants[next], 60);
    CHECK(odd.intact(next));
    for (auto& piece : odd.pieces[next]) piece.write(++seed);
    odd.device->release(odd.tenants[next]);
  }
}

TEST(a_failed_switch_of_unequal_lengths_brings_everything_back) {
  std::uint64_t points = 0;
  for (const auto call : {cu::Call::memcpy_htod_async, cu::Call::memcpy_dtoh_async,
                          cu::Call::event_record, cu::Call::stream_wait_event}) {
    for (const bool from_then_on : {false, true}) {
      for (const auto& [from, to] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{2, 1}}) {
        for (std::uint64_t nth = 1;; nth += 7) {
          Odd odd({kSmall, kWhole, kMixed});
          const auto outgoing = static_cast<std::size_t>(from);
          const auto incoming = static_cast<std::size_t>(to);
          odd.device->resume(odd.tenants[incoming], 60);
          odd.device->hand_over(odd.tenants[incoming], odd.tenants[outgoing], 60);
          unsigned seed = 50;
          for (auto& piece : odd.pieces[outgoing]) piece.write(++seed);
          bool fired = false;
          {
            const cu::FaultScope fault({.nth = nth, .from_then_on = from_then_on, .only = call});
            try {
              odd.device->hand_over(odd.tenants[outgoing], odd.tenants[incoming], 60);
            } catch (const DriverError&) {
              if (odd.tenants[outgoing]->running) CHECK(odd.intact(outgoing));
            }
            fired = fault.calls_failed() > 0;
          }
          if (!fired) break;
          ++points;
          for (const std::size_t one : {incoming, outgoing, 0ul, 1ul, 2ul}) {
            for (const auto& tenant : odd.tenants) odd.device->release(tenant);
            odd.device->resume(odd.tenants[one], 60);
            CHECK(odd.intact(one));
          }
        }
      }
    }
  }
  std::printf("%lu points\n", static_cast<unsigned long>(points));
  CHECK(points > 40);
}

TEST(a_clean_region_is_copied_out_once) {
  Pair pair;
  pair.attach_both();
  pair.device->mark_clean(pair.a.keep);
  CHECK_EQ(pair.device->suspend(pair.a.tenant, 60).bytes_out, 8 * kBlock);
  for (int turn = 0; turn < 3; ++turn) {
    CHECK_EQ(pair.device->resume(pair.a.tenant, 60).bytes_in, 8 * kBlock);
    CHECK(pair.a.intact());
    CHECK_EQ(pair.device->suspend(pair.a.tenant, 60).bytes_out, 0u);
  }
  // Dirty again: what is written reaches the host.
  pair.device->resume(pair.a.tenant, 60);
  pair.device->mark_dirty(pair.a.keep);
  pair.a.seed += 1;
  pair.a.write();
  CHECK_EQ(pair.device->suspend(pair.a.tenant, 60).bytes_out, 8 * kBlock);
  pair.device->resume(pair.a.tenant, 60);
  CHECK(pair.a.intact());
  CHECK_EQ(pair.device->suspend(pair.a.tenant, 60).bytes_out, 8 * kBlock);
}

TEST(new_space_in_a_clean_region_is_copied_out_too) {
  Emulated emulated;
  Device device(emulated.driver, options_with());
  const auto tenant = device.add_tenant("a", "job");
  device.resume(tenant, 60);
  const auto region = device.region(tenant, "weights", Policy::keep, 0);
  Marked first{device.allocate(region, kBlock + 512, 512), 0};
  first.write(1);
  device.mark_clean(region);
  device.suspend(tenant, 60);
  device.resume(tenant, 60);
  Marked second{device.allocate(region, 1024, 512), 0};  // in the second block, behind the first
  second.write(2);
  CHECK_EQ(device.suspend(tenant, 60).bytes_out, 512 + 1024u);
  device.resume(tenant, 60);
  CHECK(first.intact() && second.intact());
  CHECK_EQ(device.suspend(tenant, 60).bytes_out, 0u);
}

TEST(a_pinned_region_stays_and_says_so) {
  Pair pair;
  pair.attach_both();
  pair.device->pin(pair.a.keep);
  CHECK_THROWS(pair.device->suspend(pair.a.tenant, 60), Refusal, "is pinned to the device");
  CHECK(pair.a.tenant->running && pair.a.intact());
  // Only its three discarded blocks can go; b needs six more than are free.
  CHECK_THROWS(pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60), Refusal, "job/a");
  CHECK(pair.a.tenant->running && pair.a.intact());
  pair.device->unpin(pair.a.keep);
  CHECK_THROWS(pair.device->unpin(pair.a.keep), UsageError, "is not pinned");
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
}

TEST(discarded_blocks_come_back_filled) {
  for (const auto& [fill, byte] : {std::pair{Fill::zero, 0}, std::pair{Fill::poison, 0xA5}}) {
    Pair pair;
    pair.attach_both();
    pair.device->set_fill(pair.a.discard, fill);
    pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
    pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
    emu::host_view(pair.a.discard->address(), true);
    const auto* data = reinterpret_cast<const unsigned char*>(pair.a.discard->address());
    for (Bytes i = 0; i < 3 * kBlock; ++i) CHECK_EQ(static_cast<int>(data[i]), byte);
    // Growth is filled too.
    const auto span = pair.device->allocate(pair.a.discard, kBlock, 512);
    for (Bytes i = 0; i < kBlock; ++i) CHECK_EQ(static_cast<int>(bytes_of(span)[i]), byte);
    CHECK(pair.a.intact());
    CHECK_THROWS(pair.device->set_fill(pair.a.keep, fill), UsageError, "keeps its bytes");
  }
}

TEST(tags_come_and_go_one_by_one) {
  Pair pair;
  pair.attach_both();
  Device& device = *pair.device;
  const Tags weights = {{"weights"}};
  const Tags kv = {{"kv_cache"}};
  const auto generation = pair.a.discard->generation.load();
  device.suspend(pair.a.tenant, 60, kv);
  CHECK(pair.a.tenant->running && pair.a.intact());
  CHECK(pair.a.keep->state == RegionState::resident);
  CHECK(pair.a.discard->state == RegionState::discarded);
  CHECK_EQ(pair.a.discard->generation.load(), generation + 1);
  CHECK_THROWS(device.allocate(pair.a.discard, kBlock, 512), Refusal, "must run with kv_cache");
  CHECK_EQ(pair.a.discard->slots.size(), 3u);
  const auto noops = device.stats().noop_suspends;
  CHECK_EQ(device.suspend(pair.a.tenant, 60, kv).blocks_remapped, 0u);
  CHECK_EQ(device.stats().noop_suspends, noops + 1);
  // The last tag that leaves stops the tenant.
  CHECK_EQ(device.suspend(pair.a.tenant, 60, weights).bytes_out, 8 * kBlock);
  CHECK(!pair.a.tenant->running);
  device.resume(pair.b.tenant, 60);  // all sixteen blocks are free or idle
  CHECK(pair.b.intact());
  device.suspend(pair.b.tenant, 60);

  // Weights first: three frames fewer than the whole tenant needs.
  CHECK_EQ(device.resume(pair.a.tenant, 60, weights).blocks_remapped, 8u);
  CHECK(pair.a.tenant->running && pair.a.intact());
  CHECK(pair.a.discard->state == RegionState::discarded);
  const auto resumes = device.stats().noop_resumes;
  device.resume(pair.a.tenant, 60, weights);
  CHECK_EQ(device.stats().noop_resumes, resumes + 1);
  device.resume(pair.a.tenant, 60, kv);
  CHECK(pair.a.tenant->all_mapped());
  device.resume(pair.a.tenant, 60);
  CHECK_EQ(device.stats().noop_resumes, resumes + 2);

  CHECK_THROWS(device.resume(pair.a.tenant, 60, Tags{{"optimizer"}}), UsageError, "no region");
  CHECK_THROWS(device.suspend(pair.a.tenant, 60, Tags{{"optimizer"}}), UsageError, "no region");
  CHECK_THROWS(device.suspend(pair.a.tenant, 60, Tags{std::vector<std::string>{}}), UsageError,
               "no tag is named");
  CHECK(pair.a.tenant->running && pair.a.intact());
}

TEST(a_tag_that_stays_away_gives_its_place_to_the_tags_that_come) {
  // All of sixteen blocks are a's: nine of weights, seven of KV; then b takes seven of them.
  Emulated emulated;
  Device device(emulated.driver, options_with());
  Patterned a, b;
  attach(device, a, "a", 1, 9, 7);
  device.release(a.tenant);
  attach(device, b, "b", 2, 9, 0);
  device.pin(b.keep);
  device.release(b.tenant);
  // b stays; only a's own KV can make room for its weights, and it does not come in.
  CHECK_THROWS(device.resume(a.tenant, 60), Refusal, "cannot come in");
  CHECK_THROWS(device.resume(a.tenant, 60, Tags{{"weights"}}), Refusal, "cannot come in");
  device.unpin(b.keep);
  device.resume(a.tenant, 60, Tags{{"weights"}});
  CHECK(a.intact());
  CHECK_EQ(b.tenant->slots_on_device() + 9, 16u);
  // KV that is away belongs to nobody: b, which runs beside a, may not take a's weights.
  device.resume(b.tenant, 60, Tags{{"kv_cache"}});
  CHECK_THROWS(device.resume(b.tenant, 60), Refusal, "job/a");
  CHECK(a.intact());
}

// Verification: every way in which a byte may have become another one on the way is noticed, named,
// and rolled back; nothing is noticed where nothing is wrong.
#include "core/checksum.hpp"
#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// A driver whose copies go wrong: the n-th one of a direction changes its first byte on the way.
struct Lying {
  static inline int wrong_in = 0, wrong_out = 0;  // 1 is the next; 0 none
  static bool now(int& left) { return left > 0 && --left == 0; }

  static cu::Status in(cu::DevicePtr target, const void* source, std::size_t bytes,
                       cu::Stream stream) {
    const auto& table = counted_table();
    const auto status = table.memcpy_htod_async(target, source, bytes, stream);
    if (!now(wrong_in)) return status;
    return table.memset_d8_async(target, 0xDB, 1, stream);
  }
  static cu::Status out(void* target, cu::DevicePtr source, std::size_t bytes, cu::Stream stream) {
    const auto& table = counted_table();
    const auto status = table.memcpy_dtoh_async(target, source, bytes, stream);
    if (!now(wrong_out)) return status;
    table.stream_synchronize(stream);
    static_cast<unsigned char*>(target)[0] ^= 0x40;
    return status;
  }
};

// A device that verifies, on the lying driver, with the two tenants of a Pair.
struct Checked {
  Checked() : ordinal(emu::add_device(emu::Spec::parse(spec_with_seed(kSixteenBlocks)))) {
    Lying::wrong_in = Lying::wrong_out = 0;
    auto table = counted_table();
    table.memcpy_htod_async = Lying::in;
    table.memcpy_dtoh_async = Lying::out;
    auto options = options_with();
    options.verify = true;
    device = std::make_unique<Device>(
        std::make_shared<Driver>(table, ordinal, [id = ordinal] { emu::remove_device(id); }),
        options);
    attach(*device, a, "a", 1, 8, 3);
    device->release(a.tenant);
    attach(*device, b, "b", 2, 8, 3);
    device->hand_over(b.tenant, a.tenant, 60);
    a.seed += 10;
    a.write();
  }
  int ordinal;
  std::unique_ptr<Device> device;
  Patterned a, b;
};

}  // namespace

TEST(nothing_is_noticed_where_nothing_is_wrong) {
  Checked pair;
  for (int turn = 0; turn < 4; ++turn) {
    const auto report = pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
    CHECK(report.bytes_out > 0 && report.bytes_in > 0);
    CHECK(pair.b.intact());
    pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
    CHECK(pair.a.intact());
  }
  pair.device->suspend(pair.a.tenant, 60);
  pair.device->close();
  check_nothing_left(pair.ordinal);
}

TEST(a_wrong_copy_out_is_noticed_and_nothing_has_moved) {
  Checked pair;
  for (int nth = 1; nth <= 5; ++nth) {
    Lying::wrong_out = nth;
    CHECK_THROWS(pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60), Refusal,
                 "region weights of tenant job/a arrived changed on the host");
    CHECK(pair.a.tenant->running && pair.a.tenant->all_mapped() && pair.a.intact());
  }
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
  pair.device->hand_over(pair.b.tenant, pair.a.tenant, 60);
  CHECK(pair.a.intact());
}

TEST(a_wrong_copy_in_is_noticed_and_what_it_overwrote_comes_back) {
  Checked pair;
  for (int nth = 1; nth <= 3; ++nth) {
    Lying::wrong_in = nth;
    CHECK_THROWS(pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60), Refusal,
                 "region weights of tenant job/b arrived changed on the device");
    CHECK(pair.a.tenant->running && pair.a.tenant->all_mapped() && pair.a.intact());
    CHECK(!pair.b.tenant->running && !pair.b.tenant->failed);
  }
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
}

TEST(a_host_copy_that_somebody_changed_is_noticed_before_anything_moves) {
  Checked pair;
  Slot* away = nullptr;
  for (auto& slot : pair.b.keep->slots) {
    if (slot.frame == kNoFrame) away = &slot;
  }
  const auto index = static_cast<Bytes>(away - pair.b.keep->slots.data());
  away->host.data()[100] ^= std::byte{1};
  try {
    pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
    CHECK(false);
  } catch (const Refusal& refusal) {
    CHECK(refusal.kind == Refusal::Kind::verify_failed);
    CHECK_EQ(refusal.tag, "weights");
    CHECK_EQ(refusal.tenant, "b");
    CHECK_EQ(refusal.offset / kBlock, index);
  }
  CHECK(pair.a.tenant->running && pair.a.intact());
  away->host.data()[100] ^= std::byte{1};
  pair.device->hand_over(pair.a.tenant, pair.b.tenant, 60);
  CHECK(pair.b.intact());
}

TEST(a_write_that_nobody_announced_is_caught_when_the_block_would_be_given_up) {
  Checked pair;
  pair.device->mark_clean(pair.a.keep);
  pair.device->suspend(pair.a.tenant, 60);
  pair.device->resume(pair.a.tenant, 60);
  emu::host_view(pair.a.keep->address(), true);
  auto* data = reinterpret_cast<unsigned char*>(pair.a.keep->address());
  data[2 * kBlock + 77] ^= 1;
  try {
    pair.device->suspend(pair.a.tenant, 60);
    CHECK(false);
  } catch (const Refusal& refusal) {
    CHECK(std::string(refusal.what()).find("nobody called mark_dirty") != std::string::npos);
    CHECK_EQ(refusal.offset, 2 * kBlock + 77);
  }
  CHECK(pair.a.tenant->running && pair.a.tenant->all_mapped());
  pair.device->mark_dirty(pair.a.keep);
  CHECK_EQ(pair.device->suspend(pair.a.tenant, 60).bytes_out, 8 * kBlock);
  pair.device->resume(pair.a.tenant, 60);
  CHECK_EQ(static_cast<int>(data[2 * kBlock + 77]), pair.a.byte_at(2 * kBlock + 77) ^ 1);
}

TEST(a_block_checksum_is_the_hash_of_the_hashes_of_its_pieces) {
  std::vector<std::byte> data(2 * kChecksumPiece + 1000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = std::byte(i * 31 >> 3 & 255);
  std::uint64_t digests[3];
  for (std::size_t i = 0; i < 3; ++i) {
    digests[i] = xxh3_64(data.data() + i * kChecksumPiece, i < 2 ? kChecksumPiece : 1000);
  }
  const auto expected = xxh3_64(reinterpret_cast<const std::byte*>(digests), sizeof digests);
  const Range whole[] = {{0, data.size(), data.data()}};
  CHECK_EQ(block_checksum(whole), expected);
  const Range two[] = {{0, kChecksumPiece, data.data()},
                       {kChecksumPiece, kChecksumPiece + 1000, data.data() + kChecksumPiece}};
  CHECK_EQ(block_checksum(two, data.data()), expected);
}

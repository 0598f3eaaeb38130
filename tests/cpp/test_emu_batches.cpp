// Many copies in one call on the emulated device: behaviour 26.
#include <algorithm>
#include <random>

#include "emulated.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr std::size_t kBlock = 16384;

// One call with one set of attributes.
struct Batch {
  std::vector<cu::DevicePtr> targets, sources;
  std::vector<std::size_t> sizes;
  cu::MemcpyAttributes attributes{cu::kSourceOrderStream, {}, {}, 0};
  std::size_t first = 0;
  std::size_t failed = 77;

  void add(cu::DevicePtr target, const void* source, std::size_t bytes) {
    targets.push_back(target);
    sources.push_back(reinterpret_cast<cu::DevicePtr>(source));
    sizes.push_back(bytes);
  }
  void add(void* target, cu::DevicePtr source, std::size_t bytes) {
    add(reinterpret_cast<cu::DevicePtr>(target), reinterpret_cast<const void*>(source), bytes);
  }
  cu::Status submit(const cu::Table& table, cu::Stream stream) {
    return table.memcpy_batch_async(targets.data(), sources.data(), sizes.data(), sizes.size(),
                                    &attributes, &first, 1, &failed, stream);
  }
};

}  // namespace

TEST(behaviour_26_a_batch_moves_everything_in_stream_order) {
  // A call takes a second, on a clock on which no real time passes.
  Opened device("h20?scale=4096&speed=50&engine=stepped&seed=1&copy=1s");
  const auto& table = device.table;
  const auto address = device.memory(4);
  HostBuffer source(4 * kBlock);
  HostBuffer target(4 * kBlock, 0xEE);
  for (std::size_t i = 0; i < source.bytes; ++i) source.data[i] = static_cast<unsigned char>(i * 7);
  CHECK_EQ(device.pin(source), 0);
  CHECK_EQ(device.pin(target), 0);
  const auto stream = device.stream();
  Batch in;
  Batch out;
  constexpr std::size_t kPieces = 64;
  constexpr std::size_t kPiece = 4 * kBlock / kPieces;  // of which a gap is left
  for (std::size_t i = 0; i < kPieces; ++i) {
    in.add(address + i * kPiece, source.data + i * kPiece, kPiece - 24);
    out.add(target.data + i * kPiece, address + i * kPiece, kPiece - 24);
  }
  const auto began = table.now_ns();
  CHECK_EQ(table.memset_d8_async(address, 3, 4 * kBlock, stream), 0);
  CHECK_EQ(in.submit(table, stream), 0);
  CHECK_EQ(out.submit(table, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  // Three calls, not 129.
  CHECK(table.now_ns() - began < 4'000'000'000);
  for (std::size_t i = 0; i < target.bytes; ++i) {
    CHECK_EQ(int{target.data[i]}, i % kPiece < kPiece - 24 ? int{source.data[i]} : 0xEE);
  }
  CHECK_EQ(emu::census(device.ordinal).pageable_copies, 0u);
}

TEST(behaviour_26_copies_of_a_batch_are_made_in_any_order) {
  bool first_came_late = false;
  bool first_came_early = false;
  for (int seed = 1; seed <= 12; ++seed) {
    Opened device("h20?scale=4096&speed=50&engine=stepped&seed=" + std::to_string(seed));
    const auto& table = device.table;
    const auto address = device.memory(1);
    HostBuffer source(kBlock, 5);
    CHECK_EQ(device.pin(source), 0);
    const auto stream = device.stream();
    emu::host_view(address, true);
    const auto* bytes = reinterpret_cast<const volatile unsigned char*>(address);
    Batch batch;
    for (std::size_t i = 0; i < 4; ++i) batch.add(address + i * 64, source.data + i * 64, 64);
    CHECK_EQ(batch.submit(table, stream), 0);
    while (bytes[0] == 0 && bytes[255] == 0) CHECK(emu::run_next(device.ordinal, 0));
    (bytes[0] == 0 ? first_came_late : first_came_early) = true;
    CHECK_EQ(table.stream_synchronize(stream), 0);
    for (std::size_t i = 0; i < 256; ++i) CHECK_EQ(int{bytes[i]}, 5);
  }
  CHECK(first_came_late && first_came_early);
}

TEST(behaviour_26_one_invalid_copy_refuses_the_batch) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory(2);
  HostBuffer source(2 * kBlock, 5);
  HostBuffer target(2 * kBlock, 0);
  HostBuffer other(kBlock, 5);
  CHECK_EQ(device.pin(target), 0);
  // Only the first half of the source is registered.
  CHECK_EQ(table.mem_host_register(source.data, kBlock, cu::kHostRegisterPortable), 0);
  const auto stream = device.stream();
  CHECK_EQ(table.memset_d8_async(address, 1, 2 * kBlock, stream), 0);
  Batch beyond;
  beyond.add(address, source.data, 64);
  beyond.add(address + 64, source.data + kBlock - 32, 64);
  beyond.add(address + 128, source.data + 128, 64);
  CHECK_EQ(beyond.submit(table, stream), cu::kInvalidValue);
  CHECK_EQ(beyond.failed, 1u);
  Batch empty;
  empty.add(address, source.data, 64);
  empty.add(address + 64, source.data + 64, 0);
  CHECK_EQ(empty.submit(table, stream), cu::kInvalidValue);
  CHECK_EQ(empty.failed, 1u);
  Batch elsewhere;
  elsewhere.add(address, reinterpret_cast<const void*>(address + kBlock), 64);
  CHECK_EQ(elsewhere.submit(table, stream), cu::kNotSupported);
  CHECK_EQ(table.memcpy_dtoh_async(target.data, address, 2 * kBlock, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
  CHECK(target.holds(1));
  // Nothing counts as in flight.
  CHECK_EQ(table.mem_host_unregister(source.data), 0);
  // Pageable is legal, and slow.
  Batch pageable;
  pageable.add(address, other.data, kBlock);
  CHECK_EQ(pageable.submit(table, stream), 0);
  Batch back;
  back.add(other.data, address + kBlock, kBlock);
  CHECK_EQ(back.submit(table, stream), 0);
  CHECK(other.holds(1));
  CHECK_EQ(emu::census(device.ordinal).pageable_copies, 2u);
}

TEST(behaviour_26_refusals) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer source(kBlock, 5);
  CHECK_EQ(device.pin(source), 0);
  const auto stream = device.stream();
  Batch batch;
  for (std::size_t i = 0; i < 4; ++i) batch.add(address + i * 64, source.data + i * 64, 64);
  const auto legacy = reinterpret_cast<cu::Stream>(std::uint64_t{1});
  for (const cu::Stream refused : {cu::Stream{nullptr}, legacy}) {
    CHECK_EQ(batch.submit(table, refused), cu::kInvalidValue);
    CHECK_EQ(batch.failed, ~std::size_t{0});
  }
  const auto submit = [&](std::vector<std::size_t> first, std::size_t count, int order,
                          std::size_t* failed, unsigned flags = 0) {
    std::vector<cu::MemcpyAttributes> attributes(first.size(), {order, {}, {}, flags});
    return table.memcpy_batch_async(batch.targets.data(), batch.sources.data(), batch.sizes.data(),
                                    count, attributes.data(), first.data(), first.size(), failed,
                                    stream);
  };
  std::size_t failed = 0;
  const auto order = cu::kSourceOrderStream;
  CHECK_EQ(submit({}, 4, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({1}, 4, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0, 2, 2}, 4, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0, 4}, 4, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 4, cu::kSourceOrderInvalid, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 4, 4, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 0, order, &failed), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 4, order, nullptr), cu::kInvalidValue);
  CHECK_EQ(submit({0}, 4, cu::kSourceOrderAny, &failed), cu::kNotSupported);
  CHECK_EQ(submit({0}, 4, order, &failed, 2), cu::kInvalidValue);
  CHECK_EQ(submit({0, 1, 3}, 4, order, &failed), 0);
  CHECK_EQ(submit({0}, 4, order, &failed, cu::kMemcpyPreferOverlap), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
}

TEST(behaviour_26_a_batch_cannot_be_captured) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer source(kBlock, 5);
  CHECK_EQ(device.pin(source), 0);
  const auto stream = device.stream();
  Batch batch;
  batch.add(address, source.data, 64);
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeRelaxed), 0);
  CHECK_EQ(batch.submit(table, stream), cu::kCaptureUnsupported);
  cu::Graph graph = nullptr;
  CHECK_EQ(table.stream_end_capture(stream, &graph), cu::kCaptureInvalidated);
  // Beside a capture of another stream it may run.
  const auto other = device.stream();
  CHECK_EQ(table.stream_begin_capture(stream, cu::kCaptureModeGlobal), 0);
  CHECK_EQ(batch.submit(table, other), 0);
  CHECK_EQ(table.stream_end_capture(stream, &graph), 0);
  CHECK_EQ(table.graph_destroy(graph), 0);
  CHECK_EQ(table.stream_synchronize(other), 0);
}

TEST(behaviour_26_copies_that_depend_on_each_other_abort) {
  Opened device;
  const auto& table = device.table;
  const auto address = device.memory();
  HostBuffer source(kBlock, 5);
  CHECK_EQ(device.pin(source), 0);
  const auto stream = device.stream();
  Batch twice;  // one target
  twice.add(address, source.data, 64);
  twice.add(address + 63, source.data + 64, 64);
  CHECK_ABORTS(twice.submit(table, stream), "depend on each other");
  Batch through;  // the second copy reads what the first one writes
  through.add(address, source.data, 64);
  through.add(source.data + 512, address, 64);
  CHECK_ABORTS(through.submit(table, stream), "depend on each other");
  Batch fanned;  // one source is fine
  fanned.add(address, source.data, 64);
  fanned.add(address + 64, source.data, 64);
  CHECK_EQ(fanned.submit(table, stream), 0);
  CHECK_EQ(table.stream_synchronize(stream), 0);
}

// Files and everything else that happens to a block: tags that come one by one, versions that are
// published, verification, copies in the background, pages in use.
#include "core_fleet.hpp"
#include "directory.hpp"

using namespace weave;
using namespace weave::test;

namespace {

unsigned char* bytes_of(const std::shared_ptr<Span>& span) {
  emu::host_view(span->region()->address(), true);
  return reinterpret_cast<unsigned char*>(span->address());
}

// A tenant whose tags are filled with one number each.
struct Filled {
  Filled(Device& device, const char* name, const std::vector<std::pair<const char*, Policy>>& tags)
      : tenant(device.add_tenant(name, "job")) {
    device.resume(tenant, 60);
    for (const auto& [tag, policy] : tags) {
      spans.push_back(device.allocate(device.region(tenant, tag, policy, 0), 2 * kBlock, 512));
      fill(spans.size() - 1, static_cast<int>(spans.size()));
    }
  }
  void fill(std::size_t tag, int value) {
    std::memset(bytes_of(spans[tag]), value, spans[tag]->bytes());
  }
  bool holds(std::size_t tag, int value) const {
    const unsigned char* data = bytes_of(spans[tag]);
    return std::all_of(data, data + spans[tag]->bytes(), [&](int byte) { return byte == value; });
  }
  const Region& region(std::size_t tag) const { return *spans[tag]->region(); }
  std::shared_ptr<Tenant> tenant;
  std::vector<std::shared_ptr<Span>> spans;
};

Device::Options spilling_to(const Directory& directory, bool verify = false) {
  auto options = options_with();
  options.spill_directory = directory.path;
  options.verify = verify;
  return options;
}

void publish(Device& device, const Filled& engine, int value) {
  const auto open = device.begin_publish(engine.tenant);
  for (const auto& place : open->place(engine.spans[0]->region(), 0, engine.spans[0]->bytes())) {
    std::memset(place.host, value, place.bytes);
  }
  open->wrote(engine.spans[0]->region(), 0, engine.spans[0]->bytes());
  device.commit(open);
}

}  // namespace

TEST(a_tag_that_stays_away_stays_in_its_file) {
  const Directory directory;
  Emulated emulated;
  Device device(emulated.driver, spilling_to(directory));
  Filled one(device, "a", {{"weights", Policy::keep}, {"optimizer", Policy::keep}});
  device.suspend(one.tenant, 60);
  CHECK_EQ(device.spill(one.tenant), 4 * kBlock);
  CHECK_EQ(device.host_pool()->used(), 0u);
  CHECK_EQ(device.resume(one.tenant, 60, Tags({"weights"})).bytes_in, 2 * kBlock);
  CHECK(one.holds(0, 1));
  CHECK_EQ(device.place(one.tenant).blocks_spilled, 2u);
  CHECK_EQ(device.host_pool()->used(), 2 * kBlock);
  one.fill(0, 5);
  device.resume(one.tenant, 60, Tags({"optimizer"}));
  CHECK(one.holds(0, 5) && one.holds(1, 2));
  CHECK(directory.files().empty());
  // Spilled in two parts: each tag has its own file then.
  device.suspend(one.tenant, 60, Tags({"optimizer"}));
  CHECK_THROWS(device.spill(one.tenant), UsageError, "runs");
  device.suspend(one.tenant, 60);
  CHECK_EQ(device.spill(one.tenant), 4 * kBlock);
  const auto saved = device.rescue(one.tenant);
  CHECK_EQ(saved.size(), 2u);
  CHECK(saved.at("weights").front() == std::byte{5});
  CHECK(saved.at("optimizer").back() == std::byte{2});
  device.resume(one.tenant, 60);
  CHECK(one.holds(0, 5) && one.holds(1, 2));
}

TEST(a_new_version_replaces_one_that_is_in_a_file) {
  const Directory directory;
  Emulated emulated;
  Device device(emulated.driver, spilling_to(directory, true));
  Filled engine(device, "engine", {{"weights", Policy::reload}, {"buffers", Policy::keep}});
  device.suspend(engine.tenant, 60);
  publish(device, engine, 10);
  const auto used = device.host_pool()->used();
  for (int version = 11; version < 15; ++version) {
    CHECK_EQ(device.spill(engine.tenant), 4 * kBlock);
    CHECK_EQ(device.host_pool()->used(), kBlock);  // what verification needs
    publish(device, engine, version);
    CHECK_EQ(device.place(engine.tenant).blocks_spilled, 2u);  // of the buffers
    device.resume(engine.tenant, 60);
    CHECK(engine.holds(0, version) && engine.holds(1, 2));
    device.suspend(engine.tenant, 60);
    publish(device, engine, version + 50);
    CHECK_EQ(device.host_pool()->used(), used);
  }
  // One that waits under a tenant that runs is what goes to the file.
  device.resume(engine.tenant, 60);
  publish(device, engine, 99);
  CHECK(engine.holds(0, 64));
  device.suspend(engine.tenant, 60);
  device.spill(engine.tenant);
  device.resume(engine.tenant, 60);
  CHECK(engine.holds(0, 99));
  device.close();
  check_nothing_left(emulated.ordinal);
  CHECK(directory.files().empty());
}

TEST(verification_goes_on_across_a_file) {
  const Directory directory;
  Emulated emulated;
  Device device(emulated.driver, spilling_to(directory, true));
  Filled one(device, "a", {{"weights", Policy::keep}});
  device.suspend(one.tenant, 60);
  device.spill(one.tenant);
  device.resume(one.tenant, 60);
  CHECK(one.holds(0, 1));
  device.suspend(one.tenant, 60);
  // In host memory, after it left the device and before it went to the file.
  one.spans[0]->region()->slots[1].host.data()[5] ^= std::byte{1};
  device.spill(one.tenant);
  CHECK_THROWS(device.resume(one.tenant, 60), Refusal, "was changed in host memory");
  CHECK(!one.tenant->running && !one.tenant->failed);
}

TEST(the_background_passes_over_what_is_in_a_file) {
  const Directory directory;
  Fleet fleet(24, {{8}, {8}, {12}}, false, kTwoHundredBlocks, kBlock, directory.path);
  fleet.turn(1);
  fleet.turn(0);
  const auto away = 12 - fleet.resident(2);
  CHECK_EQ(away, 4u);
  CHECK_EQ(fleet.device->spill(fleet.tenant(2)), 4 * kBlock);
  const auto copy = fleet.prefetch(2);
  CHECK(copy->finished());
  CHECK_EQ(copy->bytes_total(), 0u);
  fleet.device->run_background();
  CHECK_EQ(fleet.resident(2), 8u);
  CHECK_EQ(fleet.turn(2).bytes_in, 4 * kBlock);
  fleet.check_all();
}

TEST(a_spill_takes_over_from_the_background_at_any_moment) {
  for (int round = 0; round < 4; ++round) {
    const Directory directory;
    // A block takes 20 ms.
    Fleet fleet(24, {{8}, {8}, {12}}, true,
                (std::string(kTwoHundredBlocks) + "&h2d=200KB/s&d2h=200KB/s").c_str(), kBlock,
                directory.path);
    fleet.turn(1);
    fleet.turn(0);
    const auto copy = fleet.prefetch(2);
    while (copy->bytes_done() < static_cast<Bytes>(round) * kBlock && !copy->finished())
      copy->wait(0.001);
    fleet.device->spill(fleet.tenant(2));
    CHECK(copy->wait(60));
    const auto place = fleet.device->place(fleet.tenant(2));
    CHECK_EQ(place.blocks_on_device + place.blocks_spilled, 12u);
    fleet.check_all();
  }
}

TEST(pages_that_come_into_use_while_their_block_is_written_back_are_not_lost) {
  // A block takes 20 ms.
  Fleet fleet(24, {{8}, {20}}, true,
              (std::string(kTwoHundredBlocks) + "&h2d=200KB/s&d2h=200KB/s").c_str());
  fleet.enter(0);
  auto& one = fleet.members[0];
  std::vector<Piece> pages;
  for (Bytes block = 0; block < 8; ++block) pages.push_back({block * kBlock, 3072});
  fleet.device->set_pages(one.keep, pages);
  const auto copy = fleet.device->write_back(one.tenant, "weights");
  while (copy->bytes_done() == 0 && !copy->finished()) copy->wait(0.001);
  fleet.device->set_pages(one.keep, {});
  CHECK(copy->wait(60));
  fleet.device->suspend(one.tenant, 60);
  fleet.check_all();
}

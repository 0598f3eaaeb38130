// What a phase must not feel of the device beside it. A trainer captures a graph: a context that is
// synchronised meanwhile breaks the capture, in whatever mode and by whatever thread, so nothing
// that a device does beside a phase may do that; what it touches was drained before. And who waits
// for copies sleeps: the driver would keep a core busy.
#include <set>
#include <thread>

#include "core_fleet.hpp"

using namespace weave;
using namespace weave::test;

namespace {

const std::vector<Size> kThree = {{60}, {60}, {60}};

// A stream of the trainer's, in the device's context, under capture in the global mode.
class Capturing {
 public:
  explicit Capturing(const Fleet& fleet) : ordinal_(fleet.emulated.ordinal) {
    cu::Context context = nullptr;
    CHECK_EQ(table_.primary_ctx_retain(&context, ordinal_), 0);
    CHECK_EQ(table_.ctx_push_current(context), 0);
    CHECK_EQ(table_.stream_create(&stream_, cu::kStreamNonBlocking), 0);
    CHECK_EQ(table_.stream_begin_capture(stream_, cu::kCaptureModeGlobal), 0);
  }
  ~Capturing() {
    cu::Graph graph = nullptr;
    CHECK_EQ(table_.stream_end_capture(stream_, &graph), 0);
    CHECK_EQ(table_.graph_destroy(graph), 0);
    CHECK_EQ(table_.stream_destroy(stream_), 0);
    CHECK_EQ(table_.ctx_pop_current(nullptr), 0);
    CHECK_EQ(table_.primary_ctx_release(ordinal_), 0);
  }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;
  bool is_whole() const {
    int status = -1;
    CHECK_EQ(table_.stream_is_capturing(stream_, &status), 0);
    return status == cu::kCaptureActive;
  }

 private:
  const cu::Table& table_ = counted_table();
  const int ordinal_;
  cu::Stream stream_ = nullptr;
};

std::uint64_t drains() {
  return cu::call_counts(cu::Upstream::emulated)[static_cast<int>(cu::Call::ctx_synchronize)];
}

// A table that notes waits in which the driver would spin: for what is not complete, and not for an
// event that was made to block.
std::set<cu::Event> blocking;
int busy_waits = 0;

cu::Table watched() {
  auto table = counted_table();
  table.event_create = [](cu::Event* event, unsigned flags) {
    const auto status = counted_table().event_create(event, flags);
    if ((flags & cu::kEventBlockingSync) != 0) blocking.insert(*event);
    return status;
  };
  table.event_synchronize = [](cu::Event event) {
    const bool waits = counted_table().event_query(event) == cu::kNotReady;
    busy_waits += waits && !blocking.contains(event) ? 1 : 0;
    return counted_table().event_synchronize(event);
  };
  table.stream_synchronize = [](cu::Stream stream) {
    busy_waits += counted_table().stream_query(stream) == cu::kNotReady ? 1 : 0;
    return counted_table().stream_synchronize(stream);
  };
  return table;
}

}  // namespace

TEST(nothing_beside_a_phase_breaks_a_capture) {
  Fleet fleet(140, kThree);
  for (const std::size_t index : {0u, 1u, 2u, 0u}) fleet.turn(index);
  auto& device = *fleet.device;
  {
    const Capturing capture(fleet);
    // At the cost of an idle tenant, which is copied out.
    const auto out = device.stats().bytes_out;
    const auto more = device.allocate(fleet.members[0].keep, 5 * kBlock, 512);
    CHECK(device.stats().bytes_out > out);
    CHECK(capture.is_whole());
    const auto missing = 60 - fleet.resident(2);
    const auto copy = fleet.prefetch(2);
    device.run_background();
    CHECK(copy->wait(0));
    CHECK_EQ(copy->bytes_done(), missing * kBlock);
    CHECK(missing > 0 && capture.is_whole());
    CHECK(fleet.members[1].matches(device.rescue(fleet.tenant(1))));
    CHECK(capture.is_whole());
    device.suspend(fleet.tenant(2), 60);
    device.set_usable(130 * kBlock);
    CHECK(device.trim(kBlock) > 0);
    CHECK(capture.is_whole());
    device.close_tenant(fleet.tenant(1));
    CHECK(capture.is_whole());
  }
  CHECK(fleet.members[0].intact());
  fleet.turn(2);
  fleet.turn(0);
}

TEST(a_write_back_drains_when_it_is_promised_not_later) {
  Fleet fleet(80, {{60}, {60}});
  fleet.turn(0);
  const auto before = drains();
  const auto copy = fleet.device->write_back(fleet.tenant(0), "weights");
  while (drains() == before) std::this_thread::yield();
  {
    const Capturing capture(fleet);
    fleet.device->run_background();
    CHECK(copy->wait(0));
    CHECK_EQ(copy->bytes_done(), 60 * kBlock);
    CHECK(capture.is_whole());
  }
  fleet.check_all();
}

TEST(who_stops_beside_a_phase_is_not_touched_in_it) {
  Fleet fleet(140, kThree);
  for (const std::size_t index : {0u, 1u, 2u}) fleet.turn(index);
  // a and b run, c is idle; then b stops.
  fleet.device->release(fleet.tenant(2));
  fleet.device->resume(fleet.tenant(0), 60);
  fleet.device->resume(fleet.tenant(1), 60);
  fleet.device->release(fleet.tenant(1));
  const auto missing = 60 - fleet.resident(2);
  CHECK_EQ(missing, 40u);
  const auto before = drains();
  const auto copy = fleet.prefetch(2);
  fleet.device->run_background();
  CHECK(copy->wait(0));
  CHECK_EQ(drains(), before);
  CHECK_EQ(copy->bytes_done(), 0u);
  CHECK_EQ(fleet.resident(1), 60u);
  // When nobody runs nobody captures.
  fleet.device->release(fleet.tenant(0));
  const auto again = fleet.prefetch(2);
  fleet.device->run_background();
  CHECK(again->wait(0));
  CHECK(drains() > before);
  CHECK_EQ(again->bytes_done(), 40 * kBlock);
  fleet.running = nullptr;
  fleet.check_all();
}

TEST(the_background_sleeps_while_its_copies_run) {
  const Emulated emulated((std::string(kSixteenBlocks) + "&d2h=1MB/s&h2d=1MB/s").c_str());
  auto options = options_with();
  options.background_thread = false;
  Device device(std::make_shared<Driver>(watched(), emulated.ordinal), options);
  Patterned a;
  Patterned b;
  attach(device, a, "a", 1, 8, 0);
  device.release(a.tenant);
  attach(device, b, "b", 2, 8, 0);
  device.suspend(a.tenant, 60);
  busy_waits = 0;
  const auto back = device.write_back(b.tenant, "weights");
  const auto fetched = device.prefetch(a.tenant, {}, 0);
  device.run_background();
  CHECK(back->wait(0) && fetched->wait(0));
  CHECK_EQ(back->bytes_done(), 8 * kBlock);
  CHECK_EQ(fetched->bytes_done(), 8 * kBlock);
  CHECK_EQ(busy_waits, 0);
  device.resume(a.tenant, 60);
  CHECK(a.intact() && b.intact());
}

// The naive arms of the benchmarks: every byte comes back, through pageable and pinned memory, and
// whatever call fails, the tensors are where they were. tests/test_tensor_copies.py says what they
// ask of the driver; here the sanitizers look on.
#include <functional>

#include "core/tensor_copies.hpp"
#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

const std::vector<Bytes> kSegments = {kBlock, 2 * kBlock};
const std::vector<TensorCopies::Tensor> kTensors = {
    {0, 0, 1000, true}, {0, 1024, 3000, true}, {1, 0, 7000, true}, {1, 7168, 1000, false}};

std::byte byte_at(std::size_t tensor, Bytes offset) {
  return static_cast<std::byte>((offset * 131 + tensor * 89) & 255U);
}

struct Tensors {
  Tensors() : copies(emulated.driver, kSegments, kTensors) {
    copies.allocate();
    for (std::size_t index = 0; index < kTensors.size(); ++index) {
      std::vector<std::byte> bytes(kTensors[index].bytes);
      for (Bytes offset = 0; offset < bytes.size(); ++offset) {
        bytes[offset] = byte_at(index, offset);
      }
      copies.load(index, bytes.data());
    }
  }
  bool intact() {
    if (copies.on_device()) copies.move_out(TensorCopies::Host::pageable);
    for (std::size_t index = 0; index < kTensors.size(); ++index) {
      if (!kTensors[index].keep) continue;
      const auto bytes = copies.host_copy(index);
      for (Bytes offset = 0; offset < bytes.size(); ++offset) {
        if (bytes[offset] != byte_at(index, offset)) return false;
      }
    }
    return true;
  }
  Emulated emulated;
  TensorCopies copies;
};

// Fails call n of `act`, once or from there on, for every n.
void sweep(const char* name, bool begins_on_device, TensorCopies::Host host,
           const std::function<void(TensorCopies&)>& act) {
  std::uint64_t points = 0;
  for (const bool from_then_on : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      const auto descriptors = open_descriptors();
      bool fired = false;
      {
        Tensors tensors;
        if (!begins_on_device) tensors.copies.move_out(host);
        bool threw = false;
        {
          const cu::FaultScope fault({nth, from_then_on});
          try {
            act(tensors.copies);
          } catch (const DriverError&) {
            threw = true;
          }
          fired = fault.calls_failed() > 0;
        }
        CHECK_EQ(tensors.copies.on_device(), threw == begins_on_device);
        if (threw) act(tensors.copies);
        CHECK(tensors.intact());
        tensors.copies.close();
        check_nothing_left(tensors.emulated.ordinal);
      }
      CHECK_EQ(open_descriptors(), descriptors);
      if (!fired) break;
      ++points;
    }
  }
  std::printf("sweep %-22s %4lu points\n", name, static_cast<unsigned long>(points));
  CHECK(points > 20);
}

}  // namespace

TEST(bytes_come_back_through_both_kinds_of_host_memory) {
  Tensors tensors;
  for (const auto host : {TensorCopies::Host::pageable, TensorCopies::Host::pinned_now}) {
    CHECK(tensors.copies.on_device());
    CHECK(tensors.copies.move_out(host) >= 0);
    CHECK(!tensors.copies.on_device());
    CHECK(tensors.copies.move_in() >= 0);
  }
  CHECK(tensors.intact());
}

TEST(a_failed_call_leaves_everything_where_it_was) {
  using Host = TensorCopies::Host;
  sweep("out, pageable", true, Host::pageable, [](auto& c) { c.move_out(Host::pageable); });
  sweep("out, pinned now", true, Host::pinned_now, [](auto& c) { c.move_out(Host::pinned_now); });
  sweep("in, pageable", false, Host::pageable, [](auto& c) { c.move_in(); });
  sweep("in, pinned now", false, Host::pinned_now, [](auto& c) { c.move_in(); });
}

TEST(an_end_without_close_leaves_nothing) {
  Emulated emulated;
  {
    TensorCopies copies(emulated.driver, kSegments, kTensors);
    copies.allocate();
    copies.fill(3, 7);
    copies.move_out(TensorCopies::Host::pinned_now);
  }
  check_nothing_left(emulated.ordinal);
}

// Seeded sequences of operations on one device, with a fault plan of every kind armed on most of
// them: whatever happens, bytes are exact, frames and host bytes add up, and at the end nothing is
// left. 300 sequences by default; --sequences N, or WEAVE_SEQUENCES, runs a campaign; --first S
// (WEAVE_FIRST) starts it at a seed, so `--first S --sequences 1` replays the one that failed.
#include <random>

#include "core_device.hpp"

using namespace weave;
using namespace weave::test;

namespace {

constexpr int kTenants = 3;
constexpr int kOperations = 14;

struct Player {
  Patterned state;
  int number = 0;
  bool attached = false;
};

class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : random_(seed) {
    device_ = std::make_unique<Device>(emulated_.driver, options_with(Bytes{1} << 26));
  }

  void run() {
    for (int step = 0; step < kOperations; ++step) {
      Player& one = players_[draw(kTenants)];
      one.number = static_cast<int>(&one - players_);
      if (draw(4) == 0) {
        tolerate([&] { act(one); });
      } else {
        const cu::FaultScope fault(plan());
        tolerate([&] { act(one); });
        failed_ += fault.calls_failed();
      }
      check();
    }
    settle();
  }

  std::uint64_t failed() const { return failed_; }
  std::uint64_t completed() const { return completed_; }
  int ordinal() const { return emulated_.ordinal; }

 private:
  std::uint64_t draw(std::uint64_t below) {
    return std::uniform_int_distribution<std::uint64_t>(0, below - 1)(random_);
  }

  cu::FaultScope::Plan plan() {
    static constexpr cu::Status kLost[] = {cu::kIllegalAddress, cu::kLaunchFailed,
                                           cu::kEccUncorrectable};
    cu::FaultScope::Plan plan;
    plan.nth = 1 + draw(60);
    switch (draw(5)) {
      case 0:
        break;
      case 1:
        plan.from_then_on = true;
        break;
      case 2:
        plan = {.probability = 0.02 + 0.1 * static_cast<double>(draw(4)), .seed = draw(1000)};
        break;
      case 3:
        plan.only = static_cast<cu::Call>(draw(cu::kCallCount));
        plan.nth = 1 + draw(3);
        plan.from_then_on = draw(2) == 0;
        plan.status = plan.only == cu::Call::mem_create ? cu::kOutOfMemory : cu::kUnknown;
        break;
      default:
        plan.nth = 1 + draw(20);
        plan.status = kLost[draw(3)];
        plan.sticky = true;
    }
    return plan;
  }

  void tolerate(const std::function<void()>& action) {
    try {
      action();
      ++completed_;
    } catch (const DriverError&) {
    } catch (const Refusal&) {
    } catch (const UsageError&) {
    }
  }

  void act(Player& one) {
    Patterned& state = one.state;
    Patterned& other = players_[draw(kTenants)].state;
    switch (draw(9)) {
      case 0:
      case 1:
        come(one);
        break;
      case 2:
        if (state.tenant != nullptr) device_->resume(state.tenant, 60);
        break;
      case 3:
      case 4:
        if (state.tenant != nullptr && other.tenant != nullptr) {
          device_->hand_over(state.tenant, other.tenant, 60);
        }
        break;
      case 5:
        if (state.tenant != nullptr) device_->suspend(state.tenant, 60);
        break;
      case 6:
        if (state.tenant != nullptr) device_->release(state.tenant);
        break;
      case 7:
        if (one.attached) CHECK(state.matches(device_->rescue(state.tenant)));
        break;
      default:
        if (draw(3) == 0) {
          leave(one);
        } else if (state.tenant != nullptr && state.keep != nullptr) {
          static_cast<void>(device_->allocate(state.keep, (1 + draw(3)) * kBlock, 512));
        } else {
          device_->calibrate(2 * kBlock);
        }
    }
  }

  // Comes to the device, alone there; goes on where an earlier try was interrupted.
  void come(Player& one) {
    if (one.attached) return;
    for (Player& other : players_) {
      if (other.state.tenant != nullptr) device_->release(other.state.tenant);
    }
    const std::string name(1, static_cast<char>('a' + one.number));
    const auto seed = 1 + static_cast<unsigned>(draw(1000));
    attach(*device_, one.state, name.c_str(), seed, 5 + static_cast<int>(draw(3)), 1);
    one.attached = true;
  }

  void leave(Player& one) {
    if (one.state.tenant == nullptr) return;
    device_->close_tenant(one.state.tenant);
    one.state = {};
    one.attached = false;
  }

  // What holds after every operation, whatever failed in it.
  void check() {
    for (const Player& one : players_) {
      const Patterned& state = one.state;
      if (state.tenant == nullptr || state.tenant->failed) continue;
      if (state.tenant->running) {
        CHECK(state.tenant->all_mapped());
        if (one.attached) CHECK(state.intact());
        for (const auto& region : state.tenant->regions) {
          CHECK(region->state == RegionState::resident);
        }
        continue;
      }
      for (const auto& region : state.tenant->regions) {
        if (region->policy != Policy::keep) continue;
        for (const auto& slot : region->slots) CHECK(slot.frame != kNoFrame || slot.host_valid);
      }
    }
  }

  // Without faults everything that was not closed comes back whole, and the sums are right.
  void settle() {
    // Any operation first tries again what could not be undone; there may be no tenant left to do
    // one.
    const auto probe = device_->add_tenant("probe", "job");
    device_->resume(probe, 60);
    device_->close_tenant(probe);
    for (Player& one : players_) {
      if (one.state.tenant == nullptr) continue;
      for (Player& other : players_) {
        if (other.state.tenant != nullptr) device_->release(other.state.tenant);
      }
      device_->resume(one.state.tenant, 60);
      CHECK(!one.state.tenant->failed);
      if (!one.attached) continue;
      CHECK(one.state.intact());
      const auto saved = device_->rescue(one.state.tenant);
      CHECK_EQ(saved.size(), 1u);
      CHECK(one.state.matches(saved));
    }
    std::size_t held = 0;
    Bytes on_host = 0;
    for (const auto& tenant : device_->tenants()) {
      held += tenant->slots_on_device();
      for (const auto& region : tenant->regions) {
        on_host += region->policy == Policy::keep ? region->slots.size() * kBlock : 0;
      }
    }
    const auto stats = device_->stats();
    CHECK_EQ(held + static_cast<std::size_t>(stats.blocks_free),
             static_cast<std::size_t>(stats.blocks_total));
    CHECK_EQ(device_->host_pool()->used(), on_host);
    device_->close();
    check_nothing_left(emulated_.ordinal);
  }

  Emulated emulated_;
  std::unique_ptr<Device> device_;
  std::mt19937_64 random_;
  Player players_[kTenants];
  std::uint64_t failed_ = 0;
  std::uint64_t completed_ = 0;
};

}  // namespace

TEST(seeded_sequences_with_faults_leave_nothing_and_lose_nothing) {
  const std::uint64_t first = option("first", 1);
  const std::uint64_t sequences = option("sequences", 300);
  const auto descriptors = open_descriptors();
  std::uint64_t failed = 0;
  std::uint64_t completed = 0;
  for (std::uint64_t seed = first; seed < first + sequences; ++seed) {
    const int before = failures();
    {
      Sequence sequence(seed);
      sequence.run();
      failed += sequence.failed();
      completed += sequence.completed();
    }
    CHECK_EQ(open_descriptors(), descriptors);
    if (failures() != before) {
      std::printf("replay with --first %lu --sequences 1\n", static_cast<unsigned long>(seed));
      break;
    }
  }
  CHECK(failed > sequences && completed > sequences);
  std::printf("%lu sequences of %d operations: %lu completed, %lu driver calls failed\n",
              static_cast<unsigned long>(sequences), kOperations,
              static_cast<unsigned long>(completed), static_cast<unsigned long>(failed));
}

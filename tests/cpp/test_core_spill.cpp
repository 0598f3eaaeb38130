// Beyond the budget of pinned memory: idle tenants go to files and come back with the same bytes,
// whatever fails on the way.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core_device.hpp"
#include "directory.hpp"

using namespace weave;
using namespace weave::test;

namespace {

// A device of 16 blocks with pinned memory for `blocks`, and three tenants of 8 blocks to keep.
struct Crowd {
  explicit Crowd(Bytes blocks, bool own_jobs = false)
      : device(std::make_shared<Device>(emulated.driver, options(blocks))) {
    for (int index = 0; index < 3; ++index) {
      const std::string name(1, static_cast<char>('a' + index));
      all[index].tenant = device->add_tenant(name, own_jobs ? "job-" + name : "job");
    }
  }
  Device::Options options(Bytes blocks) const {
    auto options = options_with(blocks * kBlock);
    options.spill_directory = directory.path;
    return options;
  }
  void attach_all() {
    for (unsigned index = 0; index < 3; ++index) {
      attach(*device, all[index], "", index + 1, 8, 2);
      device->release(all[index].tenant);
    }
  }
  // Everybody has its turn, twice.
  void compare() {
    for (int turn = 0; turn < 6; ++turn) {
      auto& one = all[turn % 3];
      device->resume(one.tenant, 60);
      CHECK(one.intact());
      one.seed += 10;
      one.write();
      one.scribble();
      device->release(one.tenant);
    }
  }
  Directory directory;
  Emulated emulated;
  std::shared_ptr<Device> device;
  Patterned all[3];
};

void flip(const fs::path& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

// A file larger than this fails to grow, as on a disk that is full.
class DiskOf {
 public:
  explicit DiskOf(Bytes bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~DiskOf() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST(idle_tenants_spill_over_the_budget_and_come_back) {
  for (const bool own_jobs : {false, true}) {
    for (const Bytes blocks : {8, 10, 16, 20}) {
      Crowd crowd(blocks, own_jobs);
      crowd.attach_all();
      CHECK(crowd.device->host_pool()->registered() <= blocks * kBlock);
      CHECK(!crowd.directory.files().empty());
      struct stat status{};
      stat(crowd.directory.files().front().c_str(), &status);
      CHECK_EQ(status.st_mode & 0777U, 0600U);
      crowd.compare();
      CHECK(crowd.device->stats().spills >= 4);
      CHECK(crowd.device->stats().loads >= 4);
      CHECK(crowd.device->stats().bytes_in_files > 0);
      CHECK_EQ(crowd.device->stats().bytes_in_files,
               crowd.device->stats().bytes_spilled - crowd.device->stats().bytes_loaded);
      crowd.device->close();
      check_nothing_left(crowd.emulated.ordinal);
      CHECK(crowd.directory.files().empty());
    }
  }
}

TEST(without_room_for_both_a_switch_goes_by_way_of_the_file) {
  Crowd crowd(8);
  crowd.attach_all();
  crowd.device->resume(crowd.all[0].tenant, 60);
  for (int turn = 0; turn < 6; ++turn) {
    auto& out = crowd.all[turn % 3];
    auto& in = crowd.all[(turn + 1) % 3];
    const auto report = crowd.device->hand_over(out.tenant, in.tenant, 60);
    CHECK(!out.tenant->running && in.tenant->running);
    CHECK_EQ(report.incoming, in.tenant->label());
    CHECK_EQ(report.bytes_out, 8 * kBlock);
    CHECK(in.intact());
  }
}

TEST(the_coldest_goes_first) {
  Crowd crowd(16);
  crowd.attach_all();  // c needed room: a went
  CHECK_EQ(crowd.all[0].tenant->slots_spilled(), 8u);
  CHECK_EQ(crowd.all[1].tenant->slots_spilled(), 0u);
  crowd.device->resume(crowd.all[0].tenant, 60);  // b is the coldest now
  CHECK_EQ(crowd.all[1].tenant->slots_spilled(), 8u);
  CHECK_EQ(crowd.all[2].tenant->slots_spilled(), 0u);
}

TEST(without_a_directory_growth_is_refused_with_numbers) {
  Emulated emulated;
  Device device(emulated.driver, options_with(10 * kBlock));
  Patterned a, b;
  attach(device, a, "a", 1, 8, 0);
  device.suspend(a.tenant, 60);
  b.tenant = device.add_tenant("b", "job");
  device.resume(b.tenant, 60);
  const auto region = device.region(b.tenant, "weights", Policy::keep, 0);
  CHECK_THROWS(device.allocate(region, 3 * kBlock, 512), Refusal, "at its budget");
  CHECK_THROWS(device.spill(a.tenant), UsageError, "without a spill directory");
  CHECK_EQ(region->slots.size(), 0u);
}

TEST(a_tenant_larger_than_the_budget_is_refused) {
  Crowd crowd(8);
  crowd.attach_all();
  crowd.device->resume(crowd.all[0].tenant, 60);
  CHECK_THROWS(crowd.device->prepare(crowd.all[0].keep, kBlock), Refusal, "at its budget");
  CHECK(crowd.all[0].intact());
  crowd.device->release(crowd.all[0].tenant);
  crowd.compare();
}

TEST(spilling_by_hand_and_what_is_refused) {
  Crowd crowd(24);
  crowd.attach_all();
  auto& a = crowd.all[0];
  crowd.device->resume(a.tenant, 60);
  CHECK_THROWS(crowd.device->spill(a.tenant), UsageError, "runs");
  crowd.device->suspend(a.tenant, 60);
  CHECK_EQ(crowd.device->spill(a.tenant), 8 * kBlock);
  CHECK_EQ(crowd.device->spill(a.tenant), 0u);
  CHECK_EQ(crowd.directory.files().size(), 1u);
  crowd.device->close_tenant(a.tenant);
  CHECK(crowd.directory.files().empty());
}

TEST(a_damaged_file_is_an_error_that_names_it_and_never_wrong_bytes) {
  const char* kinds[] = {"contents", "last byte", "header", "length", "truncated", "longer"};
  for (const char* kind : kinds) {
    Crowd crowd(24);
    crowd.attach_all();
    auto& a = crowd.all[0];
    crowd.device->suspend(a.tenant, 60);
    crowd.device->spill(a.tenant);
    const auto path = crowd.directory.files().front();
    const auto size = fs::file_size(path);
    const auto change = [&] {
      const std::string what = kind;
      if (what == "contents") flip(path, static_cast<std::streamoff>(size) - 5 * 4096);
      if (what == "last byte") flip(path, static_cast<std::streamoff>(size) - 1);
      if (what == "header") flip(path, 30);
      if (what == "length") flip(path, 0);
    };
    change();
    const std::string copy = crowd.directory.path + "/copy";
    fs::copy_file(path, copy);
    if (std::string(kind) == "truncated") fs::resize_file(path, size - 1);
    if (std::string(kind) == "longer") fs::resize_file(path, size + 1);
    const auto used = crowd.device->host_pool()->used();
    try {
      crowd.device->resume(a.tenant, 60);
      CHECK(false);
    } catch (const Refusal& refusal) {
      CHECK(refusal.kind == Refusal::Kind::state_file);
      CHECK_EQ(refusal.path, path.string());
      CHECK_EQ(refusal.tag, "weights");
    }
    CHECK(!a.tenant->running && !a.tenant->failed);
    CHECK_EQ(crowd.device->host_pool()->used(), used);
    CHECK(crowd.device->rescue(a.tenant).empty());
    for (auto* other : {&crowd.all[1], &crowd.all[2]}) {
      crowd.device->resume(other->tenant, 60);
      CHECK(other->intact());
      crowd.device->release(other->tenant);
    }
    // Mended, it loads.
    if (fs::file_size(path) != size) {
      std::ifstream from(copy, std::ios::binary);
      std::ofstream to(path, std::ios::binary);
      to << from.rdbuf();
    } else {
      change();
    }
    crowd.device->resume(a.tenant, 60);
    CHECK(a.intact());
    fs::remove(copy);
    CHECK(crowd.directory.files().empty());
  }
}

TEST(a_full_disk_refuses_the_growth_and_loses_nothing) {
  int refused = 0;
  // The header, then each block of the file in turn; pieces of pinned memory are smaller.
  for (Bytes room = 0; room <= 10 * kBlock; room += kBlock / 2) {
    Crowd crowd(24);
    crowd.attach_all();
    auto& a = crowd.all[0];
    crowd.device->suspend(a.tenant, 60);
    const auto used = crowd.device->host_pool()->used();
    try {
      const DiskOf disk(room);
      crowd.device->spill(a.tenant);
      CHECK_EQ(crowd.directory.files().size(), 1u);
    } catch (const Refusal& refusal) {
      ++refused;
      CHECK(refusal.kind == Refusal::Kind::state_file);
      CHECK(crowd.directory.files().empty());
      CHECK_EQ(crowd.device->host_pool()->used(), used);
    }
    crowd.compare();
  }
  CHECK(refused >= 17);
  Crowd crowd(16);
  attach(*crowd.device, crowd.all[0], "", 1, 8, 2);
  crowd.device->release(crowd.all[0].tenant);
  attach(*crowd.device, crowd.all[1], "", 2, 8, 2);
  const DiskOf disk(kBlock);  // the header fits
  CHECK_THROWS(crowd.device->prepare(crowd.all[1].keep, kBlock), Refusal,
               "spilling to make room failed: state file");
  try {
    crowd.device->prepare(crowd.all[1].keep, kBlock);
  } catch (const Refusal& refusal) {
    CHECK(refusal.kind == Refusal::Kind::host_memory);
    CHECK_EQ(refusal.bytes_needed, kBlock);
    CHECK(!refusal.path.empty());
  }
  CHECK(crowd.all[1].intact());
  CHECK(crowd.directory.files().empty());
}

TEST(a_directory_that_went_away_is_said) {
  Crowd crowd(24);
  crowd.attach_all();
  crowd.device->suspend(crowd.all[0].tenant, 60);
  fs::remove_all(crowd.directory.path);
  CHECK_THROWS(crowd.device->spill(crowd.all[0].tenant), Refusal, "No such file or directory");
  fs::create_directory(crowd.directory.path);
  crowd.compare();
  CHECK_THROWS(prepare_spill_directory("/proc/nothing/here"), UsageError, "spill directory");
}

TEST(spilled_bytes_are_rescued_and_written_out) {
  Crowd crowd(24);
  crowd.attach_all();
  auto& a = crowd.all[0];
  crowd.device->suspend(a.tenant, 60);
  crowd.device->spill(a.tenant);
  const auto saved = crowd.device->rescue(a.tenant);
  CHECK_EQ(saved.size(), 1u);
  CHECK(a.matches(saved));
  const std::string path = crowd.directory.path + "/out";
  CHECK_EQ(crowd.device->rescue_to(a.tenant, path, {{"job", "a \"b\"\n"}}),
           std::vector<std::string>{"weights"});
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(a.matches(reinterpret_cast<const unsigned char*>(text.data()) + text.size() - a.bytes));
  CHECK(text.find("\"job\":\"a \\\"b\\\"\\u000a\"") != std::string::npos);
  const DiskOf disk(kBlock);
  CHECK_THROWS(crowd.device->rescue_to(a.tenant, path + "2", {}), Refusal, "File too large");
  CHECK_EQ(crowd.directory.files().size(), 2u);  // the spilled tenant and `out`
}

TEST(files_of_processes_that_are_gone_are_removed_others_stay) {
  Crowd crowd(24);
  crowd.attach_all();
  crowd.device->suspend(crowd.all[0].tenant, 60);
  crowd.device->spill(crowd.all[0].tenant);
  const auto living = crowd.directory.files().front();
  const std::string stale = crowd.directory.path + "/weave-spill-0123.safetensors.tmp";
  const std::string fresh = crowd.directory.path + "/weave-spill-4567.safetensors";
  const std::string foreign = crowd.directory.path + "/model.safetensors";
  for (const auto& path : {stale, fresh, foreign}) std::ofstream(path) << "x";
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const auto& path : {fs::path(stale), fs::path(foreign), living}) {
    fs::last_write_time(path, old);
  }
  prepare_spill_directory(crowd.directory.path);
  CHECK(!fs::exists(stale));
  for (const auto& path : {fs::path(fresh), fs::path(foreign), living}) CHECK(fs::exists(path));
  crowd.compare();
}

TEST(a_forked_child_that_exits_leaves_the_files) {
  Crowd crowd(24);
  crowd.attach_all();
  crowd.device->suspend(crowd.all[0].tenant, 60);
  crowd.device->spill(crowd.all[0].tenant);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) std::exit(0);  // runs what the process registered for its exit
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQ(crowd.directory.files().size(), 1u);
  crowd.compare();
}

TEST(devices_that_share_a_pool_spill_for_each_other) {
  Directory directory;
  Emulated first, second;
  auto options = options_with(20 * kBlock);
  options.spill_directory = directory.path;
  Device rollout(first.driver, options);
  options.host_pool = rollout.host_pool();
  Device train(second.driver, options);
  Patterned a, b, c;
  attach(rollout, a, "a", 1, 8, 0);
  rollout.release(a.tenant);
  attach(train, b, "b", 2, 8, 0);
  train.release(b.tenant);
  attach(train, c, "c", 3, 8, 0);  // a, on the other device, is the coldest: off the device and out
  train.release(c.tenant);
  CHECK_EQ(a.tenant->slots_spilled(), 8u);
  const auto turns = [](Device& device, std::vector<Patterned*> own) {
    for (int turn = 0; turn < 30; ++turn) {
      Patterned& one = *own[static_cast<std::size_t>(turn) % own.size()];
      try {
        device.resume(one.tenant, 60);
      } catch (const Refusal& refusal) {  // both wanted what the other one had
        CHECK(refusal.kind == Refusal::Kind::host_memory);
        continue;
      }
      CHECK(one.intact());
      device.release(one.tenant);
    }
  };
  {
    std::jthread other([&] { turns(rollout, {&a}); });
    turns(train, {&b, &c});
  }
  rollout.close();
  train.close();
  CHECK(directory.files().empty());
}

TEST(sweep_a_switch_by_way_of_files) {
  for (const bool from_then_on : {false, true}) {
    std::uint64_t points = 0;
    for (std::uint64_t nth = 1;; ++nth) {
      Crowd crowd(8);
      crowd.attach_all();
      auto& a = crowd.all[0];
      auto& b = crowd.all[1];
      crowd.device->resume(a.tenant, 60);
      std::uint64_t hit = 0;
      {
        cu::FaultScope::Plan plan;
        plan.nth = nth;
        plan.from_then_on = from_then_on;
        const cu::FaultScope fault(plan);
        try {
          crowd.device->hand_over(a.tenant, b.tenant, 60);
        } catch (const DriverError&) {
        }
        hit = fault.calls_failed();
      }
      for (const auto* one : {&a, &b}) {
        crowd.device->rescue(one->tenant);  // finishes what could not be undone
        CHECK(!one->tenant->failed);
        if (one->tenant->running) CHECK(one->tenant->all_mapped() && one->intact());
        for (const auto& slot : one->keep->slots) {
          CHECK(slot.frame_valid || slot.host_valid || slot.file != nullptr);
          CHECK(slot.file == nullptr || !slot.host);
        }
        crowd.device->release(one->tenant);
      }
      crowd.compare();
      crowd.device->close();
      check_nothing_left(crowd.emulated.ordinal);
      CHECK(crowd.directory.files().empty());
      if (hit == 0) break;
      ++points;
    }
    std::printf("sweep by way of files %s: %llu points\n", from_then_on ? "from then on" : "once",
                static_cast<unsigned long long>(points));
    CHECK(points > 40);
  }
}

TEST(sweep_a_growth_that_spills) {
  for (const bool from_then_on : {false, true}) {
    std::uint64_t points = 0;
    for (std::uint64_t nth = 1;; ++nth) {
      Crowd crowd(8);
      auto& a = crowd.all[0];
      auto& b = crowd.all[1];
      attach(*crowd.device, a, "", 1, 8, 2);
      crowd.device->release(a.tenant);
      crowd.device->resume(b.tenant, 60);
      const auto region = crowd.device->region(b.tenant, "weights", Policy::keep, 0);
      std::uint64_t hit = 0;
      {
        cu::FaultScope::Plan plan;
        plan.nth = nth;
        plan.from_then_on = from_then_on;
        const cu::FaultScope fault(plan);
        try {
          b.spans.push_back(crowd.device->allocate(region, 8 * kBlock, 512));
        } catch (const DriverError&) {
        }
        hit = fault.calls_failed();
      }
      crowd.device->rescue(a.tenant);  // finishes what could not be undone
      CHECK(region->slots.empty() || region->slots.size() == 8);
      CHECK(!a.tenant->failed && !b.tenant->failed);
      for (const auto& slot : a.keep->slots) {
        CHECK(slot.frame_valid || slot.host_valid || slot.file != nullptr);
      }
      crowd.device->resume(b.tenant, 60);
      attach(*crowd.device, b, "", 2, 8, 2);
      crowd.device->release(b.tenant);
      attach(*crowd.device, crowd.all[2], "", 3, 8, 2);
      crowd.device->release(crowd.all[2].tenant);
      crowd.compare();
      crowd.device->close();
      check_nothing_left(crowd.emulated.ordinal);
      CHECK(crowd.directory.files().empty());
      if (hit == 0) break;
      ++points;
    }
    std::printf("sweep a growth that spills %s: %llu points\n",
                from_then_on ? "from then on" : "once", static_cast<unsigned long long>(points));
    CHECK(points > 40);
  }
}

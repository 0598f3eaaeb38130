// core/slowdown.cpp: Device::slowdown(), how much a phase that lives on memory bandwidth loses to
// copies beside it. Its work is the one kernel of this library: it writes memory as fast as it can,
// which no real phase does, so the figure is an upper bound. Called by `weave doctor` only.
#include <algorithm>
#include <array>
#include <vector>

#include "core/device.hpp"

namespace weave {

namespace {

// Every thread writes 16 bytes, then goes on a whole grid further.
constexpr const char* kImage = R"(// weave: fills memory
.version 7.0
.target sm_70
.address_size 64
.visible .entry weave_fill(.param .u64 address, .param .u64 bytes, .param .u32 value)
{
  .reg .pred %p<2>;
  .reg .b32 %r<7>;
  .reg .b64 %rd<7>;
  ld.param.u64 %rd1, [address];
  ld.param.u64 %rd2, [bytes];
  ld.param.u32 %r1, [value];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  mul.wide.u32 %rd3, %r5, 16;
  mov.u32 %r6, %nctaid.x;
  mul.lo.u32 %r6, %r6, %r3;
  mul.wide.u32 %rd4, %r6, 16;
AGAIN:
  add.u64 %rd5, %rd3, 16;
  setp.gt.u64 %p1, %rd5, %rd2;
  @%p1 bra DONE;
  add.u64 %rd6, %rd1, %rd3;
  st.global.v4.u32 [%rd6], {%r1, %r1, %r1, %r1};
  add.u64 %rd3, %rd3, %rd4;
  bra AGAIN;
DONE:
  ret;
}
)";
constexpr unsigned kGrid = 1024;
constexpr unsigned kThreads = 256;
constexpr int kRounds = 8;  // of each arm, alternated
constexpr int kMostLaunches = 2000;

// The kernel and the memory that it writes.
class Work {
 public:
  Work(const ContextRef& context, Frames& frames, std::size_t blocks)
      : context_(context), frames_(frames), stream_(context) {
    const auto& table = context_->driver().table;
    cu::check(table.module_load_data(&module_, kImage), cu::Call::module_load_data);
    try {
      cu::check(table.module_get_function(&kernel_, module_, "weave_fill"),
                cu::Call::module_get_function);
      while (taken_.size() < blocks) taken_.push_back(frames_.take());
    } catch (...) {
      end();
      throw;
    }
  }
  ~Work() {
    context_->driver().table.stream_synchronize(stream_.raw());
    end();
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Seconds for so many rounds over its memory.
  double run(int rounds) {
    const auto& table = context_->driver().table;
    const std::int64_t started = table.now_ns();
    for (int round = 0; round < rounds; ++round) {
      for (const FrameId frame : taken_) {
        cu::DevicePtr address = frames_.home(frame);
        std::uint64_t bytes = frames_.block_bytes();
        auto value = static_cast<std::uint32_t>(round);
        std::array<void*, 3> parameters = {&address, &bytes, &value};
        cu::check(table.launch_kernel(kernel_, kGrid, 1, 1, kThreads, 1, 1, 0, stream_.raw(),
                                      parameters.data(), nullptr),
                  cu::Call::launch_kernel);
      }
    }
    cu::check(table.stream_synchronize(stream_.raw()), cu::Call::stream_synchronize);
    return seconds_between(started, table.now_ns());
  }
  int launches() const { return static_cast<int>(taken_.size()); }

 private:
  void end() noexcept {
    for (const FrameId frame : taken_) frames_.give_back(frame);
    context_->driver_ref()->undo(cu::Call::module_unload, [module = module_](const auto& table) {
      return table.module_unload(module);
    });
  }

  ContextRef context_;
  Frames& frames_;
  Stream stream_;
  cu::Module module_ = nullptr;
  cu::Function kernel_ = nullptr;
  std::vector<FrameId> taken_;
};

// The sample below which so many of the others lie.
double sample_at(std::vector<double> values, std::size_t place) {
  std::ranges::sort(values);
  return values[place];
}

}  // namespace

std::optional<double> Device::slowdown(Bytes bytes, double work_s) {
  const Foreground lock(*this);
  require_open();
  require_empty("slowdown");
  const auto& table = driver_->table;
  if (table.module_load_data == nullptr || table.module_get_function == nullptr ||
      table.module_unload == nullptr || table.launch_kernel == nullptr) {
    return std::nullopt;
  }
  const ContextScope scope(*context_);
  retry_unfinished();
  const std::size_t third = static_cast<std::size_t>(frames_->available()) / 3;
  if (third == 0) throw UsageError("slowdown needs a device of at least three blocks");
  const std::size_t blocks = std::clamp<std::size_t>(bytes / block_bytes_, 1, third);
  auto link = std::make_unique<PlainLink>(context_, *frames_, *host_pool_, blocks);
  std::vector<double> alone;
  std::vector<double> beside;
  try {
    Work work(context_, *frames_, blocks);
    work.run(1);  // loads the kernel
    const double once = std::max(work.run(1), 1e-7);
    const int most = std::max(1, kMostLaunches / work.launches());
    const int rounds = std::clamp(static_cast<int>(work_s / once), 1, most);
    link->copy(blocks, blocks);
    const double copy_s = link->copy(blocks, blocks).host;
    const double round_s = work.run(rounds);
    // The link stays busy for as long as the work may take.
    const int copies =
        std::clamp(static_cast<int>(2 * round_s / std::max(copy_s, 1e-7)) + 1, 1, 200);
    for (int round = 0; round < kRounds; ++round) {
      alone.push_back(work.run(rounds));
      for (int copy = 0; copy < copies; ++copy) link->start(blocks, blocks);
      beside.push_back(work.run(rounds));
      link->finish();
    }
  } catch (const DriverError&) {
    if (!link->settle()) stuck_links_.push_back(std::move(link));
    throw;
  }
  link.reset();
  host_pool_->trim(kPlainJob);
  // What the samples bear out, whatever else disturbed them: a quarter of those beside copies
  // against three quarters of those alone. On a quiet device the two hardly differ from medians.
  return sample_at(beside, kRounds / 4) / sample_at(alone, kRounds - 1 - kRounds / 4) - 1;
}

}  // namespace weave

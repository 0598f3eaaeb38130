#include "emu/stepper.hpp"

#include <algorithm>

#include "driver/clock.hpp"

namespace weave::emu {

namespace {

std::atomic<std::int64_t> manual_ns{1'000'000'000};

std::int64_t manual_now_ns() { return manual_ns.load(std::memory_order_acquire); }

void manual_sleep_until_ns(std::int64_t deadline_ns) {
  auto now = manual_now_ns();
  while (now < deadline_ns && !manual_ns.compare_exchange_weak(now, deadline_ns)) {
  }
}

}  // namespace

std::int64_t now_ns(const DeviceState& device) {
  return device.spec.stepped ? manual_now_ns() : cu::system_now_ns();
}

void sleep_until_ns(const DeviceState& device, std::int64_t deadline_ns) {
  device.spec.stepped ? manual_sleep_until_ns(deadline_ns) : cu::system_sleep_until_ns(deadline_ns);
}

cu::Table with_clock(cu::Table table, const Spec& spec) {
  table.now_ns = spec.stepped ? &manual_now_ns : &cu::system_now_ns;
  table.sleep_until_ns = spec.stepped ? &manual_sleep_until_ns : &cu::system_sleep_until_ns;
  return table;
}

namespace stepper {

namespace {

std::mutex stepping;

std::mutex change_lock;
std::condition_variable change;
std::uint64_t change_count = 0;  // guarded by change_lock

// What a step can be. `stream` null: the next piece of device->jobs[job].
struct Choice {
  std::shared_ptr<DeviceState> device;
  std::size_t job = 0;
  std::shared_ptr<StreamState> stream;
  int lane = -1;  // -1: its head retires
};

std::vector<std::shared_ptr<DeviceState>> stepped_devices() {
  std::vector<std::shared_ptr<DeviceState>> result;
  const std::lock_guard lock(driver().registry);
  for (const auto& device : driver().devices) {
    if (device && device->spec.stepped) result.push_back(device);
  }
  return result;
}

void collect(const std::shared_ptr<DeviceState>& device, std::vector<Choice>& choices) {
  for (std::size_t job = 0; job < device->jobs.size(); ++job) choices.push_back({device, job, {}});
  const Locked locked(*device);
  for (const auto& stream : device->streams) {
    if (can_retire(*device, *stream)) choices.push_back({device, 0, stream});
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!is_ready(*device, *stream, lane) || free_engine(*device, lane) == nullptr) continue;
      choices.push_back({device, 0, stream, lane});
    }
  }
}

// The order as numbers that do not depend on addresses.
void note(DeviceState& device, const Operation& operation, std::uint64_t piece) {
  device.order = (device.order ^ (operation.sequence * 64 + piece % 64)) * 0x9e3779b97f4a7c15;
  device.order ^= device.order >> 29U;
}

void retire_head(DeviceState& device, StreamState& stream) {
  const Locked locked(device);
  if (!can_retire(device, stream)) return;  // another thread reset its context meanwhile
  note(device, *stream.queue.front(), 63);
  retire(device, stream);
  manual_sleep_until_ns(stream.time_ns);
  pump(device);
}

void continue_job(DeviceState& device, std::size_t index) {
  auto& job = device.jobs[index];
  note(device, *job.operation, job.done);
  if (run_piece(device, job)) return;
  // Before anyone is told, so that no caller sees a clock that is early.
  manual_sleep_until_ns(job.time_ns);
  Job over = std::move(job);
  device.jobs.erase(device.jobs.begin() + static_cast<std::ptrdiff_t>(index));
  finish(device, over);
}

void start(DeviceState& device, const Choice& choice) {
  {
    const Locked locked(device);
    Engine* const engine = free_engine(device, choice.lane);
    if (engine == nullptr || !is_ready(device, *choice.stream, choice.lane)) return;
    device.jobs.push_back(begin(device, choice.lane, *engine, choice.stream));
  }
  continue_job(device, device.jobs.size() - 1);
}

}  // namespace

bool step() {
  const std::lock_guard lock(stepping);
  std::vector<Choice> choices;
  for (const auto& device : stepped_devices()) collect(device, choices);
  if (choices.empty()) return false;
  const auto& choice = choices[choices.front().device->draw() % choices.size()];
  auto& device = *choice.device;
  if (choice.stream == nullptr) {
    continue_job(device, choice.job);
  } else if (choice.lane < 0) {
    retire_head(device, *choice.stream);
  } else {
    start(device, choice);
  }
  return true;
}

void asked(DeviceState& device) {
  if (device.spec.stepped && device.coin()) step();
}

void abandon(DeviceState& device) {
  const std::lock_guard lock(stepping);
  for (std::size_t index = device.jobs.size(); index-- > 0;) {
    if (device.jobs[index].stream->context->status() == cu::kSuccess) continue;
    Job over = std::move(device.jobs[index]);
    device.jobs.erase(device.jobs.begin() + static_cast<std::ptrdiff_t>(index));
    finish(device, over);
  }
}

void changed() {
  const std::lock_guard lock(change_lock);
  ++change_count;
  change.notify_all();
}

std::uint64_t changes() {
  const std::lock_guard lock(change_lock);
  return change_count;
}

void wait_for_change(std::uint64_t seen) {
  std::unique_lock lock(change_lock);
  change.wait(lock, [&] { return change_count != seen; });
}

}  // namespace stepper

std::uint64_t order_digest(int ordinal) {
  const auto device = find_device(ordinal);
  const std::lock_guard lock(stepper::stepping);
  return device ? device->order : 0;
}

}  // namespace weave::emu

// emu/device.cpp: the emulated driver of this process and its list of devices: adding, removing,
// counting what exists. The list is guarded by Driver::registry.
#include "emu/device.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "driver/clock.hpp"
#include "driver/status.hpp"
#include "emu/pages.hpp"
#include "emu/sharing.hpp"

namespace weave::emu {

namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111eb;
  return value ^ (value >> 31U);
}

Spec with_seed(Spec spec) {
  std::random_device source;
  while (spec.seed == 0) spec.seed = (std::uint64_t{source()} << 32U) | source();
  return spec;
}

// The same id gives the same UUID in every process; without an id it is random.
cu::Uuid make_uuid(const std::string& id) {
  std::uint64_t halves[2] = {};
  if (id.empty()) {
    std::random_device source;
    for (auto& half : halves) half = (std::uint64_t{source()} << 32U) | source();
  } else {
    for (const char c : id) {
      halves[0] = mix(halves[0] + kGolden + static_cast<unsigned char>(c));
      halves[1] = mix(halves[1] ^ (halves[0] + kGolden));
    }
  }
  cu::Uuid uuid;
  std::memcpy(uuid.bytes, halves, sizeof uuid.bytes);
  return uuid;
}

// Bytes per second that one thread copies on this host, measured once per process.
double host_copy_rate() {
  static const double rate = [] {
    constexpr std::size_t kBytes = std::size_t{4} << 20U;
    const std::vector<char> source(kBytes, 1);
    std::vector<char> target(kBytes, 2);
    std::int64_t best_ns = std::numeric_limits<std::int64_t>::max();
    for (int round = 0; round < 3; ++round) {
      const auto start = cu::system_now_ns();
      std::memcpy(target.data(), source.data(), kBytes);
      best_ns = std::min(best_ns, std::max<std::int64_t>(cu::system_now_ns() - start, 1));
    }
    const volatile char kept = target[kBytes / 2];
    static_cast<void>(kept);
    return static_cast<double>(kBytes) * 1e9 / static_cast<double>(best_ns);
  }();
  return rate;
}

bool is_too_fast(const Spec& spec) {
  const double both = (spec.h2d_bytes_per_s + spec.d2h_bytes_per_s) * spec.duplex;
  const double one = std::max(spec.h2d_bytes_per_s, spec.d2h_bytes_per_s);
  const bool alone = sysconf(_SC_NPROCESSORS_ONLN) < 2;
  return host_copy_rate() < (alone ? std::max(one, both) : one);
}

std::uint64_t block_count(const Spec& spec) { return spec.capacity_bytes / spec.block_bytes; }

// pre: registry is held.
void make_room_for_descriptors(const Spec& spec) {
  constexpr std::uint64_t kOthers = 64;  // what the process itself has open
  std::uint64_t needed = kOthers + block_count(spec);
  for (const auto& device : driver().devices) {
    if (device) needed += block_count(device->spec);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= needed) return;
  throw UsageError("emulated device " + spec.text() + " needs " + std::to_string(needed) +
                   " file descriptors, one per block, and the limit is " +
                   std::to_string(limit.rlim_cur) +
                   ": raise it (ulimit -n) or give a larger block or a smaller capacity");
}

std::shared_ptr<DeviceState> existing(int ordinal) {
  auto device = find_device(ordinal);
  if (!device) throw UsageError("there is no emulated device " + std::to_string(ordinal));
  return device;
}

}  // namespace

Driver& driver() {
  static Driver* const instance = [] {
    // A child has neither the engine threads nor the mappings.
    pthread_atfork(nullptr, nullptr, [] { driver().forked = true; });
    return new Driver;
  }();
  return *instance;
}

DeviceState::DeviceState(const Spec& wanted, int number)
    : spec(with_seed(wanted)),
      ordinal(number),
      uuid(make_uuid(wanted.id)),
      limited(!wanted.stepped && is_too_fast(wanted)),
      random_(spec.seed) {
  for (const int direction : {kToDevice, kToHost}) {
    engines[static_cast<std::size_t>(direction)].resize(static_cast<std::size_t>(spec.engines));
  }
  engines[kCompute].resize(1);
  engines[kCalls].resize(1);
  if (!spec.id.empty()) ledger = std::make_unique<Ledger>(pages::file_name(uuid).substr(21));
}

std::uint64_t DeviceState::draw() {
  return mix(random_.fetch_add(kGolden, std::memory_order_relaxed) + kGolden);
}

Locked::~Locked() {
  const auto others = std::exchange(device_.wakes, {});
  lock.unlock();
  for (const auto& other : others) {
    if (const auto device = other.lock()) {
      const Locked its(*device);
      pump(*device);
    }
  }
}

std::shared_ptr<DeviceState> find_device(int ordinal) {
  const std::lock_guard lock(driver().registry);
  const auto& devices = driver().devices;
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices.size()) return nullptr;
  return devices[static_cast<std::size_t>(ordinal)];
}

int add_device(const Spec& spec) {
  if (driver().forked) throw UsageError("an emulated device cannot be opened in a forked child");
  const std::lock_guard lock(driver().registry);
  make_room_for_descriptors(spec);
  auto& devices = driver().devices;
  const int ordinal = static_cast<int>(devices.size());
  auto device = std::make_shared<DeviceState>(spec, ordinal);
  devices.push_back(device);
  try {
    for (const int direction : {kToDevice, kToHost}) start_lane(device, direction);
  } catch (...) {
    stop_engines(*device);
    devices.back() = nullptr;
    throw;
  }
  return ordinal;
}

void remove_device(int ordinal) {
  std::shared_ptr<DeviceState> device;
  std::shared_ptr<ContextState> context;
  {
    const std::lock_guard lock(driver().registry);
    auto& devices = driver().devices;
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices.size()) return;
    device = std::exchange(devices[static_cast<std::size_t>(ordinal)], nullptr);
    if (!device) return;
    device->removed = true;
    context = std::exchange(device->primary, nullptr);
    device->retains = 0;
  }
  if (context) destroy_context(context);
  stop_engines(*device);
  free_memory(*device);
}

bool host_limited(int ordinal) { return existing(ordinal)->limited; }

Spec spec_of(int ordinal) { return existing(ordinal)->spec; }

bool run_next(int ordinal, int direction) {
  if (direction != kToDevice && direction != kToHost) {
    throw UsageError("run_next: the direction is kToDevice or kToHost");
  }
  return run_next(*existing(ordinal), direction);
}

Census census(int ordinal) {
  const auto device = existing(ordinal);
  Census result;
  const auto belongs = [&](const auto& object) { return object.context->device == device; };
  result.streams = driver().streams.count_if(belongs);
  result.events = driver().events.count_if(belongs);
  result.descriptors = device->descriptors;
  result.pageable_copies = device->pageable_copies;
  const std::lock_guard lock(driver().memory);
  bytes_free(*device);  // looks whether what lingers is still imported
  result.handles = device->handles;
  result.mappings = device->mappings;
  result.bytes_used = device->bytes_used;
  for (const auto& [address, reservation] : driver().reservations) {
    if (reservation.owner == ordinal || reservation.owner < 0) ++result.reservations;
  }
  for (const auto& [address, registration] : driver().registrations) {
    if (registration->context->device == device) ++result.registrations;
  }
  return result;
}

}  // namespace weave::emu

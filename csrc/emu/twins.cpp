// emu/twins.cpp: the kernels that the emulated device knows, each as a function of its parameters
// and the number of the step. Called by engine.cpp while no lock is held.
#include <algorithm>
#include <cstring>

#include "emu/launch.hpp"
#include "emu/memory.hpp"

namespace weave::emu {

namespace {

// A range is walked in at least 8 steps where it has that many bytes, and in pieces of at most
// 64 KiB.
constexpr std::uint64_t kStepBytes = std::uint64_t{64} << 10U;

struct Part {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  bool is_empty() const { return bytes == 0; }
};

Part part(std::uint64_t bytes, std::uint64_t step) {
  const auto size = std::clamp<std::uint64_t>(bytes / 8, 1, kStepBytes);
  if (step > bytes / size || step * size >= bytes) return {};
  return {step * size, std::min(size, bytes - step * size)};
}

// weave_fill(address, bytes, value): every byte becomes value.
KernelStep fill(const Parameters& parameters, const KernelMemory& memory, std::uint64_t step) {
  const auto [address, bytes, value, unused] = parameters;
  const auto now = part(bytes, step);
  if (now.is_empty()) return {.is_last = true};
  const bool fine = memory.write(address + now.begin, now.bytes, [&](std::span<std::byte> at) {
    std::memset(at.data(), static_cast<int>(value & 255U), at.size());
  });
  return {.faults = !fine, .bytes = now.bytes};
}

// weave_add(address, bytes, value): value is added to every byte.
KernelStep add(const Parameters& parameters, const KernelMemory& memory, std::uint64_t step) {
  const auto [address, bytes, value, unused] = parameters;
  const auto now = part(bytes, step);
  if (now.is_empty()) return {.is_last = true};
  const bool fine = memory.write(address + now.begin, now.bytes, [&](std::span<std::byte> at) {
    for (auto& byte : at) {
      byte = static_cast<std::byte>((std::to_integer<std::uint64_t>(byte) + value) & 255U);
    }
  });
  return {.faults = !fine, .bytes = now.bytes};
}

// weave_sum(address, bytes, result): the 64-bit word at result becomes the sum of the bytes.
KernelStep sum(const Parameters& parameters, const KernelMemory& memory, std::uint64_t step) {
  const auto [address, bytes, result, unused] = parameters;
  const auto now = part(bytes, step);
  if (now.is_empty()) return {.is_last = true};
  std::uint64_t total = 0;
  bool fine = memory.read(address + now.begin, now.bytes, [&](std::span<const std::byte> at) {
    for (const auto byte : at) total += std::to_integer<std::uint64_t>(byte);
  });
  fine = fine && memory.write(result, sizeof total, [&](std::span<std::byte> at) {
    std::uint64_t before = 0;
    if (at.size() != sizeof before) return;  // a word is aligned, so it never spans two mappings
    if (step != 0) std::memcpy(&before, at.data(), sizeof before);
    before += total;
    std::memcpy(at.data(), &before, sizeof before);
  });
  return {.faults = !fine, .bytes = now.bytes};
}

// weave_spin(nanoseconds): keeps the compute engine busy for so long and touches nothing.
KernelStep spin(const Parameters& parameters, const KernelMemory&, std::uint64_t step) {
  constexpr std::uint64_t kSteps = 8;
  if (step == kSteps) return {.is_last = true};
  return {.duration_ns = static_cast<std::int64_t>(parameters[0] / kSteps)};
}

constexpr std::array kTwins = {
    Twin{"weave_fill", {8, 8, 4}, &fill},
    Twin{"weave_add", {8, 8, 4}, &add},
    Twin{"weave_sum", {8, 8, 8}, &sum},
    Twin{"weave_spin", {8}, &spin},
};

template <class Use>
bool for_each(int ordinal, cu::DevicePtr address, std::uint64_t bytes, bool writes, Use use) {
  std::vector<Range> ranges;  // keep their blocks alive
  {
    const std::lock_guard lock(driver().memory);
    if (!find_ranges(address, bytes, writes, ordinal, ranges)) return false;
  }
  for (const auto& range : ranges) {
    use(std::span(range.mapping->block->alias + range.offset, range.bytes));
  }
  return true;
}

}  // namespace

bool KernelMemory::read(cu::DevicePtr address, std::uint64_t bytes,
                        const std::function<void(std::span<const std::byte>)>& use) const {
  return for_each(ordinal_, address, bytes, false, use);
}

bool KernelMemory::write(cu::DevicePtr address, std::uint64_t bytes,
                         const std::function<void(std::span<std::byte>)>& use) const {
  return for_each(ordinal_, address, bytes, true, use);
}

const Twin* find_twin(std::string_view name) {
  const auto found = std::ranges::find(kTwins, name, &Twin::name);
  return found == kTwins.end() ? nullptr : &*found;
}

}  // namespace weave::emu

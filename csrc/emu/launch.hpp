// emu/launch.hpp: kernels. The emulated device has no instruction set: a kernel of a loaded image
// runs as its host twin, found by name (twins.cpp), in steps on the compute engine, so that what is
// not ordered behind it sees half of its work. Immutable after submission, no lock.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "emu/device.hpp"

namespace weave::emu {

// What one step did. bytes: touched on the device, at its rate; duration_ns: at least that long.
struct KernelStep {
  bool is_last = false;
  bool faults = false;  // touched memory without mapping or access
  std::uint64_t bytes = 0;
  std::int64_t duration_ns = 0;
};

// Device memory as a kernel sees it: by address, looked up when it is touched.
class KernelMemory {
 public:
  explicit KernelMemory(int ordinal) : ordinal_(ordinal) {}
  // `use` gets the bytes, contiguous piece by piece. False: part of it may not be touched.
  bool read(cu::DevicePtr address, std::uint64_t bytes,
            const std::function<void(std::span<const std::byte>)>& use) const;
  bool write(cu::DevicePtr address, std::uint64_t bytes,
             const std::function<void(std::span<std::byte>)>& use) const;

 private:
  const int ordinal_;
};

inline constexpr std::size_t kMostParameters = 4;
using Parameters = std::array<std::uint64_t, kMostParameters>;

struct Twin {
  std::string_view name;
  std::array<std::size_t, kMostParameters> sizes;  // of the parameters in bytes; 0: there is none
  KernelStep (*step)(const Parameters& parameters, const KernelMemory& memory, std::uint64_t step);
};

// Null when the emulated device does not know a kernel of that name.
const Twin* find_twin(std::string_view name);

struct Launch {
  const Twin* twin = nullptr;
  Parameters parameters{};
  KernelStep step(int ordinal, std::uint64_t number) const {
    return twin->step(parameters, KernelMemory(ordinal), number);
  }
};

}  // namespace weave::emu

// emu/emulator.hpp: the emulated device, a second filling of the driver table. This is all that
// other layers see of it: make a device from a spec, reach it through table(), inspect it. Every
// function may be called from any thread; locks are internal. Nothing here works in a forked child.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "driver/table.hpp"

namespace weave::emu {

// What a device is like: bytes, bytes per second and nanoseconds, scale and speed already applied.
struct Spec {
  std::string name;  // h20, h800, h100, h200
  std::uint64_t capacity_bytes = 0;
  std::uint64_t granularity_bytes = 0;  // a power of two, at least the host page
  std::uint64_t block_bytes = 0;        // a multiple of the granularity
  std::uint64_t context_bytes = 0;      // taken from the capacity while the context is retained
  std::uint64_t unmanaged_bytes = 0;    // taken from the capacity always
  double h2d_bytes_per_s = 0;
  double d2h_bytes_per_s = 0;
  double pageable_bytes_per_s = 0;
  double duplex = 0;     // share of a direction's bandwidth left while the other direction runs
  int engines = 0;       // copy engines per direction; they share the direction's bandwidth
  bool integrated = false;  // says that device and host are one memory
  bool stepped = false;  // operations run one piece at a time, in an order drawn from the seed
  // Host-side latency per call.
  std::int64_t copy_ns = 0;
  std::int64_t map_ns = 0;
  std::int64_t access_ns = 0;
  std::int64_t unmap_ns = 0;
  std::int64_t create_ns = 0;
  std::int64_t register_ns = 0;
  double scale = 0;
  double speed = 0;
  std::uint64_t seed = 0;  // 0 in a parsed spec: drawn when the device is added
  std::string id;          // fixes the UUID; empty: random

  // "emulated:h20?scale=64&capacity=1GiB"; the prefix is optional. Throws UsageError, one line that
  // names the key, the value and what is allowed.
  static Spec parse(std::string_view text);
  // Canonical: name, scale, speed and every key that differs from the named spec. parse(text())
  // gives the same spec.
  std::string text() const;
};

// A new device of its own; returns its ordinal, which is never reused. Works before init. Raises
// the soft RLIMIT_NOFILE to the hard one; throws UsageError (one line) where that does not hold the
// blocks.
int add_device(const Spec& spec);
// Frees everything of it and joins its threads; later calls with that ordinal give 101, calls with
// its context current 709, and its allocation handles are dead.
void remove_device(int ordinal);

// The emulated driver: static and complete.
const cu::Table& table();

// The same calls, with the clock that belongs to a device of this spec: a stepped one lives on a
// manual clock, shared by all stepped devices of the process, on which no real time passes.
cu::Table with_clock(cu::Table table, const Spec& spec);

// Stepped devices only. A digest of what has run in which order: the same seed and the same calls
// give the same.
std::uint64_t order_digest(int ordinal);

// Whether the CPU may touch the mapped and accessible blocks of this reservation. Off at first.
void host_view(cu::DevicePtr reservation, bool readable);

// This host cannot copy as fast as the spec says (measured at add_device).
bool host_limited(int ordinal);

// The device's spec as it runs: a seed of 0 replaced by the one drawn.
Spec spec_of(int ordinal);

// What exists on a device. registrations: those made under its context. reservations: those made
// with its context current or first mapped with a block of its own; one that no device owns yet is
// counted by every device.
struct Census {
  std::uint64_t handles = 0;
  std::uint64_t mappings = 0;
  std::uint64_t reservations = 0;
  std::uint64_t registrations = 0;
  std::uint64_t streams = 0;
  std::uint64_t events = 0;
  std::uint64_t bytes_used = 0;
  std::uint64_t pageable_copies = 0;
  std::uint64_t descriptors = 0;
  bool operator==(const Census&) const = default;
};
Census census(int ordinal);

// Directions of run_next; a stepped device runs the operation as a whole, too.
inline constexpr int kToDevice = 0;
inline constexpr int kToHost = 1;

// Runs one operation of the engine if one is ready; returns whether it did. The engine threads loop
// over this.
bool run_next(int ordinal, int direction);

}  // namespace weave::emu

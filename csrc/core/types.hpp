// core/types.hpp: the nouns of the core, once.
//
//   device       one GPU, real or emulated, reached only through a driver table
//   block        one physical allocation on a device, whole, recycled
//   frame        the place of one block in the device's pool; its number is its home address
//   home         the address where a block is mapped for life and where only the engine copies
//   region       a reserved, never-moving range of addresses that holds one tag of one tenant
//   slot         one block's worth of a region; its bytes are in a frame, in an extent, or both
//   extent       one block's worth of the pinned host pool: of one slot, or of the pages of several
//   tenant       everything one job keeps on one device for one pool, suspended and resumed as one
//   running      a tenant whose phase holds the device; its blocks never leave
//   idle         not running; its slots stay on the device until somebody needs the frames
//   move         one slot that leaves (Out) or enters (In) in a switch
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weave {

using Bytes = std::uint64_t;
using FrameId = int;
inline constexpr FrameId kNoFrame = -1;

// What survives a suspend. `keep`: the device copy is the truth and is copied out. `reload`: the
// host copy is the truth once there is one; what is on the device is dropped. `discard`: nothing
// survives; the owner writes before it reads.
enum class Policy { keep, reload, discard };

// What a frame holds that has just come to a `discard` region. `poison` is a byte that makes every
// float absurd and every index wrong, so that a read before the first write is noticed.
enum class Fill { none, zero, poison };
inline constexpr std::uint8_t kPoison = 0xA5;

enum class RegionState { resident, leaving, host, entering, discarded, failed };

// Which tags of a tenant an operation is about; nothing: all of them.
using Tags = std::optional<std::vector<std::string>>;

// A typed refusal that is neither the driver's fault nor a broken `pre:`; bindings turn each kind
// into the exception class of the same name.
struct Refusal : std::exception {
  enum class Kind {
    not_resident,
    resume_failed,
    growth_refused,
    host_memory,
    drain_timeout,
    tenant_failed,
    device_not_found,
    region_pinned,
    verify_failed,
    state_file,
  };
  Refusal(Kind kind_, std::string text_) : kind(kind_), text(std::move(text_)) {}
  const char* what() const noexcept override { return text.c_str(); }

  Kind kind;
  std::string text;
  std::string job, tenant, tag;      // not_resident, region_pinned, verify_failed
  Bytes offset = 0;                  // verify_failed: in the region
  std::vector<std::string> holders;  // resume_failed
  std::string path;                  // state_file
  Bytes bytes_needed = 0;
  Bytes bytes_available = 0;
  Bytes bytes_usable = 0;
};

// For messages: "12.3 MB", below one "4096 bytes".
inline std::string megabytes(Bytes bytes) {
  if (bytes < 1'000'000) return std::to_string(bytes) + " bytes";
  const auto tenths = bytes / 100'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MB";
}

// The largest multiple where there is none above: what a caller asked for by mistake is refused as
// what it is, much.
constexpr Bytes round_up(Bytes bytes, Bytes unit) {
  const Bytes units = bytes / unit + (bytes % unit != 0 ? 1 : 0);
  return std::min(units, ~Bytes{0} / unit) * unit;
}

}  // namespace weave

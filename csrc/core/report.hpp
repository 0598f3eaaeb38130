// core/report.hpp: what one suspend, resume or switch did, and how long each part took.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace weave {

// Rates of plain pinned copies through the driver table, in bytes per second: each direction alone,
// and each while both run. Measured by calibrate().
struct LinkRates {
  double h2d = 0, d2h = 0, h2d_duplex = 0, d2h_duplex = 0;
  Bytes chunks = 0;         // into how many the engine had best cut a switch; 0: not tried
  bool sequential = false;  // one direction after the other is faster than both at once
};

struct SwitchReport {
  std::vector<std::string> outgoing;  // tenants that gave up slots
  std::string incoming;               // empty for a suspend
  Bytes bytes_out = 0;                // copied to the host
  Bytes bytes_in = 0;                 // copied to the device
  Bytes bytes_background = 0;         // copied earlier, beside phases, for those named here
  Bytes bytes_skipped = 0;            // of the tenants concerned, not copied
  std::size_t blocks_remapped = 0;
  std::int64_t started_ns = 0;
  double seconds = 0;  // start of drain until the incoming tenant may run
  double drain_s = 0;
  double map_s = 0;
  double out_s = 0;
  double in_s = 0;
  const char* mode = nullptr;     // "duplex" or "sequential"; null unless bytes moved both ways
  double verify_s = 0;            // reading back and comparing
  std::optional<double> limit_s;  // present once the link was calibrated and bytes moved
};

inline double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) / 1e9;
}

// Positive and finite, all of them: what a measurement gives. Else somebody wrote it.
bool is_plausible(const LinkRates& rates);

// Whether the link moves bytes faster in one direction after the other than in both at once.
bool is_sequential_faster(const LinkRates& rates);
// The shortest time in which the link can move these bytes: both directions at their duplex rates
// until the shorter is done, then the rest one way; or one after the other where that is faster.
double limit_seconds(const LinkRates& rates, Bytes out, Bytes in);

}  // namespace weave

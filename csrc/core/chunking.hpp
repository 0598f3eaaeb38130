// core/chunking.hpp: what has to be copied of a block, cut into chunks. Used by the switch and by
// the background. Pure.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "core/copy_engine.hpp"
#include "core/region.hpp"

namespace weave {

// The part of `range` in [begin, end), as a chunk of a frame whose home is `home`.
inline std::optional<Chunk> part_of(const Range& range, Bytes begin, Bytes end,
                                    cu::DevicePtr home) {
  const Bytes from = std::max(range.offset, begin);
  const Bytes to = std::min(range.offset + range.bytes, end);
  if (from >= to) return std::nullopt;
  return Chunk{home + from, range.host == nullptr ? nullptr : range.host + (from - range.offset),
               to - from};
}

// Calls take(chunk, end) for each part of `ranges` in a frame whose home is `home`, in their order;
// `end` is where it ends in the frame. Parts lie on one grid: none crosses a multiple of `chunk`.
template <class Take>
void cut(const std::vector<Range>& ranges, Bytes chunk, cu::DevicePtr home, Take take) {
  for (const auto& range : ranges) {
    for (Bytes from = range.offset / chunk * chunk; from < range.offset + range.bytes;
         from += chunk) {
      const auto part = part_of(range, from, from + chunk, home);
      take(*part, part->device + part->bytes - home);
    }
  }
}

inline Bytes bytes_of(const std::vector<Range>& ranges) {
  Bytes bytes = 0;
  for (const auto& range : ranges) bytes += range.bytes;
  return bytes;
}

}  // namespace weave

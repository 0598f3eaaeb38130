// core/checksum.hpp: XXH3 with 64 bits, and the checksum of a block that is made of it. Written
// from the specification of xxHash (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seed 0 and the
// default secret; no library ships its header where a wheel is built. Pure.
#pragma once

#include <span>
#include <vector>

#include "core/region.hpp"

namespace weave {

std::uint64_t xxh3_64(const std::byte* data, std::size_t bytes);

// Digests of 64 KiB pieces, the last one shorter, in order.
inline constexpr Bytes kChecksumPiece = Bytes{64} << 10;

// xxh3_64 over the little-endian digests of the pieces of all ranges. `at` says where the bytes of
// a range are now; null: in its host copy.
std::uint64_t block_checksum(std::span<const Range> ranges, const std::byte* at = nullptr);

}  // namespace weave

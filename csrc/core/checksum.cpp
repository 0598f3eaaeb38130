#include "core/checksum.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace weave {

namespace {

using u64 = std::uint64_t;

constexpr u64 kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr u64 kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
              kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
              kPrime64_5 = 0x27D4EB2F165667C5;
constexpr u64 kMix1 = 0x165667919E3779F9, kMix2 = 0x9FB21C651E98DF25;

constexpr std::size_t kSecretBytes = 192;
constexpr std::size_t kStripe = 64;
constexpr std::size_t kStripesPerRound = (kSecretBytes - kStripe) / 8;

constexpr std::array<std::uint8_t, kSecretBytes> kSecret = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

static_assert(std::endian::native == std::endian::little, "reads below are little-endian");

template <class Word>
Word read(const void* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

u64 secret(std::size_t offset) { return read<u64>(kSecret.data() + offset); }
u64 in(const std::byte* data) { return read<u64>(data); }

u64 fold(u64 a, u64 b) {
  __extension__ using u128 = unsigned __int128;
  const u128 product = static_cast<u128>(a) * b;
  return static_cast<u64>(product) ^ static_cast<u64>(product >> 64);
}

u64 avalanche(u64 hash) {
  hash = (hash ^ (hash >> 37)) * kMix1;
  return hash ^ (hash >> 32);
}

u64 avalanche_xxh64(u64 hash) {
  hash = (hash ^ (hash >> 33)) * kPrime64_2;
  hash = (hash ^ (hash >> 29)) * kPrime64_3;
  return hash ^ (hash >> 32);
}

u64 mix(const std::byte* data, std::size_t offset) {
  return fold(in(data) ^ secret(offset), in(data + 8) ^ secret(offset + 8));
}

u64 up_to_16(const std::byte* data, std::size_t bytes) {
  if (bytes > 8) {
    const u64 low = in(data) ^ secret(24) ^ secret(32);
    const u64 high = in(data + bytes - 8) ^ secret(40) ^ secret(48);
    return avalanche(bytes + __builtin_bswap64(low) + high + fold(low, high));
  }
  if (bytes >= 4) {
    const u64 first = read<std::uint32_t>(data);
    const u64 last = read<std::uint32_t>(data + bytes - 4);
    u64 hash = (last + (first << 32)) ^ secret(8) ^ secret(16);
    hash ^= std::rotl(hash, 49) ^ std::rotl(hash, 24);
    hash *= kMix2;
    hash = (hash ^ ((hash >> 35) + bytes)) * kMix2;
    return hash ^ (hash >> 28);
  }
  if (bytes == 0) return avalanche_xxh64(secret(56) ^ secret(64));
  const auto byte = [&](std::size_t index) { return static_cast<u64>(data[index]); };
  const u64 all = byte(0) << 16 | byte(bytes >> 1) << 24 | byte(bytes - 1) | bytes << 8;
  const u64 flip = read<std::uint32_t>(kSecret.data()) ^ read<std::uint32_t>(kSecret.data() + 4);
  return avalanche_xxh64(all ^ flip);
}

u64 up_to_128(const std::byte* data, std::size_t bytes) {
  u64 sum = bytes * kPrime64_1;
  for (std::size_t pair = (bytes - 1) / 32 + 1; pair-- > 0;) {
    sum += mix(data + 16 * pair, 32 * pair);
    sum += mix(data + bytes - 16 * (pair + 1), 32 * pair + 16);
  }
  return avalanche(sum);
}

u64 up_to_240(const std::byte* data, std::size_t bytes) {
  u64 sum = bytes * kPrime64_1;
  for (std::size_t step = 0; step < 8; ++step) sum += mix(data + 16 * step, 16 * step);
  sum = avalanche(sum);
  for (std::size_t step = 8; step < bytes / 16; ++step) {
    sum += mix(data + 16 * step, 16 * (step - 8) + 3);
  }
  return avalanche(sum + mix(data + bytes - 16, 136 - 17));
}

using Lanes = std::array<u64, 8>;

void accumulate(Lanes& lanes, const std::byte* data, std::size_t offset) {
  for (std::size_t lane = 0; lane < 8; ++lane) {
    const u64 value = in(data + 8 * lane);
    const u64 keyed = value ^ secret(offset + 8 * lane);
    lanes[lane ^ 1] += value;
    lanes[lane] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
  }
}

u64 longer(const std::byte* data, std::size_t bytes) {
  Lanes lanes = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                 kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  const std::size_t stripes = (bytes - 1) / kStripe;  // whole ones before the last
  for (std::size_t stripe = 0; stripe < stripes; ++stripe) {
    const std::size_t step = stripe % kStripesPerRound;
    accumulate(lanes, data + stripe * kStripe, 8 * step);
    if (step + 1 != kStripesPerRound) continue;
    for (std::size_t lane = 0; lane < 8; ++lane) {
      u64& value = lanes[lane];
      value = (value ^ (value >> 47) ^ secret(kSecretBytes - kStripe + 8 * lane)) * kPrime32_1;
    }
  }
  accumulate(lanes, data + bytes - kStripe, kSecretBytes - kStripe - 7);
  u64 hash = bytes * kPrime64_1;
  for (std::size_t pair = 0; pair < 4; ++pair) {
    hash += fold(lanes[2 * pair] ^ secret(11 + 16 * pair),
                 lanes[2 * pair + 1] ^ secret(19 + 16 * pair));
  }
  return avalanche(hash);
}

}  // namespace

std::uint64_t xxh3_64(const std::byte* data, std::size_t bytes) {
  if (bytes <= 16) return up_to_16(data, bytes);
  if (bytes <= 128) return up_to_128(data, bytes);
  if (bytes <= 240) return up_to_240(data, bytes);
  return longer(data, bytes);
}

std::uint64_t block_checksum(std::span<const Range> ranges, const std::byte* at) {
  std::vector<std::uint64_t> digests;
  for (const auto& range : ranges) {
    const std::byte* data = at == nullptr ? range.host : at + range.offset;
    for (Bytes offset = 0; offset < range.bytes; offset += kChecksumPiece) {
      digests.push_back(xxh3_64(data + offset, std::min(kChecksumPiece, range.bytes - offset)));
    }
  }
  return xxh3_64(reinterpret_cast<const std::byte*>(digests.data()), digests.size() * 8);
}

}  // namespace weave

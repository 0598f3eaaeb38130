// core/content_hash.hpp: the checksum of a state file's contents, taken as the bytes pass by. It is
// there against truncation and damage, not against an adversary. Every step is a bijection of the
// word that it takes, so a change of one word always changes the result.
#pragma once

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/types.hpp"

namespace weave {

class ContentHash {
 public:
  // pre: all calls but the last take a multiple of 32 bytes.
  void add(const std::byte* data, Bytes bytes) {
    Bytes at = 0;
    for (; at + sizeof lanes_ <= bytes; at += sizeof lanes_) {
      std::array<std::uint64_t, kLanes> words;
      std::memcpy(words.data(), data + at, sizeof words);
      for (std::size_t lane = 0; lane < kLanes; ++lane) mix(lanes_[lane], words[lane]);
    }
    if (at < bytes) {
      std::array<std::uint64_t, kLanes> words{};
      std::memcpy(words.data(), data + at, bytes - at);
      for (std::size_t lane = 0; lane < kLanes; ++lane) mix(lanes_[lane], words[lane]);
    }
    bytes_ += bytes;
  }
  // 16 hexadecimal digits.
  std::string text() const {
    std::uint64_t value = bytes_;
    for (const std::uint64_t lane : lanes_) mix(value, lane ^ (lane >> 31U));
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
    return digits;
  }

 private:
  static constexpr std::size_t kLanes = 4;
  static void mix(std::uint64_t& state, std::uint64_t word) {
    state = std::rotl(state ^ word, 29) * 0xD6E8FEB86659FD93U + 0x2545F4914F6CDD1DU;
  }
  std::array<std::uint64_t, kLanes> lanes_{1, 2, 3, 4};
  Bytes bytes_ = 0;
};

}  // namespace weave

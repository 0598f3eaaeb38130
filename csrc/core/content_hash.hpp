// core/content_hash.hpp: the checksum of a state file's contents, taken as the bytes pass by. It is
// there against truncation and damage, not against an adversary. Every step is a bijection of the
// word that it takes, so a change of one word always changes the result.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/types.hpp"

namespace weave {

class ContentHash {
 public:
  // The same bytes give the same result however they are divided among calls.
  void add(const std::byte* data, Bytes bytes) {
    bytes_ += bytes;
    if (left_over_ > 0) {
      const Bytes more = std::min<Bytes>(sizeof pending_ - left_over_, bytes);
      std::memcpy(pending_.data() + left_over_, data, more);
      left_over_ += more;
      data += more;
      bytes -= more;
      if (left_over_ < sizeof pending_) return;
      mix(lanes_, pending_.data());
      left_over_ = 0;
    }
    for (; bytes >= sizeof pending_; bytes -= sizeof pending_, data += sizeof pending_) {
      mix(lanes_, data);
    }
    if (bytes > 0) std::memcpy(pending_.data(), data, bytes);
    left_over_ = bytes;
  }
  // 16 hexadecimal digits.
  std::string text() const {
    Words lanes = lanes_;
    if (left_over_ > 0) {
      auto last = pending_;
      std::memset(last.data() + left_over_, 0, sizeof last - left_over_);
      mix(lanes, last.data());
    }
    std::uint64_t value = bytes_;
    for (const std::uint64_t lane : lanes) mix(value, lane ^ (lane >> 31U));
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
    return digits;
  }

 private:
  using Words = std::array<std::uint64_t, 4>;
  static void mix(std::uint64_t& state, std::uint64_t word) {
    state = std::rotl(state ^ word, 29) * 0xD6E8FEB86659FD93U + 0x2545F4914F6CDD1DU;
  }
  static void mix(Words& lanes, const std::byte* data) {
    Words words;
    std::memcpy(words.data(), data, sizeof words);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) mix(lanes[lane], words[lane]);
  }
  Words lanes_{1, 2, 3, 4};
  std::array<std::byte, sizeof(Words)> pending_{};  // the last bytes, until there are enough
  Bytes left_over_ = 0;                             // how many
  Bytes bytes_ = 0;
};

}  // namespace weave

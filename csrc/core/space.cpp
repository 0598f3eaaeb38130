#include "core/space.hpp"

#include <algorithm>

namespace weave {

std::optional<Bytes> Space::take(Bytes bytes, Bytes alignment) {
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [begin, length] = *hole;
    const Bytes offset = round_up(begin, alignment);
    if (offset - begin > length || bytes > length - (offset - begin)) continue;
    free_.erase(hole);
    if (offset > begin) free_[begin] = offset - begin;
    if (offset + bytes < begin + length) free_[offset + bytes] = begin + length - offset - bytes;
    used_ += bytes;
    return offset;
  }
  return std::nullopt;
}

void Space::give_back(Bytes offset, Bytes bytes) {
  used_ -= bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

void Space::grow(Bytes size) {
  if (size == size_) return;
  used_ += size - size_;  // give_back() takes it off again
  give_back(size_, size - size_);
  size_ = size;
}

Bytes Space::shortage(Bytes bytes, Bytes alignment) const {
  Bytes tail = size_;  // where the last hole begins, if it reaches the end
  if (!free_.empty()) {
    const auto& [begin, length] = *free_.rbegin();
    if (begin + length == size_) tail = begin;
  }
  const Bytes begin = round_up(tail, alignment);
  const Bytes end = begin + std::min(bytes, ~Bytes{0} - begin);
  return end > size_ ? end - size_ : 0;
}

Bytes Space::missing(const std::map<Bytes, Bytes>& pieces, Bytes step) const {
  Bytes covered = 0;  // of what is taken
  Bytes from = 0;     // nothing before it is counted again
  const auto taken = [&](Bytes begin, Bytes end) {
    Bytes bytes = end - begin;
    auto hole = free_.upper_bound(begin);
    if (hole != free_.begin()) --hole;
    for (; hole != free_.end() && hole->first < end; ++hole) {
      const Bytes low = std::max(hole->first, begin);
      const Bytes high = std::min(hole->first + hole->second, end);
      if (low < high) bytes -= high - low;
    }
    return bytes;
  };
  for (const auto& [offset, bytes] : pieces) {
    const Bytes begin = std::max(offset, from);
    const Bytes end = std::min(round_up(offset + bytes, step), size_);
    if (begin >= end) continue;
    covered += taken(begin, end);
    from = end;
  }
  return used_ - covered;
}

Bytes Space::used_in(Bytes offset, Bytes bytes) const {
  const Bytes end = std::min(offset + bytes, size_);
  if (end <= offset) return 0;
  const auto behind = free_.lower_bound(end);
  if (behind == free_.begin()) return end - offset;
  const auto [hole, length] = *std::prev(behind);
  if (hole + length < end) return end - offset;
  return hole > offset ? hole - offset : 0;
}

}  // namespace weave

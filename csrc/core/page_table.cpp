#include "core/page_table.hpp"

#include <algorithm>

#include "driver/status.hpp"

namespace weave {

PageTable::PageTable(std::vector<Piece> pages, Bytes size, Bytes block_bytes,
                     const std::string& tag)
    : block_bytes_(block_bytes) {
  std::ranges::sort(pages, {}, &Piece::offset);
  for (const auto& [offset, bytes] : pages) {
    if (offset > size || bytes > size - offset) {
      throw UsageError("page at " + std::to_string(offset) + " of " + std::to_string(bytes) +
                       " bytes is outside region " + tag + ", which has " + std::to_string(size));
    }
    if (bytes == 0) continue;
    if (!runs_.empty() && offset <= runs_.back().offset + runs_.back().bytes) {
      Run& last = runs_.back();
      last.bytes = std::max(last.offset + last.bytes, offset + bytes) - last.offset;
    } else {
      runs_.push_back({offset, bytes, 0});
    }
  }
  for (auto& run : runs_) {
    run.place = bytes_;
    bytes_ += run.bytes;
  }
}

template <class Take>
void PageTable::visit(std::size_t slot, Take take) const {
  const Bytes begin = static_cast<Bytes>(slot) * block_bytes_;
  const Bytes end = begin + block_bytes_;
  // The last run that begins before the slot may reach into it.
  auto run = std::ranges::upper_bound(runs_, begin, {}, &Run::offset);
  if (run != runs_.begin()) --run;
  for (; run != runs_.end() && run->offset < end; ++run) {
    const Bytes from = std::max(run->offset, begin);
    const Bytes to = std::min(run->offset + run->bytes, end);
    if (from < to) take(from, to, run->place + (from - run->offset));
  }
}

std::vector<PageTable::Part> PageTable::parts(std::size_t slot) const {
  std::vector<Part> found;
  const Bytes begin = static_cast<Bytes>(slot) * block_bytes_;
  visit(slot, [&](Bytes from, Bytes to, Bytes place) {
    while (from < to) {
      const Bytes at = place % block_bytes_;
      const Bytes bytes = std::min(to - from, block_bytes_ - at);
      found.push_back({from - begin, bytes, place / block_bytes_, at});
      from += bytes;
      place += bytes;
    }
  });
  return found;
}

Bytes PageTable::bytes_in(std::size_t slot) const {
  Bytes bytes = 0;
  visit(slot, [&](Bytes from, Bytes to, Bytes) { bytes += to - from; });
  return bytes;
}

}  // namespace weave

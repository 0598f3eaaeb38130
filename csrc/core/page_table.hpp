// core/page_table.hpp: which bytes of a region are in use, as a paged KV cache says, and where each
// of them is in the region's packed host copy: one behind the other, in extents of one block
// (transfer blocks). Pure; a value, never changed.
#pragma once

#include <string>
#include <vector>

#include "core/types.hpp"

namespace weave {

// Bytes [offset, offset + bytes) of a region.
struct Piece {
  Bytes offset = 0;
  Bytes bytes = 0;
};

class PageTable {
 public:
  // pages: in any order, they may touch or overlap. size: of the region `tag`, in blocks of
  // `block_bytes`. Throws UsageError for a page outside it.
  PageTable(std::vector<Piece> pages, Bytes size, Bytes block_bytes, const std::string& tag);

  Bytes bytes() const { return bytes_; }
  // How many extents the packed copy takes.
  std::size_t extents() const { return round_up(bytes_, block_bytes_) / block_bytes_; }
  // What is in use of a slot. Sorted, each part in one extent.
  struct Part {
    Bytes offset = 0;  // in the slot
    Bytes bytes = 0;
    std::size_t extent = 0;
    Bytes at = 0;  // in the extent
  };
  std::vector<Part> parts(std::size_t slot) const;
  Bytes bytes_in(std::size_t slot) const;
  bool operator==(const PageTable&) const = default;

 private:
  // Pages that follow each other are one run.
  struct Run {
    Bytes offset = 0;
    Bytes bytes = 0;
    Bytes place = 0;  // of its first byte in the packed copy
    bool operator==(const Run&) const = default;
  };
  // Calls take(from, to, place) for what runs have in common with the slot, by offsets in the
  // region.
  template <class Take>
  void visit(std::size_t slot, Take take) const;

  std::vector<Run> runs_;  // sorted, never adjacent
  Bytes bytes_ = 0;
  Bytes block_bytes_ = 0;
};

}  // namespace weave

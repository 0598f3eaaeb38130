// core/space.hpp: which bytes of a region are in use. First fit over a sorted free list, merged on
// release, so that a trainer that drops and remakes the same tensors each step gets the same
// addresses each step. Pure bookkeeping: touches no memory and makes no driver call.
#pragma once

#include <map>
#include <optional>

#include "core/types.hpp"

namespace weave {

class Space {
 public:
  // An offset with `bytes` free behind it, a multiple of `alignment` (a power of two), or nothing.
  // pre: bytes > 0.
  std::optional<Bytes> take(Bytes bytes, Bytes alignment);
  void give_back(Bytes offset, Bytes bytes);
  // Make the space larger. pre: size >= this->size().
  void grow(Bytes size);
  // How many bytes grow() must add before take(bytes, alignment) succeeds.
  Bytes shortage(Bytes bytes, Bytes alignment) const;
  // How many of the `bytes` from `offset` on lie before the end of what is taken there.
  Bytes used_in(Bytes offset, Bytes bytes) const;
  // Bytes that are taken and in none of `pieces` (offset -> bytes), each rounded up to `step`.
  Bytes missing(const std::map<Bytes, Bytes>& pieces, Bytes step) const;
  Bytes size() const { return size_; }
  Bytes used() const { return used_; }

 private:
  std::map<Bytes, Bytes> free_;  // offset -> bytes, never adjacent
  Bytes size_ = 0;
  Bytes used_ = 0;
};

}  // namespace weave

// core/state_file.hpp: a tenant's bytes in a safetensors file: one tensor of uint8 per tag, and in
// the metadata whose they are and a checksum per tag. Written and read piece by piece, without a
// buffer of its own. Called by spill.cpp and rescue.cpp under the Device's lock.
//
// A file is written under a temporary name, the header first, then the contents, then the checksums
// in their place in the header. It is synced before it gets its name: only then has the file system
// said that it has every byte, and what it holds is given up in memory. Its pages are dropped from
// the page cache on the way, so that spilling frees memory instead of moving it there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/content_hash.hpp"
#include "core/types.hpp"

namespace weave {

// Throws a Refusal (state_file) that names the file and, where there is one, the tag.
[[noreturn]] void refuse_state_file(const std::string& what, const std::string& path,
                                    const std::string& tag);

struct StateTensor {
  std::string tag;
  Bytes bytes = 0;
  Bytes offset = 0;           // of its first byte in the file
  std::string checksum = {};  // of its bytes, when they were written
};

// A complete file that is read again.
class StateFile {
 public:
  StateFile(std::string path, int descriptor, std::string header, std::vector<StateTensor> tensors);
  // Removes the file, in the process that wrote it only.
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }
  const StateTensor& tensor(const std::string& tag) const;
  // The file has its size and its header still. Throws Refusal (state_file).
  void check(const std::string& tag) const;
  // `bytes` of a tensor from `at` on. Throws Refusal (state_file).
  void read(const StateTensor& tensor, Bytes at, std::byte* into, Bytes bytes) const;

 private:
  const std::string path_;
  const int descriptor_;
  const std::string header_;  // as it was written, length included
  const std::vector<StateTensor> tensors_;
};

class StateWriter {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  static constexpr Bytes kPiece = Bytes{8} << 20;  // written and read at a time

  // Creates the file and writes the header. Throws Refusal (state_file); then no file is left.
  StateWriter(std::string path, Metadata metadata, std::vector<StateTensor> tensors, unsigned mode);
  // Removes what was not committed.
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  // The next bytes, in the order of the tensors; none crosses from one to the next.
  void write(const std::byte* data, Bytes bytes);
  // pre: every byte was written.
  void commit();
  // After commit(): a file that goes away with its last owner, and at exit.
  std::unique_ptr<StateFile> keep_as_temporary();

 private:
  [[noreturn]] void fail(const std::string& what);
  void put(const std::byte* data, Bytes bytes, Bytes at);
  std::string make_header() const;
  void skip_empty();

  const std::string path_;
  const std::string temporary_path_;
  Metadata metadata_;
  std::vector<StateTensor> tensors_;
  std::string header_;
  int descriptor_ = -1;
  bool committed_ = false;
  std::size_t current_ = 0;  // tensor
  Bytes written_ = 0;        // of it
  ContentHash hash_;
};

// Creates the directory if need be and removes what processes that are gone left in it. Throws
// UsageError where files cannot be made in it.
void prepare_spill_directory(const std::string& directory);
// A name in it that nobody has.
std::string spill_path(const std::string& directory);

}  // namespace weave

// driver/load.hpp: fills a Table from the CUDA driver library, found by name at run time.
// Nothing links against libcuda: the same wheel imports with and without a GPU.
#pragma once

#include <string>
#include <vector>

#include "driver/table.hpp"

namespace weave::cu {

struct LoadResult {
  Table table;                       // complete only when `error` is empty
  std::string library;               // what was opened
  std::string error;                 // empty on success; else one line for the user
  std::vector<std::string> missing;  // required symbols that the library lacks, all of them
  std::vector<std::string> missing_optional;
  int driver_version = 0;  // 13000 is 13.0; 0 when it could not be asked
};

// Opens `library`, or, when empty, $WEAVE_LIBCUDA, else libcuda.so.1, else libcuda.so. An override
// that cannot be opened is an error, never a fall-through. Does not call cuInit. Never throws.
LoadResult load(const std::string& library = "");

}  // namespace weave::cu

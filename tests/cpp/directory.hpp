// tests/cpp/directory.hpp: a directory to spill to, gone with the test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

namespace weave::test {

namespace fs = std::filesystem;

struct Directory {
  Directory() {
    char pattern[] = "/tmp/weave-spill-test-XXXXXX";
    path = mkdtemp(pattern);
  }
  ~Directory() { fs::remove_all(path); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path)) found.push_back(entry.path());
    return found;
  }
  std::string path;
};

}  // namespace weave::test

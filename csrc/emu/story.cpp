#include "emu/story.hpp"

#include <cstdio>
#include <cstdlib>

namespace weave::emu {

void abort_with_story(const std::string& story) {
  std::fprintf(stderr, "weave emulated device: %s\n", story.c_str());
  std::abort();
}

std::string hex(unsigned long long value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", value);
  return text;
}

}  // namespace weave::emu

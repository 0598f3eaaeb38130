// Fuzz target: spec strings of emulated devices. Any text either gives a spec or one line of
// UsageError; a spec's canonical text gives the same spec again. See README.md.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "driver/status.hpp"
#include "emu/emulator.hpp"

using namespace weave;

namespace {

void require(bool holds, const char* what, const std::string& text) {
  if (holds) return;
  std::fprintf(stderr, "%s: '%s'\n", what, text.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const auto spec = emu::Spec::parse(text);
    require(spec.block_bytes > 0 && spec.capacity_bytes > 0, "empty device", text);
    require(spec.block_bytes % spec.granularity_bytes == 0, "block is not whole", text);
    require(spec.h2d_bytes_per_s > 0 && spec.d2h_bytes_per_s > 0, "no bandwidth", text);
    const std::string canonical = spec.text();
    require(emu::Spec::parse(canonical).text() == canonical, "not canonical", canonical);
  } catch (const UsageError& error) {
    const std::string line = error.what();
    require(!line.empty() && line.find('\n') == std::string::npos, "not one line", line);
  }
  return 0;
}

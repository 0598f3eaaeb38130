// Filling the table from a library: stubs built here stand for the driver.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "driver/load.hpp"

using namespace weave;
namespace fs = std::filesystem;

namespace {

fs::path folder() {
  static const fs::path made = [] {
    std::string pattern = (fs::temp_directory_path() / "weave-load-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    return fs::path(pattern);
  }();
  return made;
}

// A library with every exported name but `without`; each call returns 100 + its place in the list.
std::string build(const std::string& name, const std::vector<std::string>& without,
                  const std::string& more = "") {
  const auto source = folder() / (name + ".c");
  const auto library = folder() / (name + ".so");
  std::ofstream out(source);
  int place = 100;
  for (const auto& call : cu::kCalls) {
    ++place;
    const std::string exported{call.exported};
    if (std::ranges::find(without, exported) != without.end()) continue;
    if (exported == "cuDriverGetVersion") {
      out << "int cuDriverGetVersion(int* version) { *version = 12040; return 0; }\n";
    } else {
      out << "int " << exported << "(void) { return " << place << "; }\n";
    }
  }
  out << more << "\n";
  out.close();
  const char* compiler = std::getenv("CC");
  const std::string command = std::string(compiler != nullptr ? compiler : "cc") +
                              " -shared -fPIC -w -o " + library.string() + " " + source.string();
  CHECK_EQ(std::system(command.c_str()), 0);
  return library.string();
}

int place_of(cu::Call call) { return 101 + static_cast<int>(call); }

}  // namespace

TEST(a_whole_library) {
  const auto result = cu::load(build("whole", {}));
  CHECK_EQ(result.error, "");
  CHECK_EQ(result.driver_version, 12040);
  CHECK(cu::is_complete(result.table));
  CHECK(result.missing.empty());
  CHECK(result.missing_optional.empty());
  CHECK_EQ(result.table.init(0), place_of(cu::Call::init));
  CHECK_EQ(result.table.mem_unmap(0, 0), place_of(cu::Call::mem_unmap));
  CHECK(result.table.now_ns() > 0);
}

TEST(all_missing_required_symbols_are_named_at_once) {
  const auto result = cu::load(build("old", {"cuMemCreate", "cuDeviceGetUuid_v2"}));
  CHECK_EQ(result.missing.size(), 2U);
  CHECK(result.error.find("cuDeviceGetUuid_v2 cuMemCreate") != std::string::npos);
  CHECK(result.error.find("needs driver") != std::string::npos);
  CHECK(result.error.find('\n') == std::string::npos);
  CHECK(!cu::is_complete(result.table));
}

TEST(a_missing_optional_symbol_is_null) {
  const auto result = cu::load(build("relaxed", {"cuThreadExchangeStreamCaptureMode"}));
  CHECK_EQ(result.error, "");
  CHECK(result.table.thread_exchange_capture_mode == nullptr);
  CHECK_EQ(result.missing_optional.size(), 1U);
  CHECK(cu::is_complete(result.table));
}

// Where the library has cuGetProcAddress it is asked first, with the version of the signature.
TEST(symbols_are_found_by_version) {
  const auto result = cu::load(build("versions", {}, R"(
    static int wanted(void) { return 77; }
    int cuGetProcAddress_v2(const char* name, void** found, int version,
                            unsigned long long flags, int* status) {
      const char* symbol = "cuMemGetInfo";
      *found = 0;
      for (int i = 0; name[i] == symbol[i]; ++i) {
        if (name[i] != 0) continue;
        if (version == 3020 && flags == 0) *found = (void*)wanted;
        *status = 0;
        return 0;
      }
      return 500;
    })"));
  CHECK_EQ(result.error, "");
  std::size_t bytes = 0;
  CHECK_EQ(result.table.mem_get_info(&bytes, &bytes), 77);
  CHECK_EQ(result.table.mem_unmap(0, 0), place_of(cu::Call::mem_unmap));
}

TEST(not_a_library) {
  const auto path = folder() / "text.so";
  std::ofstream(path) << "this is no library\n";
  const auto result = cu::load(path.string());
  CHECK(result.error.find("cannot open the CUDA driver library " + path.string()) == 0);
  CHECK(!cu::is_complete(result.table));
}

TEST(no_such_file) {
  const auto result = cu::load("libweave-no-such-driver.so");
  CHECK(result.error.find("cannot open the CUDA driver library libweave-no-such-driver.so") == 0);
  CHECK(result.library.empty());
}

TEST(the_override_is_no_suggestion) {
  setenv("WEAVE_LIBCUDA", "libweave-no-such-driver.so", 1);
  CHECK(cu::load().error.find("libweave-no-such-driver.so") != std::string::npos);
  const auto library = build("override", {});
  setenv("WEAVE_LIBCUDA", library.c_str(), 1);
  CHECK_EQ(cu::load().library, library);
  unsetenv("WEAVE_LIBCUDA");
  fs::remove_all(folder());
}

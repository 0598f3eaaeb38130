// Filling the table from a library: stubs built here stand for the driver.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "driver/load.hpp"
#include "process.hpp"

using namespace weave;
using namespace weave::test;
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

// A cuGetProcAddress_v2 that knows one symbol only up to a version that is too old: it says so in
// `status` (2 is VERSION_NOT_SUFFICIENT) and gives no address, with or without an error.
std::string too_old(const std::string& symbol, int result) {
  return R"(
    int cuGetProcAddress_v2(const char* name, void** found, int version,
                            unsigned long long flags, int* status) {
      const char* symbol = ")" +
         symbol + R"(";
      int i = 0;
      while (name[i] != 0 && name[i] == symbol[i]) ++i;
      *found = 0;
      *status = name[i] == symbol[i] ? 2 : 1;
      return )" +
         std::to_string(result) + R"(;
    })";
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

// A driver before CUDA 11.3 has no cuGetProcAddress, one before 12 none with five parameters: the
// exported names are found all the same, and what is too new for it is missing.
TEST(a_library_without_get_proc_address) {
  const auto result = cu::load(build("eleven", {"cuMemExportToShareableHandle"}, R"(
    int cuGetProcAddress(const char* name, void** found, int version, unsigned long long flags) {
      *found = 0;
      return 500;
    })"));
  CHECK_EQ(result.error, "");
  CHECK_EQ(result.table.mem_map(0, 0, 0, 0, 0), place_of(cu::Call::mem_map));
  CHECK(result.table.mem_export == nullptr);
  CHECK_EQ(result.missing_optional.size(), 1U);
}

TEST(a_symbol_whose_version_is_not_sufficient) {
  for (const int status : {0, 500}) {
    const auto name = "insufficient-" + std::to_string(status);
    // The name of that version is exported: it is used.
    auto result = cu::load(build(name, {}, too_old("cuDeviceGetUuid", status)));
    CHECK_EQ(result.error, "");
    CHECK_EQ(result.table.device_get_uuid(nullptr, 0), place_of(cu::Call::device_get_uuid));
    // It is not: the driver is too old, and the message names it.
    result = cu::load(
        build(name + "-old", {"cuDeviceGetUuid_v2"},
              "int cuDeviceGetUuid(void) { return 1; }" + too_old("cuDeviceGetUuid", status)));
    CHECK_EQ(result.missing.size(), 1U);
    CHECK(result.error.find("lacks cuDeviceGetUuid_v2; Weave needs driver") != std::string::npos);
    CHECK(result.table.device_get_uuid == nullptr);
  }
}

TEST(not_a_library) {
  const auto path = folder() / "text.so";
  std::ofstream(path) << "this is no library\n";
  const auto result = cu::load(path.string());
  CHECK(result.error.find("cannot open the CUDA driver library " + path.string()) == 0);
  CHECK(!cu::is_complete(result.table));
}

// The developer's name is tried when there is no other; with both, the driver's own name wins.
CHILD(loads_by_default) {
  const auto result = cu::load();
  CHECK_EQ(result.error, "");
  say(result.library == "libcuda.so" ? 'd' : result.library == "libcuda.so.1" ? '1' : '?');
}

TEST(a_library_with_the_unversioned_name_only) {
  if (cu::load().error.empty()) {
    std::printf("     this machine has a driver, whose name comes first: not tried\n");
    return;
  }
  const auto place = folder() / "only";
  fs::create_directory(place);
  fs::copy_file(build("developer", {}), place / "libcuda.so");
  const char* const before = std::getenv("LD_LIBRARY_PATH");
  const std::string kept = before != nullptr ? before : "";
  setenv("LD_LIBRARY_PATH", place.c_str(), 1);
  Process first("loads_by_default");
  CHECK_EQ(first.hear(), 'd');
  CHECK_EQ(first.wait(), 0);
  fs::copy_file(place / "libcuda.so", place / "libcuda.so.1");
  Process second("loads_by_default");
  CHECK_EQ(second.hear(), '1');
  CHECK_EQ(second.wait(), 0);
  before != nullptr ? setenv("LD_LIBRARY_PATH", kept.c_str(), 1) : unsetenv("LD_LIBRARY_PATH");
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

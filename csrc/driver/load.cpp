#include "driver/load.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "driver/clock.hpp"

namespace weave::cu {

namespace {

using GetProcAddress = Status (*)(const char*, void**, int, std::uint64_t, int*);

// The library is never closed: its own threads and exit handlers outlive any caller of ours.
void* open_library(const std::string& wanted, LoadResult& result) {
  const char* override_name = std::getenv("WEAVE_LIBCUDA");
  std::vector<std::string> names;
  if (!wanted.empty()) {
    names = {wanted};
  } else if (override_name != nullptr && *override_name != '\0') {
    names = {override_name};
  } else {
    // The unversioned name is a developer link that most machines lack, hence second.
    names = {"libcuda.so.1", "libcuda.so"};
  }
  for (const auto& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      result.library = name;
      return library;
    }
    if (result.error.empty()) {
      const char* why = dlerror();
      result.error = "cannot open the CUDA driver library " + name + ": " +
                     (why != nullptr ? why : "unknown reason");
    }
  }
  return nullptr;
}

void* find(void* library, GetProcAddress by_version, const CallInfo& call) {
  void* address = nullptr;
  if (by_version != nullptr) {
    int found = 0;
    const std::string symbol{call.symbol};
    if (by_version(symbol.c_str(), &address, call.version, 0, &found) == kSuccess &&
        address != nullptr) {
      return address;
    }
  }
  return dlsym(library, std::string{call.exported}.c_str());
}

}  // namespace

LoadResult load(const std::string& wanted) {
  LoadResult result;
  void* library = open_library(wanted, result);
  if (library == nullptr) return result;
  result.error.clear();
  const auto by_version = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));

#define WEAVE_CALL(field, need, symbol, exported, version, parameters)                      \
  result.table.field =                                                                      \
      reinterpret_cast<Status(*) parameters>(find(library, by_version, info(Call::field))); \
  if (result.table.field == nullptr) {                                                      \
    (Need::need == Need::required ? result.missing : result.missing_optional)               \
        .emplace_back(#exported);                                                           \
  }
#include "driver/calls.def"
#undef WEAVE_CALL
  result.table.now_ns = &system_now_ns;
  result.table.sleep_until_ns = &system_sleep_until_ns;

  if (!result.missing.empty()) {
    result.error = "the CUDA driver library " + result.library + " lacks";
    for (const auto& name : result.missing) result.error += " " + name;
    result.error += "; Weave needs driver 470 (CUDA 11.4) or newer";
    return result;
  }
  if (result.table.driver_get_version(&result.driver_version) != kSuccess)
    result.driver_version = 0;
  return result;
}

}  // namespace weave::cu

// driver/table.hpp: the driver as a value. A Table holds one function pointer per line of calls.def
// and the host clock. It is filled by load.cpp (a real GPU) or by emu/table.cpp (the emulated one)
// and passed by value; nothing in core/ can tell which, and several tables live in one process.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "driver/abi.hpp"

namespace weave::cu {

struct Table {
#define WEAVE_CALL(field, need, symbol, exported, version, parameters) \
  Status(*field) parameters = nullptr;
#include "driver/calls.def"
#undef WEAVE_CALL
  // The clock that belongs to this driver: monotonic nanoseconds, and an absolute sleep.
  std::int64_t (*now_ns)() = nullptr;
  void (*sleep_until_ns)(std::int64_t deadline_ns) = nullptr;
};

enum class Call : int {
#define WEAVE_CALL(field, need, symbol, exported, version, parameters) field,
#include "driver/calls.def"
#undef WEAVE_CALL
  kCount
};
inline constexpr int kCallCount = static_cast<int>(Call::kCount);

enum class Need { required, optional };

struct CallInfo {
  std::string_view field;     // "mem_create"
  std::string_view symbol;    // "cuMemCreate"
  std::string_view exported;  // "cuMemCreate", "cuMemGetInfo_v2"
  int version;
  Need need;
};

inline constexpr std::array<CallInfo, kCallCount> kCalls = {{
#define WEAVE_CALL(field, need, symbol, exported, version, parameters) \
  CallInfo{#field, #symbol, #exported, version, Need::need},
#include "driver/calls.def"
#undef WEAVE_CALL
}};

constexpr const CallInfo& info(Call call) { return kCalls[static_cast<std::size_t>(call)]; }

// True when every required entry is set; the emulated table is checked at compile time.
constexpr bool is_complete(const Table& table) {
#define WEAVE_CALL(field, need, symbol, exported, version, parameters) \
  if (Need::need == Need::required && table.field == nullptr) return false;
#include "driver/calls.def"
#undef WEAVE_CALL
  return table.now_ns != nullptr && table.sleep_until_ns != nullptr;
}

}  // namespace weave::cu

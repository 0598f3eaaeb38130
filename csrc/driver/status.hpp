// driver/status.hpp: what happens when a driver call does not return success. Code that may throw
// uses check(); destructors, callbacks and engine threads use report(), which never throws.
// The whole picture is the error table in ARCHITECTURE.md.
#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

#include "driver/table.hpp"

namespace weave {

// A driver call failed. `code` is the CUresult, `call` the symbol, `bytes` the size asked for (or
// 0).
struct DriverError : std::runtime_error {
  DriverError(cu::Status code, cu::Call call, std::uint64_t bytes, const std::string& detail);
  cu::Status code;
  cu::Call call;
  std::uint64_t bytes;
};

// mem_create or mem_host_register said OUT_OF_MEMORY.
struct OutOfMemory : DriverError {
  using DriverError::DriverError;
};

// The caller broke a `pre:` of a public function.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

namespace cu {

// "CUDA_ERROR_OUT_OF_MEMORY" for 2; "CUDA_ERROR_<code>" for a code that we do not list.
std::string status_name(Status status);

// A code that every later call in the same context will return too (700, 719, 214, 709).
bool is_sticky(Status status);

[[noreturn]] void raise(Status status, Call call, std::uint64_t bytes, const std::string& detail);

inline void check(Status status, Call call, std::uint64_t bytes = 0, const char* detail = "") {
  if (status != kSuccess) [[unlikely]]
    raise(status, call, bytes, detail);
}

// For paths that cannot throw: counts, and writes one line to stderr. Only DEINITIALIZED (the
// driver is being torn down because the process exits) is silent.
void report(Status status, Call call) noexcept;
std::uint64_t reported_count() noexcept;

}  // namespace cu

// Our own invariant broke: print where and what, and abort. On in release builds too.
[[noreturn]] void assertion_failed(const char* condition, const char* story,
                                   std::source_location where = std::source_location::current());

}  // namespace weave

#define WEAVE_ASSERT(condition, story) \
  ((condition) ? static_cast<void>(0) : ::weave::assertion_failed(#condition, story))

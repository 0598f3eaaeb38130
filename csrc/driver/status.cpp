#include "driver/status.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace weave {

namespace {

struct NamedStatus {
  cu::Status status;
  const char* name;
};

constexpr NamedStatus kNames[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {4, "CUDA_ERROR_DEINITIALIZED"},
    {34, "CUDA_ERROR_STUB_LIBRARY"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {205, "CUDA_ERROR_MAP_FAILED"},
    {206, "CUDA_ERROR_UNMAP_FAILED"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM"},
    {400, "CUDA_ERROR_INVALID_HANDLE"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {800, "CUDA_ERROR_NOT_PERMITTED"},
    {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

std::atomic<std::uint64_t> reported{0};

std::string text(cu::Status code, cu::Call call, std::uint64_t bytes, const std::string& detail) {
  std::string message{cu::info(call).symbol};
  message += " failed with " + cu::status_name(code) + " (" + std::to_string(code) + ")";
  if (bytes != 0) message += ", " + std::to_string(bytes) + " bytes";
  if (!detail.empty()) message += ": " + detail;
  return message;
}

}  // namespace

DriverError::DriverError(cu::Status code_, cu::Call call_, std::uint64_t bytes_,
                         const std::string& detail)
    : std::runtime_error(text(code_, call_, bytes_, detail)),
      code(code_),
      call(call_),
      bytes(bytes_) {}

namespace cu {

std::string status_name(Status status) {
  for (const auto& named : kNames) {
    if (named.status == status) return named.name;
  }
  return "CUDA_ERROR_" + std::to_string(status);
}

bool is_sticky(Status status) {
  return status == kIllegalAddress || status == kLaunchFailed || status == kEccUncorrectable ||
         status == kContextIsDestroyed;
}

void raise(Status status, Call call, std::uint64_t bytes, const std::string& detail) {
  if (status == kOutOfMemory) throw OutOfMemory(status, call, bytes, detail);
  throw DriverError(status, call, bytes, detail);
}

void report(Status status, Call call) noexcept {
  if (status == kSuccess || status == kDeinitialized) return;
  reported.fetch_add(1, std::memory_order_relaxed);
  std::fprintf(stderr, "weave: %.*s failed with CUresult %d while cleaning up\n",
               static_cast<int>(info(call).symbol.size()), info(call).symbol.data(), status);
}

std::uint64_t reported_count() noexcept { return reported.load(std::memory_order_relaxed); }

}  // namespace cu

void assertion_failed(const char* condition, const char* story, std::source_location where) {
  std::fprintf(stderr, "weave: assertion failed: %s\n  %s\n  at %s:%u in %s\n", condition, story,
               where.file_name(), where.line(), where.function_name());
  std::abort();
}

}  // namespace weave

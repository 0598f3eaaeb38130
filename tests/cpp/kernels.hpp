// tests/cpp/kernels.hpp: launching a kernel of the emulated device. The image only declares the
// kernels: what they do is in the emulator's host twins, so a real device would run these bodies.
#pragma once

#include "emulated.hpp"

namespace weave::test {

inline constexpr const char* kImage = R"(// kernels by name
.version 7.0
.target sm_70
.address_size 64
.visible .entry weave_fill(.param .u64 address, .param .u64 bytes, .param .u32 value) { ret; }
.visible .entry weave_add(.param .u64 address, .param .u64 bytes, .param .u32 value) { ret; }
.visible .entry weave_sum(.param .u64 address, .param .u64 bytes, .param .u64 result) { ret; }
.visible .entry weave_spin (.param .u64 nanoseconds) { ret; }
)";

struct Kernels {
  explicit Kernels(const Opened& opened) : table(opened.table) {
    CHECK_EQ(table.module_load_data(&module, kImage), 0);
  }
  cu::Function function(const char* name) const {
    cu::Function found = nullptr;
    CHECK_EQ(table.module_get_function(&found, module, name), 0);
    return found;
  }
  cu::Status launch(cu::Function kernel, cu::Stream stream, void** parameters) const {
    return table.launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  // weave_fill or weave_add.
  cu::Status write(const char* name, cu::DevicePtr address, std::uint64_t bytes,
                   std::uint32_t value, cu::Stream stream = nullptr) const {
    void* parameters[] = {&address, &bytes, &value};
    return launch(function(name), stream, parameters);
  }
  cu::Status sum(cu::DevicePtr address, std::uint64_t bytes, cu::DevicePtr result,
                 cu::Stream stream = nullptr) const {
    void* parameters[] = {&address, &bytes, &result};
    return launch(function("weave_sum"), stream, parameters);
  }
  cu::Status spin(std::uint64_t nanoseconds, cu::Stream stream = nullptr) const {
    void* parameters[] = {&nanoseconds};
    return launch(function("weave_spin"), stream, parameters);
  }

  const cu::Table& table;
  cu::Module module = nullptr;
};

}  // namespace weave::test

// emu/launch.cpp: modules, kernel launches and host functions. Called by the table; submission is
// stream-ordered like a copy's (queue.cpp).
#include "emu/launch.hpp"

#include <cctype>
#include <cstring>
#include <string>
#include <utility>

#include "emu/call.hpp"
#include "emu/capture.hpp"

namespace weave::emu {

namespace {

// An image is PTX text: after comments and space it begins with ".version".
bool is_ptx(std::string_view image) {
  while (!image.empty()) {
    if (std::isspace(static_cast<unsigned char>(image.front())) != 0) {
      image.remove_prefix(1);
    } else if (image.starts_with("//")) {
      image.remove_prefix(std::min(image.find('\n'), image.size()));
    } else {
      return image.starts_with(".version");
    }
  }
  return false;
}

// The image has an entry of that name.
bool has_entry(const std::string& image, const std::string& name) {
  constexpr std::string_view kEntry = ".entry";
  for (auto at = image.find(kEntry); at != std::string::npos; at = image.find(kEntry, at)) {
    at += kEntry.size();
    const auto begin = image.find_first_not_of(" \t\n", at);
    if (begin == std::string::npos || image.compare(begin, name.size(), name) != 0) continue;
    const auto end = begin + name.size();
    const auto next = end < image.size() ? image[end] : '(';
    if (next == '(' || std::isspace(static_cast<unsigned char>(next)) != 0) return true;
  }
  return false;
}

template <class T>
cu::Status status_of(const typename Catalogue<T>::Found& found) {
  if (found.life == Life::live) return found.object->context->status();
  return found.life == Life::orphaned ? cu::kContextIsDestroyed : cu::kInvalidHandle;
}

// The context that is current, and a stream of it.
cu::Status need_own_stream(cu::Stream handle, std::shared_ptr<StreamState>& stream) {
  std::shared_ptr<ContextState> context;
  if (const auto status = need_context(context); status != cu::kSuccess) return status;
  if (const auto status = find_stream(handle, context, stream); status != cu::kSuccess) {
    return status;
  }
  return stream->context == context ? cu::kSuccess : cu::kInvalidHandle;
}

cu::Status submit(const std::shared_ptr<StreamState>& stream,
                  const std::shared_ptr<Operation>& operation) {
  bool captured = false;
  if (const auto status = capture_submission(*stream, captured); captured) return status;
  spend(*stream->context->device, stream->context->device->spec.copy_ns);
  return enqueue(*stream, operation);
}

}  // namespace

namespace calls {

Status module_load_data(Module* module, const void* image) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    if (module == nullptr || image == nullptr) return cu::kInvalidValue;
    auto loaded = std::make_shared<ModuleState>();
    loaded->context = context;
    loaded->image = static_cast<const char*>(image);
    if (!is_ptx(loaded->image)) return cu::kInvalidImage;
    *module = reinterpret_cast<Module>(driver().modules.add(std::move(loaded)));
    return cu::kSuccess;
  });
}

Status module_unload(Module module) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    const auto taken = driver().modules.take(reinterpret_cast<std::uint64_t>(module));
    if (taken.life != Life::live) return status_of<ModuleState>(taken);
    driver().functions.remove_if(
        [&](const FunctionState& function) { return function.module == taken.object; });
    return cu::kSuccess;
  });
}

Status module_get_function(Function* function, Module module, const char* name) {
  return guarded([&]() -> Status {
    std::shared_ptr<ContextState> context;
    if (const auto status = need_context(context); status != cu::kSuccess) return status;
    if (function == nullptr || name == nullptr) return cu::kInvalidValue;
    const auto found = driver().modules.find(reinterpret_cast<std::uint64_t>(module));
    if (const auto status = status_of<ModuleState>(found); status != cu::kSuccess) return status;
    const Twin* const twin = find_twin(name);
    if (twin == nullptr || !has_entry(found.object->image, name)) return cu::kNotFound;
    auto made = std::make_shared<FunctionState>();
    made->context = found.object->context;
    made->module = found.object;
    made->twin = twin;
    *function = reinterpret_cast<Function>(driver().functions.add(std::move(made)));
    return cu::kSuccess;
  });
}

Status launch_kernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned /*shared*/,
                     Stream stream, void** parameters, void** extra) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_own_stream(stream, found); status != cu::kSuccess) return status;
    const auto kernel = driver().functions.find(reinterpret_cast<std::uint64_t>(function));
    if (const auto status = status_of<FunctionState>(kernel); status != cu::kSuccess) return status;
    if (kernel.object->context != found->context) return cu::kInvalidHandle;
    const auto threads = std::uint64_t{block_x} * block_y * block_z;
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > 1024) {
      return cu::kInvalidValue;
    }
    if (extra != nullptr) return cu::kNotSupported;
    if (parameters == nullptr) return cu::kInvalidValue;
    auto launch = std::make_shared<Launch>();
    launch->twin = kernel.object->twin;
    for (std::size_t i = 0; i < kMostParameters && launch->twin->sizes[i] != 0; ++i) {
      if (parameters[i] == nullptr) return cu::kInvalidValue;
      std::memcpy(&launch->parameters[i], parameters[i], launch->twin->sizes[i]);
    }
    auto operation = std::make_shared<Operation>();
    operation->kind = Kind::kernel;
    operation->bytes_per_s = on_device_rate(found->context->device->spec);
    operation->launch = std::move(launch);
    return submit(found, operation);
  });
}

Status launch_host_func(Stream stream, HostFunction function, void* argument) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_own_stream(stream, found); status != cu::kSuccess) return status;
    if (function == nullptr) return cu::kInvalidValue;
    auto operation = std::make_shared<Operation>();
    operation->kind = Kind::call;
    operation->bytes_per_s = on_device_rate(found->context->device->spec);
    operation->function = function;
    operation->argument = argument;
    return submit(found, operation);
  });
}

}  // namespace calls

}  // namespace weave::emu

// bindings/bind.hpp: what the binding files share. The only folder that sees Python. The GIL is
// released around everything that can block, and no C++ lock is held while it is taken.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "core/device.hpp"

namespace weave::bindings {

namespace py = pybind11;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

// A property getter that takes a lock of the core: the GIL is released while it waits.
template <class Getter>
py::cpp_function locked(Getter getter) {
  return {std::move(getter), ReleaseGil()};
}

// A device as Python holds it: the core's device, and what only bindings know about it.
struct DeviceObject {
  std::shared_ptr<Device> device;
  std::string spec;
  std::string kind;  // "emulated" or "cuda"
  std::string name;
  std::string uuid;
  int driver_version = 0;
  double scale = 1;
  double speed = 1;
  bool host_limited = false;
  std::shared_ptr<HostPool> pool;  // readable after close
};

// Tenants, regions and spans keep their device alive as long as Python refers to them.
struct TenantObject {
  std::shared_ptr<DeviceObject> owner;
  std::shared_ptr<Tenant> tenant;
};
struct RegionObject {
  std::shared_ptr<DeviceObject> owner;
  std::shared_ptr<Region> region;
};
struct SpanObject {
  std::shared_ptr<DeviceObject> owner;
  std::shared_ptr<Span> span;
};
struct PublicationObject {
  std::shared_ptr<DeviceObject> owner;
  std::shared_ptr<Publication> publication;
};
struct HostPoolObject {
  std::shared_ptr<HostPool> pool;
};
struct ReportObject {
  SwitchReport report;
  std::string device;  // its spec
};

struct BackgroundCopyObject {
  std::shared_ptr<DeviceObject> owner;
  std::shared_ptr<BackgroundCopy> copy;
};

void bind_errors(py::module_& module);
void bind_drivers(py::module_& module);     // FaultScope, call_counts, parse_emulated, cuda_driver
void bind_probe(py::module_& module);       // probe
void bind_reports(py::module_& module);     // SwitchReport
void bind_background(py::module_& module);  // BackgroundCopy
void bind_device(py::module_& module);      // HostPool, Device
void bind_memory(py::module_& module);      // Tenant, Region, Span
void bind_tensor_copies(py::module_& module);  // TensorCopies
void bind_publishing(py::module_& module);     // Publication, xxh3_64, block_checksum

void set_plan(DeviceObject& self, const py::dict& movable,
              const std::vector<TenantObject>& next_use);
BackgroundCopyObject prefetch(const std::shared_ptr<DeviceObject>& self, const TenantObject& tenant,
                              const std::vector<TenantObject>& next_use, Bytes limit_bytes);
BackgroundCopyObject write_back(const TenantObject& self, const std::string& tag);

py::dict stats(const DeviceObject& device);
py::dict census(const DeviceObject& device);

// The tables that exist in this process, counted (see driver/faults.hpp).
const cu::Table& emulated_table();
// The loaded driver; error not empty where there is none. cuInit has been called.
struct LoadedDriver {
  cu::Table table;
  std::string library;
  std::string error;
  std::vector<std::string> missing;
  int driver_version = 0;
};
const LoadedDriver& loaded_driver();

// The N of "cuda:N". Throws UsageError; does not ask whether there is such a device.
int cuda_ordinal(const std::string& spec);

// "GPU-xxxxxxxx-xxxx-..." of a device. Throws DriverError.
std::string uuid_text(const cu::Table& table, int ordinal);
std::string name_text(const cu::Table& table, int ordinal);

}  // namespace weave::bindings

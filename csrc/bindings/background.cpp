// bindings/background.cpp: BackgroundCopy, and what Device and Tenant offer beside a phase.
#include <algorithm>
#include <optional>

#include "bindings/bind.hpp"

namespace weave::bindings {

namespace {

std::vector<std::shared_ptr<Tenant>> core_tenants(const std::vector<TenantObject>& objects) {
  std::vector<std::shared_ptr<Tenant>> tenants;
  for (const auto& object : objects) tenants.push_back(object.tenant);
  return tenants;
}

// In slices, so that Ctrl-C is seen.
bool wait(const BackgroundCopyObject& self, std::optional<double> timeout_s) {
  constexpr double kSlice = 0.2;
  double left = timeout_s.value_or(std::numeric_limits<double>::infinity());
  while (true) {
    const double slice = std::min(left, kSlice);
    {
      const py::gil_scoped_release release;
      if (self.copy->wait(slice)) return true;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    left -= slice;
    if (left <= 0) return false;
  }
}

}  // namespace

void set_plan(DeviceObject& self, const py::dict& movable,
              const std::vector<TenantObject>& next_use) {
  std::map<std::shared_ptr<Tenant>, std::size_t> blocks;
  for (const auto& [tenant, count] : movable) {
    blocks[tenant.cast<const TenantObject&>().tenant] = count.cast<std::size_t>();
  }
  const auto order = core_tenants(next_use);
  const py::gil_scoped_release release;
  self.device->set_plan(blocks, order);
}

BackgroundCopyObject prefetch(const std::shared_ptr<DeviceObject>& self, const TenantObject& tenant,
                              const std::vector<TenantObject>& next_use, Bytes limit_bytes) {
  return {self, self->device->prefetch(tenant.tenant, core_tenants(next_use), limit_bytes)};
}

BackgroundCopyObject write_back(const TenantObject& self, const std::string& tag) {
  return {self.owner, self.owner->device->write_back(self.tenant, tag)};
}

void bind_background(py::module_& module) {
  py::class_<BackgroundCopyObject>(module, "BackgroundCopy")
      .def_property_readonly(
          "bytes_total", [](const BackgroundCopyObject& self) { return self.copy->bytes_total(); })
      .def_property_readonly(
          "bytes_done", [](const BackgroundCopyObject& self) { return self.copy->bytes_done(); })
      .def_property_readonly("began_ns",
                             [](const BackgroundCopyObject& self) { return self.copy->began_ns(); })
      .def_property_readonly("ended_ns",
                             [](const BackgroundCopyObject& self) { return self.copy->ended_ns(); })
      .def_property_readonly("finished",
                             [](const BackgroundCopyObject& self) { return self.copy->finished(); })
      .def_property_readonly(
          "cancelled", [](const BackgroundCopyObject& self) { return self.copy->cancelled(); })
      .def_property_readonly("failed",
                             [](const BackgroundCopyObject& self) { return self.copy->failed(); })
      .def("wait", &wait, py::arg("timeout_s") = py::none())
      .def(
          "cancel", [](const BackgroundCopyObject& self) { self.owner->device->cancel(self.copy); },
          ReleaseGil());
}

}  // namespace weave::bindings

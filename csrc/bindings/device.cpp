// bindings/device.cpp: Device. The one place that opens a device: it
// takes a table from drivers.cpp and hands the core a Driver, so that nothing below knows the kind.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "bindings/bind.hpp"
#include "emu/emulator.hpp"

namespace weave::bindings {

namespace {

constexpr std::string_view kEmulated = "emulated:";
constexpr std::string_view kCuda = "cuda:";

Refusal not_found(const std::string& text) { return {Refusal::Kind::device_not_found, text}; }

// A forked child leaves it alone: it has none of its threads, and who held its locks is not there.
std::shared_ptr<Device> make_device(DriverRef driver, Device::Options options) {
  auto made = std::make_unique<Device>(std::move(driver), std::move(options));
  return {made.release(), [owner = getpid()](Device* device) {
            if (getpid() == owner) delete device;
          }};
}

std::shared_ptr<DeviceObject> open_emulated(const std::string& text, Device::Options options) {
  const auto spec = emu::Spec::parse(text);
  const auto table = emu::with_clock(emulated_table(), spec);
  const int ordinal = emu::add_device(spec);
  auto driver =
      std::make_shared<Driver>(table, ordinal, [ordinal] { emu::remove_device(ordinal); });
  options.block_bytes = spec.block_bytes;
  auto object = std::make_shared<DeviceObject>();
  object->device = make_device(std::move(driver), std::move(options));
  object->spec = spec.text();
  object->kind = "emulated";
  object->scale = spec.scale;
  object->speed = spec.speed;
  object->host_limited = emu::host_limited(ordinal);
  return object;
}

std::shared_ptr<DeviceObject> open_cuda(const std::string& text, Device::Options options) {
  const int ordinal = cuda_ordinal(text);
  const auto& loaded = loaded_driver();
  if (!loaded.error.empty()) throw not_found("device " + text + ": " + loaded.error);
  int count = 0;
  cu::check(loaded.table.device_get_count(&count), cu::Call::device_get_count);
  if (ordinal >= count) {
    throw not_found("device " + text + ": this machine has " + std::to_string(count) + " GPU(s)");
  }
  cu::Device device = 0;
  cu::check(loaded.table.device_get(&device, ordinal), cu::Call::device_get);
  auto object = std::make_shared<DeviceObject>();
  object->device = make_device(std::make_shared<Driver>(loaded.table, device), std::move(options));
  object->spec = text;
  object->kind = "cuda";
  object->driver_version = loaded.driver_version;
  return object;
}

std::shared_ptr<DeviceObject> open(const std::string& spec, const HostPoolObject* pool,
                                   Bytes host_budget_bytes, Bytes usable_bytes,
                                   const std::string& spill_directory) {
  Device::Options options;
  options.usable_bytes = usable_bytes;
  options.host_budget = host_budget_bytes;
  options.spill_directory = spill_directory;
  if (pool != nullptr) options.host_pool = pool->pool;
  std::shared_ptr<DeviceObject> object;
  if (spec.starts_with(kEmulated)) {
    object = open_emulated(spec, std::move(options));
  } else if (spec.starts_with(kCuda)) {
    object = open_cuda(spec, std::move(options));
  } else {
    throw UsageError("device '" + spec +
                     "': expected auto, cuda:N or emulated:NAME?key=value, for example "
                     "emulated:h20?scale=64");
  }
  const auto& driver = object->device->driver();
  object->pool = object->device->host_pool();
  object->name = name_text(driver.table, driver.ordinal);
  object->uuid = uuid_text(driver.table, driver.ordinal);
  return object;
}

ReportObject hand_over(DeviceObject& self, const TenantObject* outgoing,
                       const TenantObject& incoming, double drain_timeout_s, const Tags& tags) {
  return {self.device->hand_over(outgoing == nullptr ? nullptr : outgoing->tenant, incoming.tenant,
                                 drain_timeout_s, tags),
          self.spec};
}

py::dict as_dict(const LinkRates& rates) {
  py::dict result;
  result["h2d"] = rates.h2d;
  result["d2h"] = rates.d2h;
  result["h2d_duplex"] = rates.h2d_duplex;
  result["d2h_duplex"] = rates.d2h_duplex;
  if (rates.chunks != 0) result["chunks"] = rates.chunks;
  result["sequential"] = rates.sequential;
  return result;
}

// 256 MiB on a GPU; a scaled device moves its share of that, which takes as long.
Bytes measured_bytes(const DeviceObject& self, Bytes asked) {
  return asked != 0 ? asked
                    : static_cast<Bytes>(static_cast<double>(Bytes{256} << 20) / self.scale);
}

py::dict calibrate(DeviceObject& self, Bytes bytes) {
  LinkRates rates;
  {
    const py::gil_scoped_release release;
    rates = self.device->calibrate(measured_bytes(self, bytes));
  }
  return as_dict(rates);
}

void use_calibration(DeviceObject& self, const std::map<std::string, double>& values) {
  const auto value = [&](const char* key) {
    const auto found = values.find(key);
    return found == values.end() ? 0 : found->second;  // refused as no rate
  };
  const double chunks = value("chunks");
  if (!(chunks >= 0 && chunks <= 1e6)) throw UsageError("chunks is a number of chunks");
  self.device->use_rates({value("h2d"), value("d2h"), value("h2d_duplex"), value("d2h_duplex"),
                          static_cast<Bytes>(chunks), value("sequential") != 0});
}

py::dict calibration(const DeviceObject& self) {
  std::optional<LinkRates> rates;
  {
    const py::gil_scoped_release release;
    rates = self.device->rates();
  }
  return rates ? as_dict(*rates) : py::dict();
}

py::dict memory(const DeviceObject& self) {
  Device::Memory now;
  {
    const py::gil_scoped_release release;
    now = self.device->memory();
  }
  py::dict result;
  result["total"] = now.total;
  result["free"] = now.free;
  result["managed"] = now.ours;
  result["unmanaged"] = now.total - std::min(now.total, now.free + now.ours);
  return result;
}

// What the driver says about the device; an attribute that this driver does not know is absent.
py::dict attributes(const DeviceObject& self) {
  constexpr std::pair<const char*, int> kShown[] = {
      {"integrated", cu::kAttributeIntegrated},
      {"compute_mode", cu::kAttributeComputeMode},
      {"pci_bus", cu::kAttributePciBusId},
      {"pci_device", cu::kAttributePciDeviceId},
      {"async_engines", cu::kAttributeAsyncEngineCount},
      {"pci_domain", cu::kAttributePciDomainId},
      {"virtual_memory_management", cu::kAttributeVirtualMemoryManagement},
      {"posix_fd_handles", cu::kAttributePosixFdHandles},
      {"gpudirect_rdma_with_vmm", cu::kAttributeGpuDirectRdmaWithVmm},
      {"mps_enabled", cu::kAttributeMpsEnabled},
      {"host_numa_id", cu::kAttributeHostNumaId},
  };
  const auto& driver = self.device->driver();
  py::dict result;
  for (const auto& [name, which] : kShown) {
    int value = 0;
    if (driver.table.device_get_attribute(&value, which, driver.ordinal) == cu::kSuccess)
      result[name] = value;
  }
  return result;
}

py::list tenants(const std::shared_ptr<DeviceObject>& self) {
  std::vector<std::shared_ptr<Tenant>> found;
  {
    const py::gil_scoped_release release;
    found = self->device->tenants();
  }
  py::list result;
  for (const auto& tenant : found) result.append(py::cast(TenantObject{self, tenant}));
  return result;
}

}  // namespace

int cuda_ordinal(const std::string& spec) {
  const std::string number = spec.substr(std::min(kCuda.size(), spec.size()));
  if (number.empty() || number.size() > 4 ||
      number.find_first_not_of("0123456789") != std::string::npos) {
    throw UsageError("device '" + spec + "': expected cuda:N with N the device's number");
  }
  return std::stoi(number);
}

void bind_device(py::module_& module) {
  py::class_<DeviceObject, std::shared_ptr<DeviceObject>>(module, "Device")
      .def_static("open", &open, py::arg("spec"), py::arg("host_pool") = nullptr,
                  py::arg("host_budget_bytes") = 0, py::arg("usable_bytes") = 0,
                  py::arg("spill_directory") = "", ReleaseGil())
      .def_readonly("spec", &DeviceObject::spec)
      .def_readonly("kind", &DeviceObject::kind)
      .def_readonly("name", &DeviceObject::name)
      .def_readonly("uuid", &DeviceObject::uuid)
      .def_readonly("driver_version", &DeviceObject::driver_version)
      .def_readonly("scale", &DeviceObject::scale)
      .def_readonly("speed", &DeviceObject::speed)
      .def_readonly("host_limited", &DeviceObject::host_limited)
      .def_property_readonly("capacity_bytes",
                             [](const DeviceObject& self) { return self.device->capacity(); })
      .def_property_readonly("usable_bytes",
                             locked([](const DeviceObject& self) { return self.device->usable(); }))
      .def_property_readonly("block_bytes",
                             [](const DeviceObject& self) { return self.device->block_bytes(); })
      .def_property_readonly("host_pool",
                             [](const DeviceObject& self) { return HostPoolObject{self.pool}; })
      .def_property_readonly("numa_node",
                             [](const DeviceObject& self) { return self.device->numa_node(); })
      .def_property_readonly("tenants", &tenants)
      .def_property_readonly("closed",
                             locked([](const DeviceObject& self) { return self.device->closed(); }))
      .def(
          "add_tenant",
          [](const std::shared_ptr<DeviceObject>& self, const std::string& name,
             const std::string& job) {
            return TenantObject{self, self->device->add_tenant(name, job)};
          },
          py::arg("name"), py::arg("job") = "", ReleaseGil())
      .def("switch", &hand_over, py::arg("outgoing").none(true), py::arg("incoming"),
           py::arg("drain_timeout_s") = 60.0, py::arg("tags") = py::none(), ReleaseGil())
      .def("set_plan", &set_plan, py::arg("movable"),
           py::arg("next_use") = std::vector<TenantObject>())
      .def("prefetch", &prefetch, py::arg("tenant"),
           py::arg("next_use") = std::vector<TenantObject>(), py::arg("limit_bytes") = 0,
           ReleaseGil())
      .def("calibrate", &calibrate, py::arg("bytes") = 0)
      .def(
          "slowdown",
          [](DeviceObject& self, Bytes bytes) {
            return self.device->slowdown(measured_bytes(self, bytes));
          },
          py::arg("bytes") = 0, ReleaseGil())
      .def("use_calibration", &use_calibration, py::arg("values"), ReleaseGil())
      .def_property_readonly("calibration", &calibration)
      .def("attributes", &attributes)
      .def("memory", &memory)
      .def(
          "plain_copy",
          [](DeviceObject& self, Bytes bytes_out, Bytes bytes_in) {
            return self.device->plain_copy(bytes_out, bytes_in);
          },
          py::arg("bytes_out"), py::arg("bytes_in"), ReleaseGil())
      .def(
          "plain_pin",
          [](DeviceObject& self, Bytes bytes) { return self.device->plain_pin(bytes); },
          py::arg("bytes"), ReleaseGil())
      .def(
          "trim", [](DeviceObject& self, Bytes bytes) { return self.device->trim(bytes); },
          py::arg("bytes"), ReleaseGil())
      .def(
          "set_usable",
          [](DeviceObject& self, Bytes bytes) { return self.device->set_usable(bytes); },
          py::arg("bytes"), ReleaseGil())
      .def("now_ns", [](const DeviceObject& self) { return self.device->driver().table.now_ns(); })
      .def(
          "sleep_until_ns",
          [](const DeviceObject& self, std::int64_t deadline_ns) {
            self.device->driver().table.sleep_until_ns(deadline_ns);
          },
          py::arg("deadline_ns"), ReleaseGil())
      .def(
          "set_verify", [](DeviceObject& self, bool on) { self.device->set_verify(on); },
          py::arg("on"), ReleaseGil())
      .def_property_readonly(
          "verifies", locked([](const DeviceObject& self) { return self.device->verifies(); }))
      .def("stats", &stats)
      .def("census", &census)
      .def("close", [](DeviceObject& self) { self.device->close(); }, ReleaseGil());
}

}  // namespace weave::bindings

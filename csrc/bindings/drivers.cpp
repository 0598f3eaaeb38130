// bindings/drivers.cpp: which driver tables this process has, and the fault wrapper around them.
// The only place that chooses a Table: loaded, emulated, and both behind the counting wrapper.
#include <array>
#include <optional>

#include "bindings/bind.hpp"
#include "core/host_memory.hpp"
#include "core/host_pages.hpp"
#include "driver/faults.hpp"
#include "driver/load.hpp"
#include "emu/emulator.hpp"

namespace weave::bindings {

namespace {

cu::Call call_named(const std::string& name) {
  for (int call = 0; call < cu::kCallCount; ++call) {
    if (cu::info(static_cast<cu::Call>(call)).field == name) return static_cast<cu::Call>(call);
  }
  throw UsageError("no driver call is named '" + name + "'; see csrc/driver/calls.def");
}

class FaultScopeObject {
 public:
  FaultScopeObject(std::uint64_t nth, bool from_then_on, const std::string& only, int status,
                   double probability, std::uint64_t seed, std::int64_t delay_ns, bool sticky)
      : plan_{nth,      from_then_on, only.empty() ? cu::Call::kCount : call_named(only),
              status,   probability,  seed,
              delay_ns, sticky} {
    cu::FaultScope::check(plan_);
  }
  void enter() { scope_.emplace(plan_); }
  void exit() {
    seen_ = calls_seen();
    failed_ = calls_failed();
    delayed_ = calls_delayed();
    scope_.reset();
  }
  std::uint64_t calls_seen() const { return scope_ ? scope_->calls_seen() : seen_; }
  std::uint64_t calls_failed() const { return scope_ ? scope_->calls_failed() : failed_; }
  std::uint64_t calls_delayed() const { return scope_ ? scope_->calls_delayed() : delayed_; }

 private:
  cu::FaultScope::Plan plan_;
  std::optional<cu::FaultScope> scope_;
  std::uint64_t seen_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t delayed_ = 0;
};

py::dict call_counts(const std::string& kind) {
  if (kind != "emulated" && kind != "cuda") throw UsageError("kind is 'emulated' or 'cuda'");
  const auto counts =
      cu::call_counts(kind == "cuda" ? cu::Upstream::loaded : cu::Upstream::emulated);
  py::dict result;
  for (int call = 0; call < cu::kCallCount; ++call) {
    result[py::str(std::string{cu::info(static_cast<cu::Call>(call)).field})] =
        counts[static_cast<std::size_t>(call)];
  }
  return result;
}

py::dict parse_emulated(const std::string& text) {
  const auto spec = emu::Spec::parse(text);
  py::dict latency;
  latency["copy"] = spec.copy_ns;
  latency["map"] = spec.map_ns;
  latency["access"] = spec.access_ns;
  latency["unmap"] = spec.unmap_ns;
  latency["create"] = spec.create_ns;
  latency["register"] = spec.register_ns;
  py::dict result;
  result["spec"] = spec.text();
  result["name"] = spec.name;
  result["capacity_bytes"] = spec.capacity_bytes;
  result["granularity_bytes"] = spec.granularity_bytes;
  result["block_bytes"] = spec.block_bytes;
  result["context_bytes"] = spec.context_bytes;
  result["unmanaged_bytes"] = spec.unmanaged_bytes;
  result["h2d_bytes_per_s"] = spec.h2d_bytes_per_s;
  result["d2h_bytes_per_s"] = spec.d2h_bytes_per_s;
  result["pageable_bytes_per_s"] = spec.pageable_bytes_per_s;
  result["duplex"] = spec.duplex;
  result["engines"] = spec.engines;
  result["scale"] = spec.scale;
  result["speed"] = spec.speed;
  result["seed"] = spec.seed;
  result["id"] = spec.id;
  result["latency_ns"] = latency;
  return result;
}

py::list cuda_devices(const LoadedDriver& driver) {
  py::list devices;
  int count = 0;
  if (driver.table.device_get_count(&count) != cu::kSuccess) return devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    std::size_t bytes = 0;
    py::dict device;
    device["ordinal"] = ordinal;
    try {
      device["name"] = name_text(driver.table, ordinal);
      device["uuid"] = uuid_text(driver.table, ordinal);
    } catch (const DriverError& error) {
      device["error"] = error.what();
    }
    if (driver.table.device_total_mem(&bytes, ordinal) == cu::kSuccess)
      device["total_bytes"] = bytes;
    devices.append(device);
  }
  return devices;
}

py::dict cuda_driver() {
  const auto& driver = loaded_driver();
  py::dict result;
  result["available"] = driver.error.empty();
  result["library"] = driver.library;
  result["driver_version"] = driver.driver_version;
  result["reason"] = driver.error;
  result["missing"] = driver.missing;
  result["devices"] = driver.error.empty() ? cuda_devices(driver) : py::list();
  return result;
}

}  // namespace

const cu::Table& emulated_table() {
  static const cu::Table table = [] {
    const cu::Table counted = cu::counted(cu::Upstream::emulated, emu::table());
    cu::check(counted.init(0), cu::Call::init);
    return counted;
  }();
  return table;
}

const LoadedDriver& loaded_driver() {
  static const LoadedDriver driver = [] {
    const auto loaded = cu::load();
    LoadedDriver result{{}, loaded.library, loaded.error, loaded.missing, loaded.driver_version};
    if (!result.error.empty()) return result;
    result.table = cu::counted(cu::Upstream::loaded, loaded.table);
    if (const auto status = result.table.init(0); status != cu::kSuccess) {
      result.error = "cuInit failed with " + cu::status_name(status);
    }
    return result;
  }();
  return driver;
}

std::string uuid_text(const cu::Table& table, int ordinal) {
  cu::Uuid uuid{};
  cu::check(table.device_get_uuid(&uuid, ordinal), cu::Call::device_get_uuid);
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (int index = 0; index < 16; ++index) {
    if (index == 4 || index == 6 || index == 8 || index == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[index]);
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

std::string name_text(const cu::Table& table, int ordinal) {
  std::array<char, 256> name{};
  cu::check(table.device_get_name(name.data(), static_cast<int>(name.size()), ordinal),
            cu::Call::device_get_name);
  return name.data();
}

void bind_drivers(py::module_& module) {
  py::class_<FaultScopeObject>(module, "FaultScope")
      .def(py::init<std::uint64_t, bool, const std::string&, int, double, std::uint64_t,
                    std::int64_t, bool>(),
           py::arg("nth") = 0, py::arg("from_then_on") = false, py::arg("only") = "",
           py::arg("status") = cu::kUnknown, py::arg("probability") = 0.0, py::arg("seed") = 0,
           py::arg("delay_ns") = 0, py::arg("sticky") = false)
      .def("__enter__",
           [](py::object self) {
             self.cast<FaultScopeObject&>().enter();
             return self;
           })
      .def("__exit__", [](FaultScopeObject& self, const py::args&) { self.exit(); })
      .def_property_readonly("calls_seen", &FaultScopeObject::calls_seen)
      .def_property_readonly("calls_failed", &FaultScopeObject::calls_failed)
      .def_property_readonly("calls_delayed", &FaultScopeObject::calls_delayed);
  module.def("call_counts", &call_counts, py::arg("kind"));
  module.def("parse_emulated", &parse_emulated, py::arg("spec"));
  module.def("cuda_driver", &cuda_driver);
  module.def("host_bytes_available", &host_bytes_available);
  module.def("probe_pages", [] {
    const auto found = [] {
      const py::gil_scoped_release release;
      return HostPages::probe();
    }();
    py::dict result;
    if (found.shmem != nullptr) result["shmem"] = found.shmem;
    result["hugetlb"] = found.hugetlb;
    return result;
  });
}

}  // namespace weave::bindings

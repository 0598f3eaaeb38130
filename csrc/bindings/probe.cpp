// bindings/probe.cpp: asking a driver for its undocumented codes (driver/probe.hpp).
#include "driver/probe.hpp"

#include "bindings/bind.hpp"
#include "emu/emulator.hpp"

namespace weave::bindings {

namespace {

// Removes the emulated device at the end.
struct Lent {
  explicit Lent(const emu::Spec& spec) : ordinal(emu::add_device(spec)) {}
  ~Lent() { emu::remove_device(ordinal); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  const int ordinal;
};

std::vector<cu::Probe> probe_spec(const std::string& spec) {
  constexpr std::string_view kCuda = "cuda:";
  if (!spec.starts_with(kCuda)) {
    const auto parsed = emu::Spec::parse(spec);
    const Lent device(parsed);
    return cu::probe(emu::with_clock(emulated_table(), parsed), device.ordinal);
  }
  const auto& loaded = loaded_driver();
  if (!loaded.error.empty()) {
    throw Refusal(Refusal::Kind::device_not_found, "device " + spec + ": " + loaded.error);
  }
  return cu::probe(loaded.table, cuda_ordinal(spec));
}

py::list probe(const std::string& spec) {
  std::vector<cu::Probe> probes;
  {
    const py::gil_scoped_release release;
    probes = probe_spec(spec);
  }
  py::list result;
  for (const auto& each : probes) {
    py::dict entry;
    entry["name"] = each.name;
    entry["behaviour"] = each.behaviour;
    entry["call"] = std::string{cu::info(each.call).symbol};
    entry["mistake"] = each.mistake;
    entry["code"] = each.code;
    result.append(entry);
  }
  return result;
}

}  // namespace

void bind_probe(py::module_& module) { module.def("probe", &probe, py::arg("spec")); }

}  // namespace weave::bindings

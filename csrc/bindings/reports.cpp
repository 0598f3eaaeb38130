// bindings/reports.cpp: numbers for Python: SwitchReport, a device's counters and its census.
#include "bindings/bind.hpp"
#include "emu/emulator.hpp"

namespace weave::bindings {

py::dict stats(const DeviceObject& self) {
  const auto stats = [&] {
    const py::gil_scoped_release release;
    return self.device->stats();
  }();
  py::dict result;
  result["blocks_created"] = stats.blocks_created;
  result["blocks_free"] = stats.blocks_free;
  result["blocks_total"] = stats.blocks_total;
  result["switches"] = stats.switches;
  result["noop_suspends"] = stats.noop_suspends;
  result["noop_resumes"] = stats.noop_resumes;
  result["bytes_out"] = stats.bytes_out;
  result["bytes_in"] = stats.bytes_in;
  result["bytes_background_out"] = stats.bytes_background_out;
  result["bytes_background_in"] = stats.bytes_background_in;
  result["background_errors"] = stats.background_errors;
  result["blocks_beyond_plan"] = stats.blocks_beyond_plan;
  result["blocks_released"] = stats.blocks_released;
  result["bytes_trimmed"] = stats.bytes_trimmed;
  result["spills"] = stats.spills;
  result["loads"] = stats.loads;
  result["bytes_spilled"] = stats.bytes_spilled;
  result["bytes_loaded"] = stats.bytes_loaded;
  result["bytes_in_files"] = stats.bytes_in_files;
  result["cleanup_failures"] = cu::reported_count();
  if (self.kind == "emulated") {
    result["pageable_copies"] = emu::census(self.device->driver().ordinal).pageable_copies;
  }
  return result;
}

py::dict census(const DeviceObject& self) {
  py::dict result;
  if (self.kind != "emulated") return result;
  const auto census = emu::census(self.device->driver().ordinal);
  result["handles"] = census.handles;
  result["mappings"] = census.mappings;
  result["reservations"] = census.reservations;
  result["registrations"] = census.registrations;
  result["streams"] = census.streams;
  result["events"] = census.events;
  result["descriptors"] = census.descriptors;
  result["bytes_used"] = census.bytes_used;
  return result;
}

static py::dict report_dict(const SwitchReport& report, const std::string& device) {
  py::dict result;
  result["device"] = device;
  result["out"] = report.outgoing;
  result["in"] = report.incoming;
  result["bytes_out"] = report.bytes_out;
  result["bytes_in"] = report.bytes_in;
  result["bytes_background"] = report.bytes_background;
  result["bytes_skipped"] = report.bytes_skipped;
  result["blocks_remapped"] = report.blocks_remapped;
  result["seconds"] = report.seconds;
  result["drain_s"] = report.drain_s;
  result["map_s"] = report.map_s;
  result["out_s"] = report.out_s;
  result["in_s"] = report.in_s;
  if (report.mode != nullptr) result["mode"] = report.mode;
  if (report.verify_s > 0) result["verify_s"] = report.verify_s;
  if (report.limit_s) {
    result["limit_s"] = *report.limit_s;
    result["efficiency"] = *report.limit_s / (report.seconds - report.drain_s);
  }
  return result;
}

void bind_reports(py::module_& module) {
  py::class_<ReportObject>(module, "SwitchReport")
      .def_property_readonly("outgoing",
                             [](const ReportObject& self) { return self.report.outgoing; })
      .def_property_readonly("incoming",
                             [](const ReportObject& self) { return self.report.incoming; })
      .def_property_readonly("bytes_out",
                             [](const ReportObject& self) { return self.report.bytes_out; })
      .def_property_readonly("bytes_in",
                             [](const ReportObject& self) { return self.report.bytes_in; })
      .def_property_readonly("bytes_background",
                             [](const ReportObject& self) { return self.report.bytes_background; })
      .def_property_readonly("bytes_skipped",
                             [](const ReportObject& self) { return self.report.bytes_skipped; })
      .def_property_readonly("blocks_remapped",
                             [](const ReportObject& self) { return self.report.blocks_remapped; })
      .def_property_readonly("started_ns",
                             [](const ReportObject& self) { return self.report.started_ns; })
      .def_property_readonly("seconds",
                             [](const ReportObject& self) { return self.report.seconds; })
      .def("as_dict",
           [](const ReportObject& self) { return report_dict(self.report, self.device); });
}

}  // namespace weave::bindings

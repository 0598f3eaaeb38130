// bindings/host_pool.cpp: HostPool and HostGrowth.
#include <algorithm>

#include "bindings/bind.hpp"
#include "core/host_memory.hpp"

namespace weave::bindings {

namespace {

py::dict pool_stats(const HostPoolObject& self) {
  const auto stats = [&] {
    const py::gil_scoped_release release;
    return self.pool->stats();
  }();
  py::dict result;
  result["bytes_registered"] = stats.registered;
  result["bytes_used"] = stats.used;
  result["bytes_free"] = stats.free;
  result["bytes_reserved"] = stats.reserved;
  result["bytes_growing"] = stats.growing;
  result["bytes_huge"] = stats.huge;
  result["page_kind"] = page_kind_name(stats.kind);
  result["pieces"] = stats.pieces;
  result["registrations"] = stats.registrations;
  result["registrations_refused"] = stats.refused;
  result["waits"] = stats.waits;
  py::dict nodes;
  for (const auto& node : stats.nodes) nodes[py::int_(node.node)] = node.bytes;
  result["node_bytes"] = nodes;
  if (const auto limit = memlock_limit()) result["memlock_bytes"] = *limit;
  return result;
}

// In steps, so that Ctrl-C is noticed.
bool wait(HostGrowth& growth, std::optional<double> timeout_s) {
  constexpr double kStep = 0.1;
  double left = timeout_s.value_or(0);
  while (true) {
    const double step = timeout_s ? std::clamp(left, 0.0, kStep) : kStep;
    {
      const py::gil_scoped_release release;
      if (growth.wait(step)) return true;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    left -= step;
    if (timeout_s && left <= 0) return false;
  }
}

std::optional<std::string> error_text(const HostGrowth& growth) {
  const auto error = growth.error();
  if (error == nullptr) return std::nullopt;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
}

}  // namespace

void bind_host_pool(py::module_& module) {
  py::class_<HostGrowth, std::shared_ptr<HostGrowth>>(module, "HostGrowth")
      .def_property_readonly("bytes_total", [](const HostGrowth& self) { return self.total(); })
      .def_property_readonly("bytes_done", [](const HostGrowth& self) { return self.done(); })
      .def_property_readonly("finished",
                             locked([](const HostGrowth& self) { return self.finished(); }))
      .def_property_readonly("cancelled",
                             locked([](const HostGrowth& self) { return self.cancelled(); }))
      .def_property_readonly("error", locked(&error_text))
      .def("wait", &wait, py::arg("timeout_s") = py::none())
      .def("cancel", [](HostGrowth& self) { self.cancel(); });
  py::class_<HostPoolObject>(module, "HostPool")
      .def_property_readonly("budget_bytes",
                             [](const HostPoolObject& self) { return self.pool->budget(); })
      .def_property_readonly("bytes_registered", locked([](const HostPoolObject& self) {
                               return self.pool->registered();
                             }))
      .def_property_readonly("bytes_used",
                             locked([](const HostPoolObject& self) { return self.pool->used(); }))
      .def_property_readonly("pieces",
                             locked([](const HostPoolObject& self) { return self.pool->pieces(); }))
      .def(
          "reserve",
          [](const HostPoolObject& self, const std::string& job, Bytes bytes, int node) {
            return self.pool->reserve(job, bytes, node);
          },
          py::arg("job"), py::arg("bytes"), py::arg("node") = HostPool::kAnyNode, ReleaseGil())
      .def(
          "trim",
          [](const HostPoolObject& self, const std::optional<std::string>& job) {
            return job ? self.pool->trim(*job) : self.pool->trim();
          },
          py::arg("job") = py::none(), ReleaseGil())
      .def("stats", &pool_stats);
}

}  // namespace weave::bindings

// bindings/module.cpp: the module, one bind_* after the other.
#include "bindings/bind.hpp"

PYBIND11_MODULE(_core, module) {
  using namespace weave::bindings;
  module.doc() = "The C++ core: devices, tenants, regions and the switch engine.";
  bind_errors(module);
  bind_drivers(module);
  bind_probe(module);
  bind_reports(module);
  bind_background(module);
  bind_device(module);
  bind_memory(module);
  bind_tensor_copies(module);
  bind_publishing(module);
}

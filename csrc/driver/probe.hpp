// driver/probe.hpp: asks a driver for the codes that its documentation leaves open. Each case makes
// one call that is wrong in one way, on memory of its own; the last one may cost the context, so
// nothing else of the process should use the device meanwhile. The emulated device answers with
// what a real driver was once recorded to say (emu/driver_codes.hpp).
#pragma once

#include <string>
#include <vector>

#include "driver/table.hpp"

namespace weave::cu {

struct Probe {
  std::string name;  // of the constant in emu/driver_codes.hpp
  int behaviour;     // its number in docs/driver_behaviours.md
  Call call;
  std::string mistake;  // what is wrong with the call
  Status code;
};

// pre: init was called. Retains the primary context of the device and releases it. Cases whose call
// the driver lacks are left out. Throws DriverError when a call that is right fails.
std::vector<Probe> probe(const Table& table, Device ordinal);

}  // namespace weave::cu

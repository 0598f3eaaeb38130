// emu/stepper.hpp: the other way to run operations: no engine threads, but one step at a time (a
// piece of a copy, of a kernel, or a record or wait that is over), in any order that the streams
// and engines allow, drawn from the seed of the device. Whoever waits drives it: a call that would
// block steps all stepped devices until its condition holds. So a run of one thread is its seed.
// Lock: its own, outermost, held during a step; `changed` has a leaf lock.
#pragma once

#include "emu/device.hpp"

namespace weave::emu::stepper {

// One step of one stepped device. False when none can run now.
bool step();

// A query counts as time passing: by the seed it makes a step first, so that polling ends.
void asked(DeviceState& device);

// Ends what it has begun of a context that failed. pre: no lock is held.
void abandon(DeviceState& device);

// Something may have become ready; also called with a device's mutex held.
void changed();
std::uint64_t changes();
void wait_for_change(std::uint64_t seen);

// Blocks until `condition`, which is called with the device's mutex held. pre: no lock is held.
template <class Condition>
void wait_until(DeviceState& device, Condition condition) {
  if (!device.spec.stepped) {
    Locked locked(device);
    device.done.wait(locked.lock, condition);
    return;
  }
  while (true) {
    const auto seen = changes();
    {
      const Locked locked(device);
      if (condition()) return;
    }
    // Nothing to run: another thread has to submit, or a device with engine threads to finish.
    if (!step()) wait_for_change(seen);
  }
}

}  // namespace weave::emu::stepper

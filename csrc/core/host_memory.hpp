// core/host_memory.hpp: how much memory this process may still take. Reads files of the kernel.
#pragma once

#include <optional>
#include <string>

#include "core/types.hpp"

namespace weave {

// For whoever could not pin memory: the limits that may be why, as one phrase with their values.
std::string pinning_limits();

// The smaller of MemAvailable and the headroom of every cgroup above this process (v1 or v2), page
// cache that the kernel would give back counted as free.
Bytes host_bytes_available();

// What this process may lock; nothing where there is no limit. Only reported: whether a driver's
// registrations count is known by making one.
std::optional<Bytes> memlock_limit();

// The headroom alone. `own` names the process's groups like /proc/self/cgroup, `root` is where the
// hierarchy is mounted. The largest number where there is no limit.
Bytes cgroup_headroom(const std::string& own, const std::string& root);

}  // namespace weave

// core/numa.hpp: which memory of the host is near which cores, asked from the kernel's files and
// set by its system calls (no library). Called by host_pages.cpp and host_pool.cpp; no state, no
// lock.
#pragma once

#include <string>
#include <vector>

#include "core/types.hpp"

namespace weave {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // that this process may use; empty for a node of memory only
  Bytes bytes_free = 0;   // and cache that the kernel would give back
};

// "0-3,8" as numbers; what cannot be read is left out.
std::vector<int> parse_cpu_list(const std::string& text);

// Nodes with memory, by number. One node with every core where the kernel has no such files.
std::vector<NumaNode> numa_nodes(const std::string& root = "/sys/devices/system/node");

// Pages of [data, data + bytes) that are touched from now on come from `node`. False where the
// kernel, or the container around this process, refuses.
bool bind_to_node(void* data, Bytes bytes, int node);

// Where up to `samples` pages, evenly spread, are now. Empty where the kernel does not say.
std::vector<int> nodes_of(std::byte* data, Bytes bytes, std::size_t samples);

// This thread runs on these cores only. False where that is refused, or none are given.
bool pin_this_thread(const std::vector<int>& cpus);

}  // namespace weave

#include "core/numa.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>

namespace weave {

namespace {

constexpr int kBind = 2;  // MPOL_BIND; numaif.h belongs to a library that we do not need
constexpr std::size_t kMaxNodes = 1024;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Lines like "Node 0 MemFree:  123 kB".
Bytes read_free(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  Bytes free = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string node, number, key;
    Bytes value = 0;
    if (!(words >> node >> number >> key >> value)) continue;
    if (key == "MemFree:" || key == "Inactive(file):") free += value * 1024;
  }
  return free;
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream parts(text);
  std::string part;
  while (std::getline(parts, part, ',')) {
    int first = 0;
    int last = 0;
    char dash = 0;
    std::istringstream numbers(part);
    if (!(numbers >> first)) continue;
    if (!(numbers >> dash >> last)) last = first;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<NumaNode> numa_nodes(const std::string& root) {
  const auto allowed = allowed_cpus();
  std::vector<NumaNode> nodes;
  for (const int id : parse_cpu_list(first_line(root + "/has_memory"))) {
    const std::string folder = root + "/node" + std::to_string(id);
    NumaNode node{id, {}, read_free(folder + "/meminfo")};
    for (const int cpu : parse_cpu_list(first_line(folder + "/cpulist"))) {
      if (std::ranges::find(allowed, cpu) != allowed.end()) node.cpus.push_back(cpu);
    }
    nodes.push_back(std::move(node));
  }
  if (nodes.empty()) nodes.push_back({0, allowed, std::numeric_limits<Bytes>::max()});
  return nodes;
}

bool bind_to_node(void* data, Bytes bytes, int node) {
  if (node < 0 || static_cast<std::size_t>(node) >= kMaxNodes) return false;
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNodes / kBits> mask{};
  const auto bit = static_cast<std::size_t>(node);
  mask[bit / kBits] = 1UL << (bit % kBits);
  return syscall(SYS_mbind, data, bytes, kBind, mask.data(), kMaxNodes, 0) == 0;
}

std::vector<int> nodes_of(std::byte* data, Bytes bytes, std::size_t samples) {
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  const std::size_t pages = bytes / page;
  samples = std::min(samples, pages);
  std::vector<void*> asked(samples);
  for (std::size_t index = 0; index < samples; ++index) {
    asked[index] = data + pages * index / samples * page;
  }
  std::vector<int> found(samples, -1);
  if (samples == 0 ||
      syscall(SYS_move_pages, 0, samples, asked.data(), nullptr, found.data(), 0) != 0) {
    return {};
  }
  return found;
}

bool pin_this_thread(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &set);
  }
  return CPU_COUNT(&set) > 0 && sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace weave

#include "core/host_memory.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace weave {

namespace {

constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();

// The number in a file; nothing where it is absent or says "max".
std::optional<Bytes> read_number(const std::string& path) {
  std::ifstream file(path);
  Bytes value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number behind `key` in a file of "key number" lines, 0 where it is absent.
Bytes read_keyed(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    Bytes value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return 0;
}

struct Names {
  const char *limit, *used, *reclaimable;
};
constexpr Names kV2 = {"/memory.max", "/memory.current", "inactive_file"};
constexpr Names kV1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"};

// What the group and each group above it leave, down to the mount point.
Bytes headroom_up(const std::string& mount, std::string path, const Names& names) {
  Bytes left = kUnlimited;
  while (true) {
    const std::string folder = mount + path;
    const auto limit = read_number(folder + names.limit);
    const auto used = read_number(folder + names.used);
    if (limit && used) {
      const Bytes cache = read_keyed(folder + "/memory.stat", names.reclaimable);
      const Bytes held = *used - std::min(*used, cache);
      left = std::min(left, *limit > held ? *limit - held : 0);
    }
    if (path.empty()) return left;
    path.erase(path.rfind('/'));
  }
}

}  // namespace

Bytes cgroup_headroom(const std::string& own, const std::string& root) {
  Bytes left = kUnlimited;
  std::ifstream file(own);
  std::string line;
  while (std::getline(file, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/') path.insert(0, "/");
    if (path.back() == '/') path.pop_back();
    if (controllers == ",,") {
      left = std::min(left, headroom_up(root, path, kV2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, headroom_up(root + "/memory", path, kV1));
    }
  }
  return left;
}

std::optional<Bytes> memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return limit.rlim_cur;
}

std::string pinning_limits() {
  rlimit memlock{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  return "RLIMIT_MEMLOCK is " +
         (memlock.rlim_cur == RLIM_INFINITY ? "unlimited"
                                            : std::to_string(memlock.rlim_cur) + " bytes") +
         ", " + std::to_string(host_bytes_available()) + " bytes of memory are left";
}

Bytes host_bytes_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::string unit;
  Bytes value = 0;
  Bytes available = kUnlimited;
  while (file >> key >> value && std::getline(file, unit)) {
    if (key == "MemAvailable:") available = value * 1024;
  }
  return std::min(available, cgroup_headroom("/proc/self/cgroup", "/sys/fs/cgroup"));
}

}  // namespace weave

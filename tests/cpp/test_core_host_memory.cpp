// How much memory the process may take: its own cgroup, those above it, and cache given back.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "check.hpp"
#include "core/host_memory.hpp"

using namespace weave;

namespace {

struct Hierarchy {
  Hierarchy() {
    char pattern[] = "/tmp/weave-cgroup-XXXXXX";
    root = mkdtemp(pattern);
  }
  ~Hierarchy() { std::filesystem::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text << "\n";
  }
  Bytes headroom(const std::string& own) const {
    write("/own", own);
    return cgroup_headroom(root + "/own", root);
  }
  std::string root;
};

constexpr Bytes kNone = std::numeric_limits<Bytes>::max();

}  // namespace

TEST(the_tightest_group_above_the_process_counts) {
  const Hierarchy host;
  host.write("/pods/memory.max", "1000");
  host.write("/pods/memory.current", "400");
  host.write("/pods/one/memory.max", "max");
  host.write("/pods/one/memory.current", "300");
  CHECK_EQ(host.headroom("0::/pods/one"), 600u);
  host.write("/pods/one/memory.max", "350");
  CHECK_EQ(host.headroom("0::/pods/one"), 50u);
}

TEST(cache_that_the_kernel_gives_back_is_free) {
  const Hierarchy host;
  host.write("/one/memory.max", "1000");
  host.write("/one/memory.current", "900");
  host.write("/one/memory.stat", "anon 100\ninactive_file 700\nfile 800");
  CHECK_EQ(host.headroom("0::/one"), 800u);
}

TEST(version_one_is_read_too) {
  const Hierarchy host;
  host.write("/memory/one/memory.limit_in_bytes", "1000");
  host.write("/memory/one/memory.usage_in_bytes", "250");
  CHECK_EQ(host.headroom("4:memory:/one\n0::/"), 750u);
  CHECK_EQ(host.headroom("4:cpu,memory:/one/\n0::/"), 750u);
}

TEST(no_limit_is_no_limit) {
  const Hierarchy host;
  CHECK_EQ(host.headroom("0::/"), kNone);
  CHECK_EQ(host.headroom("nonsense"), kNone);
  CHECK(host_bytes_available() > 0);
}

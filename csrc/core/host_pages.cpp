#include "core/host_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26U)
#endif

namespace weave {

namespace {

constexpr Bytes kStep = Bytes{32} << 20;  // what a thread touches at a time; a multiple of 2 MiB
constexpr std::size_t kMaxThreads = 8;
constexpr std::size_t kSamples = 64;  // pages whose node is asked for

Refusal no_memory(const std::string& what, int error, Bytes bytes) {
  Refusal refusal(Refusal::Kind::host_memory,
                  "cannot " + what + " " + megabytes(bytes) +
                      " of pinned host memory: " + std::strerror(error));
  refusal.bytes_needed = bytes;
  return refusal;
}

bool has_cancelled(const std::atomic<bool>* cancel) {
  return cancel != nullptr && cancel->load(std::memory_order_relaxed);
}

// Whether a try for transparent huge pages ever gave one here; not tried again where it did not.
std::atomic<bool>& transparent_may_work() {
  static std::atomic<bool> may{true};
  return may;
}

// 0 or the error. Allocates the pages without the signal that a plain touch ends in when there is
// no memory.
int touch(std::byte* data, Bytes bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));  // kernels before 5.14
  for (Bytes at = 0; at < bytes; at += page) {
    *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
  return 0;
}

// A hole cannot be collapsed, so one byte of each huge page is touched first.
void collapse(std::byte* data, Bytes bytes) {
  for (Bytes at = 0; at + HostPages::kHugeBytes <= bytes; at += HostPages::kHugeBytes) {
    if (touch(data + at, static_cast<Bytes>(sysconf(_SC_PAGESIZE))) != 0) return;
  }
  madvise(data, bytes, MADV_COLLAPSE);
}

}  // namespace

const char* page_kind_name(PageKind kind) {
  switch (kind) {
    case PageKind::small:
      return "small";
    case PageKind::transparent:
      return "transparent";
    case PageKind::hugetlb:
      return "hugetlb";
  }
  return "";
}

HostPages::HostPages(const Options& options) : bytes_(options.bytes) {
  const bool whole = options.huge && bytes_ % kHugeBytes == 0;
  try {
    if (whole && map(true)) {
      kind_ = PageKind::hugetlb;
      // Reserved pages may be on another node than the one that is asked for: then small ones.
      if (!populate(options)) {
        unmap();
        kind_ = PageKind::small;
      }
    }
    if (data_ == nullptr) {
      if (!map(false)) throw no_memory("map", errno, bytes_);
      if (!populate(options)) throw no_memory("allocate", errno, bytes_);
    }
  } catch (...) {
    unmap();
    throw;
  }
  judge();
  const auto found = options.bind ? nodes_of(data_, bytes_, kSamples) : std::vector<int>{};
  const bool there = std::ranges::all_of(found, [&](int node) { return node == options.node.id; });
  if (!options.bind || (!found.empty() && there)) node_ = options.node.id;
}

HostPages::~HostPages() { unmap(); }

HostPages::Probe HostPages::probe() {
  Probe found;
  {
    HostPages reserved(kHugeBytes);
    found.hugetlb = reserved.map(true);
  }
  HostPages shared(kHugeBytes);
  if (!shared.map(false)) return found;
  madvise(shared.data_, kHugeBytes, MADV_HUGEPAGE);
  if (touch(shared.data_, kHugeBytes) != 0) return found;
  found.shmem = "huge";
  if (huge_bytes_mapped(shared.data_, kHugeBytes) != 0) return found;
  madvise(shared.data_, kHugeBytes, MADV_COLLAPSE);
  found.shmem = huge_bytes_mapped(shared.data_, kHugeBytes) != 0 ? "collapsed" : "small";
  return found;
}

// False, with errno set, when there is no such memory. Aligned to a huge page, for either kind.
bool HostPages::map(bool hugetlb) {
  const unsigned flags = MFD_CLOEXEC | (hugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0U);
  descriptor_ = memfd_create("weave-host", flags);
  if (descriptor_ < 0) return false;
  const Bytes slack = bytes_ >= kHugeBytes ? kHugeBytes : 0;
  void* whole = MAP_FAILED;
  if (ftruncate(descriptor_, static_cast<off_t>(bytes_)) == 0) {
    whole = mmap(nullptr, bytes_ + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  }
  if (whole == MAP_FAILED) {
    const int error = errno;
    unmap();
    errno = error;
    return false;
  }
  auto* const begin = static_cast<std::byte*>(whole);
  const auto address = reinterpret_cast<std::uintptr_t>(whole);
  const Bytes before = slack == 0 ? 0 : (kHugeBytes - address % kHugeBytes) % kHugeBytes;
  if (before != 0) munmap(begin, before);
  if (slack != before) munmap(begin + before + bytes_, slack - before);
  data_ = begin + before;
  if (mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor_, 0) ==
      MAP_FAILED) {
    const int error = errno;
    unmap();
    errno = error;
    return false;
  }
  madvise(data_, bytes_, MADV_DONTFORK);
  return true;
}

void HostPages::unmap() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
  data_ = nullptr;
  descriptor_ = -1;
}

// Every page, by several threads. False, with errno set, when the memory is not there.
bool HostPages::populate(const Options& options) {
  const bool bound = options.bind && bind_to_node(data_, bytes_, options.node.id);
  const bool collapses = kind_ == PageKind::small && options.huge && bytes_ % kHugeBytes == 0 &&
                         transparent_may_work();
  if (collapses) madvise(data_, bytes_, MADV_HUGEPAGE);
  // Where memory cannot be bound it comes from the node of the core that touches it first.
  const bool pinned = options.bind && !bound;
  const std::size_t cores = std::max<std::size_t>(1, options.node.cpus.size());
  const std::size_t wanted = options.threads != 0 ? options.threads : std::min(cores, kMaxThreads);
  const std::size_t threads = std::min<std::size_t>(wanted, (bytes_ + kStep - 1) / kStep);
  // Each call that collapses makes the kernel wait for every core, so a thread makes one.
  const Bytes step = collapses ? round_up((bytes_ + threads - 1) / threads, kHugeBytes) : kStep;
  std::atomic<Bytes> next{0};
  std::atomic<int> error{0};
  const auto work = [&] {
    for (Bytes at = next.fetch_add(step); at < bytes_ && error == 0; at = next.fetch_add(step)) {
      if (has_cancelled(options.cancel)) return;
      const Bytes part = std::min(step, bytes_ - at);
      if (collapses) collapse(data_ + at, part);
      if (const int failed = touch(data_ + at, part); failed != 0) error = failed;
    }
  };
  if (threads <= 1 && !pinned) {
    work();
  } else {
    std::vector<std::jthread> team;
    for (std::size_t index = 0; index < std::max<std::size_t>(threads, 1); ++index) {
      try {
        team.emplace_back([&] {
          if (pinned) pin_this_thread(options.node.cpus);
          work();
        });
      } catch (const std::system_error&) {
        if (team.empty()) work();  // no thread to be had
        break;
      }
    }
  }
  if (has_cancelled(options.cancel)) throw Cancelled{};
  errno = error;
  return error == 0;
}

void HostPages::judge() {
  if (kind_ == PageKind::hugetlb) {
    bytes_huge_ = bytes_;
  } else if (bytes_ >= kHugeBytes && bytes_ % kHugeBytes == 0 && transparent_may_work()) {
    bytes_huge_ = huge_bytes_mapped(data_, bytes_);
    if (bytes_huge_ == 0) transparent_may_work() = false;
    if (2 * bytes_huge_ > bytes_) kind_ = PageKind::transparent;
  }
}

Bytes huge_bytes_mapped(const std::byte* data, Bytes bytes, const std::string& smaps) {
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  std::ifstream file(smaps);
  std::string line;
  bool inside = false;
  Bytes huge = 0;
  while (std::getline(file, line)) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    Bytes kilobytes = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      if (begin >= first + bytes) break;
      inside = begin >= first && end <= first + bytes;
    } else if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %" SCNu64, &kilobytes) == 1) {
      huge += kilobytes * 1024;
    }
  }
  return huge;
}

}  // namespace weave

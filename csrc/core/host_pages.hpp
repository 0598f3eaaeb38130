// core/host_pages.hpp: the memory of one piece of the host pool, before it is registered: a memfd,
// mapped, near one NUMA node, every page there. Huge pages where the host has them: reserved ones
// (hugetlb) first, then transparent ones, else small ones; what kind it is comes from what is
// mapped, never from what a call promised. Not inherited by forked children, which would go on
// writing into memory that a copy engine reads. Called by host_piece.cpp; no lock.
#pragma once

#include <atomic>
#include <string>

#include "core/numa.hpp"
#include "core/types.hpp"

namespace weave {

enum class PageKind { small, transparent, hugetlb };
const char* page_kind_name(PageKind kind);

class HostPages {
 public:
  static constexpr Bytes kHugeBytes = Bytes{2} << 20;

  struct Options {
    Bytes bytes = 0;          // a multiple of the page size
    NumaNode node;            // where the pages shall be
    bool bind = false;        // there is more than one node
    std::size_t threads = 0;  // that touch the pages; 0: as many as the node has cores, up to 8
    bool huge = true;
    const std::atomic<bool>* cancel = nullptr;  // looked at now and then
  };
  // Throws Refusal (host_memory) when the memory is not there; Cancelled.
  explicit HostPages(const Options& options);
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  struct Cancelled {};

  // What a mapping of one huge page gets on this host, asked for as pieces are. shmem: `huge` by
  // advice, `collapsed` when the kernel is told to, `small`; null where it cannot be tried.
  // hugetlb: whether a reserved page can be had now (it is not touched, which could be fatal).
  struct Probe {
    const char* shmem = nullptr;
    bool hugetlb = false;
  };
  static Probe probe();

  std::byte* data() const { return data_; }
  Bytes bytes() const { return bytes_; }
  PageKind kind() const { return kind_; }
  Bytes bytes_huge() const { return bytes_huge_; }
  // Where the pages are: the node that was asked for, if the kernel confirms it, else -1.
  int node() const { return node_; }

 private:
  explicit HostPages(Bytes bytes) : bytes_(bytes) {}
  bool map(bool hugetlb);
  void unmap();
  bool populate(const Options& options);
  void judge();

  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
  int descriptor_ = -1;
  PageKind kind_ = PageKind::small;
  Bytes bytes_huge_ = 0;
  int node_ = -1;
};

// Bytes of [data, data + bytes) that huge pages map, as the kernel's smaps file says.
Bytes huge_bytes_mapped(const std::byte* data, Bytes bytes,
                        const std::string& smaps = "/proc/self/smaps");

}  // namespace weave

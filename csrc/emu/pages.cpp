#include "emu/pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace weave::emu::pages {

namespace {

constexpr int kEmpty = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

std::byte* map_empty(void* at, std::size_t bytes, int extra) {
  void* address = mmap(at, bytes, PROT_NONE, kEmpty | extra, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
}

}  // namespace

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::byte* reserve(std::size_t bytes, std::size_t alignment, void* hint) {
  alignment = std::max(alignment, page_bytes());
  if (hint != nullptr && reinterpret_cast<std::uintptr_t>(hint) % alignment == 0) {
    if (auto* address = map_empty(hint, bytes, MAP_FIXED_NOREPLACE)) {
      if (address == hint) return address;
      munmap(address, bytes);  // a kernel that does not know the flag
    }
  }
  if (bytes + alignment < bytes) return nullptr;
  auto* const whole = map_empty(nullptr, bytes + alignment, 0);
  if (whole == nullptr) return nullptr;
  // Cut the surplus off both ends.
  const auto begin = reinterpret_cast<std::uintptr_t>(whole);
  const std::size_t before = (alignment - begin % alignment) % alignment;
  if (before != 0) munmap(whole, before);
  if (before != alignment) munmap(whole + before + bytes, alignment - before);
  return whole + before;
}

void release(void* address, std::size_t bytes) { munmap(address, bytes); }

std::string file_name(const cu::Uuid& device) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string name = "weave-emulated-block-";
  for (const char byte : device.bytes) {
    name += kHex[static_cast<unsigned char>(byte) >> 4U];
    name += kHex[static_cast<unsigned char>(byte) & 15U];
  }
  return name;
}

int make_file(const std::string& name, std::size_t bytes) {
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return -1;
  }
  return file;
}

bool put_file(void* address, std::size_t bytes, int file, Access access, bool lazy) {
  const int protection = access == Access::none   ? PROT_NONE
                         : access == Access::read ? PROT_READ
                                                  : PROT_READ | PROT_WRITE;
  const int flags = MAP_SHARED | MAP_FIXED | (access == Access::none || lazy ? 0 : MAP_POPULATE);
  if (mmap(address, bytes, protection, flags, file, 0) == MAP_FAILED) return false;
  if (access != Access::none) madvise(address, bytes, MADV_DONTFORK);
  return true;
}

bool put_nothing(void* address, std::size_t bytes) {
  return map_empty(address, bytes, MAP_FIXED) != nullptr;
}

bool populate(std::byte* address, std::size_t bytes) {
  if (bytes % kHugePageBytes == 0) {
    // A hole cannot be collapsed, so one byte of each huge page is touched first. Neither call's
    // result says anything: what is mapped afterwards counts.
    madvise(address, bytes, MADV_HUGEPAGE);
    for (std::size_t at = 0; at < bytes; at += kHugePageBytes) {
      *static_cast<volatile std::byte*>(address + at) = std::byte{0};
    }
    madvise(address, bytes, MADV_COLLAPSE);
  }
  if (madvise(address, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  // Kernels before 5.14.
  for (std::size_t at = 0; at < bytes; at += page_bytes()) {
    *static_cast<volatile std::byte*>(address + at) = std::byte{0};
  }
  return true;
}

bool is_mapped(const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto first = begin / page_bytes() * page_bytes();
  if (begin + bytes < begin) return false;
  // Asks for nothing on memory that is not file-backed, but fails where nothing is mapped.
  return msync(reinterpret_cast<void*>(first), begin + bytes - first, MS_ASYNC) == 0 ||
         errno != ENOMEM;
}

}  // namespace weave::emu::pages

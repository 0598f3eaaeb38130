// emu/pages.hpp: the host's virtual memory as the emulator needs it: memfds, ranges without access,
// fixed shared mappings. Called by memory.cpp and host.cpp; no state, no lock.
#pragma once

#include <cstddef>
#include <string>

#include "driver/abi.hpp"

namespace weave::emu::pages {

std::size_t page_bytes();

// A range without access, aligned to a power of two; at `hint` when it is given and free, else
// anywhere. Null when the address space is exhausted.
std::byte* reserve(std::size_t bytes, std::size_t alignment, void* hint = nullptr);
void release(void* address, std::size_t bytes);

// The name of a device's memfds, by which an importer knows whose block a descriptor is.
std::string file_name(const cu::Uuid& device);
// A close-on-exec memfd of that size, or -1.
int make_file(const std::string& name, std::size_t bytes);

enum class Access { none, read, read_write };

// Puts the file over a reserved range. A mapping with access is not inherited by a forked child,
// which would go on writing, and unless `lazy` its pages are there at once (no first-touch fault).
bool put_file(void* address, std::size_t bytes, int file, Access access, bool lazy = false);
// Puts a range without access back.
bool put_nothing(void* address, std::size_t bytes);

// Allocates all pages behind a writable mapping of put_file: huge ones where the host has them and
// the size is a multiple of 2 MiB. False when the memory is not there.
bool populate(std::byte* address, std::size_t bytes);

// Every page of the range is mapped, whatever its protection.
bool is_mapped(const void* address, std::size_t bytes);

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;

}  // namespace weave::emu::pages

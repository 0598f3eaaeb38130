// An exported handle is a descriptor of the block's memfd, whose name says which device it belongs
// to. An importer opens a description of its own and holds a shared lock on it for as long as it
// has the block, so the exporter can tell, also after the importer was killed, whether one is left.
#include "emu/sharing.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "emu/call.hpp"
#include "emu/capture.hpp"
#include "emu/driver_codes.hpp"
#include "emu/memory.hpp"
#include "emu/pages.hpp"

namespace weave::emu {

namespace {

std::string path_of(int file) { return "/proc/self/fd/" + std::to_string(file); }

// Another description of the same memory. -1 when it cannot be had.
int reopen(int file) { return open(path_of(file).c_str(), O_RDWR | O_CLOEXEC); }

bool has_importer(const Block& block) {
  const int probe = reopen(block.file);
  if (probe < 0) return false;
  const bool held = flock(probe, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!held) flock(probe, LOCK_UN);
  close(probe);
  return held;
}

// pre: memory is held, and so is the ledger, if any.
void forget_bytes(DeviceState& device, const Block& block) {
  device.bytes_used -= block.bytes;
  if (device.ledger) device.ledger->drop(block.inode);
}

std::uint64_t private_bytes(const DeviceState& device) {
  return device.bytes_pending + device.contexts * device.spec.context_bytes;
}

// pre: memory is held. Calls `change` with the ledger, locked, if the device has one.
template <class Change>
void with_ledger(DeviceState& device, Change change) {
  if (!device.ledger) return;
  const Ledger::Exclusive exclusive(*device.ledger);
  change(*device.ledger);
}

std::uint64_t bytes_free_locked(DeviceState& device) {
  std::erase_if(device.lingering, [&](const auto& block) {
    if (has_importer(*block)) return false;
    forget_bytes(device, *block);
    return true;
  });
  auto taken =
      device.bytes_used + device.contexts * device.spec.context_bytes + device.spec.unmanaged_bytes;
  if (device.ledger) taken += device.ledger->bytes_of_others();
  return taken < device.spec.capacity_bytes ? device.spec.capacity_bytes - taken : 0;
}

// The bytes of the device that are free, with other processes kept from taking them meanwhile.
template <class Use>
auto with_bytes_free(DeviceState& device, Use use) {
  if (!device.ledger) return use(bytes_free_locked(device));
  const Ledger::Exclusive exclusive(*device.ledger);
  return use(bytes_free_locked(device));
}

// The device of this process that a descriptor's block belongs to; null for a foreign descriptor.
std::shared_ptr<DeviceState> device_of(int file) {
  char text[256];
  const auto length = readlink(path_of(file).c_str(), text, sizeof text);
  if (length <= 0) return nullptr;
  const std::string_view link(text, static_cast<std::size_t>(length));
  const auto matches = [&](const std::shared_ptr<DeviceState>& device) {
    return device && link.starts_with("/memfd:" + pages::file_name(device->uuid) + " ");
  };
  if (const auto context = current_context(); context && matches(context->device)) {
    return context->device;
  }
  const std::lock_guard lock(driver().registry);
  const auto found = std::ranges::find_if(driver().devices, matches);
  return found == driver().devices.end() ? nullptr : *found;
}

std::uint64_t inode_of(int file, std::uint64_t& bytes) {
  struct stat status{};
  if (fstat(file, &status) != 0) return 0;
  bytes = static_cast<std::uint64_t>(status.st_size);
  return status.st_ino;
}

// The block behind the descriptor: the one that this process has already, or one of its own. Null
// while the memory for it is not there. pre: slow is held, so that two imports do not race.
std::shared_ptr<Block> import_block(const std::shared_ptr<DeviceState>& device, int file) {
  std::uint64_t bytes = 0;
  const auto inode = inode_of(file, bytes);
  {
    const std::lock_guard lock(driver().memory);
    const auto known = driver().blocks.find({device->ordinal, inode});
    auto block = known == driver().blocks.end() ? nullptr : known->second.lock();
    const auto& lingering = device->lingering;
    if (block && (!block->is_over() || std::ranges::find(lingering, block) != lingering.end())) {
      return block;
    }
  }
  const int own = reopen(file);
  if (own < 0) return nullptr;
  while (flock(own, LOCK_SH) != 0 && errno == EINTR) {
  }
  return std::make_shared<Block>(device, bytes, own);
}

}  // namespace

bool take_bytes(DeviceState& device, std::uint64_t bytes) {
  return with_bytes_free(device, [&](std::uint64_t available) {
    if (bytes > available) return false;
    device.bytes_used += bytes;
    device.bytes_pending += bytes;
    if (device.ledger) device.ledger->set_private(private_bytes(device));
    return true;
  });
}

void give_back_bytes(DeviceState& device, std::uint64_t bytes) {
  device.bytes_used -= bytes;
  device.bytes_pending -= bytes;
  with_ledger(device, [&](Ledger& ledger) { ledger.set_private(private_bytes(device)); });
}

void hold_bytes(const Block& block) {
  auto& device = *block.device;
  device.bytes_pending -= block.bytes;
  with_ledger(device, [&](Ledger& ledger) {
    ledger.hold(block.inode, block.bytes);
    ledger.set_private(private_bytes(device));
  });
}

void remember(const std::shared_ptr<Block>& block) {
  auto& blocks = driver().blocks;
  std::erase_if(blocks, [](const auto& entry) { return entry.second.expired(); });
  blocks[{block->device->ordinal, block->inode}] = block;
}

bool take_context(DeviceState& device) {
  return with_bytes_free(device, [&](std::uint64_t available) {
    if (device.spec.context_bytes > available) return false;
    ++device.contexts;
    if (device.ledger) device.ledger->set_private(private_bytes(device));
    return true;
  });
}

void give_back_context(DeviceState& device) {
  --device.contexts;
  with_ledger(device, [&](Ledger& ledger) { ledger.set_private(private_bytes(device)); });
}

void settle(const std::shared_ptr<Block>& block) {
  if (!block->is_over()) return;
  auto& device = *block->device;
  if (block->exported && !block->imported && !device.removed && has_importer(*block)) {
    device.lingering.push_back(block);
    return;
  }
  if (device.ledger) {
    const Ledger::Exclusive exclusive(*device.ledger);
    forget_bytes(device, *block);
  } else {
    forget_bytes(device, *block);
  }
}

std::uint64_t bytes_free(DeviceState& device) {
  return with_bytes_free(device, [](std::uint64_t available) { return available; });
}

namespace calls {

Status mem_export(void* shareable, AllocHandle handle, int type, unsigned long long flags) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    if (shareable == nullptr || flags != 0) return cu::kInvalidValue;
    std::shared_ptr<Block> block;
    if (const auto status = find_handle(handle, "cuMemExportToShareableHandle", block);
        status != cu::kSuccess) {
      return status;
    }
    if (type != cu::kHandlePosixFd || !block->exportable) return codes::export_not_exportable;
    const int file = fcntl(block->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return cu::kOutOfMemory;
    const std::lock_guard lock(driver().memory);
    block->exported = true;
    *static_cast<int*>(shareable) = file;
    return cu::kSuccess;
  });
}

Status mem_import(AllocHandle* handle, void* shareable, int type) {
  return guarded([&]() -> Status {
    if (const auto status = ambient_status(); status != cu::kSuccess) return status;
    if (handle == nullptr || type != cu::kHandlePosixFd) return cu::kInvalidValue;
    const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    const auto device = device_of(file);
    if (!device) return codes::import_foreign;
    const std::lock_guard slow(driver().slow);
    auto block = import_block(device, file);
    if (!block) return cu::kOutOfMemory;
    const std::lock_guard lock(driver().memory);
    if (device->removed) return cu::kInvalidDevice;
    const bool lingered = std::erase(device->lingering, block) != 0;
    if (block->is_over() && !lingered) {
      // Its bytes are not taken but shared: they count already, in the process that made it.
      device->bytes_used += block->bytes;
      device->bytes_pending += block->bytes;
      hold_bytes(*block);
      remember(block);
    }
    ++block->references;
    ++device->handles;
    *handle = driver().handles.add(std::make_shared<AllocReference>(AllocReference{block}));
    return cu::kSuccess;
  });
}

}  // namespace calls

}  // namespace weave::emu

// emu/sharing.hpp: what a device's memory amounts to when other processes may hold it too; the one
// place where bytes are taken and given back. pre for all: Driver::memory is held.
#pragma once

#include "emu/device.hpp"

namespace weave::emu {

// Counts the bytes of a block to be made, or refuses: what does not fit must not be allocated even
// for a moment. Then either a block holds them, or they are given back.
bool take_bytes(DeviceState& device, std::uint64_t bytes);
void give_back_bytes(DeviceState& device, std::uint64_t bytes);
void hold_bytes(const Block& block);

// So that an import in this process finds the block again.
void remember(const std::shared_ptr<Block>& block);

// The same for the memory of a context.
bool take_context(DeviceState& device);
void give_back_context(DeviceState& device);

// No reference or mapping of this process is left: the bytes are free, unless another process has
// imported the block; then they linger until it is gone.
void settle(const std::shared_ptr<Block>& block);

std::uint64_t bytes_free(DeviceState& device);

}  // namespace weave::emu

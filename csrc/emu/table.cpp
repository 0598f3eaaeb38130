// emu/table.cpp: the emulated driver as a value. Every call of calls.def is implemented; the
// compiler checks that. Immutable, no lock.
#include "driver/table.hpp"

#include "driver/clock.hpp"
#include "emu/call.hpp"
#include "emu/emulator.hpp"

namespace weave::emu {

namespace {

constexpr cu::Table kTable = {
#define WEAVE_CALL(field, need, symbol, exported, version, parameters) .field = &calls::field,
#include "driver/calls.def"
#undef WEAVE_CALL
    .now_ns = &cu::system_now_ns,
    .sleep_until_ns = &cu::system_sleep_until_ns,
};
// With -fsanitize=undefined, which comes with address, g++ finds no function address constant.
#ifndef __SANITIZE_ADDRESS__
static_assert(cu::is_complete(kTable));
#endif

}  // namespace

const cu::Table& table() { return kTable; }

}  // namespace weave::emu

// emu/driver_codes.hpp: the codes that a driver gives where its documentation is silent.
// Written by `python -m weave_rt.probe --header RECORD --out THIS` with RECORD being
// bench/records/driver_codes.json. Unproven: not recorded on a real driver yet.
#pragma once

#include "driver/abi.hpp"

namespace weave::emu::codes {

// 3: cuMemCreate, size 0, unproven
inline constexpr cu::Status create_zero = 1;
// 3: cuMemCreate, size no multiple of the granularity, unproven
inline constexpr cu::Status create_unaligned = 1;
// 3: cuMemCreate, flags not 0, unproven
inline constexpr cu::Status create_flags = 1;
// 3: cuMemCreate, an ordinal that does not exist, unproven
inline constexpr cu::Status create_bad_device = 101;
// 4: cuMemAddressReserve, alignment no power of two, unproven
inline constexpr cu::Status reserve_alignment = 1;
// 4: cuMemAddressReserve, size no multiple of the granularity, unproven
inline constexpr cu::Status reserve_unaligned = 1;
// 5: cuMemAddressFree, half of a reservation, unproven
inline constexpr cu::Status free_wrong_size = 1;
// 5: cuMemAddressFree, a reservation with a mapping inside, unproven
inline constexpr cu::Status free_while_mapped = 1;
// 6: cuMemMap, offset not 0, unproven
inline constexpr cu::Status map_offset = 1;
// 6: cuMemMap, flags not 0, unproven
inline constexpr cu::Status map_flags = 1;
// 6: cuMemMap, a range in no reservation, unproven
inline constexpr cu::Status map_outside = 1;
// 6: cuMemMap, a range that is mapped, unproven
inline constexpr cu::Status map_twice = 1;
// 7: cuMemSetAccess, a range with a hole, unproven
inline constexpr cu::Status access_hole = 1;
// 8: cuMemUnmap, a range without a mapping, unproven
inline constexpr cu::Status unmap_nothing = 1;
// 8: cuMemUnmap, half of a mapping, unproven
inline constexpr cu::Status unmap_part = 1;
// 10: cuMemExportToShareableHandle, a handle created without that type, unproven
inline constexpr cu::Status export_not_exportable = 1;
// 10: cuMemImportFromShareableHandle, a descriptor that is no exported handle, unproven
inline constexpr cu::Status import_foreign = 1;
// 13: cuMemHostRegister, 0 bytes, unproven
inline constexpr cu::Status register_zero = 1;
// 15: cuMemcpyHtoDAsync, host memory that begins inside a registration and ends outside, unproven
inline constexpr cu::Status copy_beyond_registration = 1;
// 23: cuStreamBeginCapture, the NULL stream, unproven
inline constexpr cu::Status capture_null_stream = 1;
// 23: cuStreamEndCapture, a stream that is not captured, unproven
inline constexpr cu::Status end_without_capture = 1;
// 23: cuStreamBeginCapture, a stream that is captured already, unproven
inline constexpr cu::Status capture_twice = 1;
// 12: cuMemsetD8Async, memory that is reserved only, unproven
inline constexpr cu::Status copy_without_mapping = 1;

}  // namespace weave::emu::codes

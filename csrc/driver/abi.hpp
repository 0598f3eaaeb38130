// driver/abi.hpp: the part of the CUDA driver ABI that Weave uses, declared by hand.
// The wheel builds without CUDA headers; tests/cpp/abi_check.cpp compares every size, offset and
// constant below with cuda.h wherever one is installed. Everything lives in weave::cu.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weave::cu {

// CUresult. Kept as an int and not an enum: a newer driver may return a code we do not list.
using Status = int;
inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kNotInitialized = 3;
inline constexpr Status kDeinitialized = 4;
inline constexpr Status kNoDevice = 100;
inline constexpr Status kInvalidDevice = 101;
inline constexpr Status kInvalidImage = 200;
inline constexpr Status kInvalidContext = 201;
inline constexpr Status kEccUncorrectable = 214;
inline constexpr Status kInvalidHandle = 400;
inline constexpr Status kIllegalState = 401;
inline constexpr Status kNotFound = 500;
inline constexpr Status kNotReady = 600;
inline constexpr Status kIllegalAddress = 700;
inline constexpr Status kContextIsDestroyed = 709;
inline constexpr Status kHostMemoryAlreadyRegistered = 712;
inline constexpr Status kHostMemoryNotRegistered = 713;
inline constexpr Status kLaunchFailed = 719;
inline constexpr Status kNotPermitted = 800;
inline constexpr Status kNotSupported = 801;
inline constexpr Status kCaptureUnsupported = 900;
inline constexpr Status kCaptureInvalidated = 901;
inline constexpr Status kCaptureWrongThread = 908;
inline constexpr Status kUnknown = 999;

using Device = int;                 // CUdevice: an ordinal
using DevicePtr = std::uint64_t;    // CUdeviceptr
using AllocHandle = std::uint64_t;  // CUmemGenericAllocationHandle
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Graph = struct CUgraph_st*;
using HostFunction = void (*)(void* argument);  // CUhostFn

struct Uuid {
  char bytes[16];
};

struct MemLocation {
  int type;  // kLocationDevice
  int id;    // device ordinal
};
inline constexpr int kLocationDevice = 1;

struct MemAllocationProp {
  int type;                    // kAllocationPinned
  int requested_handle_types;  // kHandleNone or kHandlePosixFd
  MemLocation location;
  void* win32_handle_meta_data;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } alloc_flags;
};
inline constexpr int kAllocationPinned = 1;
inline constexpr int kHandleNone = 0;
inline constexpr int kHandlePosixFd = 1;

struct MemAccessDesc {
  MemLocation location;
  int flags;  // kAccessReadWrite
};
inline constexpr int kAccessNone = 0;
inline constexpr int kAccessRead = 1;
inline constexpr int kAccessReadWrite = 3;

// How the copies of a batch are made (CUmemcpyAttributes).
struct MemcpyAttributes {
  int source_order;         // kSourceOrderStream
  MemLocation source_hint;  // of managed and pageable memory only
  MemLocation target_hint;
  unsigned flags;
};
// The source is read in stream order, like that of a single copy. The other orders let the driver
// read it earlier.
inline constexpr int kSourceOrderInvalid = 0;
inline constexpr int kSourceOrderStream = 1;
inline constexpr int kSourceOrderDuringCall = 2;
inline constexpr int kSourceOrderAny = 3;

inline constexpr unsigned kMemcpyPreferOverlap = 1;  // with kernels: by the copy engine

inline constexpr int kGranularityMinimum = 0;

inline constexpr int kAttributeIntegrated = 18;
inline constexpr int kAttributeComputeMode = 20;
inline constexpr int kAttributePciBusId = 33;
inline constexpr int kAttributePciDeviceId = 34;
inline constexpr int kAttributeAsyncEngineCount = 40;
inline constexpr int kAttributePciDomainId = 50;
inline constexpr int kAttributeVirtualMemoryManagement = 102;
inline constexpr int kAttributePosixFdHandles = 103;
inline constexpr int kAttributeGpuDirectRdmaWithVmm = 110;
inline constexpr int kAttributeMpsEnabled = 133;
inline constexpr int kAttributeHostNumaId = 134;

inline constexpr unsigned kStreamDefault = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr int kCaptureModeGlobal = 0;
inline constexpr int kCaptureModeThreadLocal = 1;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureBroken = 2;  // CU_STREAM_CAPTURE_STATUS_INVALIDATED

}  // namespace weave::cu

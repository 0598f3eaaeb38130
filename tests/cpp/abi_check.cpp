// The ABI that driver/abi.hpp declares by hand, compared with cuda.h: sizes, offsets, constants and
// the signature of every call. Nothing here runs: it compiles, or it names what differs. Used by
// tests/test_cpp.py where a cuda.h is installed.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "driver/table.hpp"

// Two signatures have this name: the table has the first one, which newer headers declare as a type
// only. Headers before 12.8 know neither.
#if CUDA_VERSION >= 13000
#include <cudaTypedefs.h>
#undef cuMemcpyBatchAsync
extern "C" std::remove_pointer_t<PFN_cuMemcpyBatchAsync_v12080> cuMemcpyBatchAsync;
#elif CUDA_VERSION < 12080
extern "C" std::remove_pointer_t<decltype(weave::cu::Table::memcpy_batch_async)> cuMemcpyBatchAsync;
#endif

namespace {

namespace cu = weave::cu;

static_assert(CUDA_VERSION >= 11040);

// Two types that are passed in the same way: integers and enums of one size, pointers to such,
// structs of one size (their members are compared below) or opaque ones.
template <class A, class B>
constexpr bool is_same_abi() {
  if constexpr (std::is_same_v<A, B>) {
    return true;
  } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using To = std::remove_pointer_t<A>;
    using Other = std::remove_pointer_t<B>;
    return std::is_const_v<To> == std::is_const_v<Other> &&
           is_same_abi<std::remove_const_t<To>, std::remove_const_t<Other>>();
  } else if constexpr (std::is_function_v<A> || std::is_function_v<B>) {
    return false;
  } else if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else if constexpr (std::is_class_v<A> && std::is_class_v<B>) {
    if constexpr (requires { sizeof(A); } && requires { sizeof(B); }) {
      return sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
    } else {
      return true;
    }
  } else {
    constexpr bool first = std::is_integral_v<A> || std::is_enum_v<A> || std::is_same_v<A, float>;
    constexpr bool second = std::is_integral_v<B> || std::is_enum_v<B> || std::is_same_v<B, float>;
    return first && second && sizeof(A) == sizeof(B) &&
           std::is_same_v<A, float> == std::is_same_v<B, float>;
  }
}

template <class A, class B>
struct SameCall : std::false_type {};

template <class R, class... As, class S, class... Bs>
  requires(sizeof...(As) == sizeof...(Bs))
struct SameCall<R (*)(As...), S (*)(Bs...)>
    : std::bool_constant<is_same_abi<R, S>() && (is_same_abi<As, Bs>() && ...)> {};

#define WEAVE_CALL(field, need, symbol, exported, version, parameters)              \
  static_assert(SameCall<decltype(&::exported), decltype(cu::Table::field)>::value, \
                #exported " has another signature");
#include "driver/calls.def"
#undef WEAVE_CALL

// The check itself can tell a difference.
static_assert(!SameCall<int (*)(int), int (*)(long)>::value);
static_assert(!SameCall<int (*)(int*), int (*)(const int*)>::value);
static_assert(!SameCall<int (*)(int), int (*)(int, int)>::value);
static_assert(!SameCall<int (*)(float), int (*)(int)>::value);
static_assert(!SameCall<int (*)(void*), int (*)(CUdeviceptr)>::value);
static_assert(!SameCall<int (*)(void (*)(void*)), int (*)(void (*)(int))>::value);

static_assert(sizeof(cu::Status) == sizeof(CUresult));
static_assert(sizeof(cu::Device) == sizeof(CUdevice));
static_assert(sizeof(cu::DevicePtr) == sizeof(CUdeviceptr));
static_assert(sizeof(cu::AllocHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(cu::Uuid) == sizeof(CUuuid));
static_assert(std::is_same_v<cu::HostFunction, CUhostFn>);
static_assert(sizeof(cu::MemLocation) == sizeof(CUmemLocation));
static_assert(offsetof(cu::MemLocation, type) == offsetof(CUmemLocation, type));
static_assert(offsetof(cu::MemLocation, id) == offsetof(CUmemLocation, id));

using Prop = cu::MemAllocationProp;
static_assert(sizeof(Prop) == sizeof(CUmemAllocationProp));
static_assert(offsetof(Prop, type) == offsetof(CUmemAllocationProp, type));
static_assert(offsetof(Prop, requested_handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(Prop, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(Prop, win32_handle_meta_data) ==
              offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(Prop, alloc_flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(offsetof(Prop, alloc_flags.compression_type) ==
              offsetof(CUmemAllocationProp, allocFlags.compressionType));
static_assert(offsetof(Prop, alloc_flags.gpu_direct_rdma_capable) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(offsetof(Prop, alloc_flags.usage) == offsetof(CUmemAllocationProp, allocFlags.usage));

static_assert(sizeof(cu::MemAccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(cu::MemAccessDesc, location) == offsetof(CUmemAccessDesc, location));
static_assert(offsetof(cu::MemAccessDesc, flags) == offsetof(CUmemAccessDesc, flags));

#if CUDA_VERSION >= 12080
using Attributes = cu::MemcpyAttributes;
static_assert(sizeof(Attributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(Attributes, source_order) == offsetof(CUmemcpyAttributes, srcAccessOrder));
static_assert(offsetof(Attributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(offsetof(Attributes, target_hint) == offsetof(CUmemcpyAttributes, dstLocHint));
static_assert(offsetof(Attributes, flags) == offsetof(CUmemcpyAttributes, flags));
#endif

constexpr bool is(auto ours, auto theirs) {
  return static_cast<long long>(ours) == static_cast<long long>(theirs);
}

static_assert(is(cu::kSuccess, CUDA_SUCCESS));
static_assert(is(cu::kInvalidValue, CUDA_ERROR_INVALID_VALUE));
static_assert(is(cu::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(is(cu::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(is(cu::kDeinitialized, CUDA_ERROR_DEINITIALIZED));
static_assert(is(cu::kNoDevice, CUDA_ERROR_NO_DEVICE));
static_assert(is(cu::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE));
static_assert(is(cu::kInvalidImage, CUDA_ERROR_INVALID_IMAGE));
static_assert(is(cu::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT));
static_assert(is(cu::kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE));
static_assert(is(cu::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE));
static_assert(is(cu::kIllegalState, CUDA_ERROR_ILLEGAL_STATE));
static_assert(is(cu::kNotFound, CUDA_ERROR_NOT_FOUND));
static_assert(is(cu::kNotReady, CUDA_ERROR_NOT_READY));
static_assert(is(cu::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(is(cu::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED));
static_assert(is(cu::kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
static_assert(is(cu::kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
static_assert(is(cu::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED));
static_assert(is(cu::kNotPermitted, CUDA_ERROR_NOT_PERMITTED));
static_assert(is(cu::kNotSupported, CUDA_ERROR_NOT_SUPPORTED));
static_assert(is(cu::kCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
static_assert(is(cu::kCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
static_assert(is(cu::kCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
static_assert(is(cu::kUnknown, CUDA_ERROR_UNKNOWN));

static_assert(is(cu::kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE));
static_assert(is(cu::kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED));
static_assert(is(cu::kHandleNone, CU_MEM_HANDLE_TYPE_NONE));
static_assert(is(cu::kHandlePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
static_assert(is(cu::kAccessNone, CU_MEM_ACCESS_FLAGS_PROT_NONE));
static_assert(is(cu::kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ));
static_assert(is(cu::kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
static_assert(is(cu::kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));

static_assert(is(cu::kAttributeIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED));
static_assert(is(cu::kAttributeComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE));
static_assert(is(cu::kAttributePciBusId, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID));
static_assert(is(cu::kAttributePciDeviceId, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
static_assert(is(cu::kAttributePciDomainId, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
static_assert(is(cu::kAttributeAsyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT));
static_assert(is(cu::kAttributeVirtualMemoryManagement,
                 CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(is(cu::kAttributePosixFdHandles,
                 CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
static_assert(is(cu::kAttributeGpuDirectRdmaWithVmm,
                 CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
#if CUDA_VERSION >= 12090
static_assert(is(cu::kAttributeMpsEnabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED));
static_assert(is(cu::kAttributeHostNumaId, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID));
#endif

#if CUDA_VERSION >= 12080
static_assert(is(cu::kMemcpyPreferOverlap, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE));
static_assert(is(cu::kSourceOrderInvalid, CU_MEMCPY_SRC_ACCESS_ORDER_INVALID));
static_assert(is(cu::kSourceOrderStream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM));
static_assert(is(cu::kSourceOrderDuringCall, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL));
static_assert(is(cu::kSourceOrderAny, CU_MEMCPY_SRC_ACCESS_ORDER_ANY));
#endif

static_assert(is(cu::kStreamDefault, CU_STREAM_DEFAULT));
static_assert(is(cu::kStreamNonBlocking, CU_STREAM_NON_BLOCKING));
static_assert(is(cu::kEventDefault, CU_EVENT_DEFAULT));
static_assert(is(cu::kEventBlockingSync, CU_EVENT_BLOCKING_SYNC));
static_assert(is(cu::kEventDisableTiming, CU_EVENT_DISABLE_TIMING));
static_assert(is(cu::kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE));
static_assert(is(cu::kCaptureModeGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL));
static_assert(is(cu::kCaptureModeThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
static_assert(is(cu::kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED));
static_assert(is(cu::kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE));
static_assert(is(cu::kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE));
static_assert(is(cu::kCaptureBroken, CU_STREAM_CAPTURE_STATUS_INVALIDATED));

}  // namespace

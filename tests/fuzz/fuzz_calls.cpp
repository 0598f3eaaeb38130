// Fuzz target: sequences of driver calls on two small emulated devices. The input is a program,
// four bytes an instruction: which call, and three operands that pick handles, sizes and flags,
// valid ones and others. Left out is what is
// undefined on a GPU, for which the emulated device aborts with a story: a handle after its
// release, host memory that is unregistered under a copy. Every call returns; its code is one that
// the driver documents; what exists is counted the same by the census; removing the devices frees
// everything. See README.md.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "emu/emulator.hpp"

using namespace weave;

namespace {

constexpr const char* kSpec =
    "h20?scale=4096&speed=1000&seed=5&capacity=96KiB&granularity=4KiB&block=4KiB&context=4KiB"
    "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns&register=0ns";
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHostPages = 8;

// The driver's calls, and the objects that they made, live or not.
struct Machine {
  const cu::Table table = emu::table();
  int devices[2];
  cu::Context contexts[2] = {};
  std::vector<cu::AllocHandle> handles{0};
  std::vector<cu::DevicePtr> addresses{0};
  std::vector<cu::Stream> streams{nullptr};
  std::vector<cu::Event> events{nullptr};
  unsigned char* host;

  Machine() {
    table.init(0);
    for (int index = 0; index < 2; ++index) {
      devices[index] = emu::add_device(emu::Spec::parse(kSpec));
      table.primary_ctx_retain(&contexts[index], devices[index]);
    }
    host = static_cast<unsigned char*>(mmap(nullptr, kHostPages * kPage, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Machine() {
    cu::Context popped = nullptr;
    while (table.ctx_pop_current(&popped) == cu::kSuccess) {
    }
    for (const int device : devices) emu::remove_device(device);
    munmap(host, kHostPages * kPage);
  }

  void synchronize() {
    cu::Context popped = nullptr;
    for (const cu::Context context : contexts) {
      if (table.ctx_push_current(context) != cu::kSuccess) continue;
      table.ctx_synchronize();
      table.ctx_pop_current(&popped);
    }
  }

  template <class T>
  T pick(const std::vector<T>& from, unsigned operand) const {
    return from[operand % from.size()];
  }
  cu::DevicePtr address(unsigned operand) const {
    return pick(addresses, operand & 15) + (operand >> 4) % 8 * kPage + (operand > 240 ? 1 : 0);
  }
  static std::size_t bytes(unsigned operand) {
    return operand > 250 ? operand : (operand % 9) * kPage;
  }
  std::size_t host_bytes(unsigned operand) const {
    return operand == 0 ? 0 : 1 + operand * 31 % (2 * kPage);
  }
  unsigned char* host_at(unsigned operand) const {
    return host + operand % (kHostPages - 2) * kPage;
  }

  int memory(unsigned op, unsigned a, unsigned b, unsigned c) {
    cu::MemAllocationProp prop{};
    prop.type = a > 250 ? static_cast<int>(b) : cu::kAllocationPinned;
    prop.location = {cu::kLocationDevice, devices[a & 1]};
    const cu::MemAccessDesc desc{{cu::kLocationDevice, devices[c & 1]},
                                 c > 128 ? cu::kAccessReadWrite : static_cast<int>(c % 4)};
    std::size_t size = 0;
    std::size_t total = 0;
    int status = 0;
    switch (op) {
      case 0: {
        cu::AllocHandle handle = 0;
        status = table.mem_create(&handle, bytes(b), &prop, c > 250 ? c : 0);
        if (status == 0) handles.push_back(handle);
        return status;
      }
      case 1: {
        const std::size_t index = a % handles.size();
        status = table.mem_release(handles[index]);
        if (status == 0) handles.erase(handles.begin() + static_cast<std::ptrdiff_t>(index));
        return status;
      }
      case 2: {
        cu::DevicePtr reserved = 0;
        status =
            table.mem_address_reserve(&reserved, bytes(a), b > 200 ? b : 0, 0, c > 250 ? c : 0);
        if (status == 0) addresses.push_back(reserved);
        return status;
      }
      case 3:
        return table.mem_address_free(address(a), bytes(b));
      case 4:
        return table.mem_map(address(a), bytes(1 + (b >> 4)), b > 250 ? kPage : 0, pick(handles, c),
                             0);
      case 5:
        return table.mem_unmap(address(a), bytes(b));
      case 6:
        return table.mem_set_access(address(a), bytes(b), &desc, c > 250 ? 0 : 1);
      case 7:
        return table.mem_get_info(&size, &total);
      default:
        return table.mem_get_allocation_granularity(&size, &prop, static_cast<int>(c % 3));
    }
  }

  // Two copies between these, one behind the other, in one call.
  int batch(cu::DevicePtr target, cu::DevicePtr source, std::size_t size, unsigned order,
            cu::Stream stream) {
    cu::DevicePtr targets[] = {target, target + size};
    cu::DevicePtr sources[] = {source, source + size};
    std::size_t sizes[] = {size, size};
    cu::MemcpyAttributes attributes{order > 250 ? static_cast<int>(order % 5) : 1, {}, {}, 0};
    std::size_t first = 0;
    std::size_t failed = 0;
    return table.memcpy_batch_async(targets, sources, sizes, 2, &attributes, &first, 1, &failed,
                                    stream);
  }

  int work(unsigned op, unsigned a, unsigned b, unsigned c) {
    float milliseconds = 0;
    int status = 0;
    switch (op) {
      case 0:
        return table.mem_host_register(host_at(a), bytes(1 + b % 2), b > 250 ? b : c % 2);
      case 1:
        synchronize();
        return table.mem_host_unregister(host_at(a));
      case 2:
        if (c > 128) {
          return batch(address(a), reinterpret_cast<cu::DevicePtr>(host_at(b)), host_bytes(b), c,
                       pick(streams, c));
        }
        return table.memcpy_htod_async(address(a), host_at(b), host_bytes(b), pick(streams, c));
      case 3:
        if (c > 128) {
          return batch(reinterpret_cast<cu::DevicePtr>(host_at(b)), address(a), host_bytes(b), c,
                       pick(streams, c));
        }
        return table.memcpy_dtoh_async(host_at(b), address(a), host_bytes(b), pick(streams, c));
      case 4:
        return table.memset_d8_async(address(a), static_cast<unsigned char>(b), host_bytes(b),
                                     pick(streams, c));
      case 5: {
        cu::Stream stream = nullptr;
        status = table.stream_create(&stream, a > 250 ? a : a % 2);
        if (status == 0) streams.push_back(stream);
        return status;
      }
      case 6:
        return table.stream_destroy(pick(streams, a));
      case 7:
        return a % 2 ? table.stream_query(pick(streams, b))
                     : table.stream_synchronize(pick(streams, b));
      case 8:
        return table.stream_wait_event(pick(streams, a), pick(events, b), c > 250 ? c : 0);
      case 9: {
        cu::Event event = nullptr;
        status = table.event_create(&event, a > 250 ? a : a % 2 * 2);
        if (status == 0) events.push_back(event);
        return status;
      }
      case 10:
        return table.event_destroy(pick(events, a));
      case 11:
        return table.event_record(pick(events, a), pick(streams, b));
      case 12:
        return a % 2 ? table.event_query(pick(events, b))
                     : table.event_synchronize(pick(events, b));
      default:
        return table.event_elapsed_time(&milliseconds, pick(events, a), pick(events, b));
    }
  }

  int contexts_and_devices(unsigned op, unsigned a, unsigned b) {
    cu::Context context = nullptr;
    int value = 0;
    switch (op) {
      case 0:
      case 1:
        return table.ctx_push_current(contexts[a & 1]);
      case 2:
        return table.ctx_pop_current(&context);
      case 3:
        return table.ctx_set_current(a > 200 ? nullptr : contexts[a & 1]);
      case 4:
        return table.ctx_synchronize();
      case 5:
        return table.primary_ctx_retain(&context, a > 250 ? -1 : devices[a & 1]);
      case 6:
        return table.primary_ctx_release(a > 250 ? 1 << 20 : devices[a & 1]);
      case 7:
        return b > 240 ? table.primary_ctx_reset(devices[a & 1]) : 0;
      default:
        return table.device_get_attribute(&value, static_cast<int>(b), devices[a & 1]);
    }
  }

  int step(const std::uint8_t* code) {
    const unsigned call = code[0] % 33;
    if (call < 10) return memory(call % 9, code[1], code[2], code[3]);
    if (call < 24) return work(call - 10, code[1], code[2], code[3]);
    return contexts_and_devices(call - 24, code[1], code[2]);
  }
};

void require(bool holds, const char* what, std::uint64_t value) {
  if (holds) return;
  std::fprintf(stderr, "%s: %lu\n", what, static_cast<unsigned long>(value));
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kSteps = 200;
  Machine machine;
  for (std::size_t step = 0; step < kSteps && step * 4 + 4 <= size; ++step) {
    const int status = machine.step(data + step * 4);
    require(status >= 0 && status <= 999, "undocumented code", static_cast<std::uint64_t>(status));
    for (const int device : machine.devices) {
      const auto census = emu::census(device);
      require(census.bytes_used <= 96 * 1024, "more bytes than the device has", census.bytes_used);
    }
  }
  return 0;
}

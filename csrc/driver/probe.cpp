#include "driver/probe.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "driver/status.hpp"

namespace weave::cu {

namespace {

constexpr std::size_t kHostBytes = std::size_t{1} << 16U;

// What the cases use: a mapped block, one beside it that is not mapped, registered host memory.
// Nothing is freed when a case threw: the process ends with the error.
class Prober {
 public:
  Prober(const Table& table, Device ordinal) : table_(table), ordinal_(ordinal) {
    check(table_.primary_ctx_retain(&context_, ordinal_), Call::primary_ctx_retain);
    check(table_.ctx_push_current(context_), Call::ctx_push_current);
    prop_.type = kAllocationPinned;
    prop_.location = {kLocationDevice, ordinal_};
    check(table_.mem_get_allocation_granularity(&bytes_, &prop_, kGranularityMinimum),
          Call::mem_get_allocation_granularity);
    check(table_.mem_create(&block_, bytes_, &prop_, 0), Call::mem_create, bytes_);
    check(table_.mem_create(&spare_, bytes_, &prop_, 0), Call::mem_create, bytes_);
    check(table_.mem_address_reserve(&address_, 4 * bytes_, 0, 0, 0), Call::mem_address_reserve);
    check(table_.mem_map(address_, bytes_, 0, block_, 0), Call::mem_map);
    const MemAccessDesc desc = access();
    check(table_.mem_set_access(address_, bytes_, &desc, 1), Call::mem_set_access);
    void* const host =
        mmap(nullptr, 2 * kHostBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) throw UsageError("no host memory to probe with");
    host_ = static_cast<std::byte*>(host);
    check(table_.mem_host_register(host_, kHostBytes, kHostRegisterPortable),
          Call::mem_host_register, kHostBytes);
  }

  std::vector<Probe> run() {
    create();
    reserve();
    map();
    share();
    host();
    capture();
    clean_up();
    copy_without_mapping();
    table_.ctx_pop_current(nullptr);
    table_.primary_ctx_release(ordinal_);
    return std::move(results_);
  }

 private:
  MemAccessDesc access() const { return {{kLocationDevice, ordinal_}, kAccessReadWrite}; }

  void note(const char* name, int behaviour, Call call, const char* mistake, Status code) {
    results_.push_back({name, behaviour, call, mistake, code});
  }

  void create() {
    const auto made = [&](const char* name, const char* mistake, std::size_t bytes,
                          const MemAllocationProp& prop, unsigned long long flags) {
      AllocHandle handle = 0;
      const Status status = table_.mem_create(&handle, bytes, &prop, flags);
      if (status == kSuccess) table_.mem_release(handle);
      note(name, 3, Call::mem_create, mistake, status);
    };
    made("create_zero", "size 0", 0, prop_, 0);
    made("create_unaligned", "size no multiple of the granularity", bytes_ / 2, prop_, 0);
    made("create_flags", "flags not 0", bytes_, prop_, 1);
    MemAllocationProp elsewhere = prop_;
    elsewhere.location.id = 1 << 20;
    made("create_bad_device", "an ordinal that does not exist", bytes_, elsewhere, 0);
  }

  void reserve() {
    const auto reserved = [&](const char* name, const char* mistake, std::size_t bytes,
                              std::size_t alignment) {
      DevicePtr address = 0;
      const Status status = table_.mem_address_reserve(&address, bytes, alignment, 0, 0);
      if (status == kSuccess) table_.mem_address_free(address, bytes);
      note(name, 4, Call::mem_address_reserve, mistake, status);
    };
    reserved("reserve_alignment", "alignment no power of two", bytes_, 3 * bytes_);
    reserved("reserve_unaligned", "size no multiple of the granularity", bytes_ + 1, 0);
    const auto freed = [&](const char* name, const char* mistake, std::size_t bytes) {
      const Status status = table_.mem_address_free(address_, bytes);
      note(name, 5, Call::mem_address_free, mistake, status);
      if (status == kSuccess) throw UsageError(std::string("cannot go on after ") + mistake);
    };
    freed("free_wrong_size", "half of a reservation", 2 * bytes_);
    freed("free_while_mapped", "a reservation with a mapping inside", 4 * bytes_);
  }

  void map() {
    const auto mapped = [&](const char* name, const char* mistake, DevicePtr address,
                            std::size_t offset, unsigned long long flags) {
      const Status status = table_.mem_map(address, bytes_, offset, spare_, flags);
      if (status == kSuccess) table_.mem_unmap(address, bytes_);
      note(name, 6, Call::mem_map, mistake, status);
    };
    const DevicePtr beside = address_ + bytes_;
    mapped("map_offset", "offset not 0", beside, bytes_, 0);
    mapped("map_flags", "flags not 0", beside, 0, 1);
    mapped("map_outside", "a range in no reservation", address_ + 4 * bytes_ * 1024, 0, 0);
    mapped("map_twice", "a range that is mapped", address_, 0, 0);
    const MemAccessDesc desc = access();
    note("access_hole", 7, Call::mem_set_access, "a range with a hole",
         table_.mem_set_access(address_, 2 * bytes_, &desc, 1));
    note("unmap_nothing", 8, Call::mem_unmap, "a range without a mapping",
         table_.mem_unmap(beside, bytes_));
    note("unmap_part", 8, Call::mem_unmap, "half of a mapping",
         table_.mem_unmap(address_, bytes_ / 2));
  }

  void share() {
    int file = -1;
    if (table_.mem_export != nullptr) {
      const Status status = table_.mem_export(&file, block_, kHandlePosixFd, 0);
      if (status == kSuccess) close(file);
      note("export_not_exportable", 10, Call::mem_export, "a handle created without that type",
           status);
    }
    if (table_.mem_import == nullptr) return;
    file = memfd_create("weave-probe", MFD_CLOEXEC);
    AllocHandle handle = 0;
    auto* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
    const Status status = table_.mem_import(&handle, shareable, kHandlePosixFd);
    if (status == kSuccess) table_.mem_release(handle);
    close(file);
    note("import_foreign", 10, Call::mem_import, "a descriptor that is no exported handle", status);
  }

  void host() {
    note("register_zero", 13, Call::mem_host_register, "0 bytes",
         table_.mem_host_register(host_ + kHostBytes, 0, kHostRegisterPortable));
    const Status status =
        table_.memcpy_htod_async(address_, host_ + kHostBytes / 2, kHostBytes, nullptr);
    table_.ctx_synchronize();
    note("copy_beyond_registration", 15, Call::memcpy_htod_async,
         "host memory that begins inside a registration and ends outside", status);
  }

  void capture() {
    if (table_.stream_begin_capture == nullptr || table_.stream_end_capture == nullptr) return;
    Graph graph = nullptr;
    const auto end = [&](Stream stream) {
      const Status status = table_.stream_end_capture(stream, &graph);
      if (graph != nullptr && table_.graph_destroy != nullptr) table_.graph_destroy(graph);
      graph = nullptr;
      return status;
    };
    Stream stream = nullptr;
    check(table_.stream_create(&stream, kStreamNonBlocking), Call::stream_create);
    const Status of_null = table_.stream_begin_capture(nullptr, kCaptureModeRelaxed);
    if (of_null == kSuccess) end(nullptr);
    note("capture_null_stream", 23, Call::stream_begin_capture, "the NULL stream", of_null);
    note("end_without_capture", 23, Call::stream_end_capture, "a stream that is not captured",
         end(stream));
    check(table_.stream_begin_capture(stream, kCaptureModeRelaxed), Call::stream_begin_capture);
    note("capture_twice", 23, Call::stream_begin_capture, "a stream that is captured already",
         table_.stream_begin_capture(stream, kCaptureModeRelaxed));
    end(stream);
    check(table_.stream_destroy(stream), Call::stream_destroy);
  }

  void clean_up() {
    table_.ctx_synchronize();
    table_.mem_host_unregister(host_);
    munmap(host_, 2 * kHostBytes);
    table_.mem_unmap(address_, bytes_);
    table_.mem_address_free(address_, 4 * bytes_);
    table_.mem_release(block_);
    table_.mem_release(spare_);
  }

  // Refused at submission, or found out later: then the context is lost, and a fresh one is tried,
  // for a driver that does either. Success says that it was never refused.
  void copy_without_mapping() {
    constexpr int kTries = 16;
    Status refused = kSuccess;
    for (int attempt = 0; attempt < kTries && refused == kSuccess; ++attempt) {
      DevicePtr address = 0;
      if (table_.mem_address_reserve(&address, bytes_, 0, 0, 0) != kSuccess) break;
      refused = table_.memset_d8_async(address, 1, 16, nullptr);
      const bool lost = table_.ctx_synchronize() != kSuccess;
      table_.mem_address_free(address, bytes_);
      if (!lost) continue;
      table_.ctx_pop_current(nullptr);
      table_.primary_ctx_release(ordinal_);
      check(table_.primary_ctx_retain(&context_, ordinal_), Call::primary_ctx_retain);
      check(table_.ctx_push_current(context_), Call::ctx_push_current);
      if (table_.ctx_synchronize() != kSuccess) break;  // only a new process helps
      table_.mem_address_free(address, bytes_);
    }
    note("copy_without_mapping", 12, Call::memset_d8_async, "memory that is reserved only",
         refused);
  }

  const Table& table_;
  const Device ordinal_;
  Context context_ = nullptr;
  MemAllocationProp prop_{};
  std::size_t bytes_ = 0;  // one granule
  AllocHandle block_ = 0;
  AllocHandle spare_ = 0;
  DevicePtr address_ = 0;  // of a reservation of four granules; the first is mapped
  std::byte* host_ = nullptr;
  std::vector<Probe> results_;
};

}  // namespace

std::vector<Probe> probe(const Table& table, Device ordinal) {
  return Prober(table, ordinal).run();
}

}  // namespace weave::cu

#include "core/tensor_copies.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "core/vmm.hpp"

namespace weave {

// Host memory of one tensor: from the allocator as torch's CPU tensors are (64-byte aligned), or
// mapped, touched and registered on the spot.
class TensorCopies::Buffer {
 public:
  Buffer(const ContextRef& context, Bytes bytes, Host host) : bytes_(bytes) {
    if (host == Host::pageable) {
      void* address = nullptr;
      if (posix_memalign(&address, 64, bytes) != 0) throw std::bad_alloc();
      data_ = static_cast<std::byte*>(address);
      return;
    }
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    const auto status =
        context->driver().table.mem_host_register(address, bytes, cu::kHostRegisterPortable);
    if (status != cu::kSuccess) {
      munmap(address, bytes);
      cu::check(status, cu::Call::mem_host_register, bytes);
    }
    data_ = static_cast<std::byte*>(address);
    pinned_in_ = context;
  }
  ~Buffer() {
    if (pinned_in_ == nullptr) {
      std::free(data_);
      return;
    }
    // Pages stay mapped until they are pinned no longer: both steps are one undo.
    pinned_in_->driver_ref()->undo(
        cu::Call::mem_host_unregister,
        [context = std::weak_ptr<Context>(pinned_in_), ordinal = pinned_in_->driver().ordinal,
         data = data_, bytes = bytes_](const cu::Table& table) {
          const auto status = end_registration(table, ordinal, context, data);
          if (status == cu::kSuccess) munmap(data, bytes);
          return status;
        });
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  Bytes bytes_;
  std::byte* data_ = nullptr;
  ContextRef pinned_in_;
};

TensorCopies::TensorCopies(DriverRef driver, const std::vector<Bytes>& segment_bytes,
                           std::vector<Tensor> tensors)
    : driver_(std::move(driver)), segment_bytes_(segment_bytes), tensors_(std::move(tensors)) {
  for (const auto& tensor : tensors_) {
    if (tensor.segment >= segment_bytes_.size() || tensor.bytes == 0 ||
        tensor.offset > segment_bytes_[tensor.segment] ||
        tensor.bytes > segment_bytes_[tensor.segment] - tensor.offset) {
      throw UsageError("a tensor of at least one byte must lie inside its segment");
    }
  }
  granularity_ = granularity(*driver_);
  context_ = std::make_shared<Context>(driver_);
  const ContextScope scope(*context_);
  stream_ = std::make_unique<Stream>(context_);
}

TensorCopies::~TensorCopies() { close(); }

void TensorCopies::require_open() const {
  if (stream_ == nullptr) throw UsageError("these tensors are closed");
}

const TensorCopies::Tensor& TensorCopies::at(std::size_t tensor) const {
  if (tensor >= tensors_.size()) throw UsageError("there is no such tensor");
  return tensors_[tensor];
}

cu::DevicePtr TensorCopies::address(const Tensor& tensor) const {
  return segments_[tensor.segment].mapping.address() + tensor.offset;
}

void TensorCopies::synchronize() {
  cu::check(driver_->table.stream_synchronize(stream_->raw()), cu::Call::stream_synchronize);
}

bool TensorCopies::settle() noexcept {
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (driver_->table.stream_synchronize(stream_->raw()) == cu::kSuccess) return true;
  }
  return false;
}

// Runs steps in the context, after what an earlier failure left undone.
template <class Steps>
void TensorCopies::in_context(Steps steps) {
  require_open();
  const ContextScope scope(*context_);
  driver_->retry_buried();
  if ((!stuck_buffers_.empty() || !stuck_segments_.empty()) && settle()) {
    stuck_buffers_.clear();
    stuck_segments_.clear();
  }
  steps();
}

std::vector<TensorCopies::Segment> TensorCopies::fresh_segments() const {
  std::vector<Segment> fresh;
  for (const Bytes wanted : segment_bytes_) {
    const Bytes bytes = round_up(wanted, granularity_);
    auto block = std::make_shared<Block>(driver_, bytes, false);
    auto reservation = std::make_shared<Reservation>(driver_, bytes);
    Mapping mapping(reservation, std::move(block), 0);
    set_access(*driver_, mapping.address(), bytes);
    fresh.push_back({std::move(reservation), std::move(mapping)});
  }
  return fresh;
}

void TensorCopies::allocate() {
  if (on_device()) return;
  in_context([&] { segments_ = fresh_segments(); });
}

void TensorCopies::copy_in(const Tensor& tensor, const std::byte* source) {
  cu::check(driver_->table.memcpy_htod_async(address(tensor), source, tensor.bytes, stream_->raw()),
            cu::Call::memcpy_htod_async, tensor.bytes);
  synchronize();
}

void TensorCopies::load(std::size_t tensor, const std::byte* source) {
  if (!on_device()) throw UsageError("these tensors have no device memory; allocate first");
  in_context([&] {
    try {
      copy_in(at(tensor), source);
    } catch (const DriverError&) {
      settle();  // the source is pageable, hence read already
      throw;
    }
  });
}

void TensorCopies::fill(std::size_t tensor, unsigned char value) {
  if (!on_device()) throw UsageError("these tensors have no device memory; allocate first");
  in_context([&] {
    const auto& one = at(tensor);
    if (driver_->table.memset_d8_async == nullptr) throw UsageError("this driver cannot fill");
    cu::check(driver_->table.memset_d8_async(address(one), value, one.bytes, stream_->raw()),
              cu::Call::memset_d8_async, one.bytes);
    synchronize();
  });
}

double TensorCopies::move_out(Host host) {
  if (!on_device()) throw UsageError("these tensors are not on the device");
  const auto& table = driver_->table;
  const std::int64_t started = table.now_ns();
  in_context([&] {
    std::vector<std::unique_ptr<Buffer>> buffers(tensors_.size());
    try {
      for (std::size_t index = 0; index < tensors_.size(); ++index) {
        const auto& tensor = tensors_[index];
        if (!tensor.keep) continue;
        buffers[index] = std::make_unique<Buffer>(context_, tensor.bytes, host);
        cu::check(table.memcpy_dtoh_async(buffers[index]->data(), address(tensor), tensor.bytes,
                                          stream_->raw()),
                  cu::Call::memcpy_dtoh_async, tensor.bytes);
        synchronize();
      }
    } catch (const DriverError&) {
      if (!settle()) {
        for (auto& buffer : buffers) stuck_buffers_.push_back(std::move(buffer));
      }
      throw;
    }
    buffers_ = std::move(buffers);
    segments_.clear();
  });
  return static_cast<double>(table.now_ns() - started) / 1e9;
}

double TensorCopies::move_in() {
  if (on_device() || buffers_.empty()) throw UsageError("these tensors are not on the host");
  const auto& table = driver_->table;
  const std::int64_t started = table.now_ns();
  in_context([&] {
    segments_ = fresh_segments();
    try {
      for (std::size_t index = 0; index < tensors_.size(); ++index) {
        if (buffers_[index] != nullptr) copy_in(tensors_[index], buffers_[index]->data());
      }
    } catch (const DriverError&) {
      if (!settle()) {
        for (auto& segment : segments_) stuck_segments_.push_back(std::move(segment));
      }
      segments_.clear();
      throw;
    }
    buffers_.clear();
  });
  return static_cast<double>(table.now_ns() - started) / 1e9;
}

void TensorCopies::drop() {
  in_context([&] {
    synchronize();
    segments_.clear();
    buffers_.clear();
  });
}

std::vector<std::byte> TensorCopies::host_copy(std::size_t tensor) const {
  const auto& one = at(tensor);
  if (buffers_.empty() || buffers_[tensor] == nullptr) {
    throw UsageError("this tensor has no host copy");
  }
  return {buffers_[tensor]->data(), buffers_[tensor]->data() + one.bytes};
}

void TensorCopies::close() noexcept {
  if (stream_ == nullptr) {
    driver_->retry_buried();
    return;
  }
  {
    std::optional<ContextScope> scope;
    try {
      scope.emplace(*context_);
    } catch (const DriverError&) {
      // The context is lost; releasing it takes stream and registrations along.
    }
    if (scope && !settle()) driver_->table.ctx_synchronize();
    stuck_segments_.clear();
    segments_.clear();
    stuck_buffers_.clear();
    buffers_.clear();
    stream_.reset();
    driver_->retry_buried();
  }
  context_.reset();
  driver_->retry_buried();
}

}  // namespace weave

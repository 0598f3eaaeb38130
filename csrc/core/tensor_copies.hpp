// core/tensor_copies.hpp: what frameworks do without us, through the same driver table: device
// memory allocated when tensors come and given back when they went, one synchronous copy a tensor,
// into host memory that is fresh each time. The naive arms of the benchmarks; the engine never uses
// it. Not for two threads at once; no lock.
#pragma once

#include <memory>
#include <vector>

#include "core/stream.hpp"
#include "core/vmm.hpp"

namespace weave {

class TensorCopies {
 public:
  enum class Host { pageable, pinned_now };
  // Where a tensor lies: in which allocation, as torch's caching allocator packs several into one.
  struct Tensor {
    std::size_t segment = 0;
    Bytes offset = 0;
    Bytes bytes = 0;
    bool keep = true;  // copied out; one that is not has only its memory taken and given
  };

  // Starts with no memory at all. pre: each tensor lies inside its segment. Throws UsageError,
  // DriverError.
  TensorCopies(DriverRef driver, const std::vector<Bytes>& segment_bytes,
               std::vector<Tensor> tensors);
  ~TensorCopies();
  TensorCopies(const TensorCopies&) = delete;
  TensorCopies& operator=(const TensorCopies&) = delete;

  // Device memory for all tensors, contents undefined. On the device already: nothing to do.
  // Throws DriverError; then there is none.
  void allocate();
  // One synchronous copy from ordinary memory of as many bytes as the tensor has, or a fill.
  // pre: on_device(). Throws UsageError, DriverError.
  void load(std::size_t tensor, const std::byte* source);
  void fill(std::size_t tensor, unsigned char value);
  // Both return seconds of the device's clock. A failure leaves everything where it was.
  // move_out pre: on_device(). move_in pre: move_out was the last. Throws UsageError, DriverError.
  double move_out(Host host);
  double move_in();
  // Gives the device memory back without saving anything.
  void drop();
  // The host copy of a kept tensor. pre: moved out. Throws UsageError.
  std::vector<std::byte> host_copy(std::size_t tensor) const;
  // Ends it; twice is fine, again tries what the driver refused. Operations then throw UsageError.
  void close() noexcept;

  bool on_device() const { return !segments_.empty(); }
  Bytes bytes_of(std::size_t tensor) const { return at(tensor).bytes; }  // throws UsageError

 private:
  class Buffer;
  struct Segment {
    std::shared_ptr<Reservation> reservation;
    Mapping mapping;
  };

  void require_open() const;
  std::vector<Segment> fresh_segments() const;
  const Tensor& at(std::size_t tensor) const;
  cu::DevicePtr address(const Tensor& tensor) const;
  void copy_in(const Tensor& tensor, const std::byte* source);
  void synchronize();
  bool settle() noexcept;
  template <class Steps>
  void in_context(Steps steps);

  DriverRef driver_;
  ContextRef context_;
  std::unique_ptr<Stream> stream_;
  Bytes granularity_ = 0;
  std::vector<Bytes> segment_bytes_;
  std::vector<Tensor> tensors_;
  std::vector<Segment> segments_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // host copies, by tensor; null for one without
  // Memory under copies of which nobody knows whether they ended.
  std::vector<std::unique_ptr<Buffer>> stuck_buffers_;
  std::vector<Segment> stuck_segments_;
};

}  // namespace weave

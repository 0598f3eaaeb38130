// bindings/tensor_copies.cpp: TensorCopies, the naive arms of the benchmarks.
#include "core/tensor_copies.hpp"

#include "bindings/bind.hpp"

namespace weave::bindings {

namespace {

using Entry = std::tuple<std::size_t, Bytes, Bytes, bool>;

std::unique_ptr<TensorCopies> make(const DeviceObject& device,
                                   const std::vector<Bytes>& segment_bytes,
                                   const std::vector<Entry>& entries) {
  std::vector<TensorCopies::Tensor> tensors;
  tensors.reserve(entries.size());
  for (const auto& [segment, offset, bytes, keep] : entries) {
    tensors.push_back({segment, offset, bytes, keep});
  }
  const py::gil_scoped_release release;
  return std::make_unique<TensorCopies>(device.device->driver_ref(), segment_bytes,
                                        std::move(tensors));
}

// A contiguous buffer, held while its bytes are read.
class HeldBuffer {
 public:
  explicit HeldBuffer(const py::object& source) {
    if (PyObject_GetBuffer(source.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  ~HeldBuffer() { PyBuffer_Release(&view_); }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  const std::byte* data() const { return static_cast<const std::byte*>(view_.buf); }
  Bytes bytes() const { return static_cast<Bytes>(view_.len); }

 private:
  Py_buffer view_{};
};

void load(TensorCopies& self, std::size_t tensor, const py::object& source) {
  const HeldBuffer buffer(source);
  if (buffer.bytes() != self.bytes_of(tensor)) {
    throw UsageError("the source has " + std::to_string(buffer.bytes()) + " bytes, the tensor " +
                     std::to_string(self.bytes_of(tensor)));
  }
  const py::gil_scoped_release release;
  self.load(tensor, buffer.data());
}

py::bytes host_copy(const TensorCopies& self, std::size_t tensor) {
  const auto copy = self.host_copy(tensor);
  return {reinterpret_cast<const char*>(copy.data()), copy.size()};
}

double move_out(TensorCopies& self, bool pinned) {
  return self.move_out(pinned ? TensorCopies::Host::pinned_now : TensorCopies::Host::pageable);
}

}  // namespace

void bind_tensor_copies(py::module_& module) {
  py::class_<TensorCopies>(module, "TensorCopies")
      .def(py::init(&make), py::arg("device"), py::arg("segment_bytes"), py::arg("tensors"))
      .def_property_readonly("on_device", &TensorCopies::on_device)
      .def("allocate", &TensorCopies::allocate, ReleaseGil())
      .def("load", &load, py::arg("tensor"), py::arg("source"))
      .def("fill", &TensorCopies::fill, py::arg("tensor"), py::arg("value"), ReleaseGil())
      .def("move_out", &move_out, py::arg("pinned"), ReleaseGil())
      .def("move_in", &TensorCopies::move_in, ReleaseGil())
      .def("drop", &TensorCopies::drop, ReleaseGil())
      .def("host_copy", &host_copy, py::arg("tensor"))
      .def("close", &TensorCopies::close, ReleaseGil());
}

}  // namespace weave::bindings

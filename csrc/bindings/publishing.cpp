// bindings/publishing.cpp: Publication, and the checksums of verification.
#include <cstring>

#include "bindings/bind.hpp"
#include "core/checksum.hpp"

namespace weave::bindings {

namespace {

void write(PublicationObject& self, const RegionObject& region, Bytes offset,
           const py::buffer& data) {
  const py::buffer_info info = data.request();
  auto expected = info.itemsize;
  for (auto axis = static_cast<std::size_t>(info.ndim); axis-- > 0;) {
    if (info.shape[axis] > 1 && info.strides[axis] != expected) {
      throw UsageError("the bytes to publish must be contiguous");
    }
    expected *= info.shape[axis];
  }
  const py::gil_scoped_release release;
  const auto* from = static_cast<const std::byte*>(info.ptr);
  const auto bytes = static_cast<Bytes>(info.size * info.itemsize);
  const Publication::Writing writing(*self.publication);
  for (const auto& place : self.publication->place(region.region, offset, bytes)) {
    std::memcpy(place.host, from, place.bytes);
    from += place.bytes;
  }
  self.publication->wrote(region.region, offset, bytes);
}

void copy(PublicationObject& self, const RegionObject& region, Bytes offset,
          const RegionObject& source, Bytes source_offset, Bytes bytes) {
  source.owner->device->read(source.region, source_offset, bytes, *self.publication, region.region,
                             offset);
}

void commit_together(const std::vector<PublicationObject*>& publications) {
  std::vector<Device::Version> versions;
  for (const auto* one : publications) {
    if (one == nullptr) throw UsageError("commit_together takes publications");
    versions.push_back({one->owner->device.get(), one->publication});
  }
  const py::gil_scoped_release release;
  Device::commit_together(versions);
}

std::uint64_t checksum(const py::bytes& data, bool of_block) {
  const std::string_view text = data;
  // Only reads: ranges name host memory that is written elsewhere.
  auto* bytes = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(text.data()));
  if (!of_block) return xxh3_64(bytes, text.size());
  const Range whole{0, text.size(), bytes};
  return block_checksum({&whole, 1});
}

}  // namespace

void bind_publishing(py::module_& module) {
  py::class_<PublicationObject>(module, "Publication")
      .def("write", &write, py::arg("region"), py::arg("offset"), py::arg("data"))
      .def("copy", &copy, py::arg("region"), py::arg("offset"), py::arg("source"),
           py::arg("source_offset"), py::arg("bytes"), ReleaseGil())
      .def(
          "commit", [](PublicationObject& self) { self.owner->device->commit(self.publication); },
          ReleaseGil())
      .def(
          "abort", [](PublicationObject& self) { self.owner->device->abort(self.publication); },
          ReleaseGil())
      .def_property_readonly(
          "ended", locked([](const PublicationObject& self) { return self.publication->ended(); }));
  module.def("commit_together", &commit_together, py::arg("publications"));
  module.def(
      "xxh3_64", [](const py::bytes& data) { return checksum(data, false); }, py::arg("data"));
  module.def(
      "block_checksum", [](const py::bytes& data) { return checksum(data, true); },
      py::arg("data"));
}

}  // namespace weave::bindings

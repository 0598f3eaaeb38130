// bindings/memory.cpp: Tenant, Region and Span. Span's buffer is the one place that makes an
// emulated region readable by the CPU; on a GPU a span has an address and no buffer.
#include "bindings/bind.hpp"
#include "emu/emulator.hpp"

namespace weave::bindings {

namespace {

const char* state_name(RegionState state) {
  switch (state) {
    case RegionState::resident:
      return "RESIDENT";
    case RegionState::leaving:
      return "LEAVING";
    case RegionState::host:
      return "HOST";
    case RegionState::entering:
      return "ENTERING";
    case RegionState::discarded:
      return "DISCARDED";
    case RegionState::failed:
      return "FAILED";
  }
  return "";
}

Policy policy_named(const std::string& name) {
  if (name == "keep") return Policy::keep;
  if (name == "reload") return Policy::reload;
  if (name == "discard") return Policy::discard;
  throw UsageError("policy '" + name + "': expected keep, reload or discard");
}

const char* policy_name(Policy policy) {
  return policy == Policy::keep ? "keep" : policy == Policy::reload ? "reload" : "discard";
}

Fill fill_named(const std::string& name) {
  if (name == "none") return Fill::none;
  if (name == "zero") return Fill::zero;
  if (name == "poison") return Fill::poison;
  throw UsageError("fill '" + name + "': expected none, zero or poison");
}

const char* fill_name(Fill fill) {
  return fill == Fill::none ? "none" : fill == Fill::zero ? "zero" : "poison";
}

std::string tenant_state(const TenantObject& self) {
  if (self.tenant->closed) return "CLOSED";
  if (self.tenant->failed) return "FAILED";
  const auto place = self.owner->device->place(self.tenant);
  if (place.blocks_on_device == 0 && place.blocks > 0) return "HOST";
  return place.all_mapped ? "RESIDENT" : "PARTIAL";
}

bool is_readable(const Region& region) {
  const auto tenant = region.tenant.lock();
  return tenant != nullptr && tenant->uses(region) && region.state == RegionState::resident;
}

void require_readable(const Region& region) {
  if (is_readable(region)) return;
  const auto tenant = region.tenant.lock();
  const std::string name = tenant == nullptr ? "" : tenant->name;
  Refusal refusal(Refusal::Kind::not_resident,
                  "region " + region.tag + " of tenant " + name +
                      " may not be touched now: its tenant does not run with it; resume it first");
  refusal.tag = region.tag;
  refusal.tenant = name;
  refusal.job = tenant == nullptr ? "" : tenant->job;
  throw refusal;
}

py::buffer_info buffer(SpanObject& self) {
  if (self.owner->kind != "emulated") {
    throw UsageError("memory of a GPU has no CPU view; use address");
  }
  const Region& region = *self.span->region();
  require_readable(region);
  emu::host_view(region.address(), true);
  return {reinterpret_cast<std::uint8_t*>(self.span->address()),
          static_cast<py::ssize_t>(self.span->bytes())};
}

py::list regions(const TenantObject& self) {
  std::vector<std::shared_ptr<Region>> found;
  {
    const py::gil_scoped_release release;
    found = self.owner->device->place(self.tenant).regions;
  }
  py::list result;
  for (const auto& region : found) result.append(py::cast(RegionObject{self.owner, region}));
  return result;
}

// Straight into the objects that Python gets, one region after the other.
py::dict rescue(const TenantObject& self, const std::string& tag) {
  const auto found = [&] {
    const py::gil_scoped_release release;
    return self.owner->device->rescuable(self.tenant);
  }();
  py::dict result;
  for (const auto& region : found) {
    if (!tag.empty() && region.tag != tag) continue;
    py::object bytes = py::reinterpret_steal<py::object>(
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(region.bytes)));
    if (!bytes) throw py::error_already_set();
    auto* const data = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr()));
    const bool complete = [&] {
      const py::gil_scoped_release release;
      return self.owner->device->rescue_into(self.tenant, region.tag, {data, region.bytes});
    }();
    if (complete) result[py::str(region.tag)] = bytes;
  }
  return result;
}

py::dict rescuable(const TenantObject& self) {
  const auto found = [&] {
    const py::gil_scoped_release release;
    return self.owner->device->rescuable(self.tenant);
  }();
  py::dict result;
  for (const auto& region : found) result[py::str(region.tag)] = region.bytes;
  return result;
}

template <class Object, class Member>
void bind_identity(py::class_<Object>& type, Member member) {
  type.def("__eq__",
           [member](const Object& self, const py::object& other) {
             return py::isinstance<Object>(other) &&
                    self.*member == other.cast<const Object&>().*member;
           })
      .def("__hash__", [member](const Object& self) {
        return reinterpret_cast<std::uintptr_t>((self.*member).get()) >> 4;
      });
}

void bind_tenant(py::module_& module) {
  py::class_<TenantObject> type(module, "Tenant");
  bind_identity(type, &TenantObject::tenant);
  type.def_property_readonly("name", [](const TenantObject& self) { return self.tenant->name; })
      .def_property_readonly("job", [](const TenantObject& self) { return self.tenant->job; })
      .def_property_readonly("device", [](const TenantObject& self) { return self.owner; })
      .def_property_readonly("running",
                             [](const TenantObject& self) { return self.tenant->running.load(); })
      .def_property_readonly("state", locked(&tenant_state))
      .def_property_readonly("bytes", locked([](const TenantObject& self) {
                               return self.owner->device->place(self.tenant).blocks *
                                      self.owner->device->block_bytes();
                             }))
      .def_property_readonly("bytes_resident", locked([](const TenantObject& self) {
                               return self.owner->device->place(self.tenant).blocks_on_device *
                                      self.owner->device->block_bytes();
                             }))
      .def_property_readonly("bytes_spilled", locked([](const TenantObject& self) {
                               return self.owner->device->place(self.tenant).blocks_spilled *
                                      self.owner->device->block_bytes();
                             }))
      .def_property_readonly("regions", &regions)
      .def(
          "region",
          [](const TenantObject& self, const std::string& tag, const std::string& policy,
             Bytes reserve_bytes) {
            return RegionObject{
                self.owner,
                self.owner->device->region(self.tenant, tag, policy_named(policy), reserve_bytes)};
          },
          py::arg("tag"), py::arg("policy") = "keep", py::arg("reserve_bytes") = 0, ReleaseGil())
      .def(
          "resume",
          [](const TenantObject& self, double timeout_s, const Tags& tags) {
            return ReportObject{self.owner->device->resume(self.tenant, timeout_s, tags),
                                self.owner->spec};
          },
          py::arg("drain_timeout_s") = 60.0, py::arg("tags") = py::none(), ReleaseGil())
      .def(
          "suspend",
          [](const TenantObject& self, double timeout_s, const Tags& tags) {
            return ReportObject{self.owner->device->suspend(self.tenant, timeout_s, tags),
                                self.owner->spec};
          },
          py::arg("drain_timeout_s") = 60.0, py::arg("tags") = py::none(), ReleaseGil())
      .def(
          "release", [](const TenantObject& self) { self.owner->device->release(self.tenant); },
          ReleaseGil())
      .def(
          "publish",
          [](const TenantObject& self) {
            return PublicationObject{self.owner, self.owner->device->begin_publish(self.tenant)};
          },
          ReleaseGil())
      .def("write_back", &write_back, py::arg("tag"), ReleaseGil())
      .def("rescuable", &rescuable)
      .def("rescue", &rescue, py::arg("tag") = "")
      .def(
          "rescue_to",
          [](const TenantObject& self, const std::string& path,
             const std::map<std::string, std::string>& metadata) {
            return self.owner->device->rescue_to(self.tenant, path,
                                                 {metadata.begin(), metadata.end()});
          },
          py::arg("path"), py::arg("metadata"), ReleaseGil())
      .def(
          "spill", [](const TenantObject& self) { return self.owner->device->spill(self.tenant); },
          ReleaseGil())
      .def(
          "close", [](const TenantObject& self) { self.owner->device->close_tenant(self.tenant); },
          ReleaseGil());
}

// offsets and sizes: arrays of 64-bit integers, as many of each.
void set_pages(const RegionObject& self, const std::vector<Bytes>& offsets,
               const std::vector<Bytes>& sizes) {
  if (offsets.size() != sizes.size()) {
    throw UsageError(std::to_string(offsets.size()) + " offsets of pages and " +
                     std::to_string(sizes.size()) + " sizes");
  }
  std::vector<Piece> pages(offsets.size());
  for (std::size_t index = 0; index < offsets.size(); ++index) {
    pages[index] = {offsets[index], sizes[index]};
  }
  self.owner->device->set_pages(self.region, pages);
}

void bind_policies(py::class_<RegionObject>& type) {
  const auto act = [](void (Device::*action)(const std::shared_ptr<Region>&)) {
    return [action](const RegionObject& self) { ((*self.owner->device).*action)(self.region); };
  };
  type.def("mark_clean", act(&Device::mark_clean), ReleaseGil())
      .def("mark_dirty", act(&Device::mark_dirty), ReleaseGil())
      .def("pin", act(&Device::pin), ReleaseGil())
      .def("unpin", act(&Device::unpin), ReleaseGil())
      .def("set_pages", &set_pages, py::arg("offsets"), py::arg("sizes"), ReleaseGil())
      .def(
          "clear_pages",
          [](const RegionObject& self) { self.owner->device->set_pages(self.region, {}); },
          ReleaseGil())
      .def("forget_pages", act(&Device::forget_pages), ReleaseGil())
      .def_property_readonly("bytes_in_pages",
                             [](const RegionObject& self) { return self.region->bytes_in_pages(); })
      .def_property_readonly("version",
                             [](const RegionObject& self) { return self.region->version.load(); })
      .def(
          "set_fill",
          [](const RegionObject& self, const std::string& fill) {
            self.owner->device->set_fill(self.region, fill_named(fill));
          },
          py::arg("fill"), ReleaseGil())
      .def_property_readonly("fill",
                             [](const RegionObject& self) { return fill_name(self.region->fill); })
      .def_property_readonly("clean",
                             [](const RegionObject& self) { return self.region->clean.load(); })
      .def_property_readonly("selected",
                             [](const RegionObject& self) { return self.region->selected.load(); })
      .def_property_readonly("pins",
                             [](const RegionObject& self) { return self.region->pins.load(); });
}

void bind_region(py::module_& module) {
  py::class_<RegionObject> type(module, "Region");
  bind_identity(type, &RegionObject::region);
  type.def_property_readonly("tag", [](const RegionObject& self) { return self.region->tag; })
      .def_property_readonly(
          "policy", [](const RegionObject& self) { return policy_name(self.region->policy); })
      .def_property_readonly("address",
                             [](const RegionObject& self) { return self.region->address(); })
      .def_property_readonly(
          "bytes", [](const RegionObject& self) { return self.region->bytes_held.load(); })
      .def_property_readonly(
          "bytes_reserved",
          [](const RegionObject& self) { return self.region->reservation->bytes(); })
      .def_property_readonly(
          "bytes_allocated",
          [](const RegionObject& self) { return self.region->bytes_allocated(); })
      .def_property_readonly(
          "state", [](const RegionObject& self) { return state_name(self.region->state); })
      .def_property_readonly("resident",
                             [](const RegionObject& self) { return is_readable(*self.region); })
      .def_property_readonly(
          "generation", [](const RegionObject& self) { return self.region->generation.load(); })
      .def(
          "prepare",
          [](const RegionObject& self, Bytes bytes) {
            self.owner->device->prepare(self.region, bytes);
          },
          py::arg("bytes"), ReleaseGil())
      .def(
          "allocate",
          [](const RegionObject& self, Bytes bytes, Bytes alignment) {
            return SpanObject{self.owner,
                              self.owner->device->allocate(self.region, bytes, alignment)};
          },
          py::arg("bytes"), py::arg("alignment") = 512, ReleaseGil());
  bind_policies(type);
}

}  // namespace

void bind_memory(py::module_& module) {
  bind_tenant(module);
  bind_region(module);
  py::class_<SpanObject> type(module, "Span", py::buffer_protocol());
  bind_identity(type, &SpanObject::span);
  type.def_buffer(&buffer)
      .def_property_readonly("address", [](const SpanObject& self) { return self.span->address(); })
      .def_property_readonly("offset", [](const SpanObject& self) { return self.span->offset(); })
      .def_property_readonly("bytes", [](const SpanObject& self) { return self.span->bytes(); })
      .def_property_readonly(
          "region",
          [](const SpanObject& self) { return RegionObject{self.owner, self.span->region()}; })
      .def("__len__", [](const SpanObject& self) { return self.span->bytes(); });
}

}  // namespace weave::bindings

// bindings/errors.cpp: C++ exceptions become the classes of weave_rt/errors.py, attributes by name.
#include "bindings/bind.hpp"

namespace weave::bindings {

namespace {

// Sets a Python exception of the named class. Runs with the GIL held.
void raise_python(const char* name, const char* message, const py::dict& attributes) {
  const py::object type = py::module_::import("weave_rt.errors").attr(name);
  const py::object error = type(message, **attributes);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void raise_refusal(const Refusal& refusal) {
  py::dict attributes;
  const char* name = "";
  switch (refusal.kind) {
    case Refusal::Kind::not_resident:
      name = "NotResident";
      attributes["job"] = refusal.job;
      attributes["tenant"] = refusal.tenant;
      attributes["tag"] = refusal.tag;
      break;
    case Refusal::Kind::resume_failed:
      name = "ResumeFailed";
      attributes["holders"] = refusal.holders;
      attributes["bytes_missing"] = refusal.bytes_needed;
      break;
    case Refusal::Kind::growth_refused:
      name = "GrowthRefused";
      attributes["bytes_needed"] = refusal.bytes_needed;
      attributes["bytes_available"] = refusal.bytes_available;
      attributes["bytes_usable"] = refusal.bytes_usable;
      break;
    case Refusal::Kind::host_memory:
      name = "HostMemoryError";
      attributes["bytes_needed"] = refusal.bytes_needed;
      attributes["bytes_available"] = refusal.bytes_available;
      break;
    case Refusal::Kind::drain_timeout:
      name = "DrainTimeout";
      break;
    case Refusal::Kind::tenant_failed:
      name = "TenantFailed";
      break;
    case Refusal::Kind::region_pinned:
      name = "RegionPinned";
      attributes["job"] = refusal.job;
      attributes["tenant"] = refusal.tenant;
      attributes["tag"] = refusal.tag;
      break;
    case Refusal::Kind::verify_failed:
      name = "VerifyFailed";
      attributes["job"] = refusal.job;
      attributes["tenant"] = refusal.tenant;
      attributes["tag"] = refusal.tag;
      attributes["offset"] = refusal.offset;
      break;
    case Refusal::Kind::state_file:
      name = "StateFileError";
      attributes["path"] = refusal.path;
      attributes["tag"] = refusal.tag;
      break;
    case Refusal::Kind::device_not_found:
      name = "DeviceNotFound";
      break;
  }
  raise_python(name, refusal.what(), attributes);
}

void raise_driver_error(const char* name, const DriverError& error) {
  py::dict attributes;
  attributes["code"] = error.code;
  attributes["call"] = std::string{cu::info(error.call).symbol};
  attributes["bytes"] = error.bytes;
  raise_python(name, error.what(), attributes);
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Refusal& refusal) {
    raise_refusal(refusal);
  } catch (const OutOfMemory& error) {
    raise_driver_error("OutOfMemoryError", error);
  } catch (const DriverError& error) {
    raise_driver_error("DriverError", error);
  } catch (const UsageError& error) {
    raise_python("UsageError", error.what(), py::dict());
  }
}

}  // namespace

void bind_errors(py::module_&) { py::register_local_exception_translator(translate); }

}  // namespace weave::bindings

// core/vmm.hpp: virtual memory as structural ownership. A Mapping holds the Reservation it lies in
// and the Block it shows, so teardown order and rollback follow from who holds what: a function
// that makes three of them and fails at the second has no cleanup code.
#pragma once

#include <memory>
#include <span>

#include "core/driver.hpp"

namespace weave {

// One physical allocation (cuMemCreate, cuMemRelease).
class Block {
 public:
  Block(DriverRef driver, Bytes bytes, bool gpu_direct);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  cu::AllocHandle handle() const { return handle_; }
  Bytes bytes() const { return bytes_; }

 private:
  DriverRef driver_;
  Bytes bytes_;
  cu::AllocHandle handle_ = 0;
};

// A range of device addresses (cuMemAddressReserve, cuMemAddressFree).
class Reservation {
 public:
  Reservation(DriverRef driver, Bytes bytes);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  cu::DevicePtr address() const { return address_; }
  Bytes bytes() const { return bytes_; }
  const DriverRef& driver() const { return driver_; }

 private:
  DriverRef driver_;
  Bytes bytes_;
  cu::DevicePtr address_ = 0;
};

// One whole block mapped at one address (cuMemMap, cuMemUnmap). Move-only.
class Mapping {
 public:
  Mapping() = default;
  // Maps without access; see set_access(). pre: offset + block bytes inside the reservation.
  Mapping(std::shared_ptr<Reservation> reservation, std::shared_ptr<Block> block, Bytes offset);
  ~Mapping() { drop(); }
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;

  explicit operator bool() const { return block_ != nullptr; }
  cu::DevicePtr address() const { return address_; }
  Bytes bytes() const { return block_->bytes(); }
  // This mapping lies `bytes` behind the start of `first`, in the same reservation.
  bool continues(const Mapping& first, Bytes bytes) const {
    return reservation_ == first.reservation_ && address_ == first.address_ + bytes;
  }

  // Unmap several in as few driver calls as their addresses allow (adjacent ones together). Throws
  // DriverError; what was unmapped by then is empty, the rest is untouched.
  static void unmap_all(std::span<Mapping* const> mappings);
  // Give the device read and write access to all of them, likewise.
  static void set_access_all(const Driver& driver, std::span<Mapping* const> mappings);

 private:
  void drop() noexcept;
  std::shared_ptr<Reservation> reservation_;
  std::shared_ptr<Block> block_;
  cu::DevicePtr address_ = 0;
};

// What sizes and offsets of blocks are multiples of on this device. Throws DriverError.
Bytes granularity(const Driver& driver);

// Give the driver's own device read and write access to [address, address + bytes), which may span
// adjacent mappings. Throws DriverError.
void set_access(const Driver& driver, cu::DevicePtr address, Bytes bytes);

}  // namespace weave

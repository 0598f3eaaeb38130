#include "core/vmm.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace weave {

Block::Block(DriverRef driver, Bytes bytes, bool gpu_direct)
    : driver_(std::move(driver)), bytes_(bytes) {
  cu::MemAllocationProp prop{};
  prop.type = cu::kAllocationPinned;
  prop.location = {cu::kLocationDevice, driver_->ordinal};
  prop.alloc_flags.gpu_direct_rdma_capable = gpu_direct ? 1 : 0;
  cu::check(driver_->table.mem_create(&handle_, bytes_, &prop, 0), cu::Call::mem_create, bytes_);
}

Block::~Block() {
  driver_->undo(cu::Call::mem_release,
                [handle = handle_](const cu::Table& table) { return table.mem_release(handle); });
}

Reservation::Reservation(DriverRef driver, Bytes bytes)
    : driver_(std::move(driver)), bytes_(bytes) {
  cu::check(driver_->table.mem_address_reserve(&address_, bytes_, 0, 0, 0),
            cu::Call::mem_address_reserve, bytes_);
}

Reservation::~Reservation() {
  driver_->undo(cu::Call::mem_address_free,
                [address = address_, bytes = bytes_](const cu::Table& table) {
                  return table.mem_address_free(address, bytes);
                });
}

Mapping::Mapping(std::shared_ptr<Reservation> reservation, std::shared_ptr<Block> block,
                 Bytes offset) {
  const cu::DevicePtr address = reservation->address() + offset;
  cu::check(reservation->driver()->table.mem_map(address, block->bytes(), 0, block->handle(), 0),
            cu::Call::mem_map, block->bytes());
  reservation_ = std::move(reservation);
  block_ = std::move(block);
  address_ = address;
}

void Mapping::drop() noexcept {
  if (block_ == nullptr) return;
  reservation_->driver()->undo(
      cu::Call::mem_unmap, [address = address_, bytes = block_->bytes()](const cu::Table& table) {
        return table.mem_unmap(address, bytes);
      });
  block_.reset();
  reservation_.reset();
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this == &other) return *this;
  drop();
  reservation_ = std::move(other.reservation_);
  block_ = std::move(other.block_);
  address_ = std::exchange(other.address_, 0);
  return *this;
}

namespace {

// Calls act(run, bytes) for each run of mappings that lie side by side in one reservation.
template <class Action>
void for_each_run(std::span<Mapping* const> mappings, Action act) {
  std::vector<Mapping*> ordered(mappings.begin(), mappings.end());
  std::ranges::sort(ordered, {}, &Mapping::address);
  for (std::size_t begin = 0; begin < ordered.size();) {
    std::size_t end = begin;
    Bytes bytes = 0;
    do {
      bytes += ordered[end++]->bytes();
    } while (end < ordered.size() && ordered[end]->continues(*ordered[begin], bytes));
    act(std::span(ordered).subspan(begin, end - begin), bytes);
    begin = end;
  }
}

}  // namespace

void Mapping::unmap_all(std::span<Mapping* const> mappings) {
  for_each_run(mappings, [](std::span<Mapping* const> run, Bytes bytes) {
    const auto& table = run.front()->reservation_->driver()->table;
    cu::check(table.mem_unmap(run.front()->address_, bytes), cu::Call::mem_unmap, bytes);
    for (Mapping* mapping : run) {
      mapping->block_.reset();
      mapping->reservation_.reset();
    }
  });
}

void Mapping::set_access_all(const Driver& driver, std::span<Mapping* const> mappings) {
  for_each_run(mappings, [&](std::span<Mapping* const> run, Bytes bytes) {
    set_access(driver, run.front()->address_, bytes);
  });
}

void set_access(const Driver& driver, cu::DevicePtr address, Bytes bytes) {
  const cu::MemAccessDesc desc{{cu::kLocationDevice, driver.ordinal}, cu::kAccessReadWrite};
  cu::check(driver.table.mem_set_access(address, bytes, &desc, 1), cu::Call::mem_set_access, bytes);
}

Bytes granularity(const Driver& driver) {
  cu::MemAllocationProp prop{};
  prop.type = cu::kAllocationPinned;
  prop.location = {cu::kLocationDevice, driver.ordinal};
  std::size_t bytes = 0;
  cu::check(driver.table.mem_get_allocation_granularity(&bytes, &prop, cu::kGranularityMinimum),
            cu::Call::mem_get_allocation_granularity);
  return bytes;
}

}  // namespace weave

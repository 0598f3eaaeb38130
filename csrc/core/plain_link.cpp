#include "core/plain_link.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "core/device.hpp"
#include "core/host_memory.hpp"

namespace weave {

namespace {

constexpr const char* kPlainJob = "weave-plain-copies";

}  // namespace

PlainLink::PlainLink(const ContextRef& context, Frames& frames, HostPool& host_pool,
                     std::size_t blocks)
    : context_(context),
      frames_(frames),
      out_(context),
      in_(context),
      extents_(host_pool.allocate(kPlainJob, frames.block_bytes(), 2 * blocks)) {
  try {
    while (taken_.size() < 2 * blocks) taken_.push_back(frames_.take());
  } catch (...) {
    for (const FrameId frame : taken_) frames_.give_back(frame);
    throw;
  }
}

PlainLink::~PlainLink() {
  for (const FrameId frame : taken_) frames_.give_back(frame);
}

double PlainLink::copy(std::size_t blocks_out, std::size_t blocks_in) {
  const auto& table = context_->driver().table;
  const Bytes bytes = frames_.block_bytes();
  const std::int64_t started = table.now_ns();
  for (std::size_t index = 0; index < std::max(blocks_out, blocks_in); ++index) {
    if (index < blocks_out) {
      cu::check(table.memcpy_dtoh_async(extents_[index].data(), frames_.home(taken_[index]), bytes,
                                        out_.raw()),
                cu::Call::memcpy_dtoh_async, bytes);
    }
    if (index < blocks_in) {
      const std::size_t own = blocks() + index;
      cu::check(table.memcpy_htod_async(frames_.home(taken_[own]), extents_[own].data(), bytes,
                                        in_.raw()),
                cu::Call::memcpy_htod_async, bytes);
    }
  }
  cu::check(table.stream_synchronize(out_.raw()), cu::Call::stream_synchronize);
  cu::check(table.stream_synchronize(in_.raw()), cu::Call::stream_synchronize);
  return static_cast<double>(table.now_ns() - started) / 1e9;
}

bool PlainLink::settle() noexcept {
  const auto& table = context_->driver().table;
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (table.stream_synchronize(out_.raw()) == cu::kSuccess &&
        table.stream_synchronize(in_.raw()) == cu::kSuccess) {
      return true;
    }
  }
  return false;
}

LinkRates measure_rates(PlainLink& link, Bytes block_bytes) {
  const std::size_t blocks = link.blocks();
  const auto bytes = static_cast<double>(blocks * block_bytes);
  link.copy(blocks, blocks);
  // The best of three: what disturbs a copy makes it slower, never faster.
  const auto rate = [&](std::size_t out, std::size_t in) {
    double seconds = link.copy(out, in);
    for (int again = 0; again < 2; ++again) seconds = std::min(seconds, link.copy(out, in));
    return bytes / seconds;
  };
  LinkRates rates;
  rates.d2h = rate(blocks, 0);
  rates.h2d = rate(0, blocks);
  // Equal bytes both ways: the slower direction bounds both.
  rates.d2h_duplex = rates.h2d_duplex = rate(blocks, blocks);
  return rates;
}

LinkRates Device::calibrate(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  require_open();
  for (const auto& tenant : tenants_) {
    if (tenant->slots_on_device() > 0) {
      throw UsageError("calibrate needs a device that no tenant is on; suspend " + tenant->label());
    }
  }
  const ContextScope scope(*context_);
  retry_unfinished();
  const std::size_t half = static_cast<std::size_t>(frames_->available()) / 2;
  if (half == 0) throw UsageError("calibrate needs a device of at least two blocks");
  const std::size_t blocks = std::clamp<std::size_t>(bytes / block_bytes_, 1, half);
  auto link = std::make_unique<PlainLink>(context_, *frames_, *host_pool_, blocks);
  try {
    rates_ = measure_rates(*link, block_bytes_);
  } catch (const DriverError&) {
    if (!link->settle()) stuck_links_.push_back(std::move(link));
    throw;
  }
  link.reset();
  host_pool_->trim(kPlainJob);
  return *rates_;
}

double Device::plain_copy(Bytes bytes_out, Bytes bytes_in) {
  const std::lock_guard lock(mutex_);
  require_open();
  const std::size_t out = round_up(bytes_out, block_bytes_) / block_bytes_;
  const std::size_t in = round_up(bytes_in, block_bytes_) / block_bytes_;
  const std::size_t blocks = std::max(out, in);
  const ContextScope scope(*context_);
  retry_unfinished();
  if (plain_link_ == nullptr || plain_link_->blocks() < blocks) {
    plain_link_.reset();
    host_pool_->trim(kPlainJob);
    if (static_cast<std::size_t>(frames_->available()) < 2 * blocks) {
      throw UsageError("plain copies of " + megabytes(blocks * block_bytes_) +
                       " need twice as much free on the device");
    }
    plain_link_ = std::make_unique<PlainLink>(context_, *frames_, *host_pool_, blocks);
  }
  try {
    return plain_link_->copy(out, in);
  } catch (const DriverError&) {
    if (!plain_link_->settle()) stuck_links_.push_back(std::move(plain_link_));
    throw;
  }
}

double Device::plain_pin(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  require_open();
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  if (bytes == 0) throw UsageError("plain_pin needs at least one byte");
  bytes = round_up(bytes, page);
  if (const Bytes available = host_bytes_available(); bytes > available) {
    Refusal refusal(Refusal::Kind::host_memory, "this host has no " + megabytes(bytes) + " to pin");
    refusal.bytes_needed = bytes;
    refusal.bytes_available = available;
    throw refusal;
  }
  const ContextScope scope(*context_);
  retry_unfinished();
  const auto now = driver_->table.now_ns;
  const std::int64_t started = now();
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw Refusal(Refusal::Kind::host_memory, "cannot map host memory");
  for (Bytes at = 0; at < bytes; at += page) static_cast<volatile char*>(data)[at] = 1;
  const auto status = driver_->table.mem_host_register(data, bytes, cu::kHostRegisterPortable);
  const double seconds = seconds_between(started, now());
  if (status != cu::kSuccess) {
    munmap(data, bytes);
    cu::check(status, cu::Call::mem_host_register, bytes);
  }
  driver_->undo(cu::Call::mem_host_unregister, [data, bytes](const cu::Table& table) {
    const auto undone = table.mem_host_unregister(data);
    if (undone == cu::kSuccess) munmap(data, bytes);
    return undone;
  });
  return seconds;
}

}  // namespace weave

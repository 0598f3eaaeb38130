#include "core/plain_link.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "core/device.hpp"

namespace weave {

PlainLink::PlainLink(const ContextRef& context, Frames& frames, HostPool& host_pool,
                     std::size_t blocks)
    : context_(context),
      frames_(frames),
      out_(context),
      in_(context),
      started_(context, cu::kEventDefault),
      out_ended_(context, cu::kEventDefault),
      in_ended_(context, cu::kEventDefault),
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

void PlainLink::start(std::size_t blocks_out, std::size_t blocks_in) {
  const auto& table = context_->driver().table;
  const Bytes bytes = frames_.block_bytes();
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
}

void PlainLink::finish() {
  const auto& table = context_->driver().table;
  cu::check(table.stream_synchronize(out_.raw()), cu::Call::stream_synchronize);
  cu::check(table.stream_synchronize(in_.raw()), cu::Call::stream_synchronize);
}

PlainLink::Seconds PlainLink::copy(std::size_t blocks_out, std::size_t blocks_in) {
  const auto& table = context_->driver().table;
  const auto record = [&](const Event& event, const Stream& stream) {
    cu::check(table.event_record(event.raw(), stream.raw()), cu::Call::event_record);
  };
  const std::int64_t started = table.now_ns();
  record(started_, blocks_out > 0 ? out_ : in_);
  start(blocks_out, blocks_in);
  if (blocks_out > 0) record(out_ended_, out_);
  if (blocks_in > 0) record(in_ended_, in_);
  finish();
  Seconds seconds{seconds_between(started, table.now_ns()), 0};
  const auto until = [&](const Event& ended) {
    float milliseconds = 0;
    cu::check(table.event_elapsed_time(&milliseconds, started_.raw(), ended.raw()),
              cu::Call::event_elapsed_time);
    seconds.device = std::max(seconds.device, static_cast<double>(milliseconds) / 1e3);
  };
  if (blocks_out > 0) until(out_ended_);
  if (blocks_in > 0) until(in_ended_);
  return seconds;
}

Bytes PlainLink::chunk_bytes(const CopyEngine& engine) const {
  return engine.chunk_bytes(blocks() * frames_.block_bytes(), frames_.block_bytes());
}

double PlainLink::exchange(CopyEngine& engine) {
  const Bytes chunk = chunk_bytes(engine);
  std::vector<Chunk> outs;
  std::vector<Chunk> ins;
  for (std::size_t index = 0; index < blocks(); ++index) {
    for (Bytes offset = 0; offset < frames_.block_bytes(); offset += chunk) {
      const Bytes bytes = std::min(chunk, frames_.block_bytes() - offset);
      const cu::DevicePtr device = frames_.home(taken_[index]) + offset;
      outs.push_back({.device = device, .host = extents_[index].data() + offset, .bytes = bytes});
      ins.push_back({.device = device,
                     .host = extents_[blocks() + index].data() + offset,
                     .bytes = bytes,
                     .after = static_cast<int>(ins.size())});
    }
  }
  const auto now = context_->driver().table.now_ns;
  const std::int64_t started = now();
  CopyEngine::Progress progress;
  engine.run(outs, ins, progress);
  engine.finish();
  return seconds_between(started, now());
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

Measured measure_rates(PlainLink& link, Bytes block_bytes) {
  const std::size_t blocks = link.blocks();
  const auto bytes = static_cast<double>(blocks * block_bytes);
  link.copy(blocks, blocks);
  // The best of three: what disturbs a copy makes it slower, never faster.
  LinkRates device;
  const auto rate = [&](std::size_t out, std::size_t in, double& by_events) {
    auto best = link.copy(out, in);
    for (int again = 0; again < 2; ++again) {
      const auto next = link.copy(out, in);
      best = {std::min(best.host, next.host), std::min(best.device, next.device)};
    }
    by_events = bytes / best.device;
    return bytes / best.host;
  };
  LinkRates host;
  host.d2h = rate(blocks, 0, device.d2h);
  host.h2d = rate(0, blocks, device.h2d);
  // Equal bytes both ways: the slower direction bounds both.
  host.d2h_duplex = host.h2d_duplex = rate(blocks, blocks, device.d2h_duplex);
  device.h2d_duplex = device.d2h_duplex;
  return {host, is_sequential_faster(device)};
}

Bytes best_chunks(PlainLink& link, CopyEngine& engine) {
  constexpr Bytes kCandidates[] = {64, 32, 128, 16};  // the default first
  constexpr double kBetter = 0.97;                    // less is noise
  constexpr double kLongEnough = 1.0;                 // seconds, for all of them
  const Bytes before = engine.chunks();
  Bytes best = before;
  double best_s = std::numeric_limits<double>::infinity();
  double spent_s = 0;
  std::set<Bytes> tried;
  try {
    for (const Bytes candidate : kCandidates) {
      engine.set_chunks(candidate);
      if (!tried.insert(link.chunk_bytes(engine)).second || spent_s > kLongEnough) continue;
      double seconds = link.exchange(engine);
      spent_s += seconds;
      seconds = std::min(seconds, link.exchange(engine));
      if (seconds < best_s * (tried.size() == 1 ? 1.0 : kBetter)) {
        best_s = seconds;
        best = candidate;
      }
    }
  } catch (...) {
    engine.set_chunks(before);
    throw;
  }
  engine.set_chunks(best);
  return best;
}

void Device::require_empty(const char* operation) const {
  for (const auto& tenant : tenants_) {
    if (tenant->slots_on_device() > 0) {
      throw UsageError(operation +
                       (" needs a device that no tenant is on; suspend " + tenant->label()));
    }
  }
}

LinkRates Device::calibrate(Bytes bytes) {
  const Foreground lock(*this);
  require_open();
  require_empty("calibrate");
  const ContextScope scope(*context_);
  retry_unfinished();
  const std::size_t half = static_cast<std::size_t>(frames_->available()) / 2;
  if (half == 0) throw UsageError("calibrate needs a device of at least two blocks");
  const std::size_t blocks = std::clamp<std::size_t>(bytes / block_bytes_, 1, half);
  auto link = std::make_unique<PlainLink>(context_, *frames_, *host_pool_, blocks);
  try {
    Measured measured = measure_rates(*link, block_bytes_);
    engine_->set_sequential(measured.sequential);
    measured.rates.chunks = best_chunks(*link, *engine_);
    measured.rates.sequential = measured.sequential;
    rates_ = measured.rates;
  } catch (const DriverError&) {
    const bool settled = engine_->settle();
    if (!link->settle() || !settled) stuck_links_.push_back(std::move(link));
    throw;
  }
  link.reset();
  host_pool_->trim(kPlainJob);
  return *rates_;
}

void Device::use_rates(const LinkRates& rates) {
  if (!is_plausible(rates)) throw UsageError("rates of a link are bytes per second, more than 0");
  const Foreground lock(*this);
  require_open();
  engine_->set_sequential(rates.sequential);
  if (rates.chunks != 0) engine_->set_chunks(rates.chunks);
  rates_ = rates;
}

std::optional<LinkRates> Device::rates() const {
  const std::lock_guard lock(mutex_);
  return rates_;
}

double Device::plain_copy(Bytes bytes_out, Bytes bytes_in) {
  const Foreground lock(*this);
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
    return plain_link_->copy(out, in).host;
  } catch (const DriverError&) {
    if (!plain_link_->settle()) stuck_links_.push_back(std::move(plain_link_));
    throw;
  }
}

}  // namespace weave

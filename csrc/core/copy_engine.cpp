#include "core/copy_engine.hpp"

#include <algorithm>

namespace weave {

CopyEngine::Lane::Lane(const ContextRef& context, std::size_t window, unsigned wait_flags)
    : stream(context),
      started(context, cu::kEventDefault),
      ended(context, cu::kEventDefault | wait_flags) {
  for (std::size_t index = 0; index < window; ++index) {
    done.push_back(std::make_unique<Event>(context, cu::kEventDisableTiming | wait_flags));
  }
}

CopyEngine::CopyEngine(const ContextRef& context, std::size_t window, bool beside_phase)
    : context_(context),
      table_(context->driver().table),
      window_(window),
      beside_phase_(beside_phase),
      out_(context, window, beside_phase ? cu::kEventBlockingSync : 0),
      in_(context, window, beside_phase ? cu::kEventBlockingSync : 0) {}

Bytes CopyEngine::chunk_bytes(Bytes bytes, Bytes block_bytes) const {
  constexpr Bytes kMin = Bytes{64} << 10;
  constexpr Bytes kMax = Bytes{8} << 20;
  return std::min(block_bytes, round_up(std::clamp(bytes / chunks_, kMin, kMax), 4096));
}

void CopyEngine::reset(Lane& lane) {
  lane.timed = false;
  lane.calls.clear();
  lane.complete = lane.copies = 0;
}

// Before a call goes into its lane: wait until there is room for it in the window.
void CopyEngine::begin(Lane& lane, std::size_t copies) {
  lane.used = true;
  if (!lane.timed) {
    cu::check(table_.event_record(lane.started.raw(), lane.stream.raw()), cu::Call::event_record);
    lane.timed = true;
  }
  while (lane.calls.size() - lane.complete >= window_ ||
         (lane.copies > 0 && lane.copies + copies > kWindowCopies)) {
    const std::size_t oldest = lane.complete;
    cu::check(table_.event_synchronize(lane.done[oldest % window_]->raw()),
              cu::Call::event_synchronize);
    lane.copies -= lane.calls[oldest] - (oldest == 0 ? 0 : lane.calls[oldest - 1]);
    ++lane.complete;
  }
}

// After it: `chunks` of this run are issued now.
void CopyEngine::end(Lane& lane, std::size_t chunks) {
  lane.copies += chunks - (lane.calls.empty() ? 0 : lane.calls.back());
  lane.calls.push_back(chunks);
  cu::check(
      table_.event_record(lane.done[(lane.calls.size() - 1) % window_]->raw(), lane.stream.raw()),
      cu::Call::event_record);
}

// Where the call that begins with chunk `begin` ends: behind it, or behind those that go with it.
std::size_t CopyEngine::call_end(std::span<const Chunk> chunks, std::size_t begin,
                                 Bytes batch_bytes) const {
  std::size_t end = begin;
  Bytes bytes = 0;
  if (table_.memcpy_batch_async == nullptr || !batches_) return begin + 1;
  while (end < chunks.size() && end - begin < kBatchCopies && chunks[end].fill < 0 &&
         chunks[end].bytes < kBatchBelow && bytes + chunks[end].bytes <= batch_bytes) {
    bytes += chunks[end++].bytes;
  }
  return std::max(end, begin + 1);
}

void CopyEngine::copy_all(std::span<const Chunk> chunks, bool out) {
  if (chunks.size() > 1 && copy_batch(chunks, out)) return;
  for (const auto& chunk : chunks) copy(chunk, out);
}

void CopyEngine::copy(const Chunk& chunk, bool out) {
  const cu::Stream stream = (out ? out_ : in_).stream.raw();
  if (chunk.fill >= 0) {
    cu::check(table_.memset_d8_async(chunk.device, static_cast<unsigned char>(chunk.fill),
                                     chunk.bytes, stream),
              cu::Call::memset_d8_async, chunk.bytes);
  } else if (out) {
    cu::check(table_.memcpy_dtoh_async(chunk.host, chunk.device, chunk.bytes, stream),
              cu::Call::memcpy_dtoh_async, chunk.bytes);
  } else {
    cu::check(table_.memcpy_htod_async(chunk.device, chunk.host, chunk.bytes, stream),
              cu::Call::memcpy_htod_async, chunk.bytes);
  }
}

// False where the driver has the call and not what it does, as on some virtual GPUs: then there are
// no batches any more.
bool CopyEngine::copy_batch(std::span<const Chunk> chunks, bool out) {
  std::vector<cu::DevicePtr> targets, sources;
  std::vector<std::size_t> sizes;
  Bytes bytes = 0;
  for (const auto& chunk : chunks) {
    const auto host = reinterpret_cast<cu::DevicePtr>(chunk.host);
    targets.push_back(out ? host : chunk.device);
    sources.push_back(out ? chunk.device : host);
    sizes.push_back(chunk.bytes);
    bytes += chunk.bytes;
  }
  // In stream order: any other one would read a block before whoever writes it is done.
  cu::MemcpyAttributes attributes{
      cu::kSourceOrderStream, {}, {}, beside_phase_ ? cu::kMemcpyPreferOverlap : 0};
  std::size_t first = 0;
  std::size_t failed = 0;
  const auto status =
      table_.memcpy_batch_async(targets.data(), sources.data(), sizes.data(), sizes.size(),
                                &attributes, &first, 1, &failed, (out ? out_ : in_).stream.raw());
  batches_ = status != cu::kNotSupported;
  if (batches_) cu::check(status, cu::Call::memcpy_batch_async, bytes);
  return batches_;
}

// The next outgoing call.
void CopyEngine::issue_out(std::span<const Chunk> outs, Progress& progress,
                           const Options& options) {
  const std::size_t from = progress.outs_issued;
  const std::size_t to = call_end(outs, from, options.batch_bytes);
  begin(out_, to - from);
  copy_all(outs.subspan(from, to - from), true);
  progress.outs_issued = to;
  end(out_, to);
}

// What comes in next waits for this outgoing chunk.
void CopyEngine::wait_for_out(int after) {
  const auto call = static_cast<std::size_t>(
      std::ranges::upper_bound(out_.calls, static_cast<std::size_t>(after)) - out_.calls.begin());
  WEAVE_ASSERT(call < out_.calls.size(), "an incoming chunk overtook the outgoing one");
  if (call < out_.complete) return;
  cu::check(table_.stream_wait_event(in_.stream.raw(), out_.done[call % window_]->raw(), 0),
            cu::Call::stream_wait_event);
}

void CopyEngine::issue_in(std::span<const Chunk> ins, Progress& progress, const Options& options) {
  const std::size_t from = progress.ins_issued;
  const std::size_t to = call_end(ins, from, options.batch_bytes);
  const auto chunks = ins.subspan(from, to - from);
  begin(in_, to - from);
  if (const int after = std::ranges::max(chunks, {}, &Chunk::after).after; after >= 0) {
    wait_for_out(after);
  }
  // Counted before the call: a submission that fails may still have been accepted.
  progress.ins_issued = to;
  copy_all(chunks, false);
  end(in_, to);
}

void CopyEngine::run(std::span<const Chunk> outs, std::span<const Chunk> ins, Progress& progress,
                     const Options& options) {
  reset(out_);
  reset(in_);
  const auto stopped = [&] { return options.stop != nullptr && *options.stop; };
  if (sequential_ && !outs.empty() && !ins.empty()) {
    while (progress.outs_issued < outs.size() && !stopped()) issue_out(outs, progress, options);
    // The link is free again when the last one is out; that orders every pair of chunks too.
    in_.used = true;
    if (!out_.calls.empty()) wait_for_out(static_cast<int>(out_.calls.back()) - 1);
  }
  while (progress.outs_issued < outs.size() || progress.ins_issued < ins.size()) {
    if (stopped()) break;
    if (progress.outs_issued < outs.size()) issue_out(outs, progress, options);
    if (progress.ins_issued == ins.size()) continue;
    const std::size_t to = call_end(ins, progress.ins_issued, options.batch_bytes);
    for (std::size_t index = progress.ins_issued; index < to; ++index) {
      while (static_cast<int>(progress.outs_issued) <= ins[index].after) {
        issue_out(outs, progress, options);
      }
    }
    issue_in(ins, progress, options);
  }
  for (Lane* lane : {&out_, &in_}) {
    if (!lane->timed) continue;
    cu::check(table_.event_record(lane->ended.raw(), lane->stream.raw()), cu::Call::event_record);
  }
}

double CopyEngine::seconds(const Lane& lane) const {
  float milliseconds = 0;
  cu::check(table_.event_elapsed_time(&milliseconds, lane.started.raw(), lane.ended.raw()),
            cu::Call::event_elapsed_time);
  return static_cast<double>(milliseconds) / 1e3;
}

CopyEngine::Seconds CopyEngine::finish() {
  Seconds taken;
  for (Lane* lane : {&out_, &in_}) {
    if (!lane->used) continue;
    if (beside_phase_ && lane->timed) {
      cu::check(table_.event_synchronize(lane->ended.raw()), cu::Call::event_synchronize);
    }
    cu::check(table_.stream_synchronize(lane->stream.raw()), cu::Call::stream_synchronize);
    if (lane->timed) (lane == &out_ ? taken.out : taken.in) = seconds(*lane);
  }
  out_.used = in_.used = false;
  return taken;
}

bool CopyEngine::settle() noexcept {
  if (!out_.used && !in_.used) return true;
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (table_.stream_synchronize(out_.stream.raw()) == cu::kSuccess &&
        table_.stream_synchronize(in_.stream.raw()) == cu::kSuccess) {
      out_.used = in_.used = false;
      return true;
    }
  }
  return false;
}

}  // namespace weave

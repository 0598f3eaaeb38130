#include "core/copy_engine.hpp"

#include <algorithm>

namespace weave {

CopyEngine::Lane::Lane(const ContextRef& context, std::size_t window)
    : stream(context), started(context, cu::kEventDefault), ended(context, cu::kEventDefault) {
  for (std::size_t index = 0; index < window; ++index) {
    done.push_back(std::make_unique<Event>(context));
  }
}

CopyEngine::CopyEngine(const ContextRef& context, std::size_t window)
    : context_(context),
      table_(context->driver().table),
      window_(window),
      out_(context, window),
      in_(context, window) {}

Bytes CopyEngine::chunk_bytes(Bytes bytes, Bytes block_bytes) const {
  constexpr Bytes kMin = Bytes{64} << 10;
  constexpr Bytes kMax = Bytes{8} << 20;
  return std::min(block_bytes, round_up(std::clamp(bytes / chunks_, kMin, kMax), 4096));
}

// Before chunk `index` goes into its lane: wait until the chunk one window earlier is complete.
void CopyEngine::begin(Lane& lane, std::size_t index) {
  lane.used = true;
  if (!lane.timed) {
    cu::check(table_.event_record(lane.started.raw(), lane.stream.raw()), cu::Call::event_record);
    lane.timed = true;
  }
  if (index < window_) return;
  cu::check(table_.event_synchronize(lane.done[index % window_]->raw()),
            cu::Call::event_synchronize);
}

void CopyEngine::end(Lane& lane, std::size_t index) {
  cu::check(table_.event_record(lane.done[index % window_]->raw(), lane.stream.raw()),
            cu::Call::event_record);
}

// The next outgoing chunk.
void CopyEngine::issue_out(std::span<const Chunk> outs, Progress& progress) {
  const std::size_t index = progress.outs_issued;
  const Chunk& chunk = outs[index];
  begin(out_, index);
  cu::check(table_.memcpy_dtoh_async(chunk.host, chunk.device, chunk.bytes, out_.stream.raw()),
            cu::Call::memcpy_dtoh_async, chunk.bytes);
  progress.outs_issued = index + 1;
  end(out_, index);
}

void CopyEngine::issue_in(const Chunk& chunk, Progress& progress) {
  const std::size_t index = progress.ins_issued;
  begin(in_, index);
  // A chunk a whole window back is known to be complete: begin() has waited for it.
  if (chunk.after >= 0 && static_cast<std::size_t>(chunk.after) + window_ >= progress.outs_issued) {
    const auto after = static_cast<std::size_t>(chunk.after);
    WEAVE_ASSERT(after < progress.outs_issued, "an incoming chunk overtook the outgoing one");
    cu::check(table_.stream_wait_event(in_.stream.raw(), out_.done[after % window_]->raw(), 0),
              cu::Call::stream_wait_event);
  }
  // Counted before the call: a submission that fails may still have been accepted.
  progress.ins_issued = index + 1;
  if (chunk.fill >= 0) {
    cu::check(table_.memset_d8_async(chunk.device, static_cast<unsigned char>(chunk.fill),
                                     chunk.bytes, in_.stream.raw()),
              cu::Call::memset_d8_async, chunk.bytes);
  } else {
    cu::check(table_.memcpy_htod_async(chunk.device, chunk.host, chunk.bytes, in_.stream.raw()),
              cu::Call::memcpy_htod_async, chunk.bytes);
  }
  end(in_, index);
}

void CopyEngine::run(std::span<const Chunk> outs, std::span<const Chunk> ins, Progress& progress,
                     const std::atomic<bool>* stop) {
  out_.timed = in_.timed = false;
  if (sequential_ && !outs.empty() && !ins.empty()) {
    while (progress.outs_issued < outs.size() && !stopped(stop)) issue_out(outs, progress);
    // The link is free again when the last one is out; that orders every pair of chunks too.
    in_.used = true;
    cu::check(table_.stream_wait_event(in_.stream.raw(),
                                       out_.done[(outs.size() - 1) % window_]->raw(), 0),
              cu::Call::stream_wait_event);
  }
  for (std::size_t index = 0; index < std::max(outs.size(), ins.size()); ++index) {
    if (stopped(stop)) break;
    if (progress.outs_issued < outs.size()) issue_out(outs, progress);
    if (index >= ins.size()) continue;
    while (static_cast<int>(progress.outs_issued) <= ins[index].after) issue_out(outs, progress);
    issue_in(ins[index], progress);
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

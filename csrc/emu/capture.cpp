#include "emu/capture.hpp"

#include <algorithm>
#include <utility>

#include "emu/call.hpp"
#include "emu/driver_codes.hpp"

namespace weave::emu {

namespace {

thread_local int thread_mode = cu::kCaptureModeGlobal;  // as the driver starts

struct Capture {
  std::shared_ptr<StreamState> stream;
  int mode = cu::kCaptureModeGlobal;
  std::thread::id thread;
  bool broken = false;
  std::uint64_t nodes = 0;
};

std::mutex capturing;
std::vector<Capture> captures;        // guarded by `capturing`
std::atomic<std::size_t> running{0};  // captures.size(), so that nobody pays who captures nothing

// pre for these: the lock is held.
std::vector<Capture>::iterator find(const StreamState& stream) {
  return std::ranges::find_if(captures,
                              [&](const Capture& each) { return each.stream.get() == &stream; });
}

bool is_endangered(const Capture& capture) {
  if (thread_mode == cu::kCaptureModeRelaxed || capture.mode == cu::kCaptureModeRelaxed) {
    return false;
  }
  const bool own = capture.thread == std::this_thread::get_id();
  return own || (thread_mode == cu::kCaptureModeGlobal && capture.mode == cu::kCaptureModeGlobal);
}

template <class Matches>
void erase_if(Matches matches) {
  if (running == 0) return;
  const std::lock_guard lock(capturing);
  std::erase_if(captures, matches);
  running = captures.size();
}

cu::Status need_stream(cu::Stream handle, std::shared_ptr<StreamState>& stream) {
  std::shared_ptr<ContextState> context;
  if (const auto status = need_context(context); status != cu::kSuccess) return status;
  if (const auto status = find_stream(handle, context, stream); status != cu::kSuccess) {
    return status;
  }
  return stream->context->status();
}

}  // namespace

cu::Status unsafe_status() {
  if (running == 0) return cu::kSuccess;
  const std::lock_guard lock(capturing);
  bool prohibited = false;
  for (auto& capture : captures) {
    if (!is_endangered(capture)) continue;
    capture.broken = true;
    prohibited = true;
  }
  return prohibited ? cu::kCaptureUnsupported : cu::kSuccess;
}

cu::Status capture_submission(const StreamState& stream, bool& captured) {
  if (running == 0) return cu::kSuccess;
  const std::lock_guard lock(capturing);
  const auto found = find(stream);
  captured = found != captures.end();
  if (!captured) return cu::kSuccess;
  if (found->broken) return cu::kCaptureInvalidated;
  ++found->nodes;
  return cu::kSuccess;
}

cu::Status capture_wait(const StreamState& stream) {
  if (running == 0) return cu::kSuccess;
  const std::lock_guard lock(capturing);
  const auto found = find(stream);
  if (found == captures.end()) return cu::kSuccess;
  found->broken = true;
  return cu::kCaptureUnsupported;
}

cu::Status capture_wait(const ContextState& context) {
  if (running == 0) return cu::kSuccess;
  const std::lock_guard lock(capturing);
  bool any = false;
  for (auto& capture : captures) {
    if (capture.stream->context.get() != &context) continue;
    capture.broken = any = true;
  }
  return any ? cu::kCaptureUnsupported : cu::kSuccess;
}

void forget_captures(const ContextState& context) {
  erase_if([&](const Capture& each) { return each.stream->context.get() == &context; });
}

void forget_capture(const StreamState& stream) {
  erase_if([&](const Capture& each) { return each.stream.get() == &stream; });
}

namespace calls {

Status thread_exchange_capture_mode(int* mode) {
  if (const auto status = process_status(); status != cu::kSuccess) return status;
  if (mode == nullptr || *mode < 0 || *mode > cu::kCaptureModeRelaxed) return cu::kInvalidValue;
  std::swap(*mode, thread_mode);
  return cu::kSuccess;
}

Status stream_begin_capture(Stream stream, int mode) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_stream(stream, found); status != cu::kSuccess) return status;
    if (mode < 0 || mode > cu::kCaptureModeRelaxed) return cu::kInvalidValue;
    if (found->is_null) return codes::capture_null_stream;
    const std::lock_guard lock(capturing);
    if (find(*found) != captures.end()) return codes::capture_twice;
    captures.push_back({found, mode, std::this_thread::get_id()});
    running = captures.size();
    return cu::kSuccess;
  });
}

Status stream_end_capture(Stream stream, Graph* graph) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto status = need_stream(stream, found); status != cu::kSuccess) return status;
    if (graph == nullptr) return cu::kInvalidValue;
    const std::lock_guard lock(capturing);
    const auto capture = find(*found);
    if (capture == captures.end()) return codes::end_without_capture;
    if (capture->mode != cu::kCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
      return cu::kCaptureWrongThread;
    }
    *graph = nullptr;
    auto status = cu::kCaptureInvalidated;
    if (!capture->broken) {
      auto made = std::make_shared<GraphState>();
      made->nodes = capture->nodes;
      *graph = reinterpret_cast<Graph>(driver().graphs.add(std::move(made)));
      status = cu::kSuccess;
    }
    captures.erase(capture);
    running = captures.size();
    return status;
  });
}

Status stream_is_capturing(Stream stream, int* status) {
  return guarded([&]() -> Status {
    std::shared_ptr<StreamState> found;
    if (const auto its = need_stream(stream, found); its != cu::kSuccess) return its;
    if (status == nullptr) return cu::kInvalidValue;
    const std::lock_guard lock(capturing);
    const auto capture = find(*found);
    *status = capture == captures.end() ? cu::kCaptureNone
              : capture->broken         ? cu::kCaptureBroken
                                        : cu::kCaptureActive;
    return cu::kSuccess;
  });
}

Status graph_destroy(Graph graph) {
  return guarded([&]() -> Status {
    if (const auto status = process_status(); status != cu::kSuccess) return status;
    const auto taken = driver().graphs.take(reinterpret_cast<std::uint64_t>(graph));
    return taken.life == Life::live ? cu::kSuccess : cu::kInvalidValue;
  });
}

}  // namespace calls

}  // namespace weave::emu

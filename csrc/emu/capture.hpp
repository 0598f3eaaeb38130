// emu/capture.hpp: stream capture, as far as it matters to whoever works beside it: a stream that
// is being captured runs nothing, and calls that are unsafe for a capture break it. What is
// captured is counted and not kept: the graph cannot be launched. Lock: its own, innermost.
#pragma once

#include "emu/device.hpp"

namespace weave::emu {

// A call that is potentially unsafe for a capture begins with this. 900, and the captures that it
// endangers are broken, when the mode of this thread prohibits it.
cu::Status unsafe_status();

// `captured`: the stream is being captured, nothing must be queued, and the call returns the status
// (0, or 901 when the capture is broken).
cu::Status capture_submission(const StreamState& stream, bool& captured);

// To wait for or ask about a stream under capture: 900, and the capture is broken.
cu::Status capture_wait(const StreamState& stream);

// To wait for a whole context: 900 while any stream of it is under capture, in whatever mode, by
// whatever thread; those captures are broken.
cu::Status capture_wait(const ContextState& context);

// The captures of a context or a stream that ends.
void forget_captures(const ContextState& context);
void forget_capture(const StreamState& stream);

}  // namespace weave::emu

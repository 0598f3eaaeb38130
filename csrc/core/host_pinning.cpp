// core/host_pinning.cpp: how the host pool makes one piece. Registering a large one fails now and
// then where a small one works (a busy process, a driver that is short of something), so a piece
// that is refused is tried again in halves, down to one extent, before the growth fails. No lock.
#include <algorithm>
#include <cstdio>

#include "core/host_memory.hpp"
#include "core/host_pool.hpp"

namespace weave {

namespace {

constexpr Bytes kPauseFrom = Bytes{64} << 20;  // smaller registrations disturb nobody
constexpr std::int64_t kPauseNs = 1'000'000;   // between two registrations

// Where the next piece goes: the node that was asked for if it has room, else the one with most.
NumaNode choose_node(const std::vector<NumaNode>& nodes, int wanted, Bytes bytes) {
  for (const auto& node : nodes) {
    if (node.id == wanted && node.bytes_free >= bytes) return node;
  }
  return *std::ranges::max_element(nodes, {}, &NumaNode::bytes_free);
}

}  // namespace

// Of `bytes`, or of fewer whole units where the driver refuses that many.
std::unique_ptr<HostPiece> HostPool::make_piece(const std::string& job, Bytes bytes, Bytes unit,
                                                int node, const std::atomic<bool>* cancel) {
  const auto& table = context_->driver().table;
  HostPages::Options options;
  options.bind = nodes_.size() > 1;
  options.cancel = cancel;
  std::unique_ptr<HostPiece> piece;
  cu::Status refused = cu::kSuccess;
  for (options.bytes = bytes; piece == nullptr;) {
    // What is free on each node changes; with one node there is nothing to choose.
    options.node = options.bind ? choose_node(numa_nodes(), node, options.bytes) : nodes_.front();
    try {
      piece = std::make_unique<HostPiece>(job, unit, options, context_);
    } catch (const DriverError& error) {
      const bool of_size = error.call == cu::Call::mem_host_register && !cu::is_sticky(error.code);
      if (!of_size) throw;
      if (options.bytes <= unit) {
        cu::raise(error.code, error.call, bytes,
                  pinning_limits() + ", and as little as " + megabytes(options.bytes) +
                      " was refused too");
      }
      refused = error.code;
      ++refused_;
      options.bytes = round_up(options.bytes / 2, unit);
      table.sleep_until_ns(table.now_ns() + kPauseNs);
    }
  }
  if (refused != cu::kSuccess) {
    std::fprintf(stderr, "weave: pinning %s at once failed with CUresult %d; went on with %s\n",
                 megabytes(bytes).c_str(), refused, megabytes(options.bytes).c_str());
  }
  if (options.bytes >= kPauseFrom) table.sleep_until_ns(table.now_ns() + kPauseNs);
  return piece;
}

}  // namespace weave

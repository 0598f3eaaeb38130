// core/transaction.hpp: one hand-over of frames, all or nothing. `outs` leave the device, `ins`
// come in; some take each other's frames. run() either completes or throws, and then undo() leads
// to the first reachable of: everything as it was; every byte of the outgoing slots in its frame or
// in a complete host copy, the incoming ones still on the host. Until undo() returns true the
// tenants concerned count as failed, and the device tries again before its next operation. Lock:
// the owning Device's. pre for all: the context is current.
#pragma once

#include <memory>
#include <vector>

#include "core/copy_engine.hpp"
#include "core/frames.hpp"
#include "core/report.hpp"
#include "core/residency.hpp"

namespace weave {

// What a copy that nobody could wait for may still read or write: not to be used again until the
// engine is settled.
struct Limbo {
  std::vector<FrameId> frames;
  std::vector<Extent> extents;
  bool empty() const { return frames.empty() && extents.empty(); }
};

class Transaction {
 public:
  struct Tools {
    const Driver& driver;
    Frames& frames;
    CopyEngine& engine;
    std::byte* staging = nullptr;  // pinned, one block: everything copied is read back and compared
  };

  Transaction(const std::vector<SlotRef>& outs, const std::vector<SlotRef>& ins);

  // Throws DriverError, and Refusal (verify_failed) where `staging` is given. Fills bytes,
  // blocks_remapped, map_s, out_s and in_s of the report.
  void run(const Tools& tools, SwitchReport& report);

  enum class Undone { restored, on_host, impossible };
  // After run() threw; may be called again while it returns `impossible`. Never throws.
  // restored: as before. on_host: no byte lost, but the outgoing slots are not all mapped.
  Undone undo(const Tools& tools) noexcept;

  bool concerns(const Tenant& tenant) const;
  // After undo() said `impossible`: this tenant closes. Its slots are taken out of the hand-over
  // and what copies in flight may still touch of them goes to `limbo`.
  void forget(const Tenant& tenant, Limbo& limbo) noexcept;
  // The tenants whose slots this hand-over touches.
  std::vector<std::shared_ptr<Tenant>> tenants() const;

 private:
  // In both, `ranges` is what has to be copied of the slot, in the order of offsets.
  struct Out {
    SlotRef ref;
    FrameId frame;
    bool copies;  // the frame has bytes that the host has not
    std::vector<Range> ranges;
    Bytes bytes_copied = 0;       // what must be kept of its first bytes is complete on the host
    Bytes bytes_overwritten = 0;  // its first bytes that may be overwritten in the frame
    int last_chunk = -1;          // index of its last outgoing chunk, if it has any
    bool lost = false;            // overwritten and nowhere else: counted as a discard
    std::uint64_t checksum = 0;   // of what was copied, where it is verified
  };
  struct In {
    SlotRef ref;
    FrameId frame;
    bool copies;  // there is a host copy to bring in
    std::vector<Range> ranges;
    int fill = -1;           // what every byte of its new frame becomes, or nothing
    int out = -1;            // index of the Out whose frame it takes
    bool from_pool = false;  // the frame came from the pool and goes back on undo
    Mapping mapping = {};    // moves into the slot on commit
  };

  void unmap_outs();
  void assign_frames(const Tools& tools);
  // The chunks of both directions. Those of one frame lie on one grid, so that an incoming one
  // waits for exactly the outgoing ones whose bytes it overwrites.
  struct Plan {
    Bytes chunk = 0;  // the grid
    std::vector<Chunk> outs, ins;
    std::vector<std::size_t> out_owner, in_owner;  // index of the Out or In of each
    std::vector<Bytes> out_end, in_end;            // where each ends in its slot
  };
  Plan plan_copies(const Tools& tools, Bytes chunk);
  void copy(const Tools& tools, Bytes chunk);
  void note_progress(const Plan& plan, const CopyEngine::Progress& progress);
  // In verify.cpp: out, compare, in, compare, one after the other.
  void copy_verified(const Tools& tools, Bytes chunk, SwitchReport& report);
  void run_noted(const Tools& tools, const Plan& plan, std::span<const Chunk> outs,
                 std::span<const Chunk> ins, SwitchReport& report);
  void map_ins(const Tools& tools);
  void commit(const Tools& tools, SwitchReport& report) noexcept;
  void restore(const Tools& tools);
  void keep_on_host(const Tools& tools);

  std::vector<Out> outs_;
  std::vector<In> ins_;
  Bytes block_bytes_ = 0;
  bool verified_ = false;
};

}  // namespace weave

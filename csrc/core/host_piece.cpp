#include "core/host_piece.hpp"

#include <utility>

#include "core/host_memory.hpp"

namespace weave {

HostPiece::HostPiece(std::string job_, Bytes unit, const HostPages::Options& pages,
                     ContextRef context)
    : job(std::move(job_)),
      context_(std::move(context)),
      pages_(std::make_unique<HostPages>(pages)),
      unit_(unit) {
  const ContextScope scope(*context_);
  const auto status = context_->driver().table.mem_host_register(pages_->data(), bytes(),
                                                                 cu::kHostRegisterPortable);
  if (status != cu::kSuccess)
    cu::raise(status, cu::Call::mem_host_register, bytes(), pinning_limits());
  cut(unit);
}

HostPiece::~HostPiece() {
  // The driver may still pin the pages if unregistering fails: then they must stay mapped. Both
  // steps are one undo, so a retry unmaps what it has unregistered.
  context_->driver_ref()->undo(
      cu::Call::mem_host_unregister,
      [context = std::weak_ptr<Context>(context_), ordinal = context_->driver().ordinal,
       pages = pages_.release()](const cu::Table& table) {
        const auto status = end_registration(table, ordinal, context, pages->data());
        if (status == cu::kSuccess) delete pages;
        return status;
      });
}

std::byte* HostPiece::take() {
  std::byte* taken = free_.back();
  free_.pop_back();
  return taken;
}

void HostPiece::cut(Bytes unit) {
  unit_ = unit;
  free_.clear();
  for (Bytes offset = 0; offset + unit <= bytes(); offset += unit) {
    free_.push_back(pages_->data() + offset);
  }
}

}  // namespace weave

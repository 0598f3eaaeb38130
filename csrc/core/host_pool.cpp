#include "core/host_pool.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "core/host_memory.hpp"

namespace weave {

namespace {

constexpr Bytes kPieceMax = Bytes{1} << 30;

Refusal refuse(const std::string& why, Bytes needed, Bytes available) {
  Refusal refusal(Refusal::Kind::host_memory, why + ": " + std::to_string(needed) +
                                                  " bytes needed, " + std::to_string(available) +
                                                  " available");
  refusal.bytes_needed = needed;
  refusal.bytes_available = available;
  return refusal;
}

}  // namespace

// A memfd, mapped and registered; whoever fails half-way lets the members die.
class HostPool::Piece {
 public:
  Piece(std::string job_, Bytes bytes_, Bytes unit_, ContextRef context)
      : job(std::move(job_)), bytes(bytes_), unit(unit_), context_(std::move(context)) {
    descriptor_ = memfd_create("weave-host", MFD_CLOEXEC);
    if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
      const Refusal refusal = refuse(
          std::string("cannot create pinned host memory (") + std::strerror(errno) + ")", bytes, 0);
      close();
      throw refusal;
    }
    void* address =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, 0);
    if (address == MAP_FAILED) {
      const Refusal refusal = refuse(
          std::string("cannot map pinned host memory (") + std::strerror(errno) + ")", bytes, 0);
      close();
      throw refusal;
    }
    data = static_cast<std::byte*>(address);
    // A forked helper must not keep writing into memory that a copy engine reads.
    madvise(data, bytes, MADV_DONTFORK);
    try {
      const ContextScope scope(*context_);
      cu::check(context_->driver().table.mem_host_register(data, bytes, cu::kHostRegisterPortable),
                cu::Call::mem_host_register, bytes);
    } catch (...) {
      close();
      throw;
    }
    for (Bytes offset = 0; offset + unit <= bytes; offset += unit) free_.push_back(data + offset);
  }
  ~Piece() {
    // The driver may still pin the pages if unregistering fails: then they must stay mapped. Both
    // steps are one undo, so a retry unmaps what it has unregistered.
    const int descriptor = std::exchange(descriptor_, -1);
    context_->driver_ref()->undo(cu::Call::mem_host_unregister,
                                 [context = std::weak_ptr<Context>(context_), data = data,
                                  bytes = bytes, descriptor](const cu::Table& table) {
                                   const auto alive = context.lock();
                                   cu::Status status = cu::kSuccess;
                                   try {
                                     std::optional<ContextScope> scope;
                                     if (alive != nullptr) scope.emplace(*alive);
                                     status = table.mem_host_unregister(data);
                                   } catch (const DriverError& error) {
                                     status = error.code;
                                   }
                                   // Unregistered already, by an earlier try or with its context:
                                   // only the pages are left.
                                   if (status == cu::kHostMemoryNotRegistered || alive == nullptr)
                                     status = cu::kSuccess;
                                   if (status == cu::kSuccess) {
                                     munmap(data, bytes);
                                     ::close(descriptor);
                                   }
                                   return status;
                                 });
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  bool is_free() const { return free_.size() == bytes / unit; }
  std::size_t free_count() const { return free_.size(); }
  std::byte* take() {
    std::byte* taken = free_.back();
    free_.pop_back();
    return taken;
  }
  void give_back(std::byte* taken) { free_.push_back(taken); }

  const std::string job;
  const Bytes bytes;
  const Bytes unit;
  std::byte* data = nullptr;

 private:
  void close() {
    if (data != nullptr) munmap(data, bytes);
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }

  const ContextRef context_;
  int descriptor_ = -1;
  std::vector<std::byte*> free_;
};

void Extent::drop() noexcept {
  if (data_ != nullptr) pool_->give_back(piece_, data_, bytes_);
  data_ = nullptr;
}

Extent& Extent::operator=(Extent&& other) noexcept {
  if (this == &other) return *this;
  drop();
  pool_ = std::move(other.pool_);
  piece_ = std::exchange(other.piece_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

HostPool::HostPool(ContextRef context, Bytes budget)
    : context_(std::move(context)),
      budget_(budget != 0 ? budget : host_bytes_available() / 10 * 9) {}

HostPool::~HostPool() = default;

Bytes HostPool::registered() const {
  const std::lock_guard lock(mutex_);
  return registered_;
}

Bytes HostPool::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::size_t HostPool::pieces() const {
  const std::lock_guard lock(mutex_);
  return pieces_.size();
}

// Pieces for `bytes` more, at most 1 GiB each. A job that grows in many small steps gets up to 2 %
// of what it has as headroom, so the number of registrations grows with the logarithm of its size.
void HostPool::grow(const std::string& job, Bytes bytes, Bytes unit) {
  Bytes job_bytes = 0;
  for (const auto& piece : pieces_) job_bytes += piece->job == job ? piece->bytes : 0;
  const Bytes left = budget_ > registered_ ? budget_ - registered_ : 0;
  bytes = std::max(bytes, std::min(job_bytes / 50, left) / unit * unit);
  if (bytes > left) throw refuse("the pinned host pool is at its budget", bytes, left);
  const Bytes available = host_bytes_available();
  if (bytes > available) throw refuse("this host has no memory left to pin", bytes, available);
  const Bytes piece_max = std::max(unit, kPieceMax / unit * unit);
  std::list<std::unique_ptr<Piece>> fresh;  // all or none
  Bytes registered = 0;
  for (; registered < bytes; registered += fresh.back()->bytes) {
    fresh.push_back(
        std::make_unique<Piece>(job, std::min(bytes - registered, piece_max), unit, context_));
  }
  pieces_.splice(pieces_.end(), fresh);
  registered_ += registered;
}

std::vector<Extent> HostPool::allocate(const std::string& job, Bytes bytes, std::size_t count) {
  std::vector<Extent> extents;  // dropped outside the lock if growing throws
  extents.reserve(count);
  const std::lock_guard lock(mutex_);
  std::size_t free = 0;
  for (const auto& piece : pieces_) {
    if (piece->job == job && piece->unit == bytes) free += piece->free_count();
  }
  if (free < count) grow(job, (count - free) * bytes, bytes);
  for (const auto& piece : pieces_) {
    if (piece->job != job || piece->unit != bytes) continue;
    while (extents.size() < count && piece->free_count() > 0) {
      Extent extent;
      extent.pool_ = shared_from_this();
      extent.piece_ = piece.get();
      extent.data_ = piece->take();
      extent.bytes_ = bytes;
      extents.push_back(std::move(extent));
    }
  }
  used_ += count * bytes;
  return extents;
}

void HostPool::give_back(void* piece, std::byte* data, Bytes bytes) noexcept {
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
  const auto found = std::ranges::find_if(
      pieces_, [&](const auto& candidate) { return candidate.get() == piece; });
  WEAVE_ASSERT(found != pieces_.end(), "an extent outlived its piece");
  (*found)->give_back(data);
  if (!(*found)->is_free()) return;
  registered_ -= (*found)->bytes;
  pieces_.erase(found);
}

}  // namespace weave

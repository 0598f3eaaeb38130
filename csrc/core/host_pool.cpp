#include "core/host_pool.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/host_memory.hpp"

namespace weave {

namespace {

constexpr Bytes kKeptShare = 8;  // free pieces: this part of the budget

Refusal refuse(const std::string& why, Bytes needed, Bytes available) {
  Refusal refusal(Refusal::Kind::host_memory, why + ": " + std::to_string(needed) +
                                                  " bytes needed, " + std::to_string(available) +
                                                  " available");
  refusal.bytes_needed = needed;
  refusal.bytes_available = available;
  return refusal;
}

}  // namespace

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

HostPool::HostPool(ContextRef context, Bytes budget, Bytes piece_max)
    : context_(std::move(context)),
      budget_(budget != 0 ? budget : host_bytes_available() / 10 * 9),
      piece_max_(piece_max),
      nodes_(numa_nodes()) {}

HostPool::~HostPool() {
  for (const auto& background : background_) background.growth->cancel();
  // The list stays whole meanwhile: their threads look at it.
  for (auto& background : background_) background.thread.join();
}

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

void HostPool::expect_unit(Bytes unit) {
  const std::lock_guard lock(mutex_);
  unit_ = std::max(unit_, unit);
}

HostPool::Stats HostPool::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats;
  stats.registered = registered_;
  stats.used = used_;
  stats.growing = growing_;
  stats.pieces = pieces_.size();
  stats.registrations = registrations_;
  stats.refused = refused_;
  stats.waits = waits_;
  std::map<PageKind, Bytes> kinds;
  std::map<int, NodeStats> nodes;
  for (const auto& piece : pieces_) {
    stats.free += piece->free_count() * piece->unit();
    stats.reserved += piece->reserved ? piece->bytes() : 0;
    stats.huge += piece->pages().bytes_huge();
    kinds[piece->pages().kind()] += piece->bytes();
    auto& node = nodes[piece->pages().node()];
    node.node = piece->pages().node();
    node.bytes += piece->bytes();
    ++node.pieces;
  }
  Bytes most = 0;
  for (const auto& [kind, bytes] : kinds) {
    if (bytes > std::exchange(most, std::max(most, bytes))) stats.kind = kind;
  }
  for (const auto& [id, node] : nodes) stats.nodes.push_back(node);
  return stats;
}

std::size_t HostPool::free_extents(const std::string& job, Bytes unit) const {
  std::size_t free = 0;
  for (const auto& piece : pieces_) {
    if (piece->job != job) continue;
    if (piece->unit() == unit) {
      free += piece->free_count();
    } else if (piece->is_free() && piece->suits(unit)) {
      free += piece->bytes() / unit;
    }
  }
  return free;
}

// pre: free_extents(job, unit) >= count. Pieces of the wanted node first.
std::vector<Extent> HostPool::take(const std::string& job, Bytes unit, std::size_t count,
                                   int node) {
  std::vector<Extent> extents;
  extents.reserve(count);
  for (const bool wanted : {true, false}) {
    for (const auto& piece : pieces_) {
      if (extents.size() == count) break;
      if (piece->job != job || (node == kAnyNode || piece->pages().node() == node) != wanted) {
        continue;
      }
      if (piece->unit() != unit && piece->is_free() && piece->suits(unit)) piece->cut(unit);
      if (piece->unit() != unit) continue;
      while (extents.size() < count && piece->free_count() > 0) {
        piece->reserved = false;
        Extent extent;
        extent.pool_ = shared_from_this();
        extent.piece_ = piece.get();
        extent.data_ = piece->take();
        extent.bytes_ = unit;
        extents.push_back(std::move(extent));
      }
    }
  }
  used_ += count * unit;
  return extents;
}

// Free pieces that `may` go, the longest free first, into a list that the caller drops without the
// lock, until they have `wanted` bytes. Returns the bytes.
template <class Predicate>
Bytes HostPool::evict(Pieces& into, Bytes wanted, Predicate may) {
  Bytes bytes = 0;
  while (bytes < wanted) {
    auto oldest = pieces_.end();
    for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
      if (!(*piece)->is_free() || !may(**piece)) continue;
      if (oldest == pieces_.end() || (*piece)->free_since < (*oldest)->free_since) oldest = piece;
    }
    if (oldest == pieces_.end()) break;
    bytes += (*oldest)->bytes();
    registered_ -= (*oldest)->bytes();
    note_gone(**oldest);
    into.splice(into.end(), pieces_, oldest);
  }
  return bytes;
}

// A piece is given back: a growth that still runs has not done it then.
void HostPool::note_gone(const HostPiece& piece) {
  if (piece.growth == 0) return;
  for (const auto& background : background_) {
    HostGrowth& growth = *background.growth;
    if (growth.id_ == piece.growth && !growth.finished()) growth.done_ -= piece.bytes();
  }
}

// Takes `bytes`, or more by a headroom, from the budget and checks that the host has them. Free
// pieces make room. Returns the bytes claimed. Throws Refusal. pre: locked; unlocked on the way.
Bytes HostPool::claim(std::unique_lock<std::mutex>& lock, const std::string& job, Bytes bytes,
                      Bytes unit, bool headroom) {
  // What `job` has free is not enough, but it has it: pieces that suit stay.
  const auto may_go = [&](const HostPiece& piece) {
    return !piece.reserved && (piece.job != job || (piece.unit() != unit && !piece.suits(unit)));
  };
  const auto left = [&] {
    return budget_ > registered_ + growing_ ? budget_ - registered_ - growing_ : 0;
  };
  Pieces gone;
  if (bytes > left()) evict(gone, bytes - left(), may_go);
  if (bytes > left()) {
    const Bytes available = left();
    lock.unlock();
    gone.clear();
    lock.lock();
    throw refuse(
        "the pinned host pool is at its budget of " + std::to_string(budget_) + " bytes (raise it)",
        bytes, available);
  }
  // A job that grows in many small steps gets up to 2 % of what it has as headroom, so the number
  // of registrations grows with the logarithm of its size.
  Bytes job_bytes = 0;
  for (const auto& piece : pieces_) job_bytes += piece->job == job ? piece->bytes() : 0;
  Bytes claimed = bytes;
  if (headroom) claimed = std::max(bytes, std::min(job_bytes / 50, left()) / unit * unit);
  growing_ += claimed;
  lock.unlock();
  gone.clear();
  Bytes available = host_bytes_available();
  lock.lock();
  if (bytes > available && evict(gone, bytes - available, may_go) > 0) {
    lock.unlock();
    gone.clear();
    available = host_bytes_available();
    lock.lock();
  }
  if (bytes > available) {
    growing_ -= claimed;
    throw refuse("this host has no memory left to pin", bytes, available);
  }
  if (claimed > available) growing_ -= std::exchange(claimed, bytes) - bytes;
  return claimed;
}

// All or none, in the caller's thread. pre: locked; unlocked while it grows.
void HostPool::grow(std::unique_lock<std::mutex>& lock, const std::string& job, Bytes bytes,
                    Bytes unit, int node) {
  bytes = claim(lock, job, bytes, unit, true);
  Bytes piece_max = std::max(unit, piece_max_ / unit * unit);
  Pieces fresh;
  lock.unlock();
  try {
    for (Bytes done = 0; done < bytes; done += fresh.back()->bytes()) {
      const Bytes wanted = std::min(bytes - done, piece_max);
      fresh.push_back(make_piece(job, wanted, unit, node, nullptr));
      if (fresh.back()->bytes() < wanted) piece_max = fresh.back()->bytes();
    }
  } catch (...) {
    while (!fresh.empty()) fresh.pop_back();  // the latest first
    lock.lock();
    growing_ -= bytes;
    throw;
  }
  lock.lock();
  growing_ -= bytes;
  registered_ += bytes;
  registrations_ += fresh.size();
  pieces_.splice(pieces_.end(), fresh);
}

bool HostPool::is_growing(const std::string& job) const {
  return std::ranges::any_of(background_, [&](const Background& background) {
    return background.job == job && !background.growth->finished();
  });
}

std::vector<Extent> HostPool::allocate(const std::string& job, Bytes bytes, std::size_t count,
                                       int node) {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::size_t free = free_extents(job, bytes);
    if (free >= count) return take(job, bytes, count, node);
    if (is_growing(job)) {
      ++waits_;
      grown_.wait(lock);
      continue;
    }
    grow(lock, job, (count - free) * bytes, bytes, node);
  }
}

std::shared_ptr<HostGrowth> HostPool::reserve(const std::string& job, Bytes bytes, int node) {
  if (bytes == 0) throw UsageError("a host pool grows by at least one byte");
  std::unique_lock lock(mutex_);
  const Bytes unit = unit_ != 0 ? unit_ : HostPages::kHugeBytes;
  std::list<Background> ended;  // their threads are at their end
  for (auto one = background_.begin(); one != background_.end();) {
    const auto next = std::next(one);
    if (one->growth->finished()) ended.splice(ended.end(), background_, one);
    one = next;
  }
  const Bytes total = claim(lock, job, round_up(bytes, unit), unit, false);
  auto growth = std::make_shared<HostGrowth>(++growths_, total);
  background_.push_back({growth, job, {}});
  try {
    background_.back().thread = std::jthread(
        [this, growth, job, unit, node] { grow_in_background(*growth, job, unit, node); });
  } catch (const std::system_error&) {
    background_.pop_back();
    growing_ -= total;
    throw refuse("no thread to grow the pinned host pool with", total, 0);
  }
  lock.unlock();
  return growth;
}

// On the growth's thread. Pieces can be used as soon as they are there; what nobody uses by the
// time the growth fails or is cancelled is given back.
void HostPool::grow_in_background(HostGrowth& growth, const std::string& job, Bytes unit,
                                  int node) {
  Bytes piece_max = [&] {
    const std::lock_guard lock(mutex_);
    return std::max(unit, piece_max_ / unit * unit);
  }();
  std::exception_ptr error;
  Bytes left = growth.total();
  try {
    while (left > 0 && !growth.cancel_) {
      const Bytes wanted = std::min(left, piece_max);
      if (const Bytes available = host_bytes_available(); wanted > available) {
        throw refuse("this host has no memory left to pin", wanted, available);
      }
      auto piece = make_piece(job, wanted, unit, node, &growth.cancel_);
      const Bytes bytes = piece->bytes();
      if (bytes < wanted) piece_max = bytes;
      piece->growth = growth.id_;
      piece->reserved = true;
      const std::lock_guard lock(mutex_);
      pieces_.push_back(std::move(piece));
      growing_ -= bytes;
      registered_ += bytes;
      ++registrations_;
      left -= bytes;
      growth.done_ += bytes;
      grown_.notify_all();
    }
  } catch (const HostPages::Cancelled&) {
    // Said by what is done.
  } catch (...) {
    error = std::current_exception();
  }
  Pieces gone;
  {
    const std::lock_guard lock(mutex_);
    growing_ -= left;
    if (left > 0) {
      evict(gone, growth.total(),
            [&](const HostPiece& piece) { return piece.growth == growth.id_; });
    }
  }
  gone.clear();
  {
    // Under the lock, so that nobody decides to wait for it in between.
    const std::lock_guard lock(mutex_);
    growth.end(std::move(error));
  }
  grown_.notify_all();
}

Bytes HostPool::trim(const std::string& job) {
  Pieces gone;
  std::unique_lock lock(mutex_);
  const Bytes bytes =
      evict(gone, ~Bytes{0}, [&](const HostPiece& piece) { return piece.job == job; });
  lock.unlock();
  return bytes;
}

Bytes HostPool::trim() {
  Pieces gone;
  std::unique_lock lock(mutex_);
  const Bytes bytes = evict(gone, ~Bytes{0}, [](const HostPiece&) { return true; });
  lock.unlock();
  return bytes;
}

void HostPool::give_back(HostPiece* piece, std::byte* data, Bytes bytes) noexcept {
  Pieces gone;  // dropped without the lock
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
  piece->give_back(data);
  if (!piece->is_free()) return;
  piece->free_since = ++frees_;
  Bytes kept = 0;
  for (const auto& other : pieces_) {
    kept += other->is_free() && !other->reserved ? other->bytes() : 0;
  }
  if (kept > budget_ / kKeptShare) {
    evict(gone, kept - budget_ / kKeptShare,
          [](const HostPiece& candidate) { return !candidate.reserved; });
  }
}

}  // namespace weave

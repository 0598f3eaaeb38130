// emu/catalogue.hpp: the objects of one kind, by an id that is handed out as an opaque handle and
// never reused. A lookup tells a live object from a dead one and from an id that was never issued.
// Has a lock of its own, the innermost one; no callback is called under it but `matches`.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace weave::emu {

enum class Life {
  live,
  dead,      // ended by its own release or destroy call
  orphaned,  // ended with its context
  unknown,   // never issued
};

template <class T>
class Catalogue {
 public:
  // The kind sits in the top bits: an id is no canonical address (dereferencing it faults), and ids
  // of different kinds never coincide.
  explicit Catalogue(std::uint64_t kind) : first_((kind << 48U) | (kind << 56U)), next_(first_) {}

  struct Found {
    Life life;
    std::shared_ptr<T> object;  // null unless live
  };

  std::uint64_t add(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    const auto id = next_ + 16;
    live_.emplace(id, std::move(object));
    next_ = id;
    return id;
  }

  Found find(std::uint64_t id) const {
    const std::lock_guard lock(mutex_);
    return look_up(id);
  }

  // Ends a live object; otherwise changes nothing.
  Found take(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    auto found = look_up(id);
    live_.erase(id);
    return found;
  }

  // Ends every object that matches, as orphaned.
  template <class Matches>
  std::vector<std::shared_ptr<T>> orphan_if(Matches matches) {
    std::vector<std::shared_ptr<T>> ended;
    const std::lock_guard lock(mutex_);
    for (auto entry = live_.begin(); entry != live_.end();) {
      if (!matches(*entry->second)) {
        ++entry;
        continue;
      }
      orphaned_.insert(entry->first);
      ended.push_back(std::move(entry->second));
      entry = live_.erase(entry);
    }
    return ended;
  }

  // Ends every object that matches, as dead.
  template <class Matches>
  void remove_if(Matches matches) {
    const std::lock_guard lock(mutex_);
    std::erase_if(live_, [&](const auto& entry) { return matches(*entry.second); });
  }

  template <class Matches>
  std::uint64_t count_if(Matches matches) const {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    for (const auto& [id, object] : live_) count += matches(*object) ? 1 : 0;
    return count;
  }

 private:
  Found look_up(std::uint64_t id) const {
    if (const auto found = live_.find(id); found != live_.end()) return {Life::live, found->second};
    if (orphaned_.contains(id)) return {Life::orphaned, nullptr};
    const bool issued = id > first_ && id <= next_ && (id - first_) % 16 == 0;
    return {issued ? Life::dead : Life::unknown, nullptr};
  }

  mutable std::mutex mutex_;
  const std::uint64_t first_;
  std::uint64_t next_;
  std::unordered_map<std::uint64_t, std::shared_ptr<T>> live_;
  std::unordered_set<std::uint64_t> orphaned_;
};

}  // namespace weave::emu

// emu/ledger.hpp: what several processes hold of one emulated device. Processes that open a spec
// with the same `id` share its capacity: each publishes what it holds in a file of its own, which
// it keeps locked while it lives, so that a killed process holds nothing. A block that two of them
// hold counts once. Lock: Driver::memory, and between processes a file lock for as long as a sum
// takes.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace weave::emu {

class Ledger {
 public:
  // `name`: the same in every process for the same device. Throws UsageError where it cannot have
  // its file.
  explicit Ledger(const std::string& name);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // While it lives no other process changes what is published.
  class Exclusive {
   public:
    explicit Exclusive(const Ledger& ledger);
    ~Exclusive();
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;

   private:
    const int file_;
  };

  // Bytes that other processes hold and this one does not. pre: an Exclusive lives.
  std::uint64_t bytes_of_others() const;
  // pre for all: an Exclusive lives. Bytes of this process alone; blocks by their inode.
  void set_private(std::uint64_t bytes);
  void hold(std::uint64_t inode, std::uint64_t bytes);
  void drop(std::uint64_t inode);

 private:
  bool join();
  void publish() const;
  template <class Use>
  void for_each_other(Use use) const;

  std::string folder_;
  std::string slot_;  // the name of our file
  int lock_file_ = -1;
  int slot_file_ = -1;
  std::uint64_t private_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> blocks_;
};

}  // namespace weave::emu

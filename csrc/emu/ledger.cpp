#include "emu/ledger.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "driver/status.hpp"

namespace weave::emu {

namespace {

constexpr const char* kLockName = "lock";
constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;

void lock_whole(int file, int how) {
  while (flock(file, how) != 0 && errno == EINTR) {
  }
}

// A file of numbers: bytes of the process alone, then inode and bytes of each block.
std::vector<std::uint64_t> read_numbers(int file) {
  std::vector<std::uint64_t> numbers;
  struct stat status{};
  if (fstat(file, &status) != 0) return numbers;
  numbers.resize(static_cast<std::size_t>(status.st_size) / sizeof(std::uint64_t));
  const auto bytes = numbers.size() * sizeof(std::uint64_t);
  if (pread(file, numbers.data(), bytes, 0) != static_cast<ssize_t>(bytes)) numbers.clear();
  return numbers;
}

}  // namespace

Ledger::Exclusive::Exclusive(const Ledger& ledger) : file_(ledger.lock_file_) {
  lock_whole(file_, LOCK_EX);
}

Ledger::Exclusive::~Exclusive() { lock_whole(file_, LOCK_UN); }

Ledger::Ledger(const std::string& name) {
  static std::atomic<unsigned> made{0};
  const bool has_shm = access("/dev/shm", W_OK) == 0;
  folder_ = std::string(has_shm ? "/dev/shm" : "/tmp") + "/weave-emulated-" +
            std::to_string(getuid()) + "-" + name;
  slot_ = std::to_string(getpid()) + "-" + std::to_string(++made);
  // The last process that goes removes the folder: then what was opened is no longer there.
  while (!join() && errno == ENOENT) {
  }
  if (slot_file_ >= 0) return;
  throw UsageError("emulated device: id= needs a folder that processes share, and " + folder_ +
                   " cannot be used: " + std::strerror(errno));
}

// Opens the lock and, while holding it, makes our file. False, with errno, when that fails.
bool Ledger::join() {
  mkdir(folder_.c_str(), 0700);
  lock_file_ = open((folder_ + "/" + kLockName).c_str(), kFlags, 0600);
  if (lock_file_ < 0) return false;
  {
    const Exclusive exclusive(*this);
    struct stat status{};
    const bool is_there = fstat(lock_file_, &status) == 0 && status.st_nlink != 0;
    errno = ENOENT;
    if (is_there) slot_file_ = open((folder_ + "/" + slot_).c_str(), kFlags | O_TRUNC, 0600);
    if (slot_file_ >= 0) lock_whole(slot_file_, LOCK_EX);
  }
  if (slot_file_ >= 0) return true;
  const int why = errno;
  close(lock_file_);
  lock_file_ = -1;
  errno = why;
  return false;
}

Ledger::~Ledger() {
  {
    const Exclusive exclusive(*this);
    unlink((folder_ + "/" + slot_).c_str());
    bool is_last = true;
    for_each_other([&](int) { is_last = false; });
    if (is_last) {
      unlink((folder_ + "/" + kLockName).c_str());
      rmdir(folder_.c_str());
    }
  }
  close(slot_file_);
  close(lock_file_);
}

// `use` gets the open file of each other process that lives; the files of others are removed.
template <class Use>
void Ledger::for_each_other(Use use) const {
  DIR* const folder = opendir(folder_.c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name.starts_with('.') || name == kLockName || name == slot_) continue;
    const auto path = folder_ + "/" + name;
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;
    if (flock(file, LOCK_SH | LOCK_NB) == 0) {
      unlink(path.c_str());
    } else {
      use(file);
    }
    close(file);
  }
  closedir(folder);
}

std::uint64_t Ledger::bytes_of_others() const {
  std::uint64_t bytes = 0;
  std::map<std::uint64_t, std::uint64_t> blocks;
  for_each_other([&](int file) {
    const auto numbers = read_numbers(file);
    if (numbers.empty()) return;
    bytes += numbers[0];
    for (std::size_t i = 1; i + 1 < numbers.size(); i += 2) blocks[numbers[i]] = numbers[i + 1];
  });
  for (const auto& [inode, size] : blocks) bytes += blocks_.contains(inode) ? 0 : size;
  return bytes;
}

void Ledger::set_private(std::uint64_t bytes) {
  private_bytes_ = bytes;
  publish();
}

void Ledger::hold(std::uint64_t inode, std::uint64_t bytes) {
  blocks_[inode] = bytes;
  publish();
}

void Ledger::drop(std::uint64_t inode) {
  blocks_.erase(inode);
  publish();
}

void Ledger::publish() const {
  std::vector<std::uint64_t> numbers{private_bytes_};
  for (const auto& [inode, bytes] : blocks_) {
    numbers.push_back(inode);
    numbers.push_back(bytes);
  }
  const auto bytes = numbers.size() * sizeof(std::uint64_t);
  // A process that dies in between leaves a short file, which counts for nothing, like the process.
  const bool written = ftruncate(slot_file_, static_cast<off_t>(bytes)) == 0 &&
                       pwrite(slot_file_, numbers.data(), bytes, 0) == static_cast<ssize_t>(bytes);
  WEAVE_ASSERT(written, "the ledger of an emulated device with id= cannot be written");
}

}  // namespace weave::emu

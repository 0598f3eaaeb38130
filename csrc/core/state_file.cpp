#include "core/state_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <set>

#include "driver/status.hpp"

namespace weave {

namespace {

constexpr const char* kPrefix = "weave-spill-";
constexpr const char* kUnknownChecksum = "0000000000000000";
constexpr std::size_t kAlignment = 4096;  // of the contents in the file
constexpr std::time_t kStaleAfter = 60;   // seconds; younger files may be between open and lock

// Temporary files of this process, removed at exit if their owners never were destroyed.
struct Registry {
  std::mutex mutex;
  std::set<std::string> paths;
  pid_t owner = getpid();
};

Registry& registry() {
  // Never destroyed: owners may be destroyed after static objects.
  static Registry* const all = [] {
    auto* made = new Registry;
    std::atexit([] {
      Registry& left = registry();
      if (left.owner != getpid()) return;  // a forked child: the files are its parent's
      const std::lock_guard lock(left.mutex);
      for (const auto& path : left.paths) unlink(path.c_str());
    });
    return made;
  }();
  return *all;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (code < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
      result += escaped;
    } else {
      result += letter;
    }
  }
  return result + '"';
}

int read_fully(int descriptor, std::byte* into, Bytes bytes, Bytes at) {
  while (bytes > 0) {
    const ssize_t count = pread(descriptor, into, bytes, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return ENODATA;
    into += count;
    at += static_cast<Bytes>(count);
    bytes -= static_cast<Bytes>(count);
  }
  return 0;
}

}  // namespace

void refuse_state_file(const std::string& what, const std::string& path, const std::string& tag) {
  Refusal refusal(Refusal::Kind::state_file,
                  "state file " + path + (tag.empty() ? "" : ", tag " + tag) + ": " + what);
  refusal.path = path;
  refusal.tag = tag;
  throw refusal;
}

StateFile::StateFile(std::string path, int descriptor, std::string header,
                     std::vector<StateTensor> tensors)
    : path_(std::move(path)),
      descriptor_(descriptor),
      header_(std::move(header)),
      tensors_(std::move(tensors)) {
  const std::lock_guard lock(registry().mutex);
  registry().paths.insert(path_);
}

StateFile::~StateFile() {
  close(descriptor_);
  if (registry().owner != getpid()) return;
  unlink(path_.c_str());
  const std::lock_guard lock(registry().mutex);
  registry().paths.erase(path_);
}

const StateTensor& StateFile::tensor(const std::string& tag) const {
  const auto found = std::ranges::find(tensors_, tag, &StateTensor::tag);
  WEAVE_ASSERT(found != tensors_.end(), "a slot lies in a file that does not have its tag");
  return *found;
}

void StateFile::check(const std::string& tag) const {
  const Bytes wanted = tensors_.back().offset + tensors_.back().bytes;
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) refuse_state_file(std::strerror(errno), path_, tag);
  if (static_cast<Bytes>(status.st_size) != wanted) {
    refuse_state_file("it has " + std::to_string(status.st_size) + " bytes, written were " +
                          std::to_string(wanted),
                      path_, tag);
  }
  std::string header(header_.size(), '\0');
  const int error =
      read_fully(descriptor_, reinterpret_cast<std::byte*>(header.data()), header.size(), 0);
  if (error != 0) refuse_state_file(std::strerror(error), path_, tag);
  if (header != header_) refuse_state_file("its header was changed", path_, tag);
}

void StateFile::read(const StateTensor& tensor, Bytes at, std::byte* into, Bytes bytes) const {
  for (Bytes done = 0; done < bytes; done += StateWriter::kPiece) {
    const Bytes piece = std::min(StateWriter::kPiece, bytes - done);
    const Bytes from = tensor.offset + at + done;
    if (const int error = read_fully(descriptor_, into + done, piece, from); error != 0) {
      refuse_state_file(error == ENODATA ? "it ends too early" : std::strerror(error), path_,
                        tensor.tag);
    }
    posix_fadvise(descriptor_, static_cast<off_t>(from), static_cast<off_t>(piece),
                  POSIX_FADV_DONTNEED);
  }
}

StateWriter::StateWriter(std::string path, Metadata metadata, std::vector<StateTensor> tensors,
                         unsigned mode)
    : path_(std::move(path)),
      temporary_path_(path_ + "." + std::to_string(getpid()) + ".tmp"),
      metadata_(std::move(metadata)),
      tensors_(std::move(tensors)) {
  for (auto& tensor : tensors_) tensor.checksum = kUnknownChecksum;
  header_ = make_header();
  Bytes offset = header_.size();
  for (auto& tensor : tensors_) {
    tensor.offset = offset;
    offset += tensor.bytes;
  }
  descriptor_ = open(temporary_path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, mode);
  if (descriptor_ < 0) fail(std::strerror(errno));
  flock(descriptor_, LOCK_EX | LOCK_NB);  // tells other processes that its owner lives
  put(reinterpret_cast<const std::byte*>(header_.data()), header_.size(), 0);
}

StateWriter::~StateWriter() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  if (!committed_) unlink(temporary_path_.c_str());
}

void StateWriter::fail(const std::string& what) {
  const std::string tag = current_ < tensors_.size() && written_ > 0 ? tensors_[current_].tag : "";
  if (descriptor_ >= 0) {
    close(std::exchange(descriptor_, -1));
    unlink(temporary_path_.c_str());
  }
  refuse_state_file(what, path_, tag);
}

void StateWriter::put(const std::byte* data, Bytes bytes, Bytes at) {
  while (bytes > 0) {
    const ssize_t count = pwrite(descriptor_, data, bytes, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(std::strerror(count < 0 ? errno : EIO));
    data += count;
    at += static_cast<Bytes>(count);
    bytes -= static_cast<Bytes>(count);
  }
}

// Contents are aligned by spaces behind the header. Its length does not depend on the checksums.
std::string StateWriter::make_header() const {
  std::string text = "{\"__metadata__\":{";
  bool first = true;
  const auto entry = [&](const std::string& key, const std::string& value) {
    text += (first ? "" : ",") + quoted(key) + ":" + quoted(value);
    first = false;
  };
  for (const auto& [key, value] : metadata_) entry(key, value);
  for (const auto& tensor : tensors_) entry("checksum." + tensor.tag, tensor.checksum);
  text += "}";
  Bytes begin = 0;
  for (const auto& tensor : tensors_) {
    const Bytes end = begin + tensor.bytes;
    text += "," + quoted(tensor.tag) + ":{\"dtype\":\"U8\",\"shape\":[" +
            std::to_string(tensor.bytes) + "],\"data_offsets\":[" + std::to_string(begin) + "," +
            std::to_string(end) + "]}";
    begin = end;
  }
  text += "}";
  text.append(round_up(8 + text.size(), kAlignment) - 8 - text.size(), ' ');
  std::string header;
  for (unsigned byte = 0; byte < 8; ++byte) {
    header += static_cast<char>(static_cast<Bytes>(text.size()) >> (8 * byte));
  }
  return header + text;
}

// A tag without bytes is there, and complete.
void StateWriter::skip_empty() {
  for (; current_ < tensors_.size() && tensors_[current_].bytes == 0; ++current_) {
    tensors_[current_].checksum = ContentHash().text();
  }
}

void StateWriter::write(const std::byte* data, Bytes bytes) {
  while (bytes > 0) {
    skip_empty();
    StateTensor& tensor = tensors_[current_];
    const Bytes piece = std::min({kPiece, bytes, tensor.bytes - written_});
    const Bytes at = tensor.offset + written_;
    hash_.add(data, piece);
    written_ += piece;
    put(data, piece, at);
    // Start writing back, so that the sync at the end has little to do and the cache stays small.
    sync_file_range(descriptor_, static_cast<off_t>(at), static_cast<off_t>(piece),
                    SYNC_FILE_RANGE_WRITE);
    posix_fadvise(descriptor_, 0, static_cast<off_t>(at), POSIX_FADV_DONTNEED);
    data += piece;
    bytes -= piece;
    if (written_ == tensor.bytes) {
      tensor.checksum = std::exchange(hash_, {}).text();
      written_ = 0;
      ++current_;
    }
  }
}

void StateWriter::commit() {
  skip_empty();
  WEAVE_ASSERT(current_ == tensors_.size(), "a state file was committed before it was written");
  header_ = make_header();
  put(reinterpret_cast<const std::byte*>(header_.data()), header_.size(), 0);
  if (fdatasync(descriptor_) != 0) fail(std::strerror(errno));
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) fail(std::strerror(errno));
  committed_ = true;
}

std::unique_ptr<StateFile> StateWriter::keep_as_temporary() {
  return std::make_unique<StateFile>(path_, std::exchange(descriptor_, -1), std::move(header_),
                                     std::move(tensors_));
}

void prepare_spill_directory(const std::string& directory) {
  const bool made = mkdir(directory.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) {
    throw UsageError("spill directory " + directory + ": " + std::strerror(errno));
  }
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr || access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    const int error = errno;
    if (entries != nullptr) closedir(entries);
    throw UsageError("spill directory " + directory + ": " + std::strerror(error));
  }
  const std::time_t now = std::time(nullptr);
  while (const dirent* const entry = readdir(entries)) {
    if (std::string(entry->d_name).rfind(kPrefix, 0) != 0) continue;
    const int file = openat(dirfd(entries), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat status{};
    const bool stale = file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0 &&
                       fstat(file, &status) == 0 && status.st_mtime + kStaleAfter < now;
    if (stale) unlinkat(dirfd(entries), entry->d_name, 0);
    if (file >= 0) close(file);
  }
  closedir(entries);
}

std::string spill_path(const std::string& directory) {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) {
    number = static_cast<std::uint64_t>(std::time(nullptr)) << 32U |
             static_cast<std::uint64_t>(getpid());
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  return directory + "/" + kPrefix + digits + ".safetensors";
}

}  // namespace weave

#include "weft/comm/store/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "weft/comm/store/key_table.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kOp = "store";

// The file: kMagic, how many times it has been rewritten (u64), and records. A record is two
// lengths (u32), the key and the value. The value's length may be kErased instead; then no value
// follows.
constexpr std::string_view kMagic = "weft store file 1\n";
constexpr std::uint32_t kErased = 0xffffffff;
constexpr std::size_t kFileHeadBytes = kMagic.size() + sizeof(std::uint64_t);
constexpr std::size_t kRecordHeadBytes = 2 * sizeof(std::uint32_t);
// At least the length of the longest record.
constexpr std::size_t kMostReadBytes = 2 * Store::kMostValueBytes;
// A longer file is rewritten when half of it is outdated: ranks publish their progress as long as
// they run.
constexpr off_t kLongLog = 1 << 20;

[[noreturn]] void fail(const char* action, const std::string& path, int error) {
  WEFT_THROW(Io, kOp, "cannot ", action, " the store file ", path, ": ",
             std::generic_category().message(error), " (errno ", error, ")");
}

template <class F>
auto retry(const F& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Returns -1 and sets errno on failure.
int open_file(const std::string& path, int flags) {
  return retry([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600); });
}

// Sleeps for growing times. No notification works on every file system (above all not on NFS) when
// another machine has written.
class Pause {
 public:
  void sleep(const Deadline& deadline) {
    std::this_thread::sleep_for(deadline.left(length_));
    length_ = std::min(length_ * 2, milliseconds(20));
  }

 private:
  milliseconds length_{1};
};

class FileLock {
 public:
  // `kind` is LOCK_SH or LOCK_EX. Does not wait: a stopped process may hold the lock.
  FileLock(int fd, int kind, const std::string& path)
      : fd_(retry([&] { return ::flock(fd, kind | LOCK_NB); }) == 0 ? fd : -1) {
    if (fd_ < 0 && errno != EWOULDBLOCK) fail("lock", path, errno);
  }
  ~FileLock() {
    if (fd_ >= 0) ::flock(fd_, LOCK_UN);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return fd_ >= 0; }

 private:
  const int fd_;
};

}  // namespace

struct FileStore::Impl {
  // `file` is the result of open_file().
  Impl(std::string p, int file) : path(std::move(p)), fd(file) {
    if (fd < 0) fail("open", path, errno);
    try {
      check_owner();
    } catch (...) {
      ::close(fd);
      throw;
    }
  }
  ~Impl() { ::close(fd); }

  // In /tmp another user may have taken the name.
  void check_owner() const {
    const struct stat found = status();
    WEFT_CHECK(S_ISREG(found.st_mode), Io, kOp, path, " is no regular file, no place for a store");
    WEFT_CHECK(found.st_uid == ::geteuid() && (found.st_mode & 022) == 0, Io, kOp,
               "the store file ", path, " belongs to user ", found.st_uid, " and has mode 0",
               std::oct, found.st_mode & 0777,
               ": it must be yours, and written by nobody else; remove it");
  }

  struct stat status() const {
    struct stat found{};
    if (::fstat(fd, &found) < 0) fail("look at", path, errno);
    return found;
  }

  // Runs f() with the file locked, after reading everything that others wrote; nothing if another
  // process has the lock.
  template <class F>
  auto try_locked(int kind, const F& f) -> std::optional<decltype(f())> {
    const std::lock_guard among_threads(mutex);
    const FileLock lock(fd, kind, path);
    if (!lock.held()) return std::nullopt;
    read_on();
    return f();
  }

  template <class F>
  auto locked(int kind, const Deadline& deadline, const F& f) {
    for (Pause pause;; pause.sleep(deadline)) {
      if (auto result = try_locked(kind, f)) return *std::move(result);
      WEFT_CHECK(!deadline.passed(), Timeout, kOp, "another process keeps the store file ", path,
                 " locked");
    }
  }

  // Everything below is called under the lock.

  void read_on() {
    if (!read_head()) return;
    for (;;) {
      const off_t size = status().st_size;
      WEFT_CHECK(size >= end, Io, kOp, "the store file ", path, " has shrunk from ", end, " to ",
                 size, " bytes: somebody else writes to it");
      const std::string bytes = read(end, std::min<std::size_t>(size - end, kMostReadBytes));
      std::string_view rest = bytes;
      while (take_record(rest)) {
      }
      const std::size_t used = bytes.size() - rest.size();
      if (used == 0) return;  // at the end, or at a record that a killed writer did not finish
      end += static_cast<off_t>(used);
    }
  }

  // Whether there is a head: the file may still be empty.
  bool read_head() {
    const std::string head = read(0, kFileHeadBytes);
    const std::string_view magic = std::string_view(head).substr(0, kMagic.size());
    WEFT_CHECK(kMagic.starts_with(magic), Io, kOp, path,
               " is no store of this version of weft; give another path");
    if (head.size() < kFileHeadBytes) {
      WEFT_CHECK(end == 0, Io, kOp, "the store file ", path, " has been emptied");
      return false;
    }
    std::uint64_t found = 0;
    std::memcpy(&found, head.data() + kMagic.size(), sizeof found);
    if (end == 0 || found != rewrites) {
      values.clear();
      rewrites = found;
      end = kFileHeadBytes;
    }
    return true;
  }

  // Takes a record; false if there is no complete one.
  bool take_record(std::string_view& bytes) {
    if (bytes.size() < kRecordHeadBytes) return false;
    std::uint32_t sizes[2];
    std::memcpy(sizes, bytes.data(), kRecordHeadBytes);
    const std::size_t key_size = sizes[0], value_size = sizes[1] == kErased ? 0 : sizes[1];
    WEFT_CHECK(key_size - 1 < kMostKeyBytes && value_size <= kMostValueBytes, Io, kOp,
               "the store file ", path, " is damaged: a record of ", key_size, " + ", value_size,
               " bytes; remove it");
    if (bytes.size() < kRecordHeadBytes + key_size + value_size) return false;
    const std::string key(bytes.substr(kRecordHeadBytes, key_size));
    if (sizes[1] == kErased) {
      values.erase(key);
    } else {
      values.insert_or_assign(key,
                              std::string(bytes.substr(kRecordHeadBytes + key_size, value_size)));
    }
    bytes.remove_prefix(kRecordHeadBytes + key_size + value_size);
    return true;
  }

  std::optional<std::string> find(const std::string& key) const {
    const auto found = values.find(key);
    if (found == values.end()) return std::nullopt;
    return found->second;
  }

  // The next call reads it back.
  void append(const std::string& key, const std::optional<std::string_view>& value) {
    if (end == 0) rewrite();
    if (end > kLongLog && end > 2 * static_cast<off_t>(all_records().size())) rewrite();
    if (::ftruncate(fd, end) < 0) fail("cut", path, errno);  // left by a killed writer
    write(end, record(key, value));
  }

  // Writes the head last: a writer that is killed before leaves a file without a head.
  void rewrite() {
    const std::string records = all_records();
    if (::ftruncate(fd, 0) < 0) fail("cut", path, errno);
    write(kFileHeadBytes, records);
    std::string head(kMagic);
    ++rewrites;
    head.append(reinterpret_cast<const char*>(&rewrites), sizeof rewrites);
    write(0, head);
    end = static_cast<off_t>(kFileHeadBytes + records.size());
  }

  std::string all_records() const {
    std::string records;
    for (const auto& [key, value] : values) records += record(key, value);
    return records;
  }

  static std::string record(const std::string& key, const std::optional<std::string_view>& value) {
    const std::uint32_t sizes[] = {static_cast<std::uint32_t>(key.size()),
                                   value ? static_cast<std::uint32_t>(value->size()) : kErased};
    std::string bytes(reinterpret_cast<const char*>(sizes), sizeof sizes);
    bytes += key;
    bytes += value.value_or("");
    return bytes;
  }

  std::string read(off_t at, std::size_t size) const {
    std::string bytes(size, '\0');
    const ssize_t n = retry([&] { return ::pread(fd, bytes.data(), bytes.size(), at); });
    if (n < 0) fail("read", path, errno);
    bytes.resize(static_cast<std::size_t>(n));
    return bytes;
  }

  void write(off_t at, std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = retry([&] { return ::pwrite(fd, bytes.data(), bytes.size(), at); });
      if (n < 0) fail("write", path, errno);
      bytes.remove_prefix(static_cast<std::size_t>(n));
      at += n;
    }
  }

  const std::string path;
  const int fd;
  std::mutex mutex;
  off_t end = 0;               // the file has been read up to here
  std::uint64_t rewrites = 0;  // of the file when it was read
  std::unordered_map<std::string, std::string> values;
};

FileStore::FileStore(std::string path)
    : impl_(std::make_shared<Impl>(path, open_file(path, O_CREAT))) {}

FileStore::FileStore(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

FileStore::~FileStore() = default;

std::unique_ptr<FileStore> FileStore::open(const std::string& path) {
  const int fd = open_file(path, 0);
  if (fd < 0 && errno == ENOENT) return nullptr;
  return std::unique_ptr<FileStore>(new FileStore(std::make_shared<Impl>(path, fd)));
}

bool FileStore::in_place() const noexcept {
  struct stat held{}, named{};
  return ::fstat(impl_->fd, &held) == 0 && ::lstat(impl_->path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

void FileStore::remove() {
  // A rank that replaces the file holds the lock, too, so no rank removes another rank's new file.
  impl_->locked(LOCK_EX, Deadline(timeout()), [&] {
    if (in_place() && ::unlink(impl_->path.c_str()) < 0) fail("remove", impl_->path, errno);
    return true;
  });
}

std::unique_ptr<Store> FileStore::duplicate() const {
  std::unique_ptr<FileStore> copy(new FileStore(impl_));
  copy->set_timeout(timeout());
  return copy;
}

std::string FileStore::describe() const { return "file://" + impl_->path; }

void FileStore::do_set(const std::string& key, std::string_view value, const Deadline& deadline) {
  impl_->locked(LOCK_EX, deadline, [&] {
    impl_->append(key, value);
    return true;
  });
}

std::optional<std::string> FileStore::do_get(const std::string& key, const Deadline& deadline) {
  for (Pause pause;; pause.sleep(deadline)) {
    auto found = impl_->try_locked(LOCK_SH, [&] { return impl_->find(key); });
    if (found && *found) return *std::move(found);
    if (deadline.passed()) return std::nullopt;
  }
}

std::optional<std::string> FileStore::do_try_get(const std::string& key, const Deadline& deadline) {
  return impl_->locked(LOCK_SH, deadline, [&] { return impl_->find(key); });
}

std::int64_t FileStore::do_add(const std::string& key, std::int64_t delta,
                               const Deadline& deadline) {
  return impl_->locked(LOCK_EX, deadline, [&] {
    const std::int64_t sum = sum_with(key, impl_->find(key), delta);
    impl_->append(key, std::to_string(sum));
    return sum;
  });
}

std::string FileStore::do_set_once(const std::string& key, std::string_view value,
                                   const Deadline& deadline) {
  return impl_->locked(LOCK_EX, deadline, [&] {
    std::optional<std::string> found = impl_->find(key);
    if (!found) impl_->append(key, value);
    return std::move(found).value_or(std::string(value));
  });
}

bool FileStore::do_erase(const std::string& key, const Deadline& deadline) {
  return impl_->locked(LOCK_EX, deadline, [&] {
    if (!impl_->find(key)) return false;
    impl_->append(key, std::nullopt);
    return true;
  });
}

}  // namespace weft::comm

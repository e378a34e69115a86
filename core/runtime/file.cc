#include "weft/core/runtime/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"

namespace weft {
namespace {

// Repeats a system call that was interrupted by a signal.
template <class F>
auto retry(F call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// The descriptor is -1, and errno is set, if the file cannot be opened. A path that ends in a
// symbolic link cannot.
Descriptor open_file(const std::string& path, int flags) {
  return Descriptor(
      retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0666); }));
}

bool is_file(int fd, const struct stat& wanted) {
  struct stat found{};
  return ::fstat(fd, &found) == 0 && found.st_ino == wanted.st_ino && found.st_dev == wanted.st_dev;
}

bool has_name(int fd, const std::string& path) {
  struct stat named{};
  return ::lstat(path.c_str(), &named) == 0 && is_file(fd, named);
}

[[noreturn]] void fail(const char* action, const std::string& path, int error) {
  WEFT_THROW(Io, "file", action, " ", path, ": ", std::generic_category().message(error),
             " (errno ", error, ")");
}

// Flushes the names in the folder to the disk. Returns errno.
int flush_folder(const std::string& folder) {
  const Descriptor opened(
      retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  // A folder that may be written but not read cannot be flushed by us.
  if (opened.get() < 0) return errno == EACCES ? 0 : errno;
  if (retry([&] { return ::fsync(opened.get()); }) == 0) return 0;
  // Some file systems do not flush folders and say EINVAL.
  return errno == EINVAL ? 0 : errno;
}

void flush_names_beside(const std::string& path) {
  const std::string folder = folder_of(path);
  if (const int error = flush_folder(folder)) fail("cannot flush the folder", folder, error);
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  WEFT_CHECK(!path_.empty() && path_.back() != '/', Io, "file", "'", path_, "' is not a file name");
  struct stat found{};
  if (::stat(path_.c_str(), &found) == 0) {
    // Renaming over /dev/null would replace the device.
    WEFT_CHECK(S_ISREG(found.st_mode), Io, "file", "cannot write ", path_,
               ": it exists and is no regular file");
  }
  while (!make_temporary()) {
  }
}

// Returns false if another writer has taken the file for a stale one before it was locked.
bool AtomicFile::make_temporary() {
  Descriptor made;
  while ((made = open_file(temporary_, O_WRONLY | O_CREAT | O_EXCL)).get() < 0) {
    if (errno != EEXIST) fail("cannot create", temporary_, errno);
    remove_stale();
  }
  lock(made.get());
  if (!has_name(made.get(), temporary_)) return false;
  fd_ = made.release();
  return true;
}

// Unlinks a file that a killed writer left. It is not reused: another process may hold it open.
void AtomicFile::remove_stale() const {
  struct stat found{};
  if (::lstat(temporary_.c_str(), &found) < 0) {
    if (errno == ENOENT) return;
    fail("cannot examine", temporary_, errno);
  }
  const auto check_none = [&](bool is, const std::string& what) {
    WEFT_CHECK(!is, Io, "file", "cannot write ", path_, ": ", temporary_, " is there already and ",
               what, "; remove it");
  };
  check_none(S_ISLNK(found.st_mode), "is a symbolic link");
  check_none(!S_ISREG(found.st_mode), "is no regular file");
  check_none(found.st_uid != ::geteuid(), detail::concat("belongs to user ", found.st_uid));
  check_none(found.st_nlink > 1, "has another name, too");

  // O_NONBLOCK: the file may have been replaced by a pipe.
  const Descriptor stale = open_file(temporary_, O_WRONLY | O_NONBLOCK);
  if (stale.get() < 0 && errno == ENOENT) return;
  if (stale.get() < 0) fail("cannot open", temporary_, errno);
  lock(stale.get());
  // Writers only unlink and rename files that they have locked, so the name cannot change here.
  if (is_file(stale.get(), found) && has_name(stale.get(), temporary_)) {
    if (::unlink(temporary_.c_str()) < 0) fail("cannot remove", temporary_, errno);
  }
}

// The lock ends with its owner, so a temporary that can be locked has no owner.
void AtomicFile::lock(int fd) const {
  if (retry([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0) return;
  WEFT_CHECK(errno != EWOULDBLOCK, Io, "file", "cannot write ", path_,
             ": another writer is at it (", temporary_, " is locked)");
  fail("cannot lock", temporary_, errno);
}

bool AtomicFile::is_temporary(int fd) const {
  struct stat own{};
  return fd_ >= 0 && ::fstat(fd_, &own) == 0 && is_file(fd, own);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  if (has_name(fd_, temporary_)) ::unlink(temporary_.c_str());
  ::close(fd_);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  WEFT_CHECK(fd_ >= 0, Internal, "file", "write to ", path_, " after commit");
  while (!bytes.empty()) {
    const ssize_t n = retry([&] { return ::write(fd_, bytes.data(), bytes.size()); });
    if (n < 0) fail("cannot write", path_, errno);
    if (n == 0) fail("cannot write", path_, ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void AtomicFile::commit() {
  WEFT_CHECK(fd_ >= 0, Internal, "file", "second commit of ", path_);
  if (retry([&] { return ::fsync(fd_); }) < 0) fail("cannot flush", path_, errno);
  fault_point();
  // Another file may have been put there by anyone who may write to the folder.
  WEFT_CHECK(has_name(fd_, temporary_), Io, "file", "cannot write ", path_,
             ": somebody has removed or replaced ", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) < 0) fail("cannot replace", path_, errno);
  // After the rename nothing can be undone. Close only now: the lock covers the rename.
  if (::close(std::exchange(fd_, -1)) < 0 && errno != EINTR) fail("cannot close", path_, errno);
  flush_names_beside(path_);
}

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text)));
}

void rename_durably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) < 0) fail("cannot replace", to, errno);
  flush_names_beside(to);
}

std::error_code make_folders(const std::string& path) {
  const auto error = [](int number) { return std::error_code(number, std::generic_category()); };
  const auto is_there = [](const std::string& name) {
    struct stat found{};
    return ::stat(name.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
  };
  std::filesystem::path all;
  for (const std::filesystem::path& part : std::filesystem::path(path)) {
    const std::string folder = (all /= part).string();
    if (is_there(folder)) continue;
    if (::mkdir(folder.c_str(), 0777) < 0) {
      const int number = errno;
      if (number == EEXIST && is_there(folder)) continue;  // another process was faster
      return error(number == EEXIST ? ENOTDIR : number);
    }
    for (const std::string& changed : {folder, folder_of(folder)}) {
      if (const int number = flush_folder(changed)) return error(number);
    }
  }
  return {};
}

std::string temporary_folder() {
  const char* variable = std::getenv("TMPDIR");
  const bool is_given = variable && *variable;
  const std::string folder = is_given ? variable : "/tmp";
  // With "/." at the end, which no file has.
  if (::access((folder + "/.").c_str(), W_OK | X_OK) != 0) {
    WEFT_THROW(Io, "file", "cannot make temporary files in ", folder,
               is_given ? ", which the environment variable TMPDIR names" : "", ": ",
               std::generic_category().message(errno),
               is_given ? "" : "; TMPDIR can name another folder");
  }
  return folder;
}

void flush_stdout() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int error = errno;
  WEFT_CHECK(flushed && !std::ferror(stdout), Io, "stdout", "some of the output is lost",
             error ? ": " + std::generic_category().message(error) : "");
}

}  // namespace weft

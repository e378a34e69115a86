#include "weft/core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/phase.h"

namespace weft {
namespace {

// Repeats a system call that a signal cut short.
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

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  WEFT_CHECK(!path_.empty() && path_.back() != '/', Io, "file", "'", path_, "' is not a file name");
  struct stat found{};
  if (::stat(path_.c_str(), &found) == 0) {
    // Renaming over /dev/null would replace the device.
    WEFT_CHECK(S_ISREG(found.st_mode), Io, "file", "cannot write ", path_,
               ": it exists and is no regular file");
  }
  open_temporary();
}

void AtomicFile::open_temporary() {
  for (;;) {
    fd_ = retry([&] {
      return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    });
    if (fd_ < 0) fail("cannot create", temporary_, errno);
    // The lock dies with its owner, so a temporary that can be locked is nobody's.
    if (retry([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) < 0) {
      const int error = errno;
      ::close(std::exchange(fd_, -1));
      WEFT_CHECK(error != EWOULDBLOCK, Io, "file", "cannot write ", path_,
                 ": another writer is at it (", temporary_, " is locked)");
      fail("cannot lock", temporary_, error);
    }
    // Its former owner may have renamed or removed it between our open and our lock.
    struct stat held{}, named{};
    if (::fstat(fd_, &held) == 0 && ::stat(temporary_.c_str(), &named) == 0 &&
        held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
      break;
    }
    ::close(std::exchange(fd_, -1));
  }
  if (retry([&] { return ::ftruncate(fd_, 0); }) < 0) {
    const int error = errno;
    ::close(std::exchange(fd_, -1));
    fail("cannot empty", temporary_, error);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());
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
  if (::rename(temporary_.c_str(), path_.c_str()) < 0) fail("cannot replace", path_, errno);
  // Past the rename there is nothing to take back. Close late: the lock covers the rename.
  if (::close(std::exchange(fd_, -1)) < 0 && errno != EINTR) fail("cannot close", path_, errno);

  const std::string folder = folder_of(path_);
  const int fd = retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) {
    // A folder that may be written but not read cannot be flushed by us.
    if (errno == EACCES) return;
    fail("cannot open the folder", folder, errno);
  }
  const int error = retry([&] { return ::fsync(fd); }) < 0 ? errno : 0;
  ::close(fd);
  // Some file systems do not flush folders and say EINVAL.
  if (error != 0 && error != EINVAL) fail("cannot flush the folder", folder, error);
}

void AtomicFile::fail(const char* action, const std::string& path, int error) const {
  WEFT_THROW(Io, "file", action, " ", path, ": ", std::generic_category().message(error),
             " (errno ", error, ")");
}

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace weft

#include "weft/io/file_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::io {

namespace {
std::string reason(int error) { return std::generic_category().message(error); }
}  // namespace

FileReader::FileReader(std::string path, const char* op) : path_(std::move(path)), op_(op) {
  // O_NONBLOCK: opening a pipe without a writer would wait for ever.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  WEFT_CHECK(fd_ >= 0, Io, op_, path_, ": cannot open: ", reason(errno));
  struct stat info;
  const int failed = ::fstat(fd_, &info) != 0 ? errno : 0;
  if (failed != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    WEFT_CHECK(failed == 0, Io, op_, path_, ": cannot read its size: ", reason(failed));
    WEFT_THROW(Io, op_, path_, ": not a regular file");
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
}

FileReader::~FileReader() { ::close(fd_); }

std::size_t FileReader::read_some(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    // One call moves at most 2 GiB on Linux; ask for less, so that a short count means the end.
    const std::size_t want = std::min<std::size_t>(out.size() - done, std::size_t{1} << 30);
    const ssize_t got = ::pread(fd_, out.data() + done, want, static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      WEFT_THROW(Io, op_, path_, ": cannot read: ", reason(errno));
    }
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void FileReader::read(std::uint64_t offset, std::span<std::byte> out) const {
  const std::size_t got = read_some(offset, out);
  WEFT_CHECK(got == out.size(), Io, op_, path_, ": became shorter while it was read: ", out.size(),
             " bytes wanted at ", offset, ", got ", got);
}

std::shared_ptr<std::byte> FileReader::map() const {
  if (size_ == 0) return nullptr;
  // NORESERVE: pages that nobody writes to need no memory of their own.
  void* const memory =
      ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_, 0);
  WEFT_CHECK(memory != MAP_FAILED, Io, op_, path_, ": cannot map: ", reason(errno));
  return {static_cast<std::byte*>(memory), [bytes = size_](std::byte* p) { ::munmap(p, bytes); }};
}

}  // namespace weft::io

#include "weft/tests/io/faults.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weft::testing {
namespace {

bool active = false;
Faults current;

bool fails(int& calls, int which) {
  ++calls;
  if (calls != which) return false;
  errno = current.error;
  return true;
}

}  // namespace

FaultScope::FaultScope(Faults faults) {
  current = faults;
  active = true;
}

FaultScope::~FaultScope() { active = false; }

const Faults& FaultScope::faults() const { return current; }

}  // namespace weft::testing

using weft::testing::active;
using weft::testing::current;
using weft::testing::fails;

// A program's own definitions replace those of the C library, also for its shared libraries.
extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  if (active && fd > STDERR_FILENO) {
    if (fails(current.writes, current.fail_write)) return -1;
    if (current.interrupted && current.writes % 2 == 1) {
      errno = EINTR;
      return -1;
    }
    if (current.short_writes) bytes = std::min<size_t>(bytes, 1000);
  }
  return syscall(SYS_write, fd, data, bytes);
}

extern "C" int fsync(int fd) {
  if (active && fails(current.fsyncs, current.fail_fsync)) return -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (active && fails(current.renames, current.fail_rename)) return -1;
  return static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

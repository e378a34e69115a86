#include "weft/comm/descriptors.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

// One connection of init_process_group(), two of a group (one for operations, one to watch the
// run), and one for a call that must not wait for them.
constexpr std::int64_t kPerRank = 4;

// The number of open descriptors below `limit`. The system limits a descriptor's value, so only
// these count.
std::int64_t open_below(std::int64_t limit) {
  std::int64_t open = 0;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    open += std::atoll(file.path().filename().c_str()) < limit;
  }
  return open;
}

}  // namespace

std::int64_t store_descriptors(std::int64_t ranks) { return ranks * kPerRank; }

void check_descriptors(const char* op, const std::string& what, std::int64_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const auto most = static_cast<std::int64_t>(limit.rlim_cur);
  const std::int64_t left = most - open_below(most);
  WEFT_CHECK(needed <= left, Library, op, what, " needs ", needed,
             " file descriptors in this process, which may open ", left, " more of its ", most,
             ": ulimit -n ", most + needed - left, " allows enough");
}

}  // namespace weft::comm

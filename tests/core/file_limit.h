// For tests with a low limit of open files.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace weft::testing {

/// Sets the number of files that this process may open, while the object lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit now{std::min(files, before_.rlim_max), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

/// Uses all but `left` of the descriptors that this process may have, while the object lives.
class UsedUpDescriptors {
 public:
  explicit UsedUpDescriptors(std::size_t left) {
    for (int fd = -1; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) files_.push_back(fd);
    give_back(left);
  }
  ~UsedUpDescriptors() { give_back(files_.size()); }
  UsedUpDescriptors(const UsedUpDescriptors&) = delete;
  UsedUpDescriptors& operator=(const UsedUpDescriptors&) = delete;

  void give_back(std::size_t number) {
    for (; number > 0 && !files_.empty(); --number, files_.pop_back()) ::close(files_.back());
  }
  void give_back_all() { give_back(files_.size()); }

 private:
  std::vector<int> files_;
};

}  // namespace weft::testing

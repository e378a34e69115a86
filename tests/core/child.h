// A child of fork().
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace weft::testing {

/// What `body` returns in a child of this process; -1 if the child is killed, or hangs.
inline int status_of_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace weft::testing

// Processes that a launcher starts: each leads a process group of its own. None outlives it, and as
// far as they can be known none that it has started.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::launch {

/// Owns a file descriptor, or none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

/// The end to read from and the one to write to, which exec closes. Throws Library.
std::pair<Descriptor, Descriptor> make_pipe();
/// As a pipe, but the end to write to is a terminal, as wide as `like`. A pipe where the system has
/// no more terminals, as in a root without /dev/pts: programs then write as to a file.
std::pair<Descriptor, Descriptor> make_terminal(int like);
/// Reading and writing do not wait from now on.
void set_nonblocking(const Descriptor& descriptor);

/// While one lives, this process may open as many files as its hard limit lets it.
class FileLimit {
 public:
  /// Throws Library where these are not `needed` more than are open; `what` needs them.
  FileLimit(const std::string& what, std::int64_t needed);
  ~FileLimit();
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

  /// What programs are to be started with.
  const rlimit& before() const { return before_; }

 private:
  rlimit before_{};
};

/// A folder in the temporary one (TMPDIR, else /tmp) that goes with its owner.
class ScratchFolder {
 public:
  /// Throws Io.
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A new folder: `beginning` and six letters of its own. Throws Io.
std::string make_folder(const std::string& beginning);

/// A process that waits for the end of this one, by whatever: a SIGKILL, too. It then kills the
/// process groups that it has been told of; ends the processes of this user, whatever their group,
/// that have got the mark in their environment: by SIGTERM, and a second later by SIGKILL; and
/// removes a folder. Who has both left its group and cleared its environment is not found.
class Guardian {
 public:
  /// `mark`: how a variable begins that no other process has: "NAME=/tmp/weftrun_AbCdEf/". Forks:
  /// the process must still have one thread. Throws Library.
  Guardian(const std::string& folder, const std::string& mark);
  /// Returns when it has done all that, and ended.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// `group` is told by its leader between fork and exec, so that no moment is without.
  void watch(pid_t group) const noexcept;
  /// Before the group's number may be used again.
  void forget(pid_t group) const noexcept;

  pid_t pid() const { return pid_; }

 private:
  Descriptor told_by_;
  pid_t pid_ = -1;
};

/// Signals as events: while one lives, SIGCHLD and those that end a program wait in fd(), but for
/// what the process ignores; SIGCHLD comes in any case, and its children are left to be waited for.
/// To be made before it starts threads, which must not take them.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  /// The next one, 0: none.
  int next() const;
  /// What was blocked before.
  const sigset_t& mask_before() const { return mask_before_; }
  /// f(), in which signals do what they did before.
  template <class F>
  decltype(auto) unblocked(F&& f) const {
    struct BlockAgain {
      sigset_t mask;
      ~BlockAgain() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } again;
    pthread_sigmask(SIG_SETMASK, &mask_before_, &again.mask);
    return f();
  }

 private:
  void restore() const noexcept;

  sigset_t mask_before_;
  struct sigaction child_action_before_;
  Descriptor fd_;
};

struct Program {
  std::string path;                         ///< of the file, found already
  std::vector<std::string> arguments = {};  ///< with argv[0]
  std::vector<std::string> environment = {};
  int in = 0, out = 1, err = 2;  ///< what it gets as 0, 1 and 2: the same numbers, or above 2
  int inherited = -1;  ///< a descriptor that exec would close otherwise, which keeps its number
  sigset_t signal_mask = {};
  std::optional<rlimit> file_limit = {};  ///< none: this process's
};

/// The children of this process that are alive, but for `except`. Those that are dead are waited
/// for; the others keep their numbers until the next call.
std::vector<pid_t> other_children(pid_t except);
/// Whether it has any that it has not waited for.
bool has_children();

/// Starts it in a process group of its own, whose number is the pid. It is killed when the calling
/// thread ends. May be called in a process with threads. Throws Io when it cannot be executed.
pid_t start(const Program& program, const Guardian& guardian);

/// Where a program's file is, looked for in PATH as a shell does. Throws Io when it is not there,
/// or no program.
std::string find_program(const std::string& name);

/// "exit status 3" or "killed by signal 9 (SIGKILL)", of what waitpid() gave.
std::string describe_end(int wait_status);
/// As a shell says it: 128 and the signal.
int exit_status(int wait_status);

}  // namespace weft::launch

// Processes that a launcher starts: each leads a process group of its own. None of them outlives
// the launcher, nor do the processes that they start, as far as these can be found.
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

/// The reading end and the writing end of a pipe, which exec closes. Throws Library.
std::pair<Descriptor, Descriptor> make_pipe();
/// As make_pipe(), but the writing end is a terminal, as wide as `like`. A pipe if the system has
/// no more terminals, as in a root without /dev/pts: programs then write as to a file.
std::pair<Descriptor, Descriptor> make_terminal(int like);
/// From now on reading and writing do not wait.
void set_nonblocking(const Descriptor& descriptor);

/// While one lives, this process may open as many files as its hard limit allows.
class FileLimit {
 public:
  /// Throws Library unless `needed` more files can be opened; `what` needs them.
  FileLimit(const std::string& what, std::int64_t needed);
  ~FileLimit();
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

  /// The limit with which programs should be started.
  const rlimit& before() const { return before_; }

 private:
  rlimit before_{};
};

/// A folder in the temporary folder (TMPDIR, else /tmp), removed with its owner.
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

/// Makes a new folder: `beginning` and six random letters. Throws Io.
std::string make_folder(const std::string& beginning);

/// A process that waits for the end of this one, even by SIGKILL. Then it kills the process groups
/// that it was told to watch. It also ends the processes of this user in any group whose
/// environment has the mark, by SIGTERM and a second later by SIGKILL; and it removes a folder. A
/// process that has left its group and cleared its environment is not found.
class Guardian {
 public:
  /// `mark`: the beginning of a variable that no other process has: "NAME=/tmp/weftrun_AbCdEf/".
  /// Forks: the process must still have one thread. Throws Library.
  Guardian(const std::string& folder, const std::string& mark);
  /// Returns when the guardian has done all this, and ended.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// Called by the leader of `group` between fork and exec, so that no time is unwatched.
  void watch(pid_t group) const noexcept;
  /// To be called before the group's number may be used again.
  void forget(pid_t group) const noexcept;

  pid_t pid() const { return pid_; }

 private:
  Descriptor told_by_;
  pid_t pid_ = -1;
};

/// Signals as events. While one lives, SIGCHLD and the signals that end a program wait in fd(),
/// except those that are ignored. SIGCHLD always comes, and children stay zombies until they are
/// waited for. To be made before the process starts threads, which must not take these signals.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  /// The next signal; 0: none.
  int next() const;
  /// The signal mask from before.
  const sigset_t& mask_before() const { return mask_before_; }
  /// Calls f() with the signal handling from before.
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
  std::string path;                         ///< of the file, as found by find_program()
  std::vector<std::string> arguments = {};  ///< with argv[0]
  std::vector<std::string> environment = {};
  int in = 0, out = 1, err = 2;  ///< become its 0, 1 and 2: the same numbers, or above 2
  int inherited = -1;            ///< a descriptor that keeps its number and stays open in exec
  sigset_t signal_mask = {};
  std::optional<rlimit> file_limit = {};  ///< none: this process's
};

/// The living children of this process, except `except`. Dead ones are waited for; the living keep
/// their numbers until the next call.
std::vector<pid_t> other_children(pid_t except);
/// Whether this process has children that it has not waited for.
bool has_children();

/// Starts it in a process group of its own, whose number is the pid. It is killed when the calling
/// thread ends. May be called in a process with threads. Throws Io if it cannot be executed.
pid_t start(const Program& program, const Guardian& guardian);

/// Finds the file of a program, in PATH as a shell does. Throws Io if it does not exist or is no
/// program.
std::string find_program(const std::string& name);

/// "exit status 3" or "killed by signal 9 (SIGKILL)", from the status of waitpid().
std::string describe_end(int wait_status);
/// As a shell reports it: 128 + the signal if a signal ended the process.
int exit_status(int wait_status);

}  // namespace weft::launch

#include "weft/launch/process.h"

#include <fcntl.h>
#include <pty.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>

#include "weft/comm/descriptors.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/file.h"

namespace weft::launch {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The time that processes outside their groups get after a signal, and the interval of checks.
constexpr milliseconds kMarkedEnd{1000}, kLook{20};

std::string reason(int error) { return std::generic_category().message(error); }

/// Sends the guardian a group to watch; a negative number: to forget it.
void tell(int fd, pid_t group) noexcept {
  static_cast<void>(!::write(fd, &group, sizeof group));  // continue without guardian
}

/// The process numbers in /proc, which may show another PID namespace than this process's.
std::vector<pid_t> process_numbers() {
  std::vector<pid_t> numbers;
  std::error_code ignored;
  for (fs::directory_iterator entry("/proc", ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const pid_t pid = std::atoi(entry->path().filename().c_str());
    if (pid > 0) numbers.push_back(pid);
  }
  return numbers;
}

/// Whether `pid` was started with an environment variable that begins with the mark.
bool has_mark(pid_t pid, const std::string& mark) {
  std::ifstream file(detail::concat("/proc/", pid, "/environ"), std::ios::binary);
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  return environment.starts_with(mark) || environment.find('\0' + mark) != std::string::npos;
}

/// Sends the signal only to the process with the mark: a pidfd excludes that it ends and another
/// process gets its number.
void signal_marked(pid_t pid, const std::string& mark, int signal) {
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (process.valid() && has_mark(pid, mark)) {
    ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
  }
}

void end_marked(const std::string& mark) {
  std::error_code failure;
  if (fs::read_symlink("/proc/self", failure) != std::to_string(::getpid())) return;
  for (const int signal : {SIGTERM, SIGKILL}) {
    std::set<pid_t> told;
    for (const auto until = Clock::now() + kMarkedEnd; Clock::now() < until;
         std::this_thread::sleep_for(kLook)) {
      bool left = false;
      for (const pid_t pid : process_numbers()) {
        if (!has_mark(pid, mark)) continue;
        left = true;
        if (!told.insert(pid).second) continue;
        signal_marked(pid, mark, signal);
        signal_marked(pid, mark, SIGCONT);  // a stopped process must run to receive it
      }
      if (!left) return;
    }
  }
}

[[noreturn]] void guard(int told_by, const std::string& folder, const std::string& mark) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  setsid();
  prctl(PR_SET_NAME, "weftrun guard");
  // Closes weftrun's streams: their reader must see the end when weftrun ends.
  const int null = ::open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) ::dup2(null, fd);
  if (told_by != 3) ::dup2(told_by, 3);
  ::close_range(4, ~0U, 0);

  std::set<pid_t> groups;
  pid_t group = 0;
  while (::read(3, &group, sizeof group) == sizeof group) {
    if (group > 0) {
      groups.insert(group);
    } else {
      groups.erase(-group);
    }
  }
  for (const pid_t left : groups) ::kill(-left, SIGKILL);
  try {
    end_marked(mark);
  } catch (const std::exception&) {  // no memory: nothing more to do
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  ::_exit(0);
}

/// The cores that this process was given. OpenMP may have bound its first thread to one of them,
/// and children would inherit that.
std::vector<cpu_set_t> unbound_cores() {
  std::vector<cpu_set_t> mask(16);
  int failed = 0;
  std::thread([&] {
    leave_thread_unbound();
    failed = sched_getaffinity(0, mask.size() * sizeof(cpu_set_t), mask.data());
  }).join();
  if (failed != 0) mask.clear();
  return mask;
}

/// SIGCHLD and the signals that end a program, except those that are ignored, for example by nohup.
sigset_t queued_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction action = {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

}  // namespace

void Descriptor::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  WEFT_CHECK(::pipe2(ends, O_CLOEXEC) == 0, Library, "weftrun",
             "cannot make a pipe: ", reason(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::pair<Descriptor, Descriptor> make_terminal(int like) {
  int ends[2];
  winsize size = {};
  ::ioctl(like, TIOCGWINSZ, &size);
  termios mode = {};
  ::tcgetattr(like, &mode);
  ::cfmakeraw(&mode);
  if (::openpty(&ends[0], &ends[1], nullptr, &mode, &size) != 0) return make_pipe();
  for (const int end : ends) ::fcntl(end, F_SETFD, FD_CLOEXEC);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void set_nonblocking(const Descriptor& descriptor) {
  ::fcntl(descriptor.get(), F_SETFL, ::fcntl(descriptor.get(), F_GETFL) | O_NONBLOCK);
}

std::string make_folder(const std::string& beginning) {
  std::string path = beginning + "XXXXXX";
  WEFT_CHECK(::mkdtemp(path.data()), Io, "weftrun", "cannot make a folder ", path, ": ",
             reason(errno));
  return path;
}

ScratchFolder::ScratchFolder() : path_(make_folder(temporary_folder() + "/weftrun_")) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

FileLimit::FileLimit(const std::string& what, std::int64_t needed) {
  ::getrlimit(RLIMIT_NOFILE, &before_);
  const rlimit most{before_.rlim_max, before_.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &most);
  try {
    comm::check_descriptors("weftrun", what, needed);
  } catch (...) {
    ::setrlimit(RLIMIT_NOFILE, &before_);
    throw;
  }
}

FileLimit::~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

Guardian::Guardian(const std::string& folder, const std::string& mark) {
  auto [read_end, write_end] = make_pipe();
  pid_ = ::fork();
  WEFT_CHECK(pid_ >= 0, Library, "weftrun", "cannot fork: ", reason(errno));
  if (pid_ == 0) {
    write_end.close();
    guard(read_end.get(), folder, mark);
  }
  told_by_ = std::move(write_end);
}

Guardian::~Guardian() {
  told_by_.close();
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::watch(pid_t group) const noexcept { tell(told_by_.get(), group); }
void Guardian::forget(pid_t group) const noexcept { tell(told_by_.get(), -group); }

SignalQueue::SignalQueue() {
  const sigset_t set = queued_signals();
  pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  // Sets the default action: while SIGCHLD is ignored, the kernel drops children's exit status.
  struct sigaction queued = {};
  queued.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &queued, &child_action_before_);
  fd_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  const int error = errno;
  if (fd_.valid()) return;
  restore();
  WEFT_THROW(Library, "weftrun", "cannot make a queue of signals: ", reason(error));
}

SignalQueue::~SignalQueue() { restore(); }

void SignalQueue::restore() const noexcept {
  ::sigaction(SIGCHLD, &child_action_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

int SignalQueue::next() const {
  signalfd_siginfo info = {};
  const bool got = ::read(fd_.get(), &info, sizeof info) == sizeof info;
  return got ? static_cast<int>(info.ssi_signo) : 0;
}

pid_t start(const Program& program, const Guardian& guardian) {
  static const std::vector<cpu_set_t> cores = unbound_cores();
  const std::vector<char*> arguments = pointers(program.arguments);
  const std::vector<char*> environment = pointers(program.environment);
  auto [read_end, write_end] = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  WEFT_CHECK(child >= 0, Library, "weftrun", "cannot fork: ", reason(errno));
  if (child == 0) {
    // From here to exec only calls that are safe while other threads of the parent hold locks.
    ::setpgid(0, 0);
    guardian.watch(::getpid());
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    if (!cores.empty()) {
      ::sched_setaffinity(0, cores.size() * sizeof(cpu_set_t), cores.data());
    }
    const bool ready =
        ::dup2(program.in, 0) >= 0 && ::dup2(program.out, 1) >= 0 && ::dup2(program.err, 2) >= 0;
    if (program.inherited >= 0) ::fcntl(program.inherited, F_SETFD, 0);
    ::signal(SIGPIPE, SIG_DFL);
    if (program.file_limit) ::setrlimit(RLIMIT_NOFILE, &*program.file_limit);
    ::sigprocmask(SIG_SETMASK, &program.signal_mask, nullptr);
    if (ready) ::execve(program.path.c_str(), arguments.data(), environment.data());
    const int error = errno;
    static_cast<void>(!::write(write_end.get(), &error, sizeof error));
    ::_exit(127);
  }
  write_end.close();
  int error = 0;
  ssize_t got = 0;
  while ((got = ::read(read_end.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (got == 0) return child;  // exec closed the pipe
  guardian.forget(child);
  ::waitpid(child, nullptr, 0);
  WEFT_THROW(Io, "weftrun", "cannot run ", program.path, ": ", reason(error),
             error == ENOEXEC ? " (a script needs a first line as #!/bin/sh)" : "");
}

std::vector<pid_t> other_children(pid_t except) {
  std::vector<pid_t> alive;
  for (const pid_t pid : process_numbers()) {
    // waitpid() fails if it is no child: so no other process counts as one, whatever /proc shows.
    if (pid != except && ::waitpid(pid, nullptr, WNOHANG) == 0) alive.push_back(pid);
  }
  return alive;
}

bool has_children() {
  siginfo_t info = {};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

std::string find_program(const std::string& name) {
  const auto is_program = [](const std::string& path) {
    struct stat found{};
    return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
  };
  const bool here = fs::exists(name);
  if (name.find('/') != std::string::npos) {
    WEFT_CHECK(here, Io, "weftrun", "there is no program ", name);
    WEFT_CHECK(is_program(name), Io, "weftrun", name, " is no program that may be executed");
    return name;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_program(candidate)) return candidate;
  }
  WEFT_THROW(Io, "weftrun", "there is no program '", name, "' in PATH",
             here ? "; the one in this folder is ./" + name : std::string());
}

std::string describe_end(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return detail::concat("exit status ", WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  const char* name = sigabbrev_np(signal);
  return detail::concat("killed by signal ", signal,
                        name ? detail::concat(" (SIG", name, ")") : "");
}

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace weft::launch

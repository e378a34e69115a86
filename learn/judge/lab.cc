#include "weft/learn/judge/lab.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "weft/learn/judge/messages.h"

namespace weft::learn {
namespace {

// --- The child: it tells its parent, line by line, what it judges and what it has found ----------

constexpr int kTell = 3;  // the descriptor on which it tells
constexpr rlim_t kMostMemory = rlim_t{2} << 30;
// Printed when a case begins, so that what earlier ones have printed can be told from its own.
constexpr char kNewCase = '\x1e';  // ASCII's record separator

void tell(std::string_view kind, std::string text) {
  std::ranges::replace(text, '\n', ' ');
  text = detail::concat(kind, ' ', text, '\n');
  // If nobody reads, there is nothing to be done.
  [[maybe_unused]] const auto written = ::write(kTell, text.data(), text.size());
}

thread_local constinit int rank_here = -1;

// Only what a signal handler may call.
void on_crash(int signal) {
  if (rank_here >= 0 && rank_here < 100) {
    char text[] = "rank 00\n";
    text[5] = rank_here < 10 ? ' ' : static_cast<char>('0' + rank_here / 10);
    text[6] = static_cast<char>('0' + rank_here % 10);
    [[maybe_unused]] const auto written = ::write(kTell, text, sizeof text - 1);
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void report_crashes() {
  struct sigaction action{};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    ::sigaction(signal, &action, nullptr);
  }
}

// So that a loop that fills a vector ends before the machine does. The sanitizers reserve
// terabytes.
void limit_memory() {
  if (::dlsym(RTLD_DEFAULT, "__asan_init") || ::dlsym(RTLD_DEFAULT, "__tsan_init")) return;
  const rlimit limit{kMostMemory, kMostMemory};
  ::setrlimit(RLIMIT_DATA, &limit);
}

int child(const Candidate& candidate) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would read what it tells
  limit_memory();
  const rlimit no_core{0, 0};  // a crash is a sentence here, not a file
  ::setrlimit(RLIMIT_CORE, &no_core);
  report_crashes();
  // What was printed before a crash is what the learner needs.
  std::cout << std::unitbuf;
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string kind, text;
  try {
    text = candidate.judge();
    kind = "right";
  } catch (const NotYet& missing) {
    kind = "not-yet", text = missing.what();
  } catch (const Wrong& wrong) {
    kind = "wrong", text = wrong.what();
  } catch (const std::bad_alloc&) {
    kind = "wrong", text = kTooMuchMemory;
  } catch (const std::exception& error) {
    kind = "wrong", text = detail::concat("it threw an exception: ", text_of(error));
  } catch (...) {
    kind = "wrong", text = "it threw something that is no std::exception";
  }
  tell(kind, text);
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(0);
}

// --- The parent ----------------------------------------------------------------------------------

struct Verdict {
  enum class Kind { right, not_yet, wrong } kind = Kind::wrong;
  std::string text, where, output;
};

constexpr std::size_t kMostOutput = 2000;  // bytes of what a solution prints that are shown
constexpr std::chrono::seconds kMostTime{60};

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    WEFT_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, Library, "learn",
               "pipe: ", std::strerror(errno));
    read = ends[0], write = ends[1];
  }
  ~Pipe() {
    ::close(read);
    close_write();
  }
  void close_write() {
    if (write >= 0) ::close(std::exchange(write, -1));
  }

  int read = -1, write = -1;
};

// Reads what is there; false at the end.
template <class Take>
bool read_some(int from, Take take) {
  std::array<char, 4096> bytes{};
  const ssize_t n = ::read(from, bytes.data(), bytes.size());
  if (n > 0) take(std::string_view(bytes.data(), n));
  return n > 0 || (n < 0 && errno == EINTR);
}

// What libstdc++ prints when an index is out of range is 250 characters long. Removes it; false if
// it is not there.
bool take_failed_index(std::string& output) {
  const std::size_t at = std::min(output.rfind("Assertion '__n < this->size()' failed"),
                                  output.rfind("Assertion '__idx < size()' failed"));
  if (at == output.npos) return false;
  const std::size_t line = output.rfind('\n', at);
  output.erase(line == output.npos ? 0 : line + 1);
  return true;
}

// `output`: what it printed, in which a sentence of the library may be replaced by that returned.
std::string how_it_died(int status, const std::string& who, bool in_time, std::string& output) {
  if (!in_time) {
    return detail::concat("it has not ended after ", kMostTime.count(),
                          " s. Is there a loop that does not end?");
  }
  if (WIFEXITED(status)) {
    return detail::concat(who, " ended the process with exit(", WEXITSTATUS(status),
                          "): a solution should return, or throw");
  }
  const int signal = WTERMSIG(status);
  const char* hint =
      signal == SIGSEGV || signal == SIGBUS
          ? ": it read or wrote where there is no memory. Is an index or a size off, "
            "does a function call itself for ever, or is something used that no longer lives, "
            "such as a local variable in a hook?"
      : signal == SIGABRT && take_failed_index(output)
          ? ": an index of a std::vector or std::span lies beyond its end (in C++ -1 % 3 is -1)"
      : signal == SIGABRT ? ": see the last line that it printed. Often an index is "
                            "out of range (in C++ -1 % 3 is -1), or memory was overwritten"
      : signal == SIGFPE  ? ": an integer was divided by 0"
      : signal == SIGKILL ? ": killed from outside, maybe for want of memory"
                          : "";
  return detail::concat(who, " crashed (", ::sigabbrev_np(signal) ? "SIG" : "",
                        ::sigabbrev_np(signal) ? ::sigabbrev_np(signal) : "signal", ")", hint);
}

// What a child has printed in the case in which it is, of which the last bytes are kept.
class Printed {
 public:
  void add(std::string_view text) {
    if (const std::size_t at = text.rfind(kNewCase); at != text.npos) {
      text_.clear();
      left_out_ = 0;
      text.remove_prefix(at + 1);
    }
    text_ += text;
    const std::size_t too_many = text_.size() - std::min(text_.size(), kMostOutput);
    text_.erase(0, too_many);
    left_out_ += too_many;
  }
  std::string text() const {
    if (left_out_ == 0) return text_;
    return detail::concat('[', left_out_, " bytes before these are not shown]\n", text_);
  }

 private:
  std::string text_;
  std::size_t left_out_ = 0;
};

Verdict judge_in_child(const std::string& name) {
  Pipe told, printed;
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, printed.write, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, printed.write, STDERR_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, told.write, kTell);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::string program = "/proc/self/exe", option = "--child", which = name;
  std::array<char*, 4> words{program.data(), option.data(), which.data(), nullptr};
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, program.c_str(), &files, &attributes, words.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  WEFT_CHECK(error == 0, Library, "learn", "cannot start a process: ", std::strerror(error));
  told.close_write();
  printed.close_write();

  std::string lines;
  Verdict verdict;
  Printed output;
  bool in_time = true;
  const auto end = std::chrono::steady_clock::now() + kMostTime;
  std::array<pollfd, 2> waits{{{told.read, POLLIN, 0}, {printed.read, POLLIN, 0}}};
  // A process that the solution has started may keep the pipe to which it prints; that of the
  // verdict ends with the child, or there is a verdict.
  while (waits[0].fd >= 0 && in_time) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    in_time = left.count() > 0;
    if (!in_time || ::poll(waits.data(), waits.size(), static_cast<int>(left.count())) <= 0)
      continue;
    if (waits[1].revents &&
        !read_some(printed.read, [&](std::string_view text) { output.add(text); })) {
      waits[1].fd = -1;
    }
    // Last, so that what was printed before the end has been read.
    if (waits[0].revents && !waits[1].revents &&
        !read_some(told.read, [&](std::string_view text) { lines += text; })) {
      waits[0].fd = -1;
    }
  }
  ::kill(-pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  verdict.output = output.text();

  std::string who = "it";
  bool found = false;
  for (std::size_t at = 0, stop; (stop = lines.find('\n', at)) != lines.npos; at = stop + 1) {
    const std::string line = lines.substr(at, stop - at);
    const std::string kind = line.substr(0, line.find(' '));
    const std::string text = line.substr(std::min(kind.size() + 1, line.size()));
    if (kind == "case") verdict.where = text;
    if (kind == "rank") who = "rank " + text.substr(text.find_first_not_of(' '));
    if (kind == "right" || kind == "not-yet" || kind == "wrong") {
      found = true;
      verdict.text = text;
      verdict.kind = kind == "right"     ? Verdict::Kind::right
                     : kind == "not-yet" ? Verdict::Kind::not_yet
                                         : Verdict::Kind::wrong;
    }
  }
  if (!found) verdict.text = how_it_died(status, who, in_time, verdict.output);
  return verdict;
}

// What the learner reads.
std::string report(const Verdict& verdict, const std::string& what) {
  std::string text = verdict.output.empty() ? "" : "it printed:\n";
  for (std::size_t at = 0; at < verdict.output.size();) {
    const std::size_t stop = std::min(verdict.output.find('\n', at), verdict.output.size());
    text += detail::concat("  | ", verdict.output.substr(at, stop - at), '\n');
    at = stop + 1;
  }
  switch (verdict.kind) {
    case Verdict::Kind::right: return detail::concat(text, "solved: ", verdict.text, '\n');
    case Verdict::Kind::not_yet:
      return detail::concat(text, "not yet: ", what, " still lacks this: ", verdict.text, '\n');
    default:
      return detail::concat(text, "wrong", verdict.where.empty() ? "" : ", with ", verdict.where,
                            ":\n  ", verdict.text, '\n');
  }
}

int judge(const std::string& name, const std::string& what) {
  const Verdict verdict = judge_in_child(name);
  std::cout << report(verdict, what);
  return verdict.kind == Verdict::Kind::right ? 0 : 1;
}

int break_(const std::vector<Candidate>& candidates) {
  int missed = 0;
  for (std::size_t i = 2; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    const Verdict verdict = judge_in_child(candidate.name);
    const std::string text = report(verdict, candidate.name);
    const bool caught =
        verdict.kind != Verdict::Kind::right && text.find(candidate.sentence) != std::string::npos;
    missed += !caught;
    std::cout << candidate.name;
    if (!candidate.mistake.empty()) std::cout << " (" << candidate.mistake << ')';
    std::cout << (caught ? ": " : ": NOT CAUGHT: ") << text << std::flush;
  }
  return missed > 0;
}

}  // namespace

void begin_case(const std::string& text) {
  std::fflush(stdout);
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, &kNewCase, 1);
  tell("case", text);
}

void end_wrong(const std::string& text) {
  tell("wrong", text);
  ::_exit(0);
}

void be_rank(int rank) {
  rank_here = rank;
  // A stack of its own, so that the handler also runs after a stack overflow. The address sanitizer
  // has already given the thread one, and frees it.
  stack_t alternative{};
  ::sigaltstack(nullptr, &alternative);
  if (!(alternative.ss_flags & SS_DISABLE)) return;
  static thread_local std::unique_ptr<std::array<char, 1 << 16>> stack;
  stack = std::make_unique<std::array<char, 1 << 16>>();
  alternative = {};
  alternative.ss_sp = stack->data();
  alternative.ss_size = stack->size();
  ::sigaltstack(&alternative, nullptr);
}

void within_patience(const std::string& what_to_look_for, void (*f)(void*), void* data) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread watch([&] {
    std::unique_lock lock(mutex);
    if (changed.wait_for(lock, kPatience, [&] { return done; })) return;
    end_wrong(
        detail::concat("it has not returned after ", kPatience.count(), " s: ", what_to_look_for));
  });
  const auto stop = [&] {
    {
      const std::lock_guard lock(mutex);
      done = true;
    }
    changed.notify_one();
    watch.join();
  };
  try {
    f(data);
  } catch (...) {
    stop();
    throw;
  }
  stop();
}

std::string digits(float value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

std::string text_of(const std::exception& error) {
  std::string text = error.what();
  const auto* of_weft = dynamic_cast<const Error*>(&error);
  if (!of_weft || of_weft->where().starts_with("learn/")) return text;
  const std::string place = " at " + of_weft->where();
  if (const std::size_t at = text.rfind(place); at != text.npos) text.erase(at, place.size());
  return text;
}

std::string bytes_of(std::int64_t got, std::int64_t expected) {
  if (expected < 100'000) return detail::concat(got, " of ", expected, " bytes");
  const auto megabytes = [](std::int64_t bytes) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.2f", static_cast<double>(bytes) / 1e6);
    return std::string(text.data());
  };
  return detail::concat(megabytes(got), " of ", megabytes(expected), " MB");
}

int run_lab(int argc, char** argv, const std::string& folder,
            const std::vector<Candidate>& candidates) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string option = words.empty() ? "" : words[0];
  if (words.empty()) return judge("yours", "learn/" + folder + "/solution.cc");
  if (words.size() == 1 && option == "--break") return break_(candidates);
  if (words.size() == 1 && option == "--list") {
    for (const Candidate& c : candidates) std::cout << c.name << '\t' << c.sentence << '\n';
    return 0;
  }
  for (const Candidate& c : candidates) {
    if (words.size() != 2 || words[1] != c.name) continue;
    if (option == "--child") return child(c);
    if (option == "--judge") return judge(c.name, c.name);
  }
  std::cerr << "usage: lab [--break | --list | --judge NAME]\n";
  return 2;
}

}  // namespace weft::learn

#include "weft/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "weft/comm/failure.h"
#include "weft/core/error.h"

namespace weft::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::array kStreams = {StandardStream::out, StandardStream::err};
constexpr Clock::time_point kNever = Clock::time_point::max();
// In which the same line of several ranks is shown once.
constexpr milliseconds kWindow{200};
// timeout(1) sends each signal twice.
constexpr milliseconds kSignalPair{500};
constexpr milliseconds kGiveUpAfterKill{1000};
// As torchrun waits for the other nodes when its own ranks have ended well.
constexpr milliseconds kOthersEnd{300'000};
constexpr std::size_t kLastLines = 20, kReadBytes = 64 << 10, kMostReads = 64;

int number(StandardStream stream) { return static_cast<int>(stream); }
int own_fd(StandardStream stream) {
  return stream == StandardStream::out ? STDOUT_FILENO : STDERR_FILENO;
}

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

Descriptor open_log(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  WEFT_CHECK(file.valid(), Io, "weftrun", "cannot write ", path, ": ",
             std::generic_category().message(errno));
  return file;
}

bool write_whole(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return false;
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
  return true;
}

void keep_last(std::deque<std::string>& lines, std::string line) {
  lines.push_back(std::move(line));
  if (lines.size() > kLastLines) lines.pop_front();
}

std::deque<std::string> last_lines_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto most = static_cast<std::streamoff>(kReadBytes);
  file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - most));
  std::string tail(kReadBytes, '\0');
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  tail.resize(static_cast<std::size_t>(file.gcount()));
  LineSplitter splitter;
  std::deque<std::string> lines;
  for (std::string& line : splitter.add(tail)) keep_last(lines, std::move(line));
  if (auto rest = splitter.finish()) keep_last(lines, std::move(*rest));
  return lines;
}

/// What is typed at weftrun's terminal, on its way to a rank: a process group of its own may not
/// read from there.
class Keyboard {
 public:
  explicit Keyboard(Descriptor to) : to_(std::move(to)) { set_nonblocking(to_); }

  pollfd waits_for() const {
    if (!typed_.empty()) return {to_.get(), POLLOUT, 0};
    const bool foreground = ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
    return {to_.valid() && foreground ? STDIN_FILENO : -1, POLLIN, 0};
  }
  void pass_on() {
    if (typed_.empty()) {
      typed_.resize(4096);
      const ssize_t n = ::read(STDIN_FILENO, typed_.data(), typed_.size());
      typed_.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
      if (n == 0) to_.close();
      return;
    }
    const ssize_t n = ::write(to_.get(), typed_.data(), typed_.size());
    if (n > 0) typed_.erase(0, static_cast<std::size_t>(n));
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      typed_.clear();
      to_.close();
    }
  }

 private:
  Descriptor to_;
  std::string typed_;
};

}  // namespace

/// The ranks of one attempt.
class Launcher::Attempt {
 public:
  Attempt(Launcher& launcher, const Place& place, int attempt)
      : launcher_(launcher),
        options_(launcher.options_),
        place_(place),
        attempt_(attempt),
        ranks_(static_cast<std::size_t>(options_.nproc)),
        merger_(place.first_rank, shown(options_), kWindow,
                [&screen = launcher.screen_](StandardStream stream, const std::string& line) {
                  screen.line(stream, line);
                }) {}
  ~Attempt() {
    signal_groups(SIGKILL);
    for (Rank& rank : ranks_) collect(rank);
  }

  AttemptResult run() {
    for (int i = 0; i < options_.nproc; ++i) start_rank(i);
    for (;;) {
      const Clock::time_point now = Clock::now();
      see_deaths(now);
      see_other_nodes(now);
      merger_.show_due(now);
      if (now >= terminate_at_ || (all_dead() && !terminated_)) terminate(now);
      if (now >= kill_at_) kill(now);
      if (all_dead()) collect_groups(now);
      if (all_gone() && settled(now)) break;
      wait_for_events();
    }
    finish_output();
    AttemptResult result = std::move(result_);
    for (Rank& rank : ranks_) result.ranks.push_back(std::move(rank.result));
    return result;
  }

 private:
  /// A stream of a rank that comes here.
  struct Source {
    Descriptor fd;  ///< none: it is weftrun's own, goes to a file, or has ended
    Descriptor log;
    LineSplitter lines;
  };
  struct Rank {
    RankResult result;
    Clock::time_point started;
    std::string error_file, stderr_file;
    Source sources[2];
    bool dead = false;  ///< but a zombie until collect(): its number stays its group's
    bool gone = true;   ///< nothing is left of its group
  };

  static std::vector<bool> shown(const Options& options) {
    std::vector<bool> shown(static_cast<std::size_t>(options.nproc));
    for (int i = 0; i < options.nproc; ++i) {
      const auto& filter = options.local_ranks_filter;
      shown[i] = filter.empty() || filter.contains(i);
    }
    return shown;
  }

  void start_rank(int local_rank) {
    Rank& rank = ranks_[local_rank];
    rank.result.local_rank = local_rank;
    rank.result.rank = place_.first_rank + local_rank;
    rank.error_file = detail::concat(launcher_.folder_.path(), "/error_", attempt_, "_",
                                     rank.result.rank, ".json");
    Program program = launcher_.program_;
    program.environment = rank_environment(options_, place_, local_rank, attempt_, rank.error_file);
    program.signal_mask = launcher_.signals_.mask_before();
    std::array<Descriptor, 3> ends;  // which this process has no use for
    program.in = input_of(rank, ends[0]);
    program.out = output_of(rank, StandardStream::out, ends[1]);
    program.err = output_of(rank, StandardStream::err, ends[2]);
    rank.started = Clock::now();
    rank.result.pid = start(program, launcher_.guardian_);
    rank.gone = false;
  }

  int input_of(const Rank& rank, Descriptor& end) {
    if (rank.result.rank != 0) {
      end = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    } else if (::isatty(STDIN_FILENO)) {
      auto [read_end, write_end] = make_pipe();
      end = std::move(read_end);
      keyboard_.emplace(std::move(write_end));
    } else {
      return STDIN_FILENO;
    }
    return end.get();
  }

  int output_of(Rank& rank, StandardStream stream, Descriptor& end) {
    const int local_rank = rank.result.local_rank;
    Source& source = rank.sources[number(stream)];
    const bool tee = options_.tee.has(local_rank, stream);
    if (tee) source.log = open_log(log_file(local_rank, stream));
    if (!tee && options_.redirects.has(local_rank, stream)) {
      const std::string path = log_file(local_rank, stream);
      if (stream == StandardStream::err) rank.stderr_file = path;
      end = open_log(path);
      return end.get();
    }
    // With one rank there is nothing to merge.
    if (!tee && options_.nproc == 1 && is_shown(local_rank)) return own_fd(stream);
    const bool terminal = launcher_.screen_.is_terminal(stream);
    std::tie(source.fd, end) = terminal ? make_terminal(own_fd(stream)) : make_pipe();
    set_nonblocking(source.fd);
    return end.get();
  }

  /// "FOLDER/attempt_0/1/stderr.log", as torchrun's.
  std::string log_file(int local_rank, StandardStream stream) {
    std::string& folder = launcher_.log_folder_;
    if (folder.empty()) {
      const bool given = !options_.log_dir.empty();
      const std::filesystem::path parent =
          given ? std::filesystem::path(options_.log_dir) : std::filesystem::temp_directory_path();
      std::filesystem::create_directories(parent);
      folder = make_folder((parent / (options_.run_id + "_")).string());
      if (!given) launcher_.say("logs are in " + folder);
    }
    const std::string own = detail::concat(folder, "/attempt_", attempt_, "/", local_rank);
    std::filesystem::create_directories(own);
    return own + (stream == StandardStream::out ? "/stdout.log" : "/stderr.log");
  }

  bool is_shown(int local_rank) const {
    return options_.local_ranks_filter.empty() || options_.local_ranks_filter.contains(local_rank);
  }
  bool is_first_shown(int local_rank) const {
    const auto& filter = options_.local_ranks_filter;
    return local_rank == (filter.empty() ? 0 : *filter.begin());
  }
  bool all_dead() const { return std::ranges::all_of(ranks_, &Rank::dead); }
  bool all_gone() const { return std::ranges::all_of(ranks_, &Rank::gone); }

  /// The attempt is over on all nodes.
  bool settled(Clock::time_point now) {
    if (options_.nnodes == 1 || known_end_) return true;
    if (settle_by_ == kNever) {
      settle_by_ = now + kOthersEnd;
      const RankResult* first = result_of_failure();
      launcher_.meeting_.tell(first ? Meeting::End{exit_status(first->wait_status), named(*first)}
                                    : Meeting::End{});
    }
    return now >= settle_by_;
  }

  // --- Deaths and signals ---

  void see_deaths(Clock::time_point now) {
    for (Rank& rank : ranks_) {
      siginfo_t info = {};
      if (rank.dead ||
          ::waitid(P_PID, static_cast<id_t>(rank.result.pid), &info, WEXITED | WNOHANG | WNOWAIT) !=
              0 ||
          info.si_pid == 0) {
        continue;
      }
      rank.dead = true;
      rank.result.wait_status =
          info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status, 0) : info.si_status;
      rank.result.seconds = seconds_between(rank.started, now);
      rank.result.told_to_end = terminated_ || result_.signal != 0;
      if (failed_at_ != kNever)
        rank.result.seconds_after_failure = seconds_between(failed_at_, now);
      if (rank.result.wait_status != 0) rank.result.error = read_error_file(rank.error_file);
      if (rank.result.failed()) see_failure(rank.result, now);
    }
  }

  void see_failure(const RankResult& rank, Clock::time_point now) {
    result_.failures.push_back(rank.local_rank);
    if (failed_at_ == kNever) failed_at_ = now;
    end_soon(now);
    if (rank.follows() || noted_) return;
    noted_ = true;
    comm::Failure failure{.rank = rank.rank, .cause = describe_end(rank.wait_status)};
    if (rank.error) {
      failure = {.rank = rank.rank,
                 .cause = rank.error->message,
                 .phase = rank.error->phase,
                 .step = rank.error->step};
    }
    launcher_.meeting_.note(failure);
    launcher_.meeting_.tell({exit_status(rank.wait_status), named(rank)});
  }

  static std::string named(const RankResult& rank) {
    return detail::concat("rank ", rank.rank, " on ", host_name(), ": ", describe(rank));
  }

  const RankResult* result_of_failure() const {
    return result_.failures.empty() ? nullptr : &ranks_[result_.failures.front()].result;
  }

  void see_other_nodes(Clock::time_point now) {
    if (known_end_) return;
    known_end_ = launcher_.meeting_.end();
    if (!known_end_ || known_end_->status == 0) return;
    result_.other_status = known_end_->status;
    result_.other_failure = known_end_->text;
    end_soon(now);
  }

  void see_signals() {
    while (const int signal = launcher_.signals_.next()) {
      if (signal == SIGCHLD) continue;  // see_deaths() looks in any case
      const Clock::time_point now = Clock::now();
      if (result_.signal != 0) {
        if (now - signal_at_ > kSignalPair) kill_at_ = now;
        continue;
      }
      result_.signal = signal;
      signal_at_ = now;
      see_deaths(now);
      signal_groups(signal);
      end_soon(now);
      launcher_.meeting_.tell(
          {128 + signal,
           detail::concat("signal ", signal, " to the weftrun of ", "node ", options_.node_rank)});
    }
  }

  void end_soon(Clock::time_point now) {
    if (terminated_ || terminate_at_ != kNever) return;
    terminate_at_ = now + options_.grace;
    kill_at_ = terminate_at_ + kKillAfterTerminate;
  }

  void terminate(Clock::time_point now) {
    see_deaths(now);
    signal_groups(SIGTERM);
    signal_groups(SIGCONT);  // a stopped process must run to see it
    terminated_ = true;
    terminate_at_ = kNever;
    kill_at_ = std::min(kill_at_, now + kKillAfterTerminate);
  }

  void kill(Clock::time_point now) {
    see_deaths(now);
    signal_groups(SIGKILL);
    terminated_ = true;
    terminate_at_ = kill_at_ = kNever;
    give_up_at_ = now + kGiveUpAfterKill;
  }

  void signal_groups(int signal) const noexcept {
    for (const Rank& rank : ranks_) {
      if (!rank.gone) ::kill(-rank.result.pid, signal);
    }
  }

  void collect_groups(Clock::time_point now) {
    for (Rank& rank : ranks_) {
      if (rank.gone) continue;
      collect(rank);
      if (rank.gone || now < give_up_at_) continue;
      launcher_.say(detail::concat("processes of rank ", rank.result.rank,
                                   " do not die: process group ", rank.result.pid));
      rank.gone = true;
    }
  }

  /// Reaps what is dead of its group and finds out whether that is all. Processes that the rank
  /// left behind have become this one's children (PR_SET_CHILD_SUBREAPER in main).
  void collect(Rank& rank) const noexcept {
    if (rank.gone) return;
    const pid_t group = rank.result.pid;
    launcher_.guardian_.forget(group);
    while (::waitpid(-group, nullptr, WNOHANG) > 0) {
    }
    rank.gone = ::kill(-group, 0) != 0;
    if (!rank.gone) launcher_.guardian_.watch(group);
  }

  // --- What the ranks print ---

  void wait_for_events() {
    std::vector<pollfd> polled = {
        {launcher_.signals_.fd(), POLLIN, 0},
        {launcher_.screen_.waits_for(), POLLOUT, 0},
        {known_end_ ? -1 : launcher_.meeting_.end_fd(), POLLIN, 0},
        keyboard_ ? keyboard_->waits_for() : pollfd{-1, 0, 0},
    };
    std::vector<std::pair<Rank*, StandardStream>> sources;
    if (!launcher_.screen_.full()) {
      for (Rank& rank : ranks_) {
        for (const StandardStream stream : kStreams) {
          if (!rank.sources[number(stream)].fd.valid()) continue;
          sources.emplace_back(&rank, stream);
          polled.push_back({rank.sources[number(stream)].fd.get(), POLLIN, 0});
        }
      }
    }
    ::poll(polled.data(), polled.size(), timeout());
    if (polled[0].revents) see_signals();
    if (polled[1].revents) launcher_.screen_.write_some();
    if (polled[3].revents) keyboard_->pass_on();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (polled[i + 4].revents) read(*sources[i].first, sources[i].second);
    }
  }

  /// Of poll(): until the next thing to do.
  int timeout() const {
    const Clock::time_point next =
        std::min({terminate_at_, kill_at_, give_up_at_, all_gone() ? settle_by_ : kNever,
                  merger_.next_due().value_or(kNever)});
    if (next == kNever) return -1;
    const auto left = std::chrono::ceil<milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 1'000'000));
  }

  /// Whether there may be more at once.
  bool read(Rank& rank, StandardStream stream) {
    Source& source = rank.sources[number(stream)];
    if (launcher_.screen_.broken(stream) && !source.log.valid()) {
      finish(rank, stream);  // the rank finds out by itself, as if there were no weftrun
      return false;
    }
    std::array<char, kReadBytes> bytes;
    const ssize_t n = ::read(source.fd.get(), bytes.data(), bytes.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {  // a terminal ends with EIO
      finish(rank, stream);
      return false;
    }
    const std::string_view got(bytes.data(), static_cast<std::size_t>(n));
    if (source.log.valid() && !write_whole(source.log.get(), got)) {
      launcher_.say(detail::concat("cannot write the log of rank ", rank.result.rank, ": ",
                                   std::strerror(errno), "; it ends here"));
      source.log.close();
    }
    for (std::string& line : source.lines.add(got)) take_line(rank, stream, std::move(line));
    if (is_first_shown(rank.result.local_rank)) {
      launcher_.screen_.live(stream, source.lines.open());
    }
    return true;
  }

  void take_line(Rank& rank, StandardStream stream, std::string line) {
    if (stream == StandardStream::err) keep_last(rank.result.last_lines, line);
    if (is_shown(rank.result.local_rank)) {
      merger_.add(rank.result.local_rank, stream, std::move(line), Clock::now());
    }
  }

  void finish(Rank& rank, StandardStream stream) {
    Source& source = rank.sources[number(stream)];
    if (is_first_shown(rank.result.local_rank)) launcher_.screen_.live(stream, "");
    if (auto line = source.lines.finish()) take_line(rank, stream, std::move(*line));
    merger_.end(rank.result.local_rank, stream);
    source.fd.close();
  }

  /// What lies in the pipes still. A process that has left its group may hold one open.
  void finish_output() {
    for (Rank& rank : ranks_) {
      for (const StandardStream stream : kStreams) {
        if (!rank.sources[number(stream)].fd.valid()) continue;
        for (std::size_t i = 0; i < kMostReads && read(rank, stream); ++i) {
        }
        finish(rank, stream);
      }
      if (!rank.stderr_file.empty()) rank.result.last_lines = last_lines_of(rank.stderr_file);
    }
    merger_.show_all();
  }

  Launcher& launcher_;
  const Options& options_;
  const Place place_;
  const int attempt_;
  std::vector<Rank> ranks_;
  LineMerger merger_;
  std::optional<Keyboard> keyboard_;
  AttemptResult result_;
  std::optional<Meeting::End> known_end_;
  bool noted_ = false, terminated_ = false;
  Clock::time_point failed_at_ = kNever, signal_at_ = kNever;
  Clock::time_point terminate_at_ = kNever, kill_at_ = kNever, give_up_at_ = kNever;
  Clock::time_point settle_by_ = kNever;
};

Launcher::Launcher(const Options& options)
    : options_(options), screen_(STDOUT_FILENO, STDERR_FILENO), meeting_(options) {
  program_.arguments = options.command;
  if (options.command.front().ends_with(".py") && !options.no_python) {
    program_.arguments.insert(program_.arguments.begin(), "python3");
  }
  program_.path = find_program(program_.arguments.front());
}

AttemptResult Launcher::run(int attempt) {
  meeting_.open(attempt);
  const Place place = signals_.unblocked([&] { return meeting_.join(); });
  meeting_.watch();
  world_size_ = place.world_size;
  return Attempt(*this, place, attempt).run();
}

void Launcher::say(const std::string& text) {
  screen_.line(StandardStream::err, "weftrun: " + text);
}

void Launcher::say_last(const std::string& lines) {
  if (!lines.empty()) screen_.line(StandardStream::err, lines);
  signals_.unblocked([&] { screen_.write_all(); });
}

}  // namespace weft::launch

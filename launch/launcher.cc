#include "weft/launch/launcher.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "weft/comm/descriptors.h"
#include "weft/comm/store/failure.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/black_box.h"
#include "weft/core/runtime/phase.h"
#include "weft/launch/failure.h"

namespace weft::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr Clock::time_point kNever = Clock::time_point::max();
// timeout(1) sends each signal twice, within this time.
constexpr milliseconds kSignalPair{500};
constexpr milliseconds kGiveUpAfterKill{1000};
// For the launcher itself, and those that are open only while it starts a rank.
constexpr std::int64_t kFewDescriptors = 24;
// The interval of checks for processes that have left their groups.
constexpr milliseconds kLook{20};
// How long a node whose ranks have ended well waits for the others, as in torchrun; and if the
// others may go on without its ranks.
constexpr milliseconds kOthersEnd{300'000};
constexpr std::chrono::hours kOthersTrain{24 * 365};

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Whether only ranks, and processes that ranks leave behind, will become its children. The first
/// process of a PID namespace gets the orphans of all others, too.
bool adopts_strays_alone() {
  int subreaper = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  return subreaper != 0 && ::getpid() != 1 && !has_children();
}

std::string ranks_as_text(int number) {
  return detail::concat("a run of ", number, number == 1 ? " rank" : " ranks");
}

/// The most descriptors that an attempt opens in this process.
std::int64_t descriptors_of(const Options& options, int world_size) {
  const int per_rank = 1 + 2 + 2;  // the status page, pipes, logs
  std::int64_t needed = std::int64_t{options.nproc} * per_rank;
  if (options.node_rank == 0) needed += comm::store_descriptors(world_size + options.nnodes - 1);
  return needed;
}

Meeting::End end_by(const RankResult& rank) {
  return {exit_status(rank.wait_status),
          detail::concat("rank ", rank.rank, " on ", host_name(), ": ", describe(rank))};
}

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
        streams_(options_, place.first_rank, attempt, launcher.screen_, launcher.logs_) {}
  ~Attempt() {
    signal_groups(SIGKILL);
    for (Rank& rank : ranks_) collect(rank);
  }

  AttemptResult run() {
    for (int i = 0; i < options_.nproc; ++i) start_rank(i);
    const std::string& logs = launcher_.logs_.path();
    if (attempt_ == 0 && !logs.empty() && options_.log_dir.empty()) {
      launcher_.say("logs are in " + logs);
    }
    for (;;) {
      const Clock::time_point now = Clock::now();
      see_deaths(now);
      see_other_nodes(now);
      streams_.show_due(now);
      if (now >= terminate_at_ || (all_dead() && !terminated_)) terminate(now);
      if (now >= kill_at_) kill(now);
      if (all_dead() || now >= give_up_at_) collect_groups(now);
      if (all_gone()) {
        end_strays();
        if (settled(now)) break;
      }
      wait_for_events();
    }
    streams_.finish();
    AttemptResult result = std::move(result_);
    for (Rank& rank : ranks_) {
      if (!was_seen(rank.result)) {
        see_lines(rank);
        if (result.failed_at_ns != 0) read_black_box(rank.status->black_box(), rank.result);
      }
      result.ranks.push_back(std::move(rank.result));
    }
    return result;
  }

 private:
  struct Rank {
    RankResult result;
    Clock::time_point started;
    std::string error_file;
    std::unique_ptr<StatusPage> status;
    int starts = 0;     ///< before this one
    bool dead = false;  ///< a zombie until collect(), which keeps the group's number
    bool gone = true;   ///< no process of its group is left
  };

  void start_rank(int local_rank) {
    Rank& rank = ranks_[local_rank];
    rank.result.local_rank = local_rank;
    rank.result.rank = place_.first_rank + local_rank;
    rank.status = std::make_unique<StatusPage>();
    rank.error_file = detail::concat(launcher_.folder_.path(), "/error_", attempt_, "_",
                                     rank.result.rank, "_", rank.starts, ".json");
    Program program = launcher_.program_;
    program.environment = rank_environment(options_, place_, local_rank, attempt_, rank.error_file,
                                           rank.status->fd(), rank.starts);
    program.inherited = rank.status->fd();
    program.signal_mask = launcher_.signals_.mask_before();
    const std::array<Descriptor, 3> its_ends = streams_.connect(local_rank, program);
    rank.started = Clock::now();
    rank.result.pid = start(program, launcher_.guardian_);
    rank.gone = false;
  }

  bool all_dead() const { return std::ranges::all_of(ranks_, &Rank::dead); }
  bool all_gone() const { return std::ranges::all_of(ranks_, &Rank::gone); }

  void wait_for_events() {
    std::vector<pollfd> polled = {
        {launcher_.signals_.fd(), POLLIN, 0},
        {known_end_ ? -1 : launcher_.meeting_.end_fd(), POLLIN, 0},
    };
    streams_.add_to(polled);
    if (::poll(polled.data(), polled.size(), timeout()) <= 0) return;
    if (polled[0].revents) see_signals();
    streams_.serve(std::span(polled).subspan(2));
  }

  /// The timeout of poll(): the time until the next thing to do.
  int timeout() const {
    const Clock::time_point next =
        std::min(all_gone() ? settle_by_ : std::min({terminate_at_, kill_at_, give_up_at_}),
                 streams_.next_due().value_or(kNever));
    if (next == kNever) return -1;
    const auto left = std::chrono::ceil<milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 1'000'000));
  }

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
      if (rank.result.wait_status != 0) learn_why(rank);
      if (rank.result.failed() && !goes_on_without(rank)) see_failure(rank.result, now);
    }
  }

  /// Whether the others go on without this rank, with --min-nproc or --nnodes MIN:MAX. They do not
  /// if the run is about to end, or if another rank hangs. The rank is started again if that is
  /// allowed and its work is not done. It is not if it follows another rank's failure: then its
  /// program does not use Elastic, or knows that the run cannot go on.
  bool goes_on_without(Rank& rank) {
    const bool all_lost = options_.min_nnodes == 0 && all_dead();
    const bool ends = terminated_ || terminate_at_ != kNever || all_lost;
    if (options_.least_ranks() == 0 || ends) return false;
    const auto [has_finished, group_timed_out] = launcher_.meeting_.membership_of(rank.result.rank);
    // The others survive a Timeout of this rank only if their groups have not timed out, too.
    if (rank.result.timed_out() && group_timed_out) return false;
    const auto ended_well = std::ranges::count_if(
        ranks_, [](const Rank& r) { return r.dead && r.result.wait_status == 0; });
    const comm::Failure failure = failure_of(rank.result);
    if (!launcher_.meeting_.lose(failure, options_.least_ranks() - static_cast<int>(ended_well))) {
      return false;
    }
    launcher_.meeting_.note(failure);  // programs without Elastic end when they read it
    const bool follows = rank.result.follows();
    const bool again =
        !follows && !has_finished && attempt_ + launcher_.replaced_ < options_.max_restarts;
    launcher_.say(detail::concat("rank ", rank.result.rank, ": ", describe(rank.result),
                                 follows ? "" : "; the others go on",
                                 again ? ", and it is started again" : ""));
    if (!again) {
      lost_.push_back(rank.result.local_rank);
      return true;
    }
    ++launcher_.replaced_;
    ::kill(-rank.result.pid, SIGKILL);
    collect(rank);
    const int local_rank = rank.result.local_rank;
    streams_.end(local_rank);
    see_lines(rank);
    read_black_box(rank.status->black_box(), rank.result);
    result_.replaced.push_back(std::move(rank.result));
    ++rank.starts;
    rank.result = {};
    rank.dead = false;
    start_rank(local_rank);
    return true;
  }

  static comm::Failure failure_of(const RankResult& rank) {
    return {.rank = rank.rank,
            .cause = rank.error ? rank.error->message : describe_end(rank.wait_status),
            .phase = rank.phase,
            .step = rank.step};
  }

  void see_lines(Rank& rank) const {
    rank.result.last_lines = streams_.last_lines(rank.result.local_rank);
  }

  static void see_phase(Rank& rank) {
    const Status last = rank.status->read();
    rank.result.phase = last.describe();
    rank.result.step = last.step;
  }

  void learn_why(Rank& rank) const {
    RankResult& result = rank.result;
    result.error = read_error_file(rank.error_file);
    if (!was_seen(result)) see_phase(rank);
    if (!result.error) return;
    if (!result.error->phase.empty()) result.phase = result.error->phase;
    if (result.error->step >= 0) result.step = result.error->step;
  }

  void see_failure(const RankResult& rank, Clock::time_point now) {
    if (result_.failures.empty() && rank.follows()) result_.failures = lost_;
    result_.failures.push_back(rank.local_rank);
    if (failed_at_ == kNever) {
      failed_at_ = now;
      for (Rank& other : ranks_) {
        if (!other.dead) see_survivor(other);
      }
    }
    end_soon(now);
    if (rank.follows() || noted_) return;
    noted_ = true;
    launcher_.meeting_.note(failure_of(rank));
    launcher_.meeting_.tell(end_by(rank));
  }

  /// Stores the state of a rank at the moment when another one fails: what it says and does after
  /// it is told to end does not count.
  void see_survivor(Rank& rank) const {
    see_phase(rank);
    see_lines(rank);
    read_black_box(rank.status->black_box(), rank.result);  // its memory: it frees that as it ends
    siginfo_t info = {};
    rank.result.stopped = ::waitid(P_PID, static_cast<id_t>(rank.result.pid), &info,
                                   WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
                          info.si_pid != 0;
  }

  bool was_seen(const RankResult& rank) const { return rank.told_to_end && failed_at_ != kNever; }

  const RankResult* earliest_failure() const {
    return result_.failures.empty() ? nullptr : &ranks_[result_.failures.front()].result;
  }

  void see_other_nodes(Clock::time_point now) {
    if (known_end_) return;
    for (const std::string& line : launcher_.meeting_.news()) launcher_.say(line);
    known_end_ = launcher_.meeting_.end();
    if (!known_end_ || known_end_->status == 0) return;
    result_.other_status = known_end_->status;
    result_.other_failure = known_end_->text;
    end_soon(now);
  }

  /// Called when no rank is left on this node: whether the attempt is over on all nodes.
  bool settled(Clock::time_point now) {
    if (options_.nnodes == 1 || known_end_) return true;
    if (settle_by_ == kNever) {
      settle_by_ = now + (options_.min_nnodes > 0 ? kOthersTrain : kOthersEnd);
      const RankResult* failure = earliest_failure();  // any follows one elsewhere
      launcher_.meeting_.tell(failure ? end_by(*failure) : Meeting::End{});
    }
    if (now < settle_by_) return false;
    launcher_.say("the other nodes have not ended; this one waits no longer");
    return true;
  }

  void see_signals() {
    while (const int signal = launcher_.signals_.next()) {
      if (signal == SIGCHLD) continue;  // see_deaths() checks in any case
      const Clock::time_point now = Clock::now();
      if (result_.signal != 0) {
        if (now - signal_at_ > kSignalPair) kill_at_ = now;
        continue;
      }
      see_deaths(now);
      result_.signal = signal;
      signal_at_ = now;
      signal_groups(signal);
      end_soon(now);
      launcher_.meeting_.tell(
          {128 + signal,
           detail::concat("signal ", signal, " to the weftrun of node ", options_.node_rank)});
    }
  }

  void end_soon(Clock::time_point now) {
    if (result_.failed_at_ns == 0) result_.failed_at_ns = steady_ns(now);
    if (terminated_ || terminate_at_ != kNever) return;
    terminate_at_ = now + options_.grace;
    kill_at_ = terminate_at_ + kKillAfterTerminate;
  }

  void terminate(Clock::time_point now) {
    see_deaths(now);
    signal_groups(SIGTERM);
    signal_groups(SIGCONT);  // a stopped process must run to receive it
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
      if (!rank.dead) rank.result.wait_status = SIGKILL;
      rank.result.told_to_end = rank.dead = rank.gone = true;
      launcher_.say(detail::concat("processes of rank ", rank.result.rank,
                                   " do not die: process group ", rank.result.pid));
    }
  }

  /// Reaps the dead processes of its group and checks whether any are left. Processes that the rank
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

  /// Ends the processes that have left their rank's group and lost their parent. Their children
  /// become strays in turn, and are ended after them.
  void end_strays() {
    if (!launcher_.adopts_ || strays_ended_) return;
    strays_ended_ = true;
    kill_at_ = kNever;  // that time was for the groups
    const bool end =
        end_strays(SIGTERM, Launcher::kKillAfterTerminate) || end_strays(SIGKILL, kGiveUpAfterKill);
    if (!end) launcher_.say("processes that have left their rank's process group do not die");
  }

  /// Sends the signal to all strays; returns whether none is left in time. A second signal ends the
  /// wait.
  bool end_strays(int signal, milliseconds within) {
    std::set<pid_t> told;
    const Clock::time_point until = Clock::now() + within;
    for (;;) {
      const std::vector<pid_t> left = strays();
      if (left.empty()) return true;
      const Clock::time_point now = Clock::now();
      if (now >= until || (signal != SIGKILL && now >= kill_at_)) return false;
      for (const pid_t stray : left) {
        if (!told.insert(stray).second) continue;
        ::kill(stray, signal);
        ::kill(stray, SIGCONT);
      }
      pollfd event{launcher_.signals_.fd(), POLLIN, 0};
      ::poll(&event, 1, static_cast<int>(kLook.count()));
      see_signals();
    }
  }

  std::vector<pid_t> strays() const {
    std::vector<pid_t> found = other_children(launcher_.guardian_.pid());
    std::erase_if(found, [&](pid_t pid) {  // in a group that does not die
      return std::ranges::find(ranks_, ::getpgid(pid),
                               [](const Rank& r) { return r.result.pid; }) != ranks_.end();
    });
    return found;
  }

  Launcher& launcher_;
  const Options& options_;
  const Place place_;
  const int attempt_;
  std::vector<Rank> ranks_;
  Streams streams_;
  AttemptResult result_;
  std::vector<int> lost_;  ///< local ranks without which the others go on
  std::optional<Meeting::End> known_end_;
  bool noted_ = false, terminated_ = false, strays_ended_ = false;
  Clock::time_point failed_at_ = kNever, signal_at_ = kNever;
  Clock::time_point terminate_at_ = kNever, kill_at_ = kNever, give_up_at_ = kNever;
  Clock::time_point settle_by_ = kNever;
};

Launcher::Launcher(const Options& options)
    : options_(options),
      files_(ranks_as_text(options.nproc),
             descriptors_of(options, options.nproc) + kFewDescriptors),
      adopts_(adopts_strays_alone()),
      screen_(STDOUT_FILENO, STDERR_FILENO),
      meeting_(options) {
  program_.file_limit = files_.before();
  program_.arguments = options.command;
  if (options.command.front().ends_with(".py") && !options.no_python) {
    program_.arguments.insert(program_.arguments.begin(), "python3");
  }
  program_.path = find_program(program_.arguments.front());
}

AttemptResult Launcher::run(int attempt) {
  meeting_.open(attempt);
  const Place place = signals_.unblocked([&] {
    return meeting_.join([this](const std::string& line) {
      say(line);
      screen_.write_all();
    });
  });
  meeting_.watch();
  world_size_ = place.world_size;
  if (options_.nnodes > 1) {  // the number of ranks on other nodes is known only now
    comm::check_descriptors("weftrun", ranks_as_text(world_size_),
                            descriptors_of(options_, world_size_));
  }
  AttemptResult result = Attempt(*this, place, attempt).run();
  signalled_ = result.signal != 0;
  return result;
}

void Launcher::say(const std::string& text) {
  screen_.line(StandardStream::err, "weftrun: " + text);
}

void Launcher::say_last(const std::string& lines) {
  if (!lines.empty()) screen_.line(StandardStream::err, lines);
  signals_.unblocked([&] {
    if (!signalled_) return screen_.write_all();
    if (const std::size_t lost = screen_.write_for(kLastWords)) {
      say(detail::concat("nobody reads what the ranks have said: ", lost, " bytes are lost"));
      screen_.write_for(kLastWords);
    }
  });
}

void Launcher::check_stdout() const {
  const int error = screen_.error(StandardStream::out);
  WEFT_CHECK(error == 0, Io, "stdout",
             "some of the output is lost: ", std::generic_category().message(error));
}

}  // namespace weft::launch

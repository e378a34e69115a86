// Where the standard streams of ranks go: to weftrun's own, to files, or both.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/launch/options.h"
#include "weft/launch/output.h"
#include "weft/launch/process.h"

namespace weft::launch {

/// Of --log-dir, for all attempts of a run.
class LogFolder {
 public:
  explicit LogFolder(const Options& options) : options_(options) {}

  /// "FOLDER/attempt_0/1/stderr.log", as torchrun's. Makes the folder, at the first call
  /// LOG_DIR/RUN_ID_abcdef, too. Throws Io.
  std::string file(int attempt, int local_rank, StandardStream stream);
  /// Empty until there is one.
  const std::string& path() const { return path_; }

 private:
  const Options& options_;
  std::string path_;
};

/// What is typed at weftrun's terminal, on its way to a rank: whoever is in a process group of its
/// own may not read from there.
class Keyboard {
 public:
  explicit Keyboard(Descriptor to);

  pollfd waits_for() const;
  /// To be called when that is ready.
  void pass_on();

 private:
  Descriptor to_;
  std::string typed_;
};

/// The streams of all ranks of an attempt. Nothing waits but poll() outside, and finish() for what
/// lies in pipes already.
class Streams {
 public:
  using Clock = LineMerger::Clock;

  Streams(const Options& options, int first_rank, int attempt, Screen& screen, LogFolder& logs);

  /// Sets `program`'s streams. What is returned is to be closed when it has been started.
  std::array<Descriptor, 3> connect(int local_rank, Program& program);

  /// Appends what is to be polled now, which serve() is then given.
  void add_to(std::vector<pollfd>& polled);
  void serve(std::span<const pollfd> polled);
  /// Shows the lines whose time has come, and when the next one's is.
  void show_due(Clock::time_point now) { merger_.show_due(now); }
  std::optional<Clock::time_point> next_due() const { return merger_.next_due(); }

  /// When all ranks have ended: shows what lies in the pipes still. A process that has left its
  /// group may hold one open.
  void finish();
  /// Of the rank's stderr, after finish(); none where it is weftrun's own.
  std::deque<std::string> last_lines(int local_rank) const;

 private:
  struct Source {
    Descriptor fd;  ///< none: the stream is weftrun's own, goes to a file, or has ended
    Descriptor log;
    LineSplitter lines;
  };
  struct Rank {
    int local_rank;
    Source sources[2];
    std::string stderr_file;  ///< where it goes there alone
    std::deque<std::string> last_lines;
  };

  int connect_input(int local_rank, Descriptor& end);
  int connect_output(Rank& rank, StandardStream stream, Descriptor& end);
  bool read(Rank& rank, StandardStream stream);
  void take_line(Rank& rank, StandardStream stream, std::string line);
  void end(Rank& rank, StandardStream stream);

  const Options& options_;
  const int first_rank_, attempt_;
  Screen& screen_;
  LogFolder& logs_;
  std::vector<Rank> ranks_;
  LineMerger merger_;
  std::optional<Keyboard> keyboard_;
  std::vector<std::pair<Rank*, StandardStream>> polled_sources_;
};

}  // namespace weft::launch

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

/// The folder of --log-dir, for all attempts of a run.
class LogFolder {
 public:
  explicit LogFolder(const Options& options) : options_(options) {}

  /// "FOLDER/attempt_0/1/stderr.log", as in torchrun. Makes the folder and, at the first call,
  /// LOG_DIR/RUN_ID_abcdef. Throws Io.
  std::string file(int attempt, int local_rank, StandardStream stream);
  /// Empty before the first call of file().
  const std::string& path() const { return path_; }

 private:
  const Options& options_;
  std::string path_;
};

/// Passes what is typed at weftrun's terminal to a rank, which may not read there itself: it is in
/// a process group of its own.
class Keyboard {
 public:
  explicit Keyboard(Descriptor to);

  pollfd waits_for() const;
  /// To be called when the terminal is ready.
  void pass_on();

 private:
  Descriptor to_;
  std::string typed_;
};

/// The streams of all ranks of an attempt. Nothing here waits: poll() outside does, and finish()
/// for the data that is still in pipes.
class Streams {
 public:
  using Clock = LineMerger::Clock;

  Streams(const Options& options, int first_rank, int attempt, Screen& screen, LogFolder& logs);

  /// Sets `program`'s streams. The returned descriptors are to be closed after its start. For a
  /// rank that is started again, after end(): its logs go on.
  std::array<Descriptor, 3> connect(int local_rank, Program& program);

  /// Appends the descriptors to be polled now, for serve().
  void add_to(std::vector<pollfd>& polled);
  void serve(std::span<const pollfd> polled);
  /// Shows the lines that are due, and says when the next one is.
  void show_due(Clock::time_point now) { merger_.show_due(now); }
  std::optional<Clock::time_point> next_due() const { return merger_.next_due(); }

  /// To be called when this rank has ended and is started again, as finish() for it.
  void end(int local_rank);
  /// To be called when all ranks have ended: shows what is still in the pipes. A process that has
  /// left its group may hold one open.
  void finish();
  /// The last lines of the rank's stderr, after end() or finish(); none if that is weftrun's own.
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
    std::string stderr_file;  ///< the file, if stderr goes only there
    std::deque<std::string> last_lines;
    bool again = false;  ///< another process has had it before
  };

  int connect_input(int local_rank, Descriptor& end);
  int connect_output(Rank& rank, StandardStream stream, Descriptor& end);
  void drain(Rank& rank);
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

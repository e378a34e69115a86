// What ranks print, on its way to weftrun's own stdout and stderr: in whole lines, and a line that
// several ranks print only once.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/launch/options.h"

namespace weft::launch {

/// Cuts a stream of bytes into lines. If a line is drawn over with carriage returns, as progress
/// bars do, only the last drawing counts.
class LineSplitter {
 public:
  /// Longer lines are cut.
  static constexpr std::size_t kMostLineBytes = 64 << 10;

  /// The lines that `bytes` complete, without their ends.
  std::vector<std::string> add(std::string_view bytes);
  /// The text of the last line, which has no end yet.
  std::string open() const;
  /// The last line, if it has no end and is not empty.
  std::optional<std::string> finish();

 private:
  std::string begun_;
};

/// Merges equal lines of several ranks. Each line waits a short time for other ranks to print the
/// same, and is shown once, with the ranks in front: "[0-2,5] epoch 1". The lines of one stream of
/// a rank stay in order; lines of several ranks that differ only in numbers are put next to each
/// other. With a single rank, lines are shown at once and unchanged.
class LineMerger {
 public:
  using Clock = std::chrono::steady_clock;
  using Show = std::function<void(StandardStream stream, const std::string& line)>;

  /// For ranks `first_rank` and so on. shown[local_rank] says whether the rank's lines come here.
  LineMerger(int first_rank, std::vector<bool> shown, std::chrono::milliseconds window, Show show);

  void add(int local_rank, StandardStream stream, std::string text, Clock::time_point now);
  /// To be called after end() if the rank is started again and its lines come here.
  void begin(int local_rank, StandardStream stream);
  /// The rank will print no more on this stream.
  void end(int local_rank, StandardStream stream);
  /// Shows the lines that have waited long enough by `now`.
  void show_due(Clock::time_point now);
  /// When the next line must be shown.
  std::optional<Clock::time_point> next_due() const;
  void show_all() { show_due(Clock::time_point::max()); }

 private:
  struct Line {
    StandardStream stream;
    std::string text;
    std::vector<bool> ranks;  ///< that have printed it
    Clock::time_point due;
  };
  bool complete(const Line& line) const;
  std::string prefix(const Line& line) const;

  using Lasts = std::vector<std::optional<std::list<Line>::iterator>>;

  int first_rank_;
  std::list<Line> waiting_;  ///< in the order in which they are due
  std::size_t waiting_bytes_ = 0;
  std::vector<bool> shown_, open_[2];  ///< open_, by stream: ranks that may still print
  Lasts last_[2];                      ///< by stream: each rank's last line, if it still waits
  bool alone_;
  std::chrono::milliseconds window_;
  Show show_;
};

/// weftrun's stdout and stderr. Writing never waits: what cannot be written yet is kept, in order,
/// until write_some() is called. A terminal may have one live line without an end below the others.
class Screen {
 public:
  Screen(int out, int err);

  void line(StandardStream stream, std::string_view text);
  /// Replaces the live line below the others; does nothing unless `stream` is a terminal.
  void live(StandardStream stream, std::string_view text);
  bool is_terminal(StandardStream stream) const {
    return sinks_[static_cast<int>(stream)].terminal;
  }
  /// Whether the stream loses further output, because nobody reads it or a disk is full.
  bool broken(StandardStream stream) const { return error(stream) != 0; }
  /// The reason as errno; 0 if it is not broken.
  int error(StandardStream stream) const { return sinks_[static_cast<int>(stream)].error; }

  /// Whether too much is kept: no more should then be read from the ranks.
  bool full() const;
  /// The descriptor that must become writable for write_some(); -1: all is written.
  int waits_for() const;
  void write_some();
  /// Writes everything, and waits as long as that takes.
  void write_all();
  /// Writes, but waits at most `time` for each stream, which then counts as broken. Returns how
  /// many bytes could not be written.
  std::size_t write_for(std::chrono::milliseconds time);

 private:
  struct Sink {
    int fd;
    bool terminal;
    int error = 0;
  };
  struct Chunk {
    StandardStream stream;
    std::string bytes;
  };
  void put(StandardStream stream, std::string_view bytes);
  /// Drops what is kept for the stream. Returns the number of bytes.
  std::size_t give_up(StandardStream stream, int error);
  std::size_t write_front();

  Sink sinks_[2];
  std::deque<Chunk> chunks_;
  std::size_t kept_bytes_ = 0;
  std::string live_;
  StandardStream live_stream_ = StandardStream::err;
};

}  // namespace weft::launch

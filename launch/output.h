// What ranks print, on its way to weftrun's own stdout and stderr: whole lines, the same line of
// several ranks once.
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

/// Cuts a stream of bytes into lines. Of a line that was drawn over with carriage returns, as
/// progress bars are, what was drawn last counts.
class LineSplitter {
 public:
  /// Longer ones are cut.
  static constexpr std::size_t kMostLineBytes = 64 << 10;

  /// The lines that `bytes` complete, without their ends.
  std::vector<std::string> add(std::string_view bytes);
  /// What stands in the last line, which has no end yet.
  std::string open() const;
  /// The last line, where it has no end and something stands in it.
  std::optional<std::string> finish();

 private:
  std::string begun_;
};

/// Waits a moment with each line for the other ranks to say the same, and shows it once, with the
/// ranks in front: "[0-2,5] epoch 1". The lines of one stream of a rank stay in order; those of
/// several that differ in numbers alone are put side by side. Of a single rank lines are shown at
/// once, as they are.
class LineMerger {
 public:
  using Clock = std::chrono::steady_clock;
  using Show = std::function<void(StandardStream stream, const std::string& line)>;

  /// For ranks `first_rank` and so on, of which shown[local_rank] says whether their lines come
  /// here.
  LineMerger(int first_rank, std::vector<bool> shown, std::chrono::milliseconds window, Show show);

  void add(int local_rank, StandardStream stream, std::string text, Clock::time_point now);
  /// The rank will say no more there.
  void end(int local_rank, StandardStream stream);
  /// Shows what has waited for long enough by `now`.
  void show_due(Clock::time_point now);
  /// When that will be.
  std::optional<Clock::time_point> next_due() const;
  void show_all() { show_due(Clock::time_point::max()); }

 private:
  struct Line {
    StandardStream stream;
    std::string text;
    std::vector<bool> ranks;  ///< who said it
    Clock::time_point due;
  };
  bool complete(const Line& line) const;
  std::string prefix(const Line& line) const;

  using Lasts = std::vector<std::optional<std::list<Line>::iterator>>;

  int first_rank_;
  std::list<Line> waiting_;  ///< due one after the other
  std::size_t waiting_bytes_ = 0;
  std::vector<bool> open_[2];  ///< by stream: who may still say something
  Lasts last_[2];              ///< by stream: what a rank said last, if it still waits
  bool alone_;
  std::chrono::milliseconds window_;
  Show show_;
};

/// weftrun's stdout and stderr. Writing never waits: what cannot be written yet is kept, in order,
/// until write_some() is called. On a terminal one line without an end may stand below the others.
class Screen {
 public:
  Screen(int out, int err);

  void line(StandardStream stream, std::string_view text);
  /// The line below the others, in place of the last such one; only where `stream` is a terminal.
  void live(StandardStream stream, std::string_view text);
  bool is_terminal(StandardStream stream) const {
    return sinks_[static_cast<int>(stream)].terminal;
  }
  /// What it takes no more is lost: nobody reads it, or a disk is full.
  bool broken(StandardStream stream) const { return error(stream) != 0; }
  /// Why: errno; 0: it is not broken.
  int error(StandardStream stream) const { return sinks_[static_cast<int>(stream)].error; }

  /// More than should be kept: read no more from the ranks.
  bool full() const;
  /// Which descriptor must become writable for write_some(); -1: all is written.
  int waits_for() const;
  void write_some();
  /// Waits as long as it takes.
  void write_all();
  /// Waits for each stream for so long at most, and then takes it for broken. How many bytes could
  /// not be written.
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
  /// Drops what is kept for it. Returns how many bytes.
  std::size_t give_up(StandardStream stream, int error);
  std::size_t write_front();

  Sink sinks_[2];
  std::deque<Chunk> chunks_;
  std::size_t kept_bytes_ = 0;
  std::string live_;
  StandardStream live_stream_ = StandardStream::err;
};

}  // namespace weft::launch

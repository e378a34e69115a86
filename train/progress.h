// A progress bar on a terminal, a few plain lines anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "weft/core/base/compiler.h"

namespace weft::train {

class Progress {
 public:
  /// Draws a bar on `out` if `terminal`; otherwise writes a line after each tenth of the steps. The
  /// bar fits into `columns`; 0: the terminal's.
  Progress(std::FILE* out, bool terminal, int columns = 0)
      : out_(out), terminal_(terminal), columns_(columns) {}
  /// Shows progress on stderr.
  Progress();
  /// Shows nothing: in a run of several ranks only one shows progress.
  static Progress none() { return Progress(nullptr, false); }

  /// Begins `total` steps, of which `done` are done already. line_every: prints a lasting line with
  /// the time so far after this number of steps; 0: none on a terminal, else one per tenth. unit:
  /// what is counted per second.
  void start(const std::string& title, std::int64_t total, std::int64_t done,
             std::int64_t line_every = 0, const std::string& unit = "images");
  /// Whether update() would show something now; asking is cheap.
  bool due(std::int64_t done) const;
  void update(std::int64_t done, double loss, double per_second);
  /// Ends the bar with a lasting line.
  void finish(std::int64_t done, double loss, double per_second, double seconds);
  /// Ends the line of a bar that stays incomplete.
  void abandon();

 private:
  using Clock = std::chrono::steady_clock;
  // A part of a line. If the line gets too long, high ranks are left out first; rank 0 never.
  struct Field {
    std::string text;
    int rank;
  };
  /// The fields of ranks 0 to `rank`, each after two spaces.
  static std::string joined(std::span<const Field> fields, int rank) {
    std::string line;
    for (const Field& field : fields) {
      if (field.rank <= rank) line += "  " + field.text;
    }
    return line;
  }
  std::string fitted(std::span<const Field> fields, double part) const;

  bool line_due(std::int64_t done) const { return line_every_ > 0 && done % line_every_ == 0; }
  int width() const;
  std::string bar(double part, int width) const;

  std::FILE* out_;
  bool terminal_;
  int columns_;
  std::string title_, unit_;
  std::int64_t total_ = 0;
  std::int64_t first_ = 0;
  std::int64_t line_every_ = 0;
  Clock::time_point start_;
  Clock::time_point shown_;
  std::int64_t shown_tenth_ = 0;
  bool open_ = false;
};

/// "0:00:42"
std::string format_duration(double seconds);

}  // namespace weft::train

// The folder for the files of a run.
#pragma once

#include <string>

#include "weft/train/metrics.h"
#include "weft/train/options.h"
#include "weft/train/ranks.h"

namespace weft::train {

class Output {
 public:
  /// On rank 0, makes the folder, and locks it as long as this lives; the lock leaves no file.
  /// Throws Io if nothing can be written there, or to options.trace; warns if another run, in this
  /// process or another, writes there, too. `options` and `ranks` must outlive this.
  Output(const Options& options, const Ranks& ranks);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  /// OUT/name
  std::string path(const std::string& name) const;
  /// Whether no other run writes to the folder now, as far as rank 0 can know.
  bool is_alone() const;
  /// Adds the program's own figures to metrics.json.
  void note(const TestFigures& figures);
  /// Writes OUT/metrics.json and OUT/loss.svg, and prints their paths, and the memory of several
  /// ranks. `run` has the losses, the epochs, the tests, the optimiser, the memory and the time of
  /// a step; the rest is filled in here.
  void write(Metrics run) const;

 private:
  const Options& options_;
  const Ranks& ranks_;
  TestFigures notes_;
  int fd_ = -1;  // of the folder
};

}  // namespace weft::train

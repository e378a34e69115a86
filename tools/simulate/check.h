// Compares predictions with what a run measured.
#pragma once

#include <string>
#include <vector>

#include "weft/tools/simulate/prediction_file.h"

namespace weft::simulator {

/// A measured step.
struct Measured {
  std::string what;     ///< the name that the run gives it
  std::string program;  ///< "" if the run does not say it
  Way way;              ///< engine empty: not predicted
  double seconds = 0;
};

/// Reads a file that `./weft bench devices`, `./weft bench ddp`, p4_table or an example program
/// wrote, or the folder in which it has its usual name. Throws Io for other files.
std::vector<Measured> read_run(const std::string& path);

/// The relative error that a prediction may have.
inline constexpr double kTolerance = 0.15;

struct Check {
  std::string text;  ///< a row for each measured step
  int matched = 0;
  int off = 0;  ///< how many of them are off by more than kTolerance
  bool good() const { return matched > 0 && off == 0; }
};
Check check(const PredictionFile& file, const std::vector<Measured>& run);

}  // namespace weft::simulator

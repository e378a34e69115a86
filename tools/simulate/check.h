// Predictions beside what a run measured.
#pragma once

#include <string>
#include <vector>

#include "weft/tools/simulate/prediction_file.h"

namespace weft::simulator {

/// A measured step.
struct Measured {
  std::string what;     ///< as the run calls it
  std::string program;  ///< "" where it does not say
  Way way;              ///< without an engine: none that is predicted
  double seconds = 0;
};

/// Of a file that `./weft bench devices`, `./weft bench ddp`, p4_table or an example program wrote,
/// or of the folder it lies in under its usual name. Throws Io for others.
std::vector<Measured> read_run(const std::string& path);

/// What a prediction may be off by.
inline constexpr double kTolerance = 0.15;

struct Check {
  std::string text;  ///< a row for each measured step
  int matched = 0;
  int off = 0;  ///< of those, by more than kTolerance
  bool good() const { return matched > 0 && off == 0; }
};
Check check(const PredictionFile& file, const std::vector<Measured>& run);

}  // namespace weft::simulator

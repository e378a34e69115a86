// F.json: what was measured of layers and links, and what was predicted from it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/tools/simulate/cost_model.h"

namespace weft::simulator {

struct PredictionFile {
  /// Processor, cores, load, commit ("machine") and when it was measured, in UTC and in seconds
  /// since 1970 ("date", "time").
  nlohmann::json about = nlohmann::json::object();
  Costs costs;
  std::vector<Prediction> predictions;
};

/// A member in a line, and each prediction in one of its own.
std::string to_text(const PredictionFile& file);
/// What to_text() wrote. Throws Io for what cannot be read or is none.
PredictionFile read_predictions(const std::string& path);

}  // namespace weft::simulator

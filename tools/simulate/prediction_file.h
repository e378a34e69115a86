// F.json: the measured costs of layers and links, and the predictions from them.
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

/// One line per member, and one per prediction.
std::string to_text(const PredictionFile& file);
/// Reads the text of to_text(). Throws Io if it cannot be read or is something else.
PredictionFile read_predictions(const std::string& path);

}  // namespace weft::simulator

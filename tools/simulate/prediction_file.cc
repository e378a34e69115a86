#include "weft/tools/simulate/prediction_file.h"

#include <utility>

#include "weft/benchmarks/sides.h"
#include "weft/core/base/error.h"
#include "weft/tools/json_file.h"

namespace weft::simulator {

using nlohmann::json;

// Lets nlohmann convert these members by their names.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Curve, points)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, latency, bytes_per_second)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerCost, name, forward, backward_input, backward_weight,
                                   output_bytes, parameter_bytes, parameter_rows, parameter_is_cut,
                                   sums_forward, sums_backward, sum_bytes, own_unit, kept)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Costs, program, devices, layers, loss, input_bytes, target_bytes,
                                   optimizer, slowdown, optimizer_slowdown, further_forward,
                                   further_backward, cut_forward, cut_backward, loss_sums,
                                   undivided, add_per_byte, scale_per_byte, copy, handoff,
                                   all_reduce, sum, broadcast, all_reduce_computes, state_copies,
                                   step_bytes, further_bytes, first_part)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryUse, peak, most)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Term, name, seconds, how)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Way, engine, batch, devices, schedule, checkpoint, chunks)

std::string to_text(const PredictionFile& file) {
  json all = file.about;
  all["kind"] = "prediction";
  all["unit"] = "seconds";
  all["costs"] = file.costs;
  all["predictions"] = json::array();
  for (const Prediction& each : file.predictions) {
    json row = each.way;
    row["step_ms"] = each.seconds() * 1e3;
    row["terms"] = each.terms;
    row["memory"] = each.memory;
    all["predictions"].push_back(std::move(row));
  }
  return bench::to_text(all);
}

PredictionFile read_predictions(const std::string& path) {
  PredictionFile file =
      tools::read_json(path, "simulate", "nothing that --predict wrote", [](json all) {
        PredictionFile read;
        const json& costs = all.at("costs");
        try {
          costs.get_to(read.costs);
        } catch (const json::out_of_range& error) {
          WEFT_THROW(Io, "simulate", "a prediction of another version: ", tools::fault_of(error),
                     "; make it anew with --predict");
        }
        for (const json& row : all.at("predictions")) {
          read.predictions.push_back({row.get<Way>(), row.at("terms").get<std::vector<Term>>(),
                                      row.at("memory").get<MemoryUse>()});
        }
        read.about = std::move(all);
        return read;
      });
  for (const char* own : {"costs", "predictions", "kind", "unit"}) file.about.erase(own);
  return file;
}

}  // namespace weft::simulator

// Costs in round numbers, for calculations by hand.
#pragma once

#include "weft/tools/simulate/cost_model.h"

namespace weft::simulator {

inline Costs round_costs() {
  const auto line = &Curve::affine;
  Costs costs{.program = "autoencoder", .devices = 2};
  costs.layers = {{.name = "A",
                   .forward = line(1, 0.5),
                   .backward_input = line(0, 0),
                   .backward_weight = line(1, 0.5),
                   .output_bytes = 4,
                   .parameter_bytes = {8}},
                  {.name = "B",
                   .forward = line(2, 0.25),
                   .backward_input = line(1, 0.5),
                   .backward_weight = line(0, 0.25),
                   .output_bytes = 2,
                   .parameter_bytes = {12, 4}}};
  costs.loss = line(0, 0.125);
  costs.input_bytes = 4;
  costs.target_bytes = 2;
  costs.optimizer = line(3, 0);
  costs.slowdown = line(1.5, 0);
  costs.optimizer_slowdown = line(1.25, 0);
  costs.further_forward = line(1, 0);
  costs.further_backward = line(2, 0);
  costs.undivided = line(5, 1);
  costs.add_per_byte = 0.01;
  costs.scale_per_byte = 0.005;
  costs.copy = {0.1, 100};
  costs.handoff = 0.25;
  costs.all_reduce = {0.5, 10};
  costs.sum = {0.25, 5};
  costs.broadcast = {0.75, 20};
  costs.first_part = 1;
  return costs;
}

}  // namespace weft::simulator

// Measures the time of layers and steps of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "weft/autograd/deferred.h"
#include "weft/tools/simulate/median.h"
#include "weft/tools/simulate/programs.h"

namespace weft::simulator {

/// Measured seconds, one entry per run.
using Times = std::vector<double>;

/// Measures the layers one by one for one number of rows, each with inputs and outputs of its own,
/// on the device of the program's layers. The calling thread must be the only one of its team,
/// because its computing time is measured.
class LayerTimes {
 public:
  LayerTimes(const Program& program, std::int64_t rows);

  /// Runs forward of all layers, then backward of all, so that each layer finds in the caches what
  /// it finds in a step.
  void pass();
  void forget();

  double forward(std::size_t layer) const { return median(layers_[layer].forward); }
  double backward_input(std::size_t layer) const { return median(layers_[layer].input); }
  double backward_weight(std::size_t layer) const { return median(layers_[layer].weight); }
  /// Forward plus backward of each layer.
  std::vector<double> seconds() const;
  /// Forward plus backward.
  double loss() const { return median(loss_); }

 private:
  struct OfLayer {
    Times forward, input, weight;
  };
  const Program& program_;
  std::pair<Tensor, Tensor> batch_;
  std::vector<autograd::DeferredGradients::Leaves> leaves_;
  std::vector<OfLayer> layers_;
  Times loss_;
};

struct StepTimes {
  Times forward, backward, optimizer;  ///< backward includes the loss
  /// For the second and later micro-batches of a step.
  Times further_forward, further_backward;
};

/// A copy of layers [begin, end) of the model, or of all layers, with their optimiser, on a device.
/// Measured like LayerTimes.
class StepOf {
 public:
  StepOf(const Program& program, Device device, std::size_t begin, std::size_t end);
  StepOf(const Program& program, Device device);

  /// An input, and the targets or, if more layers follow, the gradients of the output.
  std::pair<Tensor, Tensor> batch(std::int64_t rows) const;
  /// A training step of `micro_batches` micro-batches, each equal to `batch`.
  void run(const std::pair<Tensor, Tensor>& batch, StepTimes& into, int micro_batches = 1);
  /// Forgets the gradients, as the next run does at first.
  void clear() {
    if (optimizer_) optimizer_->zero_grad();
  }

 private:
  bool is_first() const { return begin_ == 0; }
  bool is_last() const { return end_ == program_->layers.size(); }

  const Program* program_;
  Device device_;
  std::size_t begin_, end_;
  nn::Sequential model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

/// Bytes that steps need on the program's device.
struct StepMemory {
  double parameters = 0, state = 0;  ///< of the optimiser
  double plain = 0, further = 0;     ///< Costs::step_bytes, further_bytes
  std::vector<double> kept{};        ///< LayerCost::kept
};
StepMemory memory_of_steps(const Program& program, std::int64_t rows);

}  // namespace weft::simulator

// Layers and steps of a program, timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "weft/autograd/deferred.h"
#include "weft/tools/simulate/programs.h"

namespace weft::simulator {

/// Seconds, each of one time.
using Times = std::vector<double>;

/// The one in the middle, as what predictions are held against are medians; of two the lower one.
/// Throws InvalidArgument for none.
double median(Times times);

/// The layers one by one, each with inputs and outputs of its own, for one number of rows; on the
/// device of the program's layers, by the calling thread, which must be the only one of its team:
/// its computing time counts.
class LayerTimes {
 public:
  LayerTimes(const Program& program, std::int64_t rows);

  /// Forward of all, then backward of all: each finds in the caches what it would find in a step.
  void pass();
  void forget();

  double forward(std::size_t layer) const { return median(layers_[layer].forward); }
  double backward_input(std::size_t layer) const { return median(layers_[layer].input); }
  double backward_weight(std::size_t layer) const { return median(layers_[layer].weight); }
  /// Both ways, of each layer.
  std::vector<double> seconds() const;
  /// Both ways.
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
  Times forward, backward, optimizer;  ///< the loss is in backward
  /// Of the step's micro-batches behind the first one.
  Times further_forward, further_backward;
};

/// A copy of layers [begin, end) of the model, or of all, with their optimiser, on a device; timed
/// as LayerTimes.
class StepOf {
 public:
  StepOf(const Program& program, Device device, std::size_t begin, std::size_t end);
  StepOf(const Program& program, Device device);

  /// What goes in, and the targets; where more layers follow, gradients of what comes out.
  std::pair<Tensor, Tensor> batch(std::int64_t rows) const;
  /// A training step, of so many micro-batches that are all `batch`.
  void run(const std::pair<Tensor, Tensor>& batch, StepTimes& into, int micro_batches = 1);

 private:
  bool is_first() const { return begin_ == 0; }
  bool is_last() const { return end_ == program_->layers.size(); }

  const Program* program_;
  Device device_;
  std::size_t begin_, end_;
  nn::Sequential model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

}  // namespace weft::simulator

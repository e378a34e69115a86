// The exponential moving average of a model's parameters, for evaluation.
//
//   nn::ExponentialMovingAverage ema(model, 0.999);
//   for (...) { sgd.step(); ema.update(); }
//   ema.apply();      // the model computes with the averages
//   evaluate(model);
//   ema.restore();    // and goes on training with its own values
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

/// Averages of a model's parameters. They start as copies of the parameters. Buffers (running
/// statistics) are copied, not averaged. The object keeps the model's tensors alive, so the model's
/// handle may be destroyed.
class ExponentialMovingAverage {
 public:
  /// Throws InvalidArgument for a decay outside [0, 1].
  ExponentialMovingAverage(const ModuleBase& model, double decay);

  /// average = decay average + (1 - decay) parameter; buffers are copied. Throws InvalidArgument
  /// between apply() and restore(), and Device if the model was moved since.
  void update();
  /// Gives the model the averages, and keeps its own values for restore(). Throws InvalidArgument
  /// when the model has the averages already.
  void apply();
  /// Gives the model its own values back. Throws InvalidArgument without an apply() before.
  void restore();

  /// The averages under the names of the model's state_dict(), to save or to load into another
  /// model. They share memory with this object.
  NamedTensors state_dict() const;
  /// Copies averages in. Throws InvalidArgument for other names or shapes, before anything is
  /// changed.
  void load_state_dict(const NamedTensors& values);

 private:
  struct Entry {
    Tensor value, average, kept;
    bool is_buffer;
  };

  std::vector<Entry> entries_;
  // As in the model's state_dict(); a tensor registered twice has two names.
  std::vector<std::pair<std::string, std::size_t>> names_;
  double decay_;
  bool applied_ = false;
};

}  // namespace weft::nn

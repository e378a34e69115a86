// The exponential moving average of a model, to evaluate with.
//
//   nn::ExponentialMovingAverage ema(model, 0.999);
//   for (...) { sgd.step(); ema.update(); }
//   ema.apply();      // the model computes with the averages
//   evaluate(model);
//   ema.restore();    // and goes on training with its own values
#pragma once

#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

/// Averages of a model's parameters, which start as copies of them; buffers (running statistics)
/// are copied. Refers to the model's tensors, whatever becomes of the handle.
class ExponentialMovingAverage {
 public:
  /// Throws InvalidArgument for a decay outside [0, 1].
  ExponentialMovingAverage(const ModuleBase& model, double decay);

  /// average = decay average + (1 - decay) value. Throws InvalidArgument between apply and restore.
  void update();
  /// Gives the model the averages, and keeps its own values for restore(). Throws InvalidArgument
  /// when it has them already.
  void apply();
  /// Throws InvalidArgument without an apply() before.
  void restore();

  /// The averages under the names of the model's state_dict(), sharing memory: to save, or to load
  /// into another model.
  NamedTensors state_dict() const;
  /// Copies averages in. Throws InvalidArgument for other names or shapes, before anything is
  /// changed.
  void load_state_dict(const NamedTensors& values);

 private:
  struct Entry {
    std::string name;
    Tensor value, average, kept;
    bool is_buffer;
  };

  std::vector<Entry> entries_;
  double decay_;
  bool applied_ = false;
};

}  // namespace weft::nn

// Which gradients grad() returns, and what has to be computed for them. Private to autograd/.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "weft/autograd/discovery.h"
#include "weft/autograd/task_streams.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// The gradients of grad()'s inputs. backward() has none.
class Captures {
 public:
  /// Marks the tasks whose gradients are those of `inputs`, and as not wanted all tasks from which
  /// none of these is reached. Throws InvalidArgument as grad().
  void choose(Discovery& found, std::span<const Tensor> inputs, bool allow_unused);
  /// Keeps the gradients of a marked task.
  void keep(std::int32_t task, std::span<const Tensor> gradients);
  /// To be called when all are made: the thread that called grad() may read them in its streams.
  void hand_over(const Discovery& found, const TaskStreams& streams);
  /// In the order of the inputs.
  std::vector<Tensor> take() { return std::move(results_); }
  void clear();

 private:
  struct Capture {
    std::int32_t task;
    std::int32_t output;
    std::int32_t input;
  };
  void prune(Discovery& found);

  std::vector<Capture> captures_;
  std::vector<Tensor> results_;
  std::vector<std::int32_t> order_, waits_for_;  // of prune()
};

}  // namespace weft::autograd
